from __future__ import annotations

import itertools

import pytest

from benchmarks.exact import exact_search
from dcs.evaluation.metrics import Objective
from dcs.schemes.corrections import CorrectionSet
from tests.dcs.solutions import SETS, coarse_problem, judge

_OBJECTIVE = Objective(pseudo_count=20.0)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_exhaustive_search_finds_what_trying_everything_finds(name: str, n_classes: int) -> None:
    corrections = SETS[name] if n_classes == 2 else CorrectionSet(SETS[name].corrections[-6:])
    probs, labels = coarse_problem(60, n_classes, seed=3)
    probs.setflags(write=False)
    labels.setflags(write=False)
    values = [
        judge(probs, labels, corrections, _OBJECTIVE, choice)
        for choice in itertools.product(range(len(corrections)), repeat=n_classes)
    ]
    reports: list[float] = []
    result = exact_search(
        probs, labels, corrections=corrections, objective=_OBJECTIVE, progress=reports.append
    )
    assert result.z == pytest.approx(min(values), rel=0, abs=1e-12)
    assert result.z == judge(probs, labels, corrections, _OBJECTIVE, result.indices)
    assert result.evaluations == len(corrections) ** n_classes
    assert reports[-1] == 1.0
    assert reports == sorted(reports)
