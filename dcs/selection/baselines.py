"""Fitting every method by one protocol: labelled probabilities in, a correction scheme out.

All of them are judged alike, saved in the same file and applied by the same code, since each can
be written as a calibration that is linear in the log-probabilities, corrections per class, or
both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_rows
from dcs.errors import InvalidInputError
from dcs.schemes.calibration import (
    DEFAULT_FLOOR,
    Calibration,
    batch_calibration,
    contextual_calibration,
    fit_calibration,
    from_arrays,
    from_offset,
    prior_reweighting,
)
from dcs.schemes.corrections import DONT_CHANGE
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.fit import SelectionSettings, fit_scheme
from dcs.selection.front import Fitted
from dcs.selection.published import fit_published

__all__ = ["fit_method"]

_TARGETS: Final = 99


@dataclass(frozen=True, slots=True)
class _Rows:
    """Checked arguments."""

    probs: NDArray[np.float64]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    content_free: ArrayLike | None


def fit_method(
    name: str,
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    classes: Sequence[str] | None,
    seed: int,
    content_free: ArrayLike | None,
) -> Fitted:
    """Fit a method that comes with this package; arguments as of `Method.fit`.

    Raises
    ------
    InvalidInputError
        When there is no such method, an argument is not allowed, or ``"contextual"`` has no
        content-free probabilities.
    """
    if name in _PUBLISHED:
        return fit_published(probs, labels, classes=classes, seed=seed, **_PUBLISHED[name])
    if name in ("dnip", "furud", "dcs"):
        settings = SelectionSettings.of_method(name)
        found = fit_scheme(probs, labels, settings=settings, seed=seed, classes=classes)
        return Fitted(found.scheme)
    if name not in _CALIBRATIONS:
        raise InvalidInputError(f"method {name!r} has no fitter; give it one")
    rows = _Rows(*checked_rows(probs, labels, classes), content_free)
    unchanged = (DONT_CHANGE,) * len(rows.classes)
    return Fitted(
        CorrectionScheme(rows.classes, unchanged, {"method": name}, _CALIBRATIONS[name](rows))
    )


def _contextual(rows: _Rows) -> Calibration:
    if rows.content_free is None:
        raise InvalidInputError(
            "contextual calibration needs content_free: the class probabilities of inputs "
            'without content such as "N/A"; batch calibration needs none'
        )
    return contextual_calibration(rows.content_free)


def _regression(rows: _Rows, *, balanced: bool) -> Calibration:
    """Fit scikit-learn's logistic regression, as anybody would, on log-probabilities."""
    from sklearn.linear_model import LogisticRegression

    n_classes, present = len(rows.classes), np.unique(rows.labels)
    # What is never seen is never predicted.
    matrix, offset = np.zeros((n_classes, n_classes)), np.full(n_classes, -100.0)
    offset[present] = 0.0
    if present.size > 1:
        model = LogisticRegression(max_iter=5000, class_weight="balanced" if balanced else None)
        model.fit(np.log(np.maximum(rows.probs, DEFAULT_FLOOR)), rows.labels)
        # Of two classes only the logit of the second is fitted.
        fitted = present[-len(model.coef_) :]
        matrix[fitted], offset[fitted] = model.coef_, model.intercept_
    return from_arrays("logistic-balanced" if balanced else "logistic", matrix, offset)


def _thresholds(rows: _Rows) -> Calibration:
    """One threshold per class, all at the same true positive rate, the most accurate such set."""
    # In the manner of Fairlearn's threshold optimiser: a grid of target rates, for every class the
    # threshold that meets it, and the target that serves accuracy best. A row goes to the class
    # that exceeds its threshold by the largest factor.
    levels = 1.0 - np.arange(1, _TARGETS + 1) / (_TARGETS + 1)
    cuts = np.ones((_TARGETS, len(rows.classes)))
    for j in np.unique(rows.labels):
        cuts[:, j] = np.quantile(rows.probs[rows.labels == j, j], levels)
    cuts = np.maximum(cuts, DEFAULT_FLOOR)
    hits = [((rows.probs / cut).argmax(axis=1) == rows.labels).mean() for cut in cuts]
    return from_offset("thresholds", -np.log(cuts[np.argmax(hits)]))


#: What is a calibration and nothing else.
_CALIBRATIONS: Final[dict[str, Callable[[_Rows], Calibration | None]]] = {
    "icl": lambda rows: None,
    "batch": lambda rows: batch_calibration(rows.probs),
    "contextual": _contextual,
    "prior": lambda rows: prior_reweighting(rows.probs, rows.labels),
    "temperature": lambda rows: fit_calibration(rows.probs, rows.labels, kind="temperature"),
    # A ridge of one row or so only keeps classes without rows finite.
    "vector": lambda rows: fit_calibration(rows.probs, rows.labels, kind="vector", ridge=1.0),
    "logistic": lambda rows: _regression(rows, balanced=False),
    "logistic-balanced": lambda rows: _regression(rows, balanced=True),
    "thresholds": _thresholds,
}

#: What the variants of the published method differ in.
_PUBLISHED: Final[dict[str, dict[str, Any]]] = {
    "published": {},
    "published-balanced": {"prefer": "balance"},
    "published-long": {"accepted": 150, "generated": 300},
    "published-balanced-long": {"prefer": "balance", "accepted": 150, "generated": 300},
}
