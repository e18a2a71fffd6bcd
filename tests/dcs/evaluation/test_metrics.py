from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, f1_score

from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import (
    ClassificationMetrics,
    accuracy,
    cobias,
    confusion_matrix,
)


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
