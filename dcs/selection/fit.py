"""Choosing a scheme by cross-validation: the default way to fit one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_rows, warn_of_absent_classes, whole_number
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.schemes.scheme import CorrectionScheme
from dcs.seeds import derive_seed
from dcs.selection.cross_validation import Folds, Mapping
from dcs.selection.front import FrontPoint, Preference, choose_point, pareto_front
from dcs.selection.settings import Hyperparameters, Prepared

__all__ = ["FittedScheme", "SelectionSettings", "fit_scheme"]

_BETAS: Final = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0, 2.0)

_CANDIDATES: Final = (
    Hyperparameters(calibration="none", corrections="both"),
    Hyperparameters(calibration="none"),
    # What others do, as it is: a search can be better than that, and otherwise must not miss it.
    Hyperparameters(calibration="batch", corrections="none"),
    Hyperparameters(calibration="prior", corrections="none"),
    Hyperparameters(calibration="vector", corrections="none"),
    Hyperparameters(calibration="logistic", corrections="none"),
    Hyperparameters(calibration="logistic"),
    Hyperparameters(calibration="balanced", corrections="none"),
    Hyperparameters(calibration="balanced"),
)

#: What needs no more than a weight per class: all there is where the rows are few.
_FRUGAL: Final = ("none", "batch")

#: A full matrix needs a number of rows per entry that tables with many classes do not have.
_MOST_LOGISTIC_CLASSES: Final = 12

#: Rows in all, and per class, below which calibrations fitted to labels are not told apart from
#: their noise.
_CALIBRATED_ROWS: Final = 1000
_CALIBRATED_CLASS_ROWS: Final = 100

#: Rows per class below which memberships, which nothing draws back, are not tried.
_MEMBERSHIP_ROWS: Final = 400


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """What cross-validation chooses from, and how.

    Parameters
    ----------
    candidates : tuple of Hyperparameters
        Settings to compare; those that search are tried with every beta. Those that would
        overfit are left out when others remain: a logistic calibration above 12 classes,
        membership functions below 400 rows per class, and all calibrations that are fitted to
        labels below 1,000 rows or 100 per class.
    betas : tuple of float
        Weights of COBias: the points of the front.
    fixed : tuple of Hyperparameters
        Settings that compete at every point as they are, with the beta that they have.
    folds : int
        Number of folds, 2 or more; fewer when there are fewer rows.
    preference : Preference
        Which point of the front becomes the scheme.
    keep_uncorrected : bool
        Whether the uncorrected probabilities stay unless correcting them is an improvement
        beyond the noise of cross-validation: half a standard error, a whole one where it costs
        accuracy.

    Raises
    ------
    InvalidInputError
        When a value is not allowed.
    """

    candidates: tuple[Hyperparameters, ...] = _CANDIDATES
    betas: tuple[float, ...] = _BETAS
    fixed: tuple[Hyperparameters, ...] = ()
    folds: int = 5
    preference: Preference = field(default_factory=Preference)
    keep_uncorrected: bool = True

    def __post_init__(self) -> None:
        if not self.candidates:
            raise InvalidInputError("candidates is empty; at least one setting is needed")
        if not self.betas:
            raise InvalidInputError("betas is empty; at least one weight of COBias is needed")
        for beta in self.betas:
            replace(self.candidates[0], beta=beta)
        whole_number(self.folds, "folds", least=2)


@dataclass(frozen=True, slots=True)
class FittedScheme:
    """What :func:`fit_scheme` gives back.

    Attributes
    ----------
    scheme : CorrectionScheme
        The scheme of the chosen point.
    chosen : FrontPoint
        The point that the preference picked.
    points : tuple of FrontPoint
        One point per beta, in that order, then the uncorrected probabilities.
    front : tuple of FrontPoint
        Those that no other beats in both figures, the most accurate first.
    uncorrected : ClassificationMetrics
        The same rows without correction.
    seconds : float
        Wall-clock time.
    """

    scheme: CorrectionScheme
    chosen: FrontPoint
    points: tuple[FrontPoint, ...]
    front: tuple[FrontPoint, ...]
    uncorrected: ClassificationMetrics
    seconds: float

    def predict(self, probs: ArrayLike) -> NDArray[np.int64]:
        """Return the corrected predictions of the chosen scheme, shape [M].

        Parameters
        ----------
        probs : array of float, shape [M, N]
            Class probabilities, columns in the order of the classes.

        Returns
        -------
        array of int64, shape [M]
            Class indices.
        """
        return self.scheme.predict(probs)

    def apply(self, probs: ArrayLike) -> NDArray[np.float64]:
        """Return the corrected probabilities of the chosen scheme, shape [M, N].

        Parameters
        ----------
        probs : array of float, shape [M, N]
            Class probabilities, columns in the order of the classes.

        Returns
        -------
        array of float64, shape [M, N]
            Rows with sum 1.
        """
        return self.scheme.apply(probs)


def fit_scheme(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    settings: SelectionSettings | None = None,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    progress: Callable[[float], None] | None = None,
    mapper: Mapping = map,
) -> FittedScheme:
    """Fit the front of schemes and choose one of them, all by cross-validation.

    For every weight of COBias (beta) the candidates are compared on rows they were not fitted on,
    and the best is fitted again on all rows: the points of the front. The preference picks one.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices.
    settings : SelectionSettings, optional
        Candidates, betas, folds and preference.
    seed : int, optional
        The same arguments give the same schemes.
    classes : sequence of str, optional
        Class names, by default ``"0", "1", ...``.
    progress : callable, optional
        Called with the share of the work done, 0..1.
    mapper : callable, optional
        Applies a function to items, in order, like the builtin ``map``: a way to fit the folds
        on several CPUs, with the same result.

    Returns
    -------
    FittedScheme
        The chosen scheme and the front it is from.

    Raises
    ------
    InvalidInputError
        When an argument is not allowed or there are fewer than two rows.

    Warns
    -----
    UserWarning
        When a class has no rows.
    """
    started = time.perf_counter()
    settings = SelectionSettings() if settings is None else settings
    values, indices, names = checked_rows(probs, labels, classes)
    folds = Folds(values, indices, settings.folds, seed)
    warn_of_absent_classes(indices, names)
    n_classes = len(names)
    candidates = _usable(settings.candidates, folds)
    # By candidate, so that those that share a calibration are fitted together.
    searched = [_at(c, beta) for c in candidates for beta in settings.betas]
    grid = list(dict.fromkeys((*searched, *settings.fixed)))
    predictions = dict(
        zip(grid, folds.predictions(grid, mapper=mapper, progress=progress), strict=True)
    )
    judged = {setting: folds.metrics(p, setting) for setting, p in predictions.items()}
    prepare = lru_cache(None)(partial(Prepared.from_arguments, values, indices, classes=names))
    points: list[FrontPoint] = []
    kept: list[NDArray[np.int64]] = []
    for beta in settings.betas:
        among = (*(_at(c, beta) for c in candidates), *settings.fixed)
        setting = min(among, key=lambda s: _loss(judged[s], beta))
        prepared = prepare(kind=setting.calibration, ridge=setting.ridge)
        scheme = prepared.fit(setting, seed=derive_seed(seed, "anneal"))
        own = ClassificationMetrics.from_predictions(indices, scheme.predict(values), n_classes)
        estimate = _no_better(judged[setting], own)
        points.append(FrontPoint(setting, estimate, scheme, beta, folds.noise(estimate)))
        kept.append(predictions[setting])
    plain = values.argmax(axis=1).astype(np.int64)
    before = folds.metrics(plain)
    untouched = CorrectionScheme.identity(names)
    points.append(FrontPoint(None, before, untouched, noise=folds.noise(before)))
    chosen = choose_point(
        points,
        [*kept, plain],
        folds=folds,
        preference=settings.preference,
        keep_uncorrected=settings.keep_uncorrected,
    )
    return FittedScheme(
        scheme=replace(chosen.scheme, provenance=_provenance(chosen, settings, seed)),
        chosen=chosen,
        points=tuple(points),
        front=pareto_front(points),
        uncorrected=ClassificationMetrics.from_predictions(indices, plain, n_classes),
        seconds=time.perf_counter() - started,
    )


def _at(candidate: Hyperparameters, beta: float) -> Hyperparameters:
    """Return a candidate at a weight of COBias, which counts only where there is a search."""
    return candidate if candidate.corrections == "none" else replace(candidate, beta=beta)


def _no_better(
    estimate: ClassificationMetrics, own: ClassificationMetrics
) -> ClassificationMetrics:
    """Bound an estimate by the figures of the fitted scheme on its own rows.

    Where the trade-off is nearly straight, small changes of the rows move the optimum far along
    it: the scheme fitted on all rows can lie elsewhere than those of the folds. On its own rows a
    scheme looks better than it is, never worse.
    """
    return replace(
        estimate,
        accuracy=min(estimate.accuracy, own.accuracy),
        cobias=max(estimate.cobias, own.cobias),
    )


def _usable(candidates: tuple[Hyperparameters, ...], folds: Folds) -> tuple[Hyperparameters, ...]:
    """Leave out what would overfit, unless nothing else is left."""
    n_rows, n_classes = folds.probs.shape
    fewest = max(_CALIBRATED_ROWS, _CALIBRATED_CLASS_ROWS * n_classes)
    kept = tuple(
        c
        for c in candidates
        if not (c.calibration in ("logistic", "balanced") and n_classes > _MOST_LOGISTIC_CLASSES)
        and not (
            c.corrections in ("memberships", "both") and n_rows < _MEMBERSHIP_ROWS * n_classes
        )
        and (c.calibration in _FRUGAL or n_rows >= fewest)
    )
    return kept or candidates


def _loss(metrics: ClassificationMetrics, beta: float) -> float:
    return (1.0 - metrics.accuracy) + beta * metrics.cobias


def _provenance(chosen: FrontPoint, settings: SelectionSettings, seed: int) -> dict[str, Any]:
    origin: dict[str, Any] = {
        "method": "dcs",
        "seed": seed,
        "rule": _given(settings.preference),
        "estimate": {
            "accuracy": chosen.accuracy,
            "cobias": chosen.cobias,
            "rows": chosen.estimate.n_rows,
            "folds": settings.folds,
        },
    }
    if chosen.setting is not None:
        origin["setting"] = _given(chosen.setting)
        del origin["setting"]["schedule"]
    return origin


def _given(values: Preference | Hyperparameters) -> dict[str, Any]:
    return {name: value for name, value in asdict(values).items() if value is not None}
