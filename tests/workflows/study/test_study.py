from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from dcs.errors import DCSError
from dcs.methods.parameters import PARAMETERS, STANDARD_SCHEDULE, Hyperparameters
from dcs.search.schedule import Schedule
from dcs.selection.fitting import Fitting, Threads
from dcs.selection.methods import get_method
from dcs_workflows.config.tuner import TunerSettings
from dcs_workflows.study import storage
from dcs_workflows.study.storage import StoredStudy, StudyStorageError
from dcs_workflows.study.study import SearchSpace, Setup, Tuned, make_sampler, study_scheme
from tests.dcs.refusals import refuses
from tests.workflows.conftest import biased_table, toy_cell

SETTINGS = TunerSettings(trials=42, judge={"folds": 3}, space={"weight_scale": [10, 40]})


TABLE = biased_table(150)


def _study(
    settings: TunerSettings = SETTINGS, method: str = "dcs", *, stored: Any = None, **more: Any
) -> Tuned:
    cell = toy_cell(method=method, tuner=settings, seed=3)
    setup = Setup(stored=lambda key, label: stored, **more)
    return study_scheme(cell, TABLE, setup=setup)


def _setting_of(params: dict[str, Any]) -> Hyperparameters:
    """Return the setting that a trial recorded."""
    own, schedule = (
        {each.name: params[each.name] for each in fields(kind) if each.name in params}
        for kind in (Hyperparameters, Schedule)
    )
    return Hyperparameters(**own, schedule=replace(STANDARD_SCHEDULE, **schedule))


def _results(tuned: Tuned) -> list[tuple[Any, ...]]:
    return [(t.params, t.metrics) for t in tuned.trials]


@pytest.fixture
def stored(tmp_path) -> StoredStudy:
    return StoredStudy("cell", tmp_path / "cell.journal")


@pytest.fixture(scope="module")
def tuned() -> Tuned:
    return _study()


def test_the_number_of_workers_does_not_change_the_study(tuned):
    seen: list[float] = []
    other = _study(mapper=Threads(3), progress=seen.append)
    assert _results(other) == _results(tuned)
    done = 1 + np.arange(len(other.trials))
    assert seen == pytest.approx(0.95 * done / len(done))
    assert other.scheme == tuned.scheme


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", pytest.param("gp", marks=pytest.mark.slow)])
def test_every_trial_has_every_parameter(sampler, stored):
    space = {"corrections": "weights"} if sampler == "gp" else {}
    settings = TunerSettings(trials=10, sampler=sampler, judge={"development": 0.3}, space=space)
    found = _study(settings, stored=stored)
    study = optuna.load_study(study_name="cell", storage=stored.storage)
    assert len(study.trials) == len(found.trials) >= 10
    names = {row.name for row in PARAMETERS}
    assert all(set(trial.params) == names for trial in study.trials)
    for trial, record in zip(study.trials, found.trials, strict=True):
        for name, value in trial.params.items():
            assert record.params[name] == pytest.approx(value), name


def test_the_sampler_is_the_one_of_optuna_that_is_named():
    kinds = {"tpe": "TPE", "nsga2": "NSGAII", "gp": "GP", "random": "Random"}
    made = [type(make_sampler(name, seed=1, trials=9)).__name__ for name in kinds]
    assert made == [f"{kind}Sampler" for kind in kinds.values()]
    sizes = [make_sampler("nsga2", seed=1, trials=n).population_size for n in (3, 9, 30, 90)]
    assert sizes == [2, 3, 10, 10]


def test_the_sampler_varies_every_knob_in_many_trials(tuned):
    for row in PARAMETERS:
        values = {trial.params[row.name] for trial in tuned.trials}
        bounds = len(row.values) == 2 and not isinstance(row.values[0], str)
        assert len(values) > (5 if bounds else len(row.values) - 1), row.name
    standard = [t for t in tuned.trials if _setting_of(t.params).schedule == STANDARD_SCHEDULE]
    assert {t.params["corrections"] for t in standard} == {"both", "weights"}
    assert len(tuned.trials) - len(standard) >= 0.4 * len(tuned.trials)


def test_what_trials_gained_is_recorded(tuned):
    assert abs(tuned.metrics["dev/trials_gain"]) < 0.2
    alone = _study(TunerSettings(trials=0, judge={"folds": 3}))
    assert alone.metrics["dev/trials_gain"] == 0.0
    assert alone.params["averaged"] >= 1


def test_what_is_recorded_is_what_ran(tuned):
    fitting = Fitting(TABLE.probs, TABLE.labels, 3, seed=3)
    chosen = tuned.trials[:: len(tuned.trials) // 6]
    fits = fitting.judge([_setting_of(t.params) for t in chosen])
    for trial, fit in zip(chosen, fits, strict=True):
        assert fit.accuracy == trial.metrics["dev/accuracy"]
        assert fit.cobias == trial.metrics["dev/cobias"]
        assert fit.moves == trial.metrics["opt/evaluations"]


class _Killed(Exception):
    pass


def _killed_after(results: int):
    left = itertools.count(results, -1)

    def mapper(function, items, **options) -> Iterator[Any]:
        for result in map(function, items):
            if next(left) == 0:
                raise _Killed
            yield result

    return mapper


def test_a_study_killed_three_times_resumes_to_the_same_trials(stored):
    settings = _SHORT.model_copy(update={"trials": 24})
    for results in (2, 12, 4):
        with pytest.raises(_Killed):
            _study(settings, stored=stored, mapper=_killed_after(results))
        with stored.file.open("ab") as journal:
            journal.write(b'{"op_code": 4, "worker')
    again, tuned = _study(settings, stored=stored), _study(settings)
    assert _results(again) == _results(tuned)
    assert (again.scheme, again.front) == (tuned.scheme, tuned.front)
    study = optuna.load_study(study_name="cell", storage=stored.storage)
    assert [trial.values[0] for trial in study.trials] == [
        trial.metrics["dev/accuracy"] for trial in tuned.trials
    ]
    assert study.metric_names == ["accuracy", "cobias", "moves"]
    assert set(study.metric_names) <= set(study.trials[0].user_attrs)


_SHORT = TunerSettings(
    trials=12,
    judge={"development": 0.3},
    space={"calibration": "none", "corrections": "weights", "spacing": "linear"},
)


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> tuple[Path, Tuned]:
    """The journal of a short study, and its result."""
    stored = StoredStudy("cell", tmp_path_factory.mktemp("ended") / "cell.journal")
    return stored.file, _study(_SHORT, stored=stored)


@pytest.mark.parametrize("line", ["", "}{", '{"op_code": 99, "worker_id": "x"}', "[]", "null"])
def test_a_damaged_journal_is_refused_in_one_line_that_names_it(line, ended, tmp_path):
    stored = StoredStudy("cell", Path(shutil.copy(ended[0], tmp_path)))
    lines = stored.file.read_text().splitlines()
    stored.file.write_text("\n".join([*lines[:9], line, *lines[9:], ""]))
    with pytest.raises(DCSError, match=rf"^{stored.file}: damaged .*; delete it[^\n]*$") as caught:
        _study(_SHORT, stored=stored)
    assert not isinstance(caught.value, StudyStorageError)


def test_trials_that_are_stored_twice_are_read_once(ended, tmp_path):
    """As two processes left them that ran the same study at the same time."""
    stored = StoredStudy("cell", Path(shutil.copy(ended[0], tmp_path)))
    with stored.opened() as study:
        trials = study.get_trials()
        for trial in [*trials[3:], *trials[:5]]:
            study.add_trial(trial)
        doubled = len(study.trials)
    assert _results(_study(_SHORT, stored=stored)) == _results(ended[1])
    with stored.opened() as study:
        assert len(study.trials) == doubled


def test_a_study_in_use_names_the_lock(stored, monkeypatch):
    monkeypatch.setattr(storage, "_WAIT_SECONDS", 0.2)
    with (
        stored.opened(),
        pytest.raises(StudyStorageError, match=f"'cell': in use by .* {stored.file};"),
    ):
        _study(_SHORT, stored=stored)


def test_a_journal_that_cannot_be_written_is_named_and_no_option(tmp_path):
    (tmp_path / "file").touch()
    blocked = StoredStudy("cell", tmp_path / "file" / "cell.journal")
    said = refuses(StudyStorageError, _study, _SHORT, stored=blocked, names=[blocked.file])
    assert "optuna_storage" not in said


def test_studies_are_in_journals_of_the_folder_or_a_database_and_locked_there(tmp_path):
    for address, kind in ((None, "journal"), ("sqlite://", "lock")):
        stored = storage.Studies(tmp_path, address).of("c0ffee42", "dcs helpdesk")
        assert stored.file == tmp_path / "studies" / f"c0ffee42.{kind}"
    assert storage.Studies(tmp_path, "memory").of("c0ffee42", "dcs helpdesk") is None


def test_studies_are_collected_for_the_dashboard(tmp_path):
    studies = [StoredStudy(name, tmp_path / f"{name}.journal") for name in "abc"]
    for stored in studies[:2]:
        _study(_SHORT, stored=stored)
    collected = StoredStudy("a", tmp_path / "all.journal")
    assert storage.collect_studies(studies, collected.file) == 2
    for stored in studies[:2]:
        found, own = (
            optuna.load_study(study_name=stored.name, storage=each.storage)
            for each in (collected, stored)
        )
        assert [t.params for t in found.trials] == [t.params for t in own.trials]
        assert found.metric_names == own.metric_names


def test_a_limit_is_a_constraint_of_the_study(stored):
    limits = {"max_cobias": 3.0, "max_accuracy_loss": 0.5}
    _study(TunerSettings(trials=8, judge={"development": 0.3}, **limits), stored=stored)
    best = 0.0
    for trial in optuna.load_study(study_name="cell", storage=stored.storage).trials:
        accuracy, cobias, _ = trial.values
        best = max(best, accuracy)
        above = {"max_cobias": 100.0 * cobias - 3.0}
        above["max_accuracy_loss"] = 100.0 * (best - accuracy) - 0.5
        assert trial.constraints == pytest.approx(above)


@pytest.mark.parametrize("method", ["dnip", "furud"])
def test_other_methods_keep_to_their_corrections_and_are_read_back(method, stored):
    settings = TunerSettings(trials=14, judge={"development": 0.3})
    first, again = (_study(settings, method, stored=stored) for _ in range(2))
    families = {trial.params["corrections"] for trial in first.trials}
    assert families == {"weights" if method == "dnip" else "memberships"}
    assert {trial.params["calibration"] for trial in first.trials} == {"none"}
    assert (again.scheme, again.front) == (first.scheme, first.front)


def test_two_memberships_are_a_choice_and_none_are_not():
    with pytest.raises(DCSError, match="at least two"):
        _study(TunerSettings(trials=1, memberships=0), "furud")
    space = {"calibration": "none", "corrections": "memberships"}
    found = _study(TunerSettings(trials=2, space=space, memberships=2))
    assert {trial.params["corrections"] for trial in found.trials} == {"memberships"}


def _space(schedule: Schedule = STANDARD_SCHEDULE, bounds: Any = (), **own: Any) -> SearchSpace:
    """Return the space of weights on 900 rows, of which one schedule is the standard."""
    settings = TunerSettings(space={"corrections": "weights", **dict(bounds)}, **own)
    standard = [Hyperparameters(corrections="weights", schedule=schedule)]
    return SearchSpace(settings, get_method("dcs"), standard, n_rows=900)


def test_the_schedule_of_the_paper_counts_moves_per_class():
    trial = optuna.create_study().ask()
    schedule = _space(search={"schedule": "paper", "restarts": 3}).suggest(trial).schedule
    assert (schedule.per_class, schedule.restarts) == (True, 3)


def test_searches_among_many_classes_make_fewer_moves_unless_the_bounds_are_given():
    few = replace(STANDARD_SCHEDULE, lambda1=0.4, lambda2=0.4)
    bounds = []
    for bounded in ({}, {"lambda2": [1.0, 3.0]}):
        trial = optuna.create_study().ask()
        _space(few, bounded).suggest(trial)
        drawn = [trial.distributions[name] for name in ("lambda1", "lambda2")]
        bounds += [(each.low, each.high) for each in drawn]
    assert bounds == [pytest.approx((0.1, 0.8))] * 3 + [(1.0, 3.0)]


def test_several_weights_of_pmi_are_tried_if_cobias_has_none():
    space = {"calibration": "none", "beta": 0.0, "tau": [0.0, 0.5]}
    settings = TunerSettings.model_validate({"trials": 0, "judge": {"folds": 2}, "space": space})
    found = {trial.params.get("tau") for trial in _study(settings).trials}
    assert {0.05, 0.2, 0.5} <= found
