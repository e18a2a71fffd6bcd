"""Studies give the same trials wherever and however many at once they are judged."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import optuna
import pytest

from dcs.selection.methods import get_method
from tests.workflows.conftest import biased_table
from workflows.cluster.parallel import ray_mapper
from workflows.config.sweep import TunerSettings
from workflows.parallel import in_process
from workflows.tuning.paper import run_study
from workflows.tuning.study import Asked, Outcome, Verdict, run_trials


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def _suggest(trial: optuna.Trial) -> tuple[float, int]:
    return trial.suggest_float("x", -3.0, 3.0), trial.suggest_int("k", 1, 4)


def _judge(asked: Asked[tuple[float, int]]) -> Verdict[str]:
    x, k = asked.work
    value = -((x - 1.0) ** 2) - (k - 2) ** 2
    return Verdict(value, {"value": value}, f"found {x}")


def _coin(trial: optuna.Trial) -> int:
    return trial.suggest_int("k", 0, 2)


class _Count:
    """Counts what it judges."""

    def __init__(self) -> None:
        self.judged: list[int] = []

    def __call__(self, asked: Asked[int]) -> Verdict[int]:
        self.judged.append(asked.work)
        return Verdict(float(asked.work), {"value": float(asked.work)}, asked.work)


def _plain(outcome: Outcome) -> tuple:
    return outcome.asked, outcome.verdict, outcome.repeats


@pytest.mark.parametrize("window", [1, 3, 7])
def test_the_number_of_cpus_changes_nothing(cluster, window):
    def study(mapper):
        trials = run_trials(_suggest, _judge, trials=25, window=window, seed=5, mapper=mapper)
        return [_plain(outcome) for outcome in trials]

    alone = study(in_process)
    assert [asked.number for asked, *_ in alone] == list(range(25))
    assert study(ray_mapper(width=2)) == alone
    assert study(ray_mapper(width=9)) == alone


def test_window_and_seed_belong_to_the_study():
    def params(**settings):
        return [
            outcome.asked.params for outcome in run_trials(_suggest, _judge, trials=20, **settings)
        ]

    first = params(window=1, seed=0)
    assert params(window=1, seed=0) == first
    assert params(window=1, seed=1) != first
    assert params(window=4, seed=0) != first
    # Ten trials are random before there is enough to learn from: those are the seed's alone.
    assert params(window=4, seed=0)[:10] == first[:10]


def test_a_window_still_learns():
    for window in (1, 4):
        values = [
            max(
                o.verdict.value
                for o in run_trials(_suggest, _judge, trials=60, window=window, seed=seed)
            )
            for seed in range(3)
        ]
        assert max(values) > -0.1


def test_repeated_parameters_are_not_judged_again():
    judge = _Count()
    outcomes = list(run_trials(_coin, judge, trials=30, window=4, seed=0))
    assert sorted(judge.judged) == [0, 1, 2]
    for outcome in outcomes:
        assert outcome.verdict.value == outcome.asked.params["k"]
        if outcome.repeats is not None:
            source = outcomes[outcome.repeats]
            assert source.repeats is None
            assert outcome.verdict.metrics == source.verdict.metrics
            assert outcome.seconds == 0


def test_first_parameters_come_first():
    (first, *_) = run_trials(
        _suggest, _judge, trials=3, window=2, seed=0, first=[{"x": 0.25, "k": 4}]
    )
    assert first.asked.params == {"x": 0.25, "k": 4}
    assert first.verdict.payload == "found 0.25"


def test_a_cell_is_tuned_alike_in_process_and_fanned_out(cluster):
    table, method = biased_table(200), get_method("dcs")
    settings = TunerSettings(trials=12, window=3, budget=3000)
    shares: list[float] = []
    alone = run_study(table, method, settings=settings, seed=1, progress=shares.append)
    spread = run_study(table, method, settings=settings, seed=1, mapper=ray_mapper(width=3))
    assert _result(alone) == _result(spread)
    assert shares == [(number + 1) / 12 for number in range(12)]
    evaluations = [trial.metrics["opt/evaluations"] for trial in alone.trials]
    assert min(evaluations) > 0
    assert alone.annealing.evaluations == evaluations[alone.best.number]


def _result(fitted) -> tuple:
    assert math.isfinite(fitted.best.value)
    timeless = [dataclasses.replace(t, seconds=0.0, started_ms=0) for t in fitted.trials]
    return timeless, fitted.best.number, fitted.scheme, fitted.annealing.trace
