"""The lower bound of Z is below every scheme, by exhaustive search."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.exact import exact_search
from benchmarks.lower_bound import lower_bound
from dcs.evaluation.metrics import Objective
from tests.dcs.solutions import SETS, coarse_problem

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
