from __future__ import annotations

import math

import numpy as np
import pytest

from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import confusion_matrix
from dcs.evaluation.objective import Objective
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


def test_total_is_the_weighted_sum_of_the_terms() -> None:
    confusion = np.array([[8, 2, 0], [1, 5, 4], [0, 0, 3]])
    terms = Objective(beta=2.7, tau=0.4, error_weight=0.5, pseudo_count=10.0).terms(confusion)
    assert terms.error == pytest.approx(7 / 23)
    assert terms.total == pytest.approx(0.5 * terms.error + 2.7 * terms.cobias + 0.4 * terms.pmi)


def test_a_class_that_is_never_predicted_has_a_finite_value() -> None:
    assert math.isfinite(Objective().value(np.array([[5, 0], [5, 0]])))


def test_classes_without_rows_are_left_out() -> None:
    objective = Objective(pseudo_count=3.0)
    confusion = np.array([[4, 1, 0], [2, 6, 0], [0, 0, 0]])
    expected = sum(
        math.log(((d + 3) / (13 + 27)) / (((q + 3) / (13 + 9)) * ((n + 3) / (13 + 9))))
        for d, q, n in [(4, 6, 5), (6, 7, 8)]
    )
    terms = objective.terms(confusion)
    assert terms.pmi == pytest.approx(-expected)
    assert terms.cobias == pytest.approx(abs(4 / 5 - 6 / 8))


@pytest.mark.parametrize("name", ["beta", "tau", "error_weight", "pseudo_count"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, "1"])
def test_bad_values_are_named(name: str, value: object) -> None:
    with pytest.raises(InvalidInputError, match=name):
        Objective(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="pseudo_count"):
        Objective(pseudo_count=0)
