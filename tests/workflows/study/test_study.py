from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest
from dcs.selection.cross_validation import Folds, Threads

from dcs.data.columns import to_shares
from dcs.data.table import ProbabilityTable
from dcs.methods.parameters import STANDARD_SCHEDULE, Hyperparameters
from dcs.selection.methods import get_method
from dcs_workflows.config.tuner import TunerSettings
from dcs_workflows.study.space import SearchSpace
from dcs_workflows.study.study import StoredStudy, Tuned, Tuning, open_storage, study_scheme
from tests.dcs.solutions import setting_of

SETTINGS = TunerSettings(trials=42, space={"weight_scale": [10, 40]})
KNOBS = (
    "weight_scale",
    "beta",
    "tau",
    "initial_temperature",
    "final_temperature",
    "cooling_rate",
    "lambda1",
    "lambda2",
)


def _table(n_rows: int = 300) -> ProbabilityTable:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, n_rows)
    probs = np.exp(rng.normal(size=(n_rows, 3)) + 1.5 * np.eye(3)[labels] + [1.5, 0.5, 0.0])
    return ProbabilityTable.from_arrays(to_shares(probs, "scores"), labels)


def _study(settings: TunerSettings = SETTINGS, method: str = "dcs", **options: Any) -> Tuned:
    return study_scheme(
        Tuning(table=_table(), method=get_method(method), settings=settings, seed=3, **options)
    )


def _results(tuned: Tuned) -> list[tuple[Any, ...]]:
    return [(t.params, t.metrics) for t in tuned.trials]


@pytest.fixture(scope="module")
def tuned() -> Tuned:
    return _study()


def test_the_number_of_workers_does_not_change_the_study(tuned):
    other = _study(mapper=Threads(3))
    assert _results(other) == _results(tuned)
    assert other.scheme == tuned.scheme


def test_the_sampler_varies_every_knob_of_the_schedule(tuned):
    sampled = [t for t in tuned.trials if "weight_scale" in t.params or "beta" in t.params]
    for knob in KNOBS:
        assert len({trial.params[knob] for trial in sampled}) > 5, knob


def test_much_of_a_study_is_asked_after_results_are_known(tuned):
    schedule = (0.02, 0.0001, 0.4)
    names = ("initial_temperature", "final_temperature", "cooling_rate")
    standard = [
        t
        for t in tuned.trials
        if t.params["corrections"] == "none" or tuple(t.params[n] for n in names) == schedule
    ]
    assert len(tuned.trials) - len(standard) >= 0.4 * len(tuned.trials)


def test_what_is_recorded_is_what_ran(tuned):
    table = _table()
    folds = Folds(table.probs, table.labels, 5, seed=3)
    chosen = tuned.trials[:: len(tuned.trials) // 6]
    for trial, fit in zip(
        chosen,
        folds.judge([setting_of(t.params) for t in chosen]),
        strict=True,
    ):
        assert fit.accuracy == trial.metrics["dev/accuracy"]
        assert fit.cobias == trial.metrics["dev/cobias"]
        assert fit.moves == trial.metrics["opt/evaluations"]


class _Killed(Exception):
    pass


def _killed_after(results: int):
    def mapper(function, items, **options) -> Iterator[Any]:
        for number, result in enumerate(map(function, items)):
            if number == results:
                raise _Killed
            yield result

    return mapper


def test_a_study_killed_three_times_resumes_to_the_same_trials(tuned, tmp_path):
    stored = StoredStudy(str(tmp_path / "optuna.journal"), "cell")
    for results in (5, 60, 30):
        with pytest.raises(_Killed):
            _study(stored=stored, mapper=_killed_after(results))
    again = _study(stored=stored)
    assert _results(again) == _results(tuned)
    assert again.scheme == tuned.scheme
    study = optuna.load_study(study_name="cell", storage=open_storage(stored.storage))
    assert [trial.values[0] for trial in study.trials] == [
        trial.metrics["dev/accuracy"] for trial in tuned.trials
    ]
    assert study.metric_names == ["accuracy", "cobias", "moves"]
    assert set(study.metric_names) <= set(study.trials[0].user_attrs)


def test_a_journal_with_an_incomplete_line_goes_on(tmp_path):
    path = tmp_path / "optuna.journal"
    study = optuna.create_study(storage=open_storage(str(path)), study_name="one")
    study.tell(study.ask(), 1.0)
    with path.open("ab") as journal:
        journal.write(b'{"op_code": 4, "worker')
    again = optuna.load_study(storage=open_storage(str(path)), study_name="one")
    again.tell(again.ask(), 2.0)
    for reader in (study, optuna.load_study(storage=open_storage(str(path)), study_name="one")):
        assert [trial.value for trial in reader.trials] == [1.0, 2.0]


def test_a_limit_is_a_constraint_of_the_study(tmp_path):
    stored = StoredStudy(str(tmp_path / "optuna.journal"), "cell")
    _study(TunerSettings(trials=8, judge={"development": 0.3}, max_cobias=3.0), stored=stored)
    study = optuna.load_study(study_name="cell", storage=open_storage(stored.storage))
    for trial in study.trials:
        limit = trial.constraints["max_cobias"]
        assert limit == pytest.approx(100.0 * trial.values[1] - 3.0)


@pytest.mark.parametrize("method", ["dnip", "furud"])
def test_other_methods_keep_to_their_corrections(method):
    found = _study(TunerSettings(trials=12, judge={"development": 0.3}), method)
    families = {trial.params["corrections"] for trial in found.trials}
    assert families == {"weights" if method == "dnip" else "memberships"}
    assert {trial.params["calibration"] for trial in found.trials} == {"none"}


def test_two_memberships_are_a_choice():
    space = {"calibration": "none", "corrections": "memberships"}
    found = _study(TunerSettings(sampler="grid", space=space, memberships=2))
    assert {trial.params["corrections"] for trial in found.trials} == {"memberships"}


def test_searches_among_many_classes_make_fewer_moves_unless_the_bounds_are_given():
    few = replace(STANDARD_SCHEDULE, lambda1=0.4, lambda2=0.4)
    standard = [Hyperparameters(corrections="weights", schedule=few)]
    bounds = []
    for space in ({}, {"lambda2": [1.0, 3.0]}):
        settings = TunerSettings.model_validate({"space": {"corrections": "weights", **space}})
        own = SearchSpace(settings, get_method("dcs"), standard, n_rows=900, n_classes=100)
        trial = optuna.create_study().ask()
        own.suggest(trial)
        drawn = [trial.distributions[name] for name in ("lambda1", "lambda2")]
        bounds += [(each.low, each.high) for each in drawn]
    assert bounds == [pytest.approx((0.1, 0.8))] * 3 + [(1.0, 3.0)]


def test_a_grid_tries_every_combination():
    space = {
        "calibration": "none",
        "corrections": "weights",
        "beta": [0.2, 0.5, 1.0],
        "lambda1": [1.0, 2.0],
        "tau": 0.0,
        "pseudo_count": 7.0,
    }
    found = _study(TunerSettings(sampler="grid", space=space))
    tried = [(t.params["beta"], t.params["lambda1"]) for t in found.trials]
    assert tried == list(itertools.product([0.2, 0.5, 1.0], [1.0, 2.0]))
    # Without the term, its pseudo-count has no effect.
    assert {t.params["pseudo_count"] for t in found.trials} == {4000.0}
