"""Choosing a scheme by cross-validation: the default way to fit one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs._arrays import warn_of_absent_classes
from dcs.errors import InvalidInputError
from dcs.fitting import Hyperparameters, Prepared, fit_setting
from dcs.front import Preference, choose, pareto_front
from dcs.metrics import ClassificationMetrics
from dcs.scheme import CorrectionScheme
from dcs.seeds import derive_seed
from dcs.uncertainty import compare_predictions
from dcs.validation import Folds, checked_rows, cross_validate

__all__ = [
    "FittedScheme",
    "FrontPoint",
    "SelectionSettings",
    "cross_validate",
    "fit_scheme",
    "fit_setting",
]

_BETAS: Final = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)

_CANDIDATES: Final = (
    Hyperparameters(calibration="none", corrections="both"),
    Hyperparameters(calibration="none"),
    Hyperparameters(calibration="vector"),
    Hyperparameters(calibration="logistic"),
    # Peers as they are: what a search can be better than, and otherwise must not miss.
    Hyperparameters(calibration="balanced", corrections="none"),
    Hyperparameters(calibration="batch", corrections="none"),
)

#: A full matrix needs a number of rows per entry that tables with many classes do not have.
_MOST_LOGISTIC_CLASSES: Final = 12

#: Rows per class below which memberships, which nothing draws back, are not tried.
_MEMBERSHIP_ROWS: Final = 400

#: The point that stands where the rows are too few to choose one, and how many are few.
_MIDDLE_BETA: Final = 0.3
_CAUTIOUS_ROWS: Final = 100.0


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """What cross-validation chooses from, and how.

    Parameters
    ----------
    candidates : tuple of Hyperparameters
        Settings to compare; each is tried with every beta. Those that would overfit are left
        out when others remain: a logistic calibration above 12 classes, membership functions
        below 400 rows per class.
    betas : tuple of float
        Weights of COBias: the points of the front.
    folds : int
        Number of folds, 2 or more; fewer when there are fewer rows.
    preference : Preference
        Which point of the front becomes the scheme.
    keep_uncorrected : bool
        Whether the uncorrected probabilities stay unless correcting them is an improvement
        beyond the noise of cross-validation: one standard error, two where it costs accuracy.

    Raises
    ------
    InvalidInputError
        When a value is not allowed.
    """

    candidates: tuple[Hyperparameters, ...] = _CANDIDATES
    betas: tuple[float, ...] = _BETAS
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
        if isinstance(self.folds, bool) or self.folds < 2:
            raise InvalidInputError(f"folds {self.folds!r}: 2 or more are needed")


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """One point of the trade-off between accuracy and COBias.

    Attributes
    ----------
    setting : Hyperparameters or None
        What was fitted; None for the uncorrected probabilities.
    estimate : ClassificationMetrics
        Cross-validated: every row is judged by a scheme fitted without it.
    scheme : CorrectionScheme
        The setting fitted on all rows.
    """

    setting: Hyperparameters | None
    estimate: ClassificationMetrics
    scheme: CorrectionScheme

    @property
    def accuracy(self) -> float:
        """Cross-validated accuracy, 0..1."""
        return self.estimate.accuracy

    @property
    def cobias(self) -> float:
        """Cross-validated COBias, 0..1."""
        return self.estimate.cobias


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
        """Return the corrected predictions of the chosen scheme, shape [M]."""
        return self.scheme.predict(probs)

    def apply(self, probs: ArrayLike) -> NDArray[np.float64]:
        """Return the corrected probabilities of the chosen scheme, shape [M, N]."""
        return self.scheme.apply(probs)


def fit_scheme(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    settings: SelectionSettings | None = None,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    progress: Callable[[float], None] | None = None,
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
    warn_of_absent_classes(indices, names)
    n_classes = len(names)
    candidates = _usable(settings.candidates, n_rows=indices.size, n_classes=n_classes)
    grid = [replace(c, beta=beta) for beta in settings.betas for c in candidates]
    folds = Folds(values, indices, settings.folds, seed)
    predictions = folds.predictions(grid, progress=progress)
    judged = [ClassificationMetrics.from_predictions(indices, p, n_classes) for p in predictions]
    prepared = {
        key: Prepared.from_arguments(values, indices, kind=key[0], ridge=key[1], classes=names)
        for key in {(s.calibration, s.ridge) for s in grid}
    }
    points: list[FrontPoint] = []
    kept: list[NDArray[np.int64]] = []
    for b in range(len(settings.betas)):
        among = range(b * len(candidates), (b + 1) * len(candidates))
        k = min(among, key=lambda i: _loss(judged[i], settings.betas[b]))
        setting = grid[k]
        scheme = prepared[setting.calibration, setting.ridge].fit(
            setting, seed=derive_seed(seed, "anneal")
        )
        points.append(FrontPoint(setting, judged[k], scheme))
        kept.append(predictions[k])
    plain = values.argmax(axis=1).astype(np.int64)
    before = ClassificationMetrics.from_predictions(indices, plain, n_classes)
    untouched = FrontPoint(None, before, CorrectionScheme.identity(names))
    points.append(untouched)
    chosen = _chosen(points, [*kept, plain], indices, settings)
    return FittedScheme(
        scheme=replace(chosen.scheme, provenance=_provenance(chosen, settings, seed)),
        chosen=chosen,
        points=tuple(points),
        front=pareto_front(points),
        uncorrected=before,
        seconds=time.perf_counter() - started,
    )


def _chosen(
    points: list[FrontPoint],
    predictions: list[NDArray[np.int64]],
    labels: NDArray[np.int64],
    settings: SelectionSettings,
) -> FrontPoint:
    """Pick a point; what cross-validation cannot tell apart is decided by caution.

    With few rows the best of many estimates is mostly luck: the point of middle beta stays unless
    another is better by more than the noise of the difference. And the probabilities stay as they
    are unless correcting them is an improvement beyond noise.
    """
    preference = settings.preference
    corrected, plain = points[:-1], points[-1]
    best = choose(corrected, preference)
    if preference.max_cobias is not None or preference.max_accuracy_loss is not None:
        return choose(points, preference) if settings.keep_uncorrected else best
    at = {id(point): p for point, p in zip(points, predictions, strict=True)}
    n_classes = len(plain.scheme.classes)

    def beats(a: FrontPoint, b: FrontPoint, errors: float) -> bool:
        pair = compare_predictions(labels, at[id(b)], at[id(a)], n_classes, resamples=500)
        gain = pair.accuracy if preference.prefer == "accuracy" else pair.score
        return gain.estimate > errors * gain.standard_error

    share = _CAUTIOUS_ROWS / (_CAUTIOUS_ROWS + labels.size)
    nearest = np.argmin([abs(beta - _MIDDLE_BETA) for beta in settings.betas])
    middle = corrected[int(nearest)]
    if preference.prefer == "balance":
        # Of points that are nearly as good, the most accurate one changes least.
        near = [p for p in pareto_front(corrected) if not beats(best, p, 0.5)]
        best = near[0] if near else best
    if preference.prefer == "balance" and not beats(best, middle, 1.5 * share):
        best = middle
    if settings.keep_uncorrected:
        loss = compare_predictions(
            labels, at[id(plain)], at[id(best)], n_classes, resamples=500
        ).accuracy
        # The best of many points flatters itself; where it costs accuracy it must show more.
        costs = loss.estimate < -loss.standard_error
        if not beats(best, plain, 2.0 if costs else 1.0):
            return plain
    return best


def _usable(
    candidates: tuple[Hyperparameters, ...], *, n_rows: int, n_classes: int
) -> tuple[Hyperparameters, ...]:
    """Leave out what would overfit, unless nothing else is left."""
    kept = tuple(
        c
        for c in candidates
        if not (c.calibration in ("logistic", "balanced") and n_classes > _MOST_LOGISTIC_CLASSES)
        and not (
            c.corrections in ("memberships", "both") and n_rows < _MEMBERSHIP_ROWS * n_classes
        )
    )
    return kept or candidates


def _loss(metrics: ClassificationMetrics, beta: float) -> float:
    return (1.0 - metrics.accuracy) + beta * metrics.cobias


def _provenance(chosen: FrontPoint, settings: SelectionSettings, seed: int) -> dict[str, Any]:
    preference = settings.preference
    rule: dict[str, Any] = {"prefer": preference.prefer}
    for name in ("max_accuracy_loss", "max_cobias"):
        if getattr(preference, name) is not None:
            rule[name] = getattr(preference, name)
    figures = {
        "accuracy": chosen.accuracy,
        "cobias": chosen.cobias,
        "rows": chosen.estimate.n_rows,
        "folds": settings.folds,
    }
    origin: dict[str, Any] = {"method": "dcs", "seed": seed, "rule": rule, "estimate": figures}
    if chosen.setting is not None:
        s = chosen.setting
        origin["setting"] = {
            "calibration": s.calibration,
            "ridge": s.ridge,
            "corrections": s.corrections,
            "weight_scale": int(s.weight_scale),
            "spacing": s.spacing,
            "beta": s.beta,
            "tau": s.tau,
            "prior_rows": s.prior_rows,
            "averages": int(s.averages),
        }
    return origin
