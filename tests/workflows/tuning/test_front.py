"""The front of a cell: a study with two objectives beside the standard settings."""

from __future__ import annotations

import pytest

from dcs.data.table import ProbabilityTable
from dcs.selection.front import FrontPoint, pareto_front
from dcs.selection.methods import get_method
from tests.workflows.conftest import biased_table
from workflows.config.sweep import TunerSettings
from workflows.parallel import Known
from workflows.tuning import front
from workflows.tuning.front import run_front

#: One point per fit keeps these tests short.
_SETTINGS = TunerSettings(
    protocol="front", trials=5, window=2, objective={"beta": 0.5, "tau": 0.0}, max_weight_scale=20
)


def _backwards(function, items, /, *, ahead=None):
    """Compute what may be computed at once in reverse: the order must not matter."""
    waiting = []
    for item in items:
        waiting.append(item)
        if ahead is None or len(waiting) < ahead:
            continue
        yield from _finish(function, waiting)
        waiting = []
    yield from _finish(function, waiting)


def _finish(function, waiting):
    done = [i.result if isinstance(i, Known) else function(i) for i in waiting[::-1]]
    return done[::-1]


@pytest.fixture(scope="module")
def table() -> ProbabilityTable:
    return biased_table(240)


def test_the_study_has_two_objectives_and_its_front_competes(table, monkeypatch):
    seen = {}

    def fit(*arguments, settings, **options):
        seen["settings"] = settings
        seen["fitted"] = fit_scheme(*arguments, settings=settings, **options)
        return seen["fitted"]

    def trials(*arguments, **options):
        seen["aims"] = options["aims"]
        return run_trials(*arguments, **options)

    fit_scheme, run_trials = front.fit_scheme, front.run_trials
    monkeypatch.setattr(front, "fit_scheme", fit)
    monkeypatch.setattr(front, "run_trials", trials)
    shares: list[float] = []
    fitted = run_front(
        table, get_method("dcs"), settings=_SETTINGS, seed=2, progress=shares.append
    )
    assert seen["aims"] == {"dev/accuracy": "maximize", "dev/cobias": "minimize"}
    tried = fitted.trials[: _SETTINGS.trials]
    assert [trial.number for trial in fitted.trials] == list(range(len(fitted.trials)))
    points = [
        FrontPointLike(t.metrics["dev/accuracy"], t.metrics["dev/cobias"], t.params) for t in tried
    ]
    wanted = [
        (p.params["calibration"], p.params["corrections"], p.params["beta"])
        for p in pareto_front(points)
    ]
    assert [(s.calibration, s.corrections, s.beta) for s in seen["settings"].fixed] == list(
        dict.fromkeys(wanted)
    )
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert isinstance(seen["fitted"].chosen, FrontPoint)
    assert fitted.best in fitted.trials


class FrontPointLike:
    def __init__(self, accuracy, cobias, params):
        self.accuracy, self.cobias, self.params = accuracy, cobias, params


def test_where_trials_and_folds_are_judged_changes_nothing(table):
    def plain(fitted):
        return fitted.scheme, [(t.params, t.metrics) for t in fitted.trials]

    here = run_front(table, get_method("dcs"), settings=_SETTINGS, seed=3)
    there = run_front(table, get_method("dcs"), settings=_SETTINGS, seed=3, mapper=_backwards)
    assert plain(here) == plain(there)


def test_an_objective_without_cobias_is_searched_for_accuracy(table):
    settings = TunerSettings(protocol="front", trials=0, objective="err")
    fitted = run_front(table, get_method("dcs"), settings=settings, seed=0)
    searched = [t.params for t in fitted.trials if t.params["corrections"] != "none"]
    assert {p["beta"] for p in searched} <= {0.0}
    assert {p["tau"] for p in searched} <= {0.0}
