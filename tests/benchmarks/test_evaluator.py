from __future__ import annotations

import numpy as np
import pytest

from benchmarks.evaluator import SchemeEvaluator
from dcs.evaluation.metrics import Objective, confusion_matrix
from dcs.schemes.scheme import CorrectionScheme
from tests.dcs.solutions import SETS, coarse_problem, judge


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("n_classes", [2, 5])
def test_solutions_are_judged_as_their_schemes(name: str, n_classes: int) -> None:
    probs, labels = coarse_problem(70, n_classes, seed=8)
    evaluator = SchemeEvaluator(probs, labels, corrections=SETS[name])
    objective = Objective(beta=2.0, pseudo_count=9.0)
    for indices in np.random.default_rng(0).integers(0, len(SETS[name]), (12, n_classes)):
        corrections = tuple(SETS[name][k] for k in indices)
        scheme = CorrectionScheme(tuple("abcde"[:n_classes]), corrections)
        predictions = scheme.predict(probs)
        expected = confusion_matrix(labels, predictions, n_classes)
        assert np.array_equal(evaluator.confusion(indices), expected)
        value = judge(probs, labels, SETS[name], objective, indices)
        assert evaluator.value(indices, objective) == value
