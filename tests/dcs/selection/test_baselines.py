from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.schemes.calibration import DEFAULT_FLOOR
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.methods import Method, get_method, method_names
from tests.dcs.biased import biased_table

_PROBS, _LABELS = biased_table(240, 3)
_NAMES = [name for name in method_names(baselines=True) if "published" not in name]
_CHEAP = [name for name in _NAMES if name not in ("dnip", "furud", "dcs")]


@pytest.mark.parametrize("name", _NAMES)
def test_one_protocol(name: str) -> None:
    scheme = get_method(name).fit(
        _PROBS, _LABELS, classes=("a", "b", "c"), seed=1, content_free=[0.2, 0.3, 0.5]
    )
    assert scheme.classes == ("a", "b", "c")
    np.testing.assert_allclose(scheme.apply(_PROBS).sum(axis=1), 1.0)
    assert np.array_equal(scheme.apply(_PROBS).argmax(axis=1), scheme.predict(_PROBS))
    assert CorrectionScheme.from_json(scheme.to_json()) == scheme
    if name == "icl":
        assert np.array_equal(scheme.predict(_PROBS), _PROBS.argmax(axis=1))


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(
    ("name", "class_weight"), [("logistic", None), ("logistic-balanced", "balanced")]
)
def test_logistic_is_scikit_learns(n_classes: int, name: str, class_weight: str | None) -> None:
    probs, labels = biased_table(240, n_classes)
    logs = np.log(np.maximum(probs, DEFAULT_FLOOR))
    model = LogisticRegression(max_iter=5000, class_weight=class_weight).fit(logs, labels)
    corrected = get_method(name).fit(probs, labels).apply(probs)
    np.testing.assert_allclose(corrected, model.predict_proba(logs), atol=1e-9)


@pytest.mark.parametrize("name", _CHEAP)
def test_missing_classes_are_survived(name: str) -> None:
    for keep in (_LABELS < 2, _LABELS < 1):
        scheme = get_method(name).fit(_PROBS[keep], _LABELS[keep], content_free=[0.2, 0.3, 0.5])
        assert np.isfinite(scheme.apply(_PROBS)).all()


def test_thresholds_meet_one_true_positive_rate() -> None:
    scheme = get_method("thresholds").fit(_PROBS, _LABELS)
    assert scheme.calibration is not None
    cut = np.exp(-np.array(scheme.calibration.offset))
    rates = [float((_PROBS[j == _LABELS, j] >= cut[j]).mean()) for j in range(3)]
    assert max(rates) - min(rates) < 0.05
    before = ClassificationMetrics.from_predictions(_LABELS, _PROBS.argmax(axis=1), 3)
    after = ClassificationMetrics.from_predictions(_LABELS, scheme.predict(_PROBS), 3)
    assert after.accuracy >= before.accuracy


def test_contextual_needs_content_free_probabilities() -> None:
    with pytest.raises(InvalidInputError, match="content_free"):
        get_method("contextual").fit(_PROBS, _LABELS)
    scheme = get_method("contextual").fit(_PROBS, _LABELS, content_free=[[0.2, 0.3, 0.5]] * 2)
    expected = (_PROBS / [0.2, 0.3, 0.5]).argmax(axis=1)
    assert np.array_equal(scheme.predict(_PROBS), expected)


def test_a_method_of_ones_own_needs_a_fitter() -> None:
    with pytest.raises(InvalidInputError, match="svm"):
        Method(name="svm", title="SVM", summary="Not here.").fit(_PROBS, _LABELS)
