from __future__ import annotations

import pytest

from benchmarks.exact import exact_search
from dcs.evaluation.metrics import Objective
from dcs.schemes.corrections import CorrectionSet
from tests.dcs.solutions import SETS, coarse_problem, judge, least

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


def test_a_class_without_rows_is_left_out_with_a_warning() -> None:
    probs, labels = coarse_problem(80, 3)
    labels[labels == 2] = 0
    with pytest.warns(UserWarning, match="class_2"):
        optimum = exact_search(probs, labels, corrections=SETS["dcs"])
    assert optimum.z == judge(probs, labels, SETS["dcs"], Objective(), optimum.indices)
