from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import logsumexp

from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.schemes.calibration import (
    Calibration,
    batch_calibration,
    fit_calibration,
    prior_reweighting,
    surrogate_calibration,
)
from dcs.schemes.scheme import CorrectionScheme
from tests.dcs.biased import biased_table

_PROBS, _LABELS = biased_table(400, 4)
# None so small that the floor would change it.
_PROBS = np.maximum(_PROBS, 0.001)
_PROBS /= _PROBS.sum(axis=1, keepdims=True)


def _fit(kind: Any, probs: Any = _PROBS, labels: Any = _LABELS, **options: Any) -> Calibration:
    found = fit_calibration(probs, labels, kind=kind, **options)
    assert found is not None
    return found


def test_offsets_multiply() -> None:
    even = _PROBS / _PROBS.mean(axis=0)
    shares = (np.bincount(_LABELS) + 1) / (_LABELS.size + 4)
    for found, expected in (
        (batch_calibration(_PROBS), even),
        (prior_reweighting(_PROBS, _LABELS), even * shares),
    ):
        expected = expected / expected.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(found.apply(_PROBS), expected)


def test_balanced_is_logistic_where_classes_have_equal_rows() -> None:
    keep = np.concatenate([np.flatnonzero(j == _LABELS)[:60] for j in range(4)])
    pair = [_fit(kind, _PROBS[keep], _LABELS[keep]) for kind in ("logistic", "balanced")]
    np.testing.assert_allclose(pair[0].matrix, pair[1].matrix, atol=1e-9)
    assert _fit("balanced").matrix != _fit("logistic").matrix


@pytest.mark.parametrize("kind", ["vector", "logistic", "balanced"])
def test_more_ridge_changes_less(kind: str) -> None:
    far = [
        np.abs(_fit(kind, ridge=ridge).apply(_PROBS) - _PROBS).mean() for ridge in (1.0, 1e4, 1e8)
    ]
    assert far[0] > far[1] > far[2]
    assert far[2] < 1e-4


@pytest.mark.parametrize("n_classes", [2, 3, 12])
def test_more_beta_gives_less_cobias(n_classes: int) -> None:
    probs, labels = biased_table(1500, n_classes, seed=3)
    found = [surrogate_calibration(probs, labels, beta=beta) for beta in (0.0, 2.0)]
    accurate, fair = (
        ClassificationMetrics.from_predictions(labels, each.apply(probs).argmax(1), n_classes)
        for each in found
    )
    assert fair.cobias < accurate.cobias
    assert accurate.accuracy >= fair.accuracy - 0.01
    assert found[0].basis == ("products" if n_classes <= 10 else "logs")


def test_products_are_stored() -> None:
    found = surrogate_calibration(_PROBS, _LABELS)
    scheme = CorrectionScheme.identity(tuple("abcd"), calibration=found)
    assert scheme.to_dict()["version"] == 4
    assert CorrectionScheme.from_dict(json.loads(scheme.to_json())) == scheme
    with pytest.raises(InvalidInputError):
        Calibration("x", found.matrix, found.offset)


def test_the_rows_of_a_matrix_have_one_length() -> None:
    with pytest.raises(InvalidInputError):
        Calibration("x", ((1.0, 0.0), (0.0,)), (0.0, 0.0))


def test_exact_zeros_stay_finite() -> None:
    probs = np.where(_PROBS < 0.1, 0.0, _PROBS)
    assert np.isfinite(_fit("vector", probs).apply(probs)).all()


def test_a_sure_model_is_fitted_to_the_optimum() -> None:
    probs, labels = _sure_table()
    found = _fit("logistic", probs, labels, ridge=10.0)
    logs = np.log(np.maximum(probs, found.floor))

    def loss(x: NDArray[np.float64]) -> float:
        matrix, offset = x[:16].reshape(4, 4), x[16:]
        logits = logs @ matrix.T + offset
        likelihood = (logits[np.arange(labels.size), labels] - logsumexp(logits, axis=1)).sum()
        return float(
            5.0 * ((matrix - np.eye(4)) ** 2).sum() + 0.5 * (offset**2).sum() - likelihood
        )

    here = np.concatenate([np.ravel(found.matrix), found.offset])
    assert loss(here) - minimize(loss, here, method="BFGS").fun < 1e-5


def test_a_row_by_itself_is_calibrated_as_among_others() -> None:
    found = _fit("logistic")
    alone = np.concatenate([found.apply(row[None]) for row in _PROBS])
    assert np.array_equal(found.apply(_PROBS), alone)


@pytest.mark.slow
def test_the_kernels_of_blas_decide_nothing() -> None:
    program = (
        "from tests.dcs.schemes.test_calibration import _fit, _sure_table\n"
        "probs, labels = _sure_table()\n"
        "found = _fit('balanced', probs, labels, ridge=1.0)\n"
        "print(found, found.apply(probs).argmax(axis=1).tolist())\n"
    )
    # OpenBLAS takes the kernels of these processors; another BLAS takes no notice.
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parents[3],
            env={**os.environ, "OPENBLAS_CORETYPE": core, "OPENBLAS_NUM_THREADS": threads},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for core, threads in (("Nehalem", "1"), ("Haswell", "2"))
    }
    assert len(answers) == 1


def _sure_table() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return probabilities of a model that is nearly always sure, and often wrong."""
    probs, labels = biased_table(800, 4, seed=1)
    sharp = probs**8
    return sharp / sharp.sum(axis=1, keepdims=True), labels
