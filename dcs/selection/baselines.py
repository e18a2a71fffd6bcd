"""Fitting every method by one protocol: labelled probabilities in, a correction scheme out.

All of them are judged alike, saved in the same file and applied by the same code, since each can
be written as a calibration that is linear in the log-probabilities, corrections per class, or
both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_rows
from dcs.data.splits import stratified_split
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.evaluation.objective import Objective
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
from dcs.schemes.corrections import DONT_CHANGE, CorrectionSet
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.annealing import Schedule, anneal
from dcs.seeds import derive_seed
from dcs.selection.fit import SelectionSettings, fit_scheme
from dcs.selection.settings import CorrectionFamily, Hyperparameters

__all__ = ["fit_method", "paper_settings"]

#: What the published protocol tunes over; the paper names the parameters, not their values.
_PUBLISHED_GRID: Final = tuple(itertools.product((15, 30), (0.5, 1.0, 2.0), (0.1, 0.2, 0.5)))
_PAPER_BETAS: Final = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)
_DEVELOPMENT: Final = 0.05
_TARGETS: Final = 99


@dataclass(frozen=True, slots=True)
class _Rows:
    """Checked arguments."""

    probs: NDArray[np.float64]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    seed: int
    content_free: ArrayLike | None


def fit_method(
    name: str,
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    classes: Sequence[str] | None,
    seed: int,
    content_free: ArrayLike | None,
) -> CorrectionScheme:
    """Fit a method that comes with this package; arguments as of `Method.fit`.

    Raises
    ------
    InvalidInputError
        When there is no such method, an argument is not allowed, or ``"contextual"`` has no
        content-free probabilities.
    """
    rows = _Rows(*checked_rows(probs, labels, classes), seed, content_free)
    if name in _SEARCHES:
        return _SEARCHES[name](rows)
    if name not in _CALIBRATIONS:
        raise InvalidInputError(f"method {name!r} has no fitter; give it one")
    unchanged = (DONT_CHANGE,) * len(rows.classes)
    return CorrectionScheme(rows.classes, unchanged, {"method": name}, _CALIBRATIONS[name](rows))


def _contextual(rows: _Rows) -> Calibration:
    if rows.content_free is None:
        raise InvalidInputError(
            "contextual calibration needs content_free: the class probabilities of inputs "
            'without content such as "N/A"; batch calibration needs none'
        )
    return contextual_calibration(rows.content_free)


def _vector(rows: _Rows) -> Calibration | None:
    # A ridge of one row or so only keeps classes without rows finite.
    return fit_calibration(rows.probs, rows.labels, kind="vector", ridge=1.0)


def _regression(rows: _Rows, *, balanced: bool) -> Calibration:
    """Fit scikit-learn's logistic regression, as anybody would, on log-probabilities."""
    from sklearn.linear_model import LogisticRegression

    n_classes = len(rows.classes)
    name = "logistic-balanced" if balanced else "logistic"
    present = np.unique(rows.labels)
    # What is never seen is never predicted.
    matrix, offset = np.zeros((n_classes, n_classes)), np.full(n_classes, -100.0)
    if present.size == 1:
        offset[present] = 0.0
        return from_arrays(name, matrix, offset)
    model = LogisticRegression(max_iter=5000, class_weight="balanced" if balanced else None)
    model.fit(np.log(np.maximum(rows.probs, DEFAULT_FLOOR)), rows.labels)
    if present.size == 2:
        matrix[present[1]], matrix[present[0]] = model.coef_[0], 0.0
        offset[present[1]], offset[present[0]] = model.intercept_[0], 0.0
    else:
        matrix[present], offset[present] = model.coef_, model.intercept_
    return from_arrays(name, matrix, offset)


def _thresholds(rows: _Rows) -> Calibration:
    """One threshold per class, all at the same true positive rate, the most accurate such set.

    In the manner of Fairlearn's threshold optimiser: a grid of target rates, for every class the
    threshold that meets it, and the target that serves accuracy best. A row goes to the class
    that exceeds its threshold by the largest factor.
    """
    n_classes = len(rows.classes)
    best: tuple[float, NDArray[np.float64]] | None = None
    for i in range(1, _TARGETS + 1):
        cut = np.array(
            [
                np.quantile(own, 1.0 - i / (_TARGETS + 1)) if own.size else 1.0
                for own in (rows.probs[rows.labels == j, j] for j in range(n_classes))
            ]
        )
        cut = np.maximum(cut, DEFAULT_FLOOR)
        hits = float(((rows.probs / cut).argmax(axis=1) == rows.labels).mean())
        if best is None or hits > best[0]:
            best = (hits, cut)
    cuts = np.ones(n_classes) if best is None else best[1]
    return from_offset("thresholds", -np.log(cuts))


def paper_settings(corrections: CorrectionFamily) -> SelectionSettings:
    """Return what is chosen from with the corrections of the paper and no calibration."""
    setting = Hyperparameters(
        calibration="none",
        corrections=corrections,
        weight_scale=30,
        spacing="linear",
        prior_rows=0.0,
        averages=0,
    )
    return SelectionSettings(candidates=(setting,), betas=_PAPER_BETAS)


def _paper_set(corrections: CorrectionFamily) -> Callable[[_Rows], CorrectionScheme]:
    """Return a fit over the corrections of the paper with the search and selection used here."""

    def fit(rows: _Rows) -> CorrectionScheme:
        settings = paper_settings(corrections)
        return fit_scheme(
            rows.probs, rows.labels, settings=settings, seed=rows.seed, classes=rows.classes
        ).scheme

    return fit


def _dcs(rows: _Rows) -> CorrectionScheme:
    return fit_scheme(rows.probs, rows.labels, seed=rows.seed, classes=rows.classes).scheme


def _published(rows: _Rows) -> CorrectionScheme:
    """Fit as the paper does: its schedule, a grid, and one development split of 5 %."""
    parts = stratified_split(
        rows.labels,
        {"optimization": 1.0 - _DEVELOPMENT, "development": _DEVELOPMENT},
        seed=derive_seed(rows.seed, "split"),
    )
    inside, outside = parts["optimization"], parts["development"]
    best: tuple[float, CorrectionScheme] | None = None
    for trial, (weight_scale, beta, tau) in enumerate(_PUBLISHED_GRID):
        scheme = anneal(
            rows.probs[inside],
            rows.labels[inside],
            corrections=CorrectionSet.dcs(weight_scale=weight_scale),
            objective=Objective(beta=beta, tau=tau),
            schedule=Schedule.paper(inside.size),
            seed=derive_seed(rows.seed, "anneal", trial),
            classes=rows.classes,
        ).scheme
        judged = ClassificationMetrics.from_predictions(
            rows.labels[outside], scheme.predict(rows.probs[outside]), len(rows.classes)
        )
        score = judged.accuracy - judged.cobias
        if best is None or score > best[0]:
            best = (score, scheme)
    if best is None:
        raise InvalidInputError("the published grid is empty")
    return CorrectionScheme(rows.classes, best[1].corrections, {"method": "published"})


#: What is a calibration and nothing else.
_CALIBRATIONS: Final[dict[str, Callable[[_Rows], Calibration | None]]] = {
    "icl": lambda rows: None,
    "batch": lambda rows: batch_calibration(rows.probs),
    "contextual": _contextual,
    "prior": lambda rows: prior_reweighting(rows.probs, rows.labels),
    "temperature": lambda rows: fit_calibration(rows.probs, rows.labels, kind="temperature"),
    "vector": _vector,
    "logistic": lambda rows: _regression(rows, balanced=False),
    "logistic-balanced": lambda rows: _regression(rows, balanced=True),
    "thresholds": _thresholds,
}

_SEARCHES: Final[dict[str, Callable[[_Rows], CorrectionScheme]]] = {
    "dnip": _paper_set("weights"),
    "furud": _paper_set("memberships"),
    "dcs": _dcs,
    "published": _published,
}
