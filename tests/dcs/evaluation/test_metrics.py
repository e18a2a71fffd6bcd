from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, f1_score, mutual_info_score

from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import (
    ClassificationMetrics,
    Objective,
    accuracy,
    cobias,
    confusion_matrix,
)
from dcs.schemes.corrections import CorrectionSet
from dcs.schemes.scheme import CorrectionScheme
from tests.dcs.published import load_cases


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 6).flatmap(
        lambda n: st.lists(st.integers(0, 9), min_size=n * n, max_size=n * n)
    )
)
def test_metrics_equal_their_definitions(cells: list[int]) -> None:
    n = round(len(cells) ** 0.5)
    confusion = np.array(cells).reshape(n, n)
    confusion[0, 0] += 1
    rows = confusion.sum(axis=1)
    values = [confusion[j, j] / rows[j] for j in range(n) if rows[j]]
    gaps = [abs(a - b) for a, b in itertools.combinations(values, 2)]
    assert accuracy(confusion) == pytest.approx(np.trace(confusion) / confusion.sum(), abs=1e-15)
    assert cobias(confusion) == pytest.approx(np.mean(gaps) if gaps else 0.0, abs=1e-14)
    shares = ClassificationMetrics.from_confusion(confusion).class_accuracies
    assert np.array_equal(np.isnan(shares), rows == 0)


@pytest.mark.filterwarnings("ignore::UserWarning:sklearn")
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_metrics_of_classes_are_those_of_scikit_learn(rows: list[tuple[int, int]]) -> None:
    labels, predictions = np.array(rows).T
    metrics = ClassificationMetrics.from_predictions(labels, predictions, 5)
    assert metrics.macro_f1 == pytest.approx(f1_score(labels, predictions, average="macro"))
    balanced = balanced_accuracy_score(labels, predictions)
    assert metrics.balanced_accuracy == pytest.approx(balanced)
    shares = [np.mean(predictions[labels == label] == label) for label in set(labels)]
    assert metrics.weakest_class == pytest.approx(min(shares))


@pytest.mark.parametrize(
    ("labels", "predictions", "name"),
    [
        ([0, 3], [0, 0], "labels: row 1"),
        ([0, 0], [0, -1], "predictions: row 1"),
        ([0, 0], [0], "predictions: labels have shape"),
    ],
)
def test_bad_indices_are_named(labels: list[int], predictions: list[int], name: str) -> None:
    with pytest.raises(InvalidInputError, match=name):
        confusion_matrix(labels, predictions, 3)


@pytest.mark.parametrize("confusion", [np.zeros((2, 2)), np.ones((2, 3)), np.zeros((0, 0))])
def test_nothing_to_measure_is_refused(confusion: np.ndarray) -> None:
    with pytest.raises(InvalidInputError, match="confusion"):
        accuracy(confusion)


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
