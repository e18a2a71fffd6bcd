"""Small problems, a plain NumPy judge of solutions, and those of the published implementation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.evaluation.metrics import Objective, confusion_matrix
from dcs.schemes.corrections import CorrectionSet
from dcs.schemes.scheme import CorrectionScheme

SETS = {
    "dcs": CorrectionSet.dcs(weight_scale=7),
    "dnip": CorrectionSet.dnip(weight_scale=9),
    "furud": CorrectionSet.furud(),
}


def coarse_problem(
    n_rows: int, n_classes: int, *, seed: int = 0, decimals: int = 1
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return probabilities rounded so hard that ties and lost rows abound, and labels."""
    rng = np.random.default_rng(seed)
    probs = np.round(rng.dirichlet([0.4] * n_classes, size=n_rows), decimals)
    probs[probs.sum(axis=1) == 0.0] = 1.0 / n_classes
    guess = np.where(rng.random(n_rows) < 0.5, probs.argmax(axis=1), 0)
    labels = np.where(rng.random(n_rows) < 0.7, guess, rng.integers(0, n_classes, n_rows))
    labels[:n_classes] = np.arange(n_classes)
    return probs, labels.astype(np.int64)


def judge(
    probs: NDArray[np.float64],
    labels: NDArray[np.int64],
    corrections: CorrectionSet,
    objective: Objective,
    choice: Sequence[int] | NDArray[np.int64],
) -> float:
    """Return Z of a choice of corrections, from the predictions of its scheme."""
    n_classes = probs.shape[1]
    names = tuple(str(j) for j in range(n_classes))
    scheme = CorrectionScheme(names, tuple(corrections[int(k)] for k in choice))
    return objective.value(confusion_matrix(labels, scheme.predict(probs), n_classes))


def least(
    probs: NDArray[np.float64],
    labels: NDArray[np.int64],
    corrections: CorrectionSet,
    objective: Objective,
) -> float:
    """Return the lowest Z of all choices, by trying every one."""
    choices = itertools.product(range(len(corrections)), repeat=probs.shape[1])
    return min(judge(probs, labels, corrections, objective, choice) for choice in choices)


def published_figures() -> dict[str, NDArray[Any]]:
    """Return figures of the published implementation: rules on a grid, and solutions judged.

    The corrections are numbered as published: 19 memberships, then the weights 1/30 .. 30/30.
    """
    with np.load(Path(__file__).parent / "data" / "published_figures.npz") as figures:
        return dict(figures)
