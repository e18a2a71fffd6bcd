from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import confusion_matrix
from dcs.evaluation.objective import Objective
from dcs.search.evaluation import SchemeEvaluator
from tests.dcs.solutions import SETS, coarse_problem, judge


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("n_classes", [2, 5])
def test_confusions_are_those_of_the_schemes(name: str, n_classes: int) -> None:
    probs, labels = coarse_problem(70, n_classes, seed=8)
    evaluator = SchemeEvaluator(probs, labels, corrections=SETS[name])
    batch = np.random.default_rng(0).integers(0, len(SETS[name]), (12, n_classes))
    matrices = evaluator.confusions(batch)
    assert matrices.shape == (12, n_classes, n_classes)
    for indices, matrix in zip(batch, matrices, strict=True):
        predictions = evaluator.scheme(indices).predict(probs)
        assert np.array_equal(matrix, confusion_matrix(labels, predictions, n_classes))
        objective = Objective(beta=2.0, pseudo_count=9.0)
        expected = judge(probs, labels, SETS[name], objective, indices)
        assert evaluator.value(indices, objective) == expected
    assert evaluator.confusions(batch[:0]).shape == (0, n_classes, n_classes)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0], "one index for each of 2"),
        ([0, 99], "holds 99; allowed are 0..25"),
        ([-1, 0], "holds -1"),
        ([0.5, 0], "type float64"),
    ],
)
def test_bad_indices_are_named(indices: Any, message: str) -> None:
    probs, labels = coarse_problem(20, 2)
    with pytest.raises(InvalidInputError, match=message):
        SchemeEvaluator(probs, labels, corrections=SETS["dcs"]).confusion(indices)
