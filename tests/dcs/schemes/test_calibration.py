from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import logsumexp

from dcs.schemes.calibration import (
    batch_calibration,
    contextual_calibration,
    fit_calibration,
    prior_reweighting,
)
from tests.dcs.biased import biased_table

_PROBS, _LABELS = biased_table(400, 4)
# None so small that the floor would change it.
_PROBS = np.maximum(_PROBS, 0.001)
_PROBS /= _PROBS.sum(axis=1, keepdims=True)


def test_offsets_multiply() -> None:
    even = _PROBS / _PROBS.mean(axis=0)
    shares = (np.bincount(_LABELS) + 1) / (_LABELS.size + 4)
    for found, expected in (
        (batch_calibration(_PROBS), even),
        (contextual_calibration(_PROBS), even),
        (prior_reweighting(_PROBS, _LABELS), even * shares),
    ):
        expected = expected / expected.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(found.apply(_PROBS), expected)


def test_balanced_is_logistic_where_classes_have_equal_rows() -> None:
    keep = np.concatenate([np.flatnonzero(j == _LABELS)[:60] for j in range(4)])
    pair = [
        fit_calibration(_PROBS[keep], _LABELS[keep], kind=kind)
        for kind in ("logistic", "balanced")
    ]
    assert pair[0] is not None
    assert pair[1] is not None
    np.testing.assert_allclose(pair[0].matrix, pair[1].matrix, atol=1e-9)


@pytest.mark.parametrize("kind", ["temperature", "vector", "logistic", "balanced"])
def test_more_ridge_changes_less(kind: str) -> None:
    def far(ridge: float) -> float:
        found = fit_calibration(_PROBS, _LABELS, kind=kind, ridge=ridge)  # type: ignore[arg-type]
        assert found is not None
        return float(np.abs(found.apply(_PROBS) - _PROBS).mean())

    if kind == "temperature":
        assert far(1.0) == far(1e6)
    else:
        assert far(1.0) > far(1e4) > far(1e8)
        assert far(1e8) < 1e-4


def test_temperature_keeps_predictions() -> None:
    found = fit_calibration(_PROBS, _LABELS, kind="temperature")
    assert found is not None
    assert np.array_equal(found.apply(_PROBS).argmax(axis=1), _PROBS.argmax(axis=1))
    assert len({found.matrix[j][j] for j in range(4)}) == 1


def test_exact_zeros_stay_finite() -> None:
    probs = np.where(_PROBS < 0.1, 0.0, _PROBS)
    found = fit_calibration(probs, _LABELS, kind="vector")
    assert found is not None
    assert np.isfinite(found.apply(probs)).all()


def test_a_sure_model_is_fitted_to_the_optimum() -> None:
    probs, labels = _sure_table()
    found = fit_calibration(probs, labels, kind="logistic", ridge=10.0)
    assert found is not None
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
    found = fit_calibration(_PROBS, _LABELS, kind="logistic")
    assert found is not None
    alone = np.concatenate([found.apply(row[None]) for row in _PROBS])
    assert np.array_equal(found.apply(_PROBS), alone)


@pytest.mark.slow
def test_the_kernels_of_blas_decide_nothing() -> None:
    program = (
        "from dcs.schemes.calibration import fit_calibration\n"
        "from dcs.evaluation.metrics import ClassificationMetrics\n"
        "from tests.dcs.schemes.test_calibration import _sure_table\n"
        "probs, labels = _sure_table()\n"
        "found = fit_calibration(probs, labels, kind='balanced', ridge=1.0)\n"
        "predictions = found.apply(probs).argmax(axis=1)\n"
        "print(found, ClassificationMetrics.from_predictions(labels, predictions, 4))\n"
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
