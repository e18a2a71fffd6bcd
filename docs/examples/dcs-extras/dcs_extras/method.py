"""The method ``quotas``: every class is predicted as often as it is labelled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from dcs.schemes.corrections import Weight
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.methods import Method

STEPS = 200


def fit_quotas(
    probs: ArrayLike, labels: ArrayLike, *, classes: Sequence[str] | None, seed: int
) -> CorrectionScheme:
    """Return the weights under which predictions and labels have the same shares of classes."""
    p, y = np.asarray(probs, dtype=np.float64), np.asarray(labels)
    n_classes = p.shape[1]
    wanted = (np.bincount(y, minlength=n_classes) + 1) / (y.size + n_classes)
    logs = np.zeros(n_classes)
    for step in range(1, STEPS + 1):
        predicted = (p * np.exp(logs)).argmax(axis=1)
        shares = (np.bincount(predicted, minlength=n_classes) + 1) / (y.size + n_classes)
        logs += (np.log(wanted) - np.log(shares)) / step**0.5
    weights = np.exp(logs - logs.max())
    names = tuple(classes) if classes is not None else tuple(map(str, range(n_classes)))
    return CorrectionScheme(names, tuple(Weight(max(w, 1e-6)) for w in weights.tolist()))


QUOTAS = Method(
    name="quotas",
    title="Quotas",
    fitter=fit_quotas,
)
