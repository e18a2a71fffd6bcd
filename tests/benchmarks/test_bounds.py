"""Optima and lower bounds by exhaustive search, and the evaluator of many solutions."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.exact import exact_search
from benchmarks.lower_bound import lower_bound
from dcs.evaluation.metrics import Objective
from dcs.schemes.corrections import CorrectionSet
from tests.dcs.solutions import SETS, coarse_problem, judge, least

pytestmark = pytest.mark.slow  # half a minute of compiling

_OBJECTIVE = Objective(pseudo_count=20.0)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_exhaustive_search_finds_what_trying_everything_finds(name: str, n_classes: int) -> None:
    corrections = SETS[name] if n_classes == 2 else CorrectionSet(SETS[name].corrections[-6:])
    probs, labels = coarse_problem(60, n_classes, seed=3)
    probs.setflags(write=False)
    labels.setflags(write=False)
    reports: list[float] = []
    result = exact_search(
        probs, labels, corrections=corrections, objective=_OBJECTIVE, progress=reports.append
    )
    assert result.z == pytest.approx(
        least(probs, labels, corrections, _OBJECTIVE), rel=0, abs=1e-12
    )
    assert result.z == judge(probs, labels, corrections, _OBJECTIVE, result.indices)
    assert result.evaluations == len(corrections) ** n_classes
    assert reports[-1] == 1.0
    assert reports == sorted(reports)


_OBJECTIVES = {
    "error": Objective(beta=0.0, tau=0.0),
    "all terms": Objective(beta=1.0, tau=0.7, pseudo_count=5.0),
    "no error": Objective(error_weight=0.0, beta=1.0, tau=0.4, pseudo_count=50.0),
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("objective", _OBJECTIVES.values(), ids=_OBJECTIVES)
def test_no_scheme_is_below_the_bound(name: str, objective: Objective) -> None:
    n_classes = 2 if name == "dcs" else 3
    # The coarse rows tie, and many are corrected to all zeros.
    probs, labels = coarse_problem(90, n_classes, seed=n_classes)
    corrections = SETS[name]
    optimum = exact_search(probs, labels, corrections=corrections, objective=objective)
    given = np.random.default_rng(1).integers(0, len(corrections), (3, n_classes))
    for indices in (optimum.indices, *given):
        found = lower_bound(
            probs, labels, indices, corrections=corrections, objective=objective, steps=12
        )
        assert found.bound <= optimum.z + 1e-12
        assert found.gap == found.z - found.bound >= 0.0


def test_the_bound_is_the_optimum_of_the_error_of_two_classes() -> None:
    probs, labels = coarse_problem(200, 2, decimals=3)
    objective, corrections = Objective(beta=0.0, tau=0.0), SETS["dnip"]
    optimum = exact_search(probs, labels, corrections=corrections, objective=objective)
    found = lower_bound(
        probs, labels, optimum.indices, corrections=corrections, objective=objective
    )
    assert found.gap == pytest.approx(0.0, abs=1e-12)


def test_more_steps_never_lower_it_and_some_raise_it() -> None:
    probs, labels = coarse_problem(300, 5, decimals=3)
    bounds = [lower_bound(probs, labels, [30] * 5, steps=steps).bound for steps in (1, 5, 20)]
    assert bounds == sorted(bounds)
    assert bounds[0] < bounds[-1]
