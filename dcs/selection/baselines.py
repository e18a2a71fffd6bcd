"""What DCS is compared with: calibrations, thresholds, and DCS as its public code has it.

All of them are judged alike, saved in the same file and applied by the same code, since each can
be written as a calibration that is linear in the log-probabilities, corrections per class, or
both.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_rows, warn_of_absent_classes
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
from dcs.search.annealing import AnnealingResult, Schedule, anneal
from dcs.seeds import derive_generator, derive_seed
from dcs.selection.cross_validation import SelectionSettings, fit_scheme
from dcs.selection.label_free import FEWEST_LABELS, label_free_scheme
from dcs.selection.preference import Fitted, Trial

__all__ = ["PUBLISHED_GRID", "fit_method", "fit_published"]

_TARGETS: Final = 99

_Probs: TypeAlias = NDArray[np.float64]
_Labels: TypeAlias = NDArray[np.int64]

#: Error weight, beta, tau and D_W.
_Combination: TypeAlias = tuple[float, float, float, int]

_DEVELOPMENT: Final = 0.05


def _counts(combination: _Combination) -> bool:
    """Whether there is something to minimise, and no other combination is only a scale of it."""
    positive = [weight for weight in combination[:3] if weight > 0.0]
    return len(positive) > 1 or positive == [1.0]


#: The combinations of the public configuration, as (error weight, beta, tau, D_W). Its four rules
#: leave 304 of 320: where one term stands alone its weight is 1, since every weight of it has the
#: same optimum.
PUBLISHED_GRID: Final[tuple[_Combination, ...]] = tuple(
    filter(
        _counts,
        itertools.product(
            (0.0, 0.5, 1.0, 2.0),
            (0.5, 1.0, 2.7, 3.0, 10.0),
            (0.0, 0.2, 1.0, 5.0),
            (30, 50, 70, 90),
        ),
    )
)


#: What the variants of the published method differ in.
_PUBLISHED: Final[dict[str, dict[str, Any]]] = {
    "published": {},
    "published-balanced": {"prefer": "balance"},
    "published-long": {"accepted": 150, "generated": 300},
    "published-balanced-long": {"prefer": "balance", "accepted": 150, "generated": 300},
}


def fit_method(
    name: str,
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    classes: Sequence[str] | None,
    seed: int,
    content_free: ArrayLike | None,
    known: dict[Any, Any] | None = None,
) -> Fitted:
    """Fit a method that comes with this package; arguments as of `Method.fitted`.

    Raises
    ------
    InvalidInputError
        When there is no such method, an argument is not allowed, ``"contextual"`` has no
        content-free probabilities, or a method that needs labels has none.
    """
    values, indices, names = checked_rows(probs, labels, classes, missing=True)
    labelled = indices >= 0
    if name == "dcs" and labelled.sum() < FEWEST_LABELS:
        return Fitted(label_free_scheme(values, indices, classes=names))
    if name in ("dnip", "furud", "dcs"):
        settings = SelectionSettings.of_method(name)
        found = fit_scheme(values, indices, settings=settings, seed=seed, classes=names)
        return Fitted(found.scheme)
    if name not in _LABEL_FREE:
        if not labelled.any():
            raise InvalidInputError(
                f"no row has a label, and method {name!r} needs some; dcs and batch do not"
            )
        values, indices = values[labelled], indices[labelled]
    if name in _PUBLISHED:
        options = _PUBLISHED[name]
        return fit_published(values, indices, classes=names, seed=seed, known=known, **options)
    if name not in _CALIBRATIONS:
        raise InvalidInputError(f"method {name!r} has no fitter; give it one")
    calibration = _CALIBRATIONS[name](values, indices, content_free)
    unchanged = (DONT_CHANGE,) * len(names)
    return Fitted(CorrectionScheme(names, unchanged, {"method": name}, calibration))


def _contextual(probs: _Probs, labels: _Labels, content_free: ArrayLike | None) -> Calibration:
    if content_free is None:
        raise InvalidInputError(
            "contextual calibration needs content_free: the class probabilities of inputs "
            'without content such as "N/A"; batch calibration needs none'
        )
    return contextual_calibration(content_free)


def _regression(probs: _Probs, labels: _Labels, *, balanced: bool) -> Calibration:
    """Fit scikit-learn's logistic regression, as anybody would, on log-probabilities."""
    from sklearn.linear_model import LogisticRegression

    n_classes, present = probs.shape[1], np.unique(labels)
    # What is never seen is never predicted.
    matrix, offset = np.zeros((n_classes, n_classes)), np.full(n_classes, -100.0)
    offset[present] = 0.0
    if present.size > 1:
        model = LogisticRegression(max_iter=5000, class_weight="balanced" if balanced else None)
        model.fit(np.log(np.maximum(probs, DEFAULT_FLOOR)), labels)
        # Of two classes only the logit of the second is fitted.
        fitted = present[-len(model.coef_) :]
        matrix[fitted], offset[fitted] = model.coef_, model.intercept_
    return from_arrays("logistic-balanced" if balanced else "logistic", matrix, offset)


def _thresholds(probs: _Probs, labels: _Labels) -> Calibration:
    """One threshold per class, all at the same true positive rate, the most accurate such set."""
    # In the manner of Fairlearn's threshold optimiser: a grid of target rates, for every class the
    # threshold that meets it, and the target that serves accuracy best. A row goes to the class
    # that exceeds its threshold by the largest factor.
    levels = 1.0 - np.arange(1, _TARGETS + 1) / (_TARGETS + 1)
    cuts = np.ones((_TARGETS, probs.shape[1]))
    for j in np.unique(labels):
        cuts[:, j] = np.quantile(probs[labels == j, j], levels)
    cuts = np.maximum(cuts, DEFAULT_FLOOR)
    hits = [((probs / cut).argmax(axis=1) == labels).mean() for cut in cuts]
    return from_offset("thresholds", -np.log(cuts[np.argmax(hits)]))


def fit_published(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    classes: Sequence[str] | None = None,
    seed: int = 0,
    prefer: Literal["accuracy", "balance"] = "accuracy",
    accepted: int = 3,
    generated: int = 6,
    grid: Sequence[_Combination] = PUBLISHED_GRID,
    known: dict[Any, Any] | None = None,
) -> Fitted:
    """Anneal once for every combination of a grid, and choose by 5 % development rows.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices.
    classes : sequence of str, optional
        Class names, by default ``"class_0", "class_1", ...``.
    seed : int, optional
        Seed of the split, which is not stratified, and of the searches.
    prefer : {"accuracy", "balance"}, optional
        Take the highest development accuracy, ties by the lowest COBias, as the public code does;
        or the highest accuracy minus COBias.
    accepted, generated : int, optional
        As for :meth:`dcs.Schedule.published`.
    grid : sequence of tuple, optional
        Error weight, beta, tau and D_W of every search, by default the 304 of the public code.
    known : dict, optional
        As of :meth:`dcs.selection.methods.Method.fitted`.

    Returns
    -------
    Fitted
        With one trial per combination, in the order of the grid, and the chosen search.

    Raises
    ------
    InvalidInputError
        When an argument is not allowed or there are fewer than two rows.

    Warns
    -----
    UserWarning
        When a class has no rows.
    """
    values, indices, names = checked_rows(probs, labels, classes)
    n_rows = indices.size
    if n_rows < 2:
        raise InvalidInputError("probs has 1 row; development rows need another")
    warn_of_absent_classes(indices, names)
    known, searched = {} if known is None else known, (seed, accepted, generated, *grid)
    if searched not in known:
        known[searched] = _search_grid(values, indices, names, searched)
    trials, searches = known[searched]
    balanced = prefer == "balance"
    # Of equals the first.
    best = max(trials, key=lambda t: (t.accuracy - balanced * t.cobias, t.accuracy, -t.cobias))
    found = searches[best.number]
    provenance = {
        "method": "published",
        "seed": seed,
        "prefer": prefer,
        "moves": [accepted, generated],
        "setting": best.params,
    }
    scheme = CorrectionScheme(names, found.scheme.corrections, provenance)
    return Fitted(scheme, trials, best, found)


def _search_grid(
    values: _Probs, indices: _Labels, names: Sequence[str], searched: tuple[Any, ...]
) -> tuple[tuple[Trial, ...], list[AnnealingResult]]:
    """Anneal on 95 % of the rows for every combination, and judge on the others."""
    seed, accepted, generated, *grid = searched
    n_rows = indices.size
    shuffled = derive_generator(seed, "split").permutation(n_rows)
    outside, inside = np.split(shuffled, [max(1, round(_DEVELOPMENT * n_rows))])
    schedule = Schedule.published(inside.size, accepted=accepted, generated=generated)
    rows, labels = values[inside], indices[inside]
    trials: list[Trial] = []
    searches: list[AnnealingResult] = []
    for number, (error_weight, beta, tau, weight_scale) in enumerate(grid):
        with warnings.catch_warnings():
            # Once is enough.
            warnings.simplefilter("ignore", UserWarning)
            search = anneal(
                rows,
                labels,
                corrections=CorrectionSet.dcs(weight_scale=weight_scale),
                objective=Objective(beta=beta, tau=tau, error_weight=error_weight),
                schedule=schedule,
                seed=derive_seed(seed, "anneal", number),
                classes=names,
            )
        judged = ClassificationMetrics.from_predictions(
            indices[outside], search.scheme.predict(values[outside]), len(names)
        )
        params = {
            "error_weight": error_weight,
            "beta": beta,
            "tau": tau,
            "weight_scale": weight_scale,
        }
        trials.append(Trial(number, params, judged.accuracy, judged.cobias, search.seconds))
        searches.append(search)
    return tuple(trials), searches


#: What is fitted to unlabelled rows too, if only in part.
_LABEL_FREE: Final = ("icl", "batch", "contextual", "prior")

#: What is a calibration and nothing else, of probabilities, labels and content-free inputs.
_CALIBRATIONS: Final[
    dict[str, Callable[[_Probs, _Labels, ArrayLike | None], Calibration | None]]
] = {
    "icl": lambda probs, labels, free: None,
    "batch": lambda probs, labels, free: batch_calibration(probs),
    "contextual": _contextual,
    "prior": lambda probs, labels, free: prior_reweighting(probs, labels),
    "temperature": lambda probs, labels, free: fit_calibration(probs, labels, kind="temperature"),
    # A ridge of one row or so only keeps classes without rows finite.
    "vector": lambda probs, labels, free: fit_calibration(probs, labels, kind="vector", ridge=1.0),
    "logistic": lambda probs, labels, free: _regression(probs, labels, balanced=False),
    "logistic-balanced": lambda probs, labels, free: _regression(probs, labels, balanced=True),
    "thresholds": lambda probs, labels, free: _thresholds(probs, labels),
}
