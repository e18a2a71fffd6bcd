from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, f1_score

from dcs import cobias_score
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics, Objective, confusion_matrix
from dcs.schemes.corrections import CorrectionSet
from dcs.schemes.scheme import CorrectionScheme
from tests.dcs.refusals import refuses
from tests.dcs.solutions import published_figures


@pytest.mark.filterwarnings("ignore::UserWarning:sklearn")
@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_metrics_equal_their_definitions(rows: list[tuple[int, int]]) -> None:
    labels, predictions = np.array(rows).T
    metrics = ClassificationMetrics.from_predictions(labels, predictions, 5)
    present = np.unique(labels)
    shares = [np.mean(predictions[labels == j] == j) for j in present]
    gaps = [abs(a - b) for a, b in itertools.combinations(shares, 2)]
    assert np.array_equal(np.flatnonzero(~np.isnan(metrics.class_accuracies)), present)
    assert metrics.accuracy == pytest.approx(np.mean(labels == predictions), abs=1e-15)
    assert metrics.cobias == pytest.approx(np.mean(gaps) if gaps else 0.0, abs=1e-14)
    assert metrics.weakest_class == pytest.approx(min(shares))
    balanced = balanced_accuracy_score(labels, predictions)
    assert metrics.balanced_accuracy == pytest.approx(balanced)
    # The classes without rows do not count, whether or not they are predicted.
    score = f1_score(labels, predictions, labels=present, average="macro", zero_division=0)
    assert metrics.macro_f1 == pytest.approx(score)


def test_bad_indices_are_named() -> None:
    for bad, name in (([0, 3], "labels"), ([0, -1], "predictions")):
        given = {"labels": [0, 0], "predictions": [0, 0], "n_classes": 3, name: bad}
        refuses(InvalidInputError, confusion_matrix, **given, names=[f"{name}: row 1"])
    refuses(InvalidInputError, confusion_matrix, [0, 0], [0], 3, names=["predictions: "])


@pytest.mark.parametrize("confusion", [np.zeros((2, 2)), np.ones((2, 3)), np.zeros((0, 0))])
def test_nothing_to_measure_is_refused(confusion: np.ndarray) -> None:
    with pytest.raises(InvalidInputError, match="confusion"):
        ClassificationMetrics.from_confusion(confusion)


def test_published_predictions_and_objective_values() -> None:
    corrections = CorrectionSet.dcs(weight_scale=30)
    figures = published_figures()
    for i, table in enumerate(figures["table"]):
        probs, labels = figures[f"probs{table}"], figures[f"labels{table}"]
        weight, beta, tau, count = figures["abtk"][i].tolist()
        objective = Objective(beta=beta, tau=tau, error_weight=weight, pseudo_count=count)
        names = tuple(map(str, range(probs.shape[1])))
        scheme = CorrectionScheme(names, tuple(corrections[int(k)] for k in figures[f"choice{i}"]))
        predictions = scheme.predict(probs)
        assert np.array_equal(predictions, figures[f"predictions{i}"])
        confusion = confusion_matrix(labels, predictions, len(names))
        expected = figures["z"][i] / labels.size
        assert objective.value(confusion) == pytest.approx(expected, rel=0, abs=1e-9)


def test_terms_leave_out_classes_without_rows() -> None:
    objective = Objective(error_weight=0.5, beta=2.7, tau=0.4, pseudo_count=3.0)
    confusion = np.array([[4, 1, 0], [2, 6, 0], [0, 0, 0]])
    pmi = sum(
        math.log(((d + 3) / (13 + 27)) / (((q + 3) / (13 + 9)) * ((n + 3) / (13 + 9))))
        for d, q, n in [(4, 6, 5), (6, 7, 8)]
    )
    expected = 0.5 * 3 / 13 + 2.7 * (4 / 5 - 6 / 8) - 0.4 * pmi
    assert objective.value(confusion) == pytest.approx(expected)


def test_cobias_is_a_metric_of_scikit_learn() -> None:
    true, predicted = ["a", "a", "b", "b"], ["a", "a", "b", "a"]
    assert cobias_score(true, predicted) == 0.5
    assert cobias_score(np.array([1, 1, 7, 7]), np.array([1, 1, 7, 1])) == 0.5
