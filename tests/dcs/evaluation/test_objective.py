from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import mutual_info_score

from dcs.evaluation.metrics import Objective, confusion_matrix
from dcs.schemes.corrections import CorrectionSet
from dcs.schemes.scheme import CorrectionScheme
from tests.dcs.published import load_cases


def test_published_predictions_and_objective_values() -> None:
    corrections = CorrectionSet.dcs(weight_scale=30)
    for case in load_cases():
        names = tuple(str(j) for j in range(case.n_classes))
        scheme = CorrectionScheme(names, tuple(corrections[k] for k in case.choice))
        predictions = scheme.predict(case.probs)
        assert np.array_equal(predictions, case.predictions)
        confusion = confusion_matrix(case.labels, predictions, case.n_classes)
        assert case.objective.value(confusion) == pytest.approx(case.z, rel=0, abs=1e-9)


def test_terms_leave_out_classes_without_rows() -> None:
    error, bias, pmi = (
        Objective(error_weight=e, beta=b, tau=t, pseudo_count=3.0)
        for e, b, t in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    )
    whole = Objective(error_weight=0.5, beta=2.7, tau=0.4, pseudo_count=3.0)
    confusion = np.array([[4, 1, 0], [2, 6, 0], [0, 0, 0]])
    expected = sum(
        math.log(((d + 3) / (13 + 27)) / (((q + 3) / (13 + 9)) * ((n + 3) / (13 + 9))))
        for d, q, n in [(4, 6, 5), (6, 7, 8)]
    )
    assert error.value(confusion) == pytest.approx(3 / 13)
    assert bias.value(confusion) == pytest.approx(abs(4 / 5 - 6 / 8))
    assert pmi.value(confusion) == pytest.approx(-expected)
    terms = (0.5 * error.value(confusion), 2.7 * bias.value(confusion), 0.4 * pmi.value(confusion))
    assert whole.value(confusion) == pytest.approx(sum(terms))


def test_normalised_term_is_the_share_of_entropy_explained_of_each_class() -> None:
    rng = np.random.default_rng(2)
    labels, predictions = rng.integers(0, 4, 300), rng.integers(0, 4, 300)
    predictions[:180] = labels[:180]
    labels[labels == 3] = 0  # A class that is predicted and has no rows is left out.
    expected = np.mean(
        [
            mutual_info_score(labels == j, predictions == j)
            / mutual_info_score(labels == j, labels == j)
            for j in range(3)
        ]
    )
    term = Objective(error_weight=0.0, beta=0.0, tau=1.0, pmi="normalised")
    confusion = confusion_matrix(labels, predictions, 4)
    assert term.value(confusion) == pytest.approx(-expected, rel=0, abs=1e-12)


@pytest.mark.parametrize(
    ("confusion", "expected"),
    [
        ([[7, 0], [0, 5]], -1.0),  # perfect
        ([[7, 0], [5, 0]], 0.0),  # collapsed to one class
        ([[0, 7], [5, 0]], 1.0),  # always the other
        ([[6, 3], [4, 2]], 0.0),  # independent of the label
        ([[3, 2], [0, 0]], 0.0),  # one class alone
    ],
)
def test_normalised_term_is_bounded(confusion: list[list[int]], expected: float) -> None:
    term = Objective(error_weight=0.0, beta=0.0, tau=1.0, pmi="normalised")
    assert term.value(np.array(confusion)) == pytest.approx(expected, rel=0, abs=1e-12)
