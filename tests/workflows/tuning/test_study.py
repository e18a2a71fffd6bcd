"""A study gives the same trials wherever they are judged, and whatever a run before it left."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from dcs.selection.methods import get_method
from tests.workflows.conftest import biased_table
from workflows.config.sweep import TunerSettings
from workflows.config.tuner import StudyStorage
from workflows.parallel import RayMapper, in_process
from workflows.study.cross_validation import cross_validated_scheme
from workflows.study.study import study_scheme
from workflows.study.trials import (
    StoredStudy,
    StudyRun,
    StudyTrial,
    Tuning,
    importances,
    sampler_of,
)

AIMS = {"value": "maximize"}
TRIALS, WINDOW = 18, 3


class Killed(BaseException):
    """Ends a study as the end of its process would: nothing is told."""


class Judge:
    """Judges a number of trials, then is killed."""

    def __init__(self, lives: int = 1000, judge: Callable[..., Any] | None = None) -> None:
        self.lives, self.judge = lives, judge or _judge
        self.judged: list[int] = []

    def __call__(self, trial: StudyTrial, *report: Callable[..., bool]) -> Any:
        if len(self.judged) == self.lives:
            raise Killed
        self.judged.append(trial.number)
        return self.judge(trial, *report)


def _judge(trial: StudyTrial) -> tuple[dict[str, float], str]:
    x, k = trial.work
    return {"value": -((x - 1.0) ** 2) - (k - 2) ** 2, "third": 1 / 3}, f"found {x}"


def _suggest(trial: optuna.trial.BaseTrial) -> tuple[float, int]:
    return trial.suggest_float("x", -3.0, 3.0), trial.suggest_categorical("k", [1, 2, 3, 4])


def _trials(judge=_judge, suggest=_suggest, **options) -> list[StudyTrial]:
    settings = {"aims": AIMS, "trials": TRIALS, "window": WINDOW, "seed": 2}
    return list(StudyRun(suggest=suggest, judge=judge, **(settings | options)).results())


def _plain(trials: list[StudyTrial]) -> list[tuple]:
    return [(t.number, t.params, t.work, t.metrics) for t in trials]


@pytest.fixture
def stored(tmp_path: Path) -> StoredStudy:
    storage = StudyStorage(str(tmp_path / "studies" / "journal.log"))
    storage.check()
    return StoredStudy(storage, "cell", {"cell": "dcs trec"})


def _written(stored: StoredStudy) -> optuna.Study:
    storage = JournalStorage(JournalFileBackend(stored.storage.address))
    return optuna.load_study(study_name=stored.name, storage=storage)


def _states(stored: StoredStudy) -> list[str]:
    return [trial.state.name for trial in _written(stored).trials]


@pytest.mark.parametrize("window", [1, 3, 7])
def test_the_number_of_cpus_changes_nothing(cluster, window):
    alone = _plain(_trials(window=window, mapper=in_process))
    assert [number for number, *_ in alone] == list(range(TRIALS))
    for width in (2, 9):
        assert _plain(_trials(window=window, mapper=RayMapper(width=width))) == alone


def test_window_and_seed_belong_to_the_study():
    def params(**settings):
        return [trial.params for trial in _trials(**settings)]

    first = params(window=1, seed=0)
    assert params(window=1, seed=0) == first
    assert params(window=1, seed=1) != first
    assert params(window=4, seed=0) != first
    # Ten trials are random before there is enough to learn from: those are the seed's alone.
    assert params(window=4, seed=0)[:10] == first[:10]


@pytest.mark.parametrize("window", [1, 4])
def test_a_trial_knows_all_that_went_before_its_window(window):
    known: list[int] = []

    def suggest(trial: optuna.Trial) -> tuple[float, int]:
        known.append(sum(each.state.is_finished() for each in trial.study.trials))
        return _suggest(trial)

    _trials(suggest=suggest, window=window)
    assert known == [max(0, number - window + 1) for number in range(TRIALS)]


def test_importances_are_of_what_decides_and_what_varies():
    def suggest(trial: optuna.trial.BaseTrial) -> tuple[float, int]:
        trial.suggest_float("idle", 0.0, 1.0)
        if trial.number > 1:  # The first need not have all.
            trial.suggest_float("fixed", 1.0, 1.0)
        return trial.suggest_float("x", -30.0, 30.0), 2

    trials = _trials(suggest=suggest, trials=40)
    shares = importances(trials, "value")
    assert set(shares) == {"x", "idle"}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["x"] > 0.8
    assert importances(trials, "third") == importances(trials[:9], "value") == {}


@pytest.mark.parametrize("name", ["gp", "random", "grid"])
def test_every_sampler_is_its_seeds_alone(name):
    space = {"x": (-1.0, 0.0, 1.0), "k": (1, 2, 3, 4)}
    settings = {"sampler": sampler_of(name, space=space), "trials": 12}
    first = [trial.params for trial in _trials(**settings)]
    assert [trial.params for trial in _trials(**settings)] == first
    if name == "grid":
        combinations = {tuple(sorted(params.items())) for params in first}
        assert len(combinations) == 12 and {params["x"] for params in first} == {*space["x"]}


def _judge_in_steps(trial: StudyTrial, report) -> tuple[dict[str, float], str]:
    metrics, found = _judge(trial)
    for step in range(1, 28):
        value = metrics["value"] - 10 / step
        if report(step, value):
            break
    return metrics | {"value": value}, found


@pytest.mark.parametrize("pruner", ["successive-halving", "hyperband"])
def test_a_pruner_ends_the_same_trials_wherever_they_are_judged(stored, cluster, pruner):
    settings = {"pruner": pruner, "trials": 14}
    alone = _trials(_judge_in_steps, **settings)
    pruned = {trial.number for trial in alone if trial.pruned}
    whole = [trial for trial in alone if not trial.pruned]
    assert pruned and whole
    assert max(alone, key=lambda trial: _judge(trial)[0]["value"]) in whole
    assert all(max(map(int, trial.reports)) < 26 for trial in alone if trial.pruned)

    def result(trials: list[StudyTrial]) -> list[tuple]:
        return [(t.number, t.params, t.metrics, t.pruned, t.reports, t.rungs) for t in trials]

    spread = _trials(_judge_in_steps, mapper=RayMapper(width=3), **settings)
    assert result(spread) == result(alone)
    for lives in (3, 0, 2, 100):
        with suppress(Killed):
            kept = _trials(Judge(lives, _judge_in_steps), stored=stored, **settings)
    assert result(kept) == result(alone)
    assert _states(stored).count("PRUNED") == len(pruned)


def test_first_parameters_come_first():
    first, *_ = _trials(trials=3, first={"x": 0.25, "k": 4})
    assert (first.params, first.found) == ({"x": 0.25, "k": 4}, "found 0.25")


def test_a_stored_study_is_all_there_is_to_see(stored):
    trials = _trials(stored=stored)
    assert _plain(trials) == _plain(_trials())
    study = _written(stored)
    assert study.user_attrs["cell"] == "dcs trec"
    assert [(t.params, t.value) for t in study.trials] == [
        (t.params, t.metrics["value"]) for t in trials
    ]
    # Run again, it gives the same without judging anything.
    assert _plain(_trials(Judge(0), stored=stored)) == _plain(trials)


@pytest.mark.parametrize("window", [1, 3, 100])
def test_what_was_finished_is_not_judged_again(stored, window):
    """Killed at various times, the same trials come out as from a run that nothing happened to."""
    settings = {"window": window, "first": {"x": 0.0, "k": 1}}
    judged: list[int] = []
    for lives in (5, 0, 2, 6, 100):
        judge = Judge(lives)
        try:
            trials = _trials(judge, stored=stored, **settings)
        except Killed:
            assert "RUNNING" in _states(stored)
        judged += judge.judged
    assert judged == list(range(TRIALS))
    assert _plain(trials) == _plain(_trials(**settings))
    states = _states(stored)
    assert states.count("COMPLETE") == TRIALS
    assert set(states) == {"COMPLETE", "FAIL"}


@pytest.mark.parametrize(
    ("owner", "call"),
    [
        (optuna.Study, "enqueue_trial"),
        (optuna.Study, "ask"),
        (optuna.Study, "tell"),
        (optuna.Trial, "suggest_categorical"),
        (optuna.Trial, "set_user_attr"),
    ],
)
def test_a_kill_before_or_after_any_write_changes_nothing(stored, monkeypatch, owner, call):
    undisturbed = _plain(_trials())
    real = getattr(owner, call)
    for kill_before in (True, False) * 2:
        left = [5]

        def dying(*arguments, left=left, kill_before=kill_before, **options):
            left[0] -= 1
            if not left[0] and kill_before:
                raise Killed
            value = real(*arguments, **options)
            if not left[0]:
                raise Killed
            return value

        with monkeypatch.context() as patch, suppress(Killed):
            patch.setattr(owner, call, dying)
            _trials(stored=stored)
    assert _plain(_trials(stored=stored)) == undisturbed


def test_other_code_judges_again(stored, monkeypatch):
    _trials(stored=stored)
    monkeypatch.setattr("workflows.study.trials.source_digest", lambda: "another")
    judge = Judge()
    _trials(judge, stored=stored)
    assert judge.judged == list(range(TRIALS))


@pytest.mark.parametrize("protocol", ["study", "cross-validation"])
def test_a_cell_is_tuned_alike_in_process_fanned_out_and_found_again(cluster, stored, protocol):
    tune = study_scheme if protocol == "study" else cross_validated_scheme
    small = {"trials": 5, "window": 2, "budget": 3000, "objective": {"beta": 0.5, "tau": 0.0}}
    settings = TunerSettings(protocol=protocol, **small)
    shares: list[float] = []
    tuning = Tuning(table=biased_table(200), method=get_method("dcs"), settings=settings, seed=1)
    alone = tune(dataclasses.replace(tuning, progress=shares.append))
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert math.isfinite(alone.best.value)
    spread = tune(dataclasses.replace(tuning, mapper=RayMapper(width=3), known={}))
    assert _result(spread) == _result(alone)
    for _ in range(2):
        kept = tune(dataclasses.replace(tuning, stored=stored, known={}))
        assert _result(kept) == _result(alone)
    assert len(_written(stored).directions) == (1 if protocol == "study" else 2)


def _result(fitted) -> tuple:
    timeless = [dataclasses.replace(t, seconds=0.0, started_ms=0) for t in fitted.trials]
    trace = fitted.annealing.trace if fitted.annealing else None
    return timeless, fitted.best.number, fitted.scheme, trace
