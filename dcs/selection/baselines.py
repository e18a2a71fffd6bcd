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


def _selected(rows: _Rows, settings: SelectionSettings | None = None) -> CorrectionScheme:
    return fit_scheme(
        rows.probs, rows.labels, settings=settings, seed=rows.seed, classes=rows.classes
    ).scheme


def _published(rows: _Rows) -> CorrectionScheme:
    """Fit as the paper does: its schedule, a grid, and one development split of 5 %."""
    parts = stratified_split(
        rows.labels,
        {"optimization": 1.0 - _DEVELOPMENT, "development": _DEVELOPMENT},
        seed=derive_seed(rows.seed, "split"),
    )
    inside, outside = parts["optimization"], parts["development"]

    def fit(trial: int, weight_scale: int, beta: float, tau: float) -> CorrectionScheme:
        return anneal(
            rows.probs[inside],
            rows.labels[inside],
            corrections=CorrectionSet.dcs(weight_scale=weight_scale),
            objective=Objective(beta=beta, tau=tau),
            schedule=Schedule.published(inside.size),
            seed=derive_seed(rows.seed, "anneal", trial),
            classes=rows.classes,
        ).scheme

    def score(scheme: CorrectionScheme) -> float:
        predictions = scheme.predict(rows.probs[outside])
        judged = ClassificationMetrics.from_predictions(
            rows.labels[outside], predictions, len(rows.classes)
        )
        return judged.accuracy - judged.cobias

    best = max((fit(i, *values) for i, values in enumerate(_PUBLISHED_GRID)), key=score)
    return CorrectionScheme(rows.classes, best.corrections, {"method": "published"})


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

_SEARCHES: Final[dict[str, Callable[[_Rows], CorrectionScheme]]] = {
    "dnip": lambda rows: _selected(rows, paper_settings("weights")),
    "furud": lambda rows: _selected(rows, paper_settings("memberships")),
    "dcs": _selected,
    "published": _published,
}
