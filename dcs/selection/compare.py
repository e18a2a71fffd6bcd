"""Comparison of settings: the front of the best ones, and the default fit.

Settings are judged on rows that they were not fitted on. For each weight of COBias, the mean of
the best few linear settings is a point of the front, and the preference selects one of the points.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from dcs.data.checks import (
    checked_groups,
    checked_rows,
    doubts_about,
    finite_number,
    refuse_other_order,
    warn_of_absent_classes,
    whole_number,
)
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics, confusion_matrix
from dcs.methods.parameters import Hyperparameters
from dcs.selection.fitting import ALONE, Fit, Fitting, Mapper, cobias_noise
from dcs.selection.front import FittedScheme
from dcs.selection.preference import FrontPoint, Preference, pareto_front

#: Weights of COBias, for each of which there is a point.
_BETAS: Final = (0.0, 0.1, 0.25, 0.5, 1.0, 1.5)

#: Beta of the reference of "balance".
_REFERENCE_BETA: Final = 1.0

_CANDIDATES: Final = (
    Hyperparameters(),
    Hyperparameters(corrections="none"),
    Hyperparameters(calibration="batch", corrections="none"),
    Hyperparameters(calibration="none"),
    Hyperparameters(calibration="none", corrections="both"),
    *(
        Hyperparameters(calibration=name, ridge=ridge, anchor=anchor, corrections="none")
        for name, ridge, anchor in ALONE
    ),
)

#: Largest share of development rows: the others are fitted.
_MOST_DEVELOPMENT: Final = 0.999

#: Weight relative to the best setting below which a setting takes no part in a mean.
_FADED: Final = 0.01

#: Number of classes above which the number of moves of a search no longer grows with them.
_FULL_CLASSES: Final = 20

#: Maximum steps between neighbours on a front, in accuracy, in COBias and in the share of changed
#: predictions, and minimum interpolation step.
_ACCURACY_STEP: Final = 0.004
_COBIAS_STEP: Final = 0.02
_CHANGED_STEP: Final = 0.1
_SHORTEST: Final = 1 / 64

#: Shares of the reference on the straight way to it from the uncorrected probabilities.
_WAY: Final = (
    *(0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.13, 0.17, 0.22),
    *(0.28, 0.35, 0.42, 0.5, 0.6, 0.7, 0.8, 0.9),
)


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """Settings of the selection by cross-validation.

    Parameters
    ----------
    candidates : tuple of Hyperparameters
        Settings to compare, on any number of rows and classes. The first is evaluated at every
        beta, others that search at every second one.
    betas : tuple of float
        Weights of COBias for the searches; the front is interpolated between them. Empty to try
        each candidate at its own only.
    folds : int
        Number of folds, 2 or more; limited to the number of labelled rows.
    development : float, optional
        Share of the labelled rows on which settings are judged, instead of folds.
    stratified : bool
        Whether these rows have the class shares of all.
    preference : Preference
        Rule that selects the point of the front.
    method : str
        Name of the method in the provenance of the schemes.

    Raises
    ------
    InvalidInputError
        If a value is invalid.
    """

    candidates: tuple[Hyperparameters, ...] = _CANDIDATES
    betas: tuple[float, ...] = _BETAS
    folds: int = 5
    development: float | None = None
    stratified: bool = True
    preference: Preference = field(default_factory=Preference)
    method: str = "dcs"

    def __post_init__(self) -> None:
        if not self.candidates:
            raise InvalidInputError("candidates (): must be at least one setting to compare")
        if self.development is not None:
            most = _MOST_DEVELOPMENT
            share = finite_number(self.development, "development", positive=True, most=most)
            object.__setattr__(self, "development", share)
        betas = tuple(replace(self.candidates[0], beta=beta).beta for beta in self.betas)
        object.__setattr__(self, "betas", betas)
        object.__setattr__(self, "folds", whole_number(self.folds, "folds", least=2))

    @property
    def judge(self) -> dict[str, Any]:
        """The rows to judge on, as arguments of a :class:`dcs.selection.fitting.Fitting`."""
        return {name: getattr(self, name) for name in ("folds", "development", "stratified")}


def fit_scheme(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    settings: SelectionSettings | None = None,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    groups: ArrayLike = (),
    progress: Callable[[float], None] | None = None,
    mapper: Mapper = map,
) -> FittedScheme:
    """Fit a front of schemes and select one of them by cross-validation.

    For every weight of COBias (beta), the mean of the best settings on held-out rows is a point of
    the front. Further points are interpolated until neighbours are close. The preference selects
    one point.

    Parameters
    ----------
    probs : array of float, shape [M, N], or data frame
        Class probabilities. The columns of a data frame are matched to `classes` by name.
    labels : array of int or str, shape [M]
        True class indices, -1 for unlabelled rows; or class names, "" or None for unlabelled
        rows. At least two rows must be labelled; these are used for search and evaluation, whereas
        mean probabilities are those of all rows.
    settings : SelectionSettings, optional
        Candidates, betas, folds and preference.
    seed : int, optional
        Random seed; the same arguments give the same schemes.
    classes : sequence of str, optional
        Class names, by default ``"class_0", "class_1", ...``.
    groups : array of int, shape [M], optional
        Numbers that are equal in rows of the same text, which are in one fold; by default all
        different. Rows with equal probabilities are found without.
    progress : callable, optional
        Called with the completed share of the work, 0..1.
    mapper : callable, optional
        Applies a function to items in order, like the builtin ``map``; use it to fit settings in
        parallel. It does not change the result.

    Returns
    -------
    FittedScheme
        The front and the selected scheme.

    Raises
    ------
    InvalidInputError
        If an argument is invalid or there are fewer than two labelled rows.

    Warns
    -----
    UserWarning
        If a class has no rows, or labels are the most probable class of every row.
    """
    refuse_other_order(probs, groups=groups)
    rows = checked_rows(probs, labels, classes, missing=True, doubt=True)
    group = checked_groups(np.asarray(groups), n_rows=len(rows[1]), source="groups")
    options: dict[str, Any] = {"seed": seed, "mapper": mapper, "progress": progress}
    return fit_front(*rows, settings or SelectionSettings(), groups=group, **options)


def fit_front(
    probs: NDArray[np.float64],
    labels: NDArray[np.int64],
    classes: tuple[str, ...],
    settings: SelectionSettings,
    *,
    seed: int,
    groups: NDArray[np.int64] | None = None,
    mapper: Mapper = map,
    progress: Callable[[float], None] | None = None,
) -> FittedScheme:
    """Fit the standard settings to valid rows, and select a point; see :func:`fit_scheme`."""
    fitting = Fitting(probs, labels, **settings.judge, seed=seed, groups=groups)
    warn_of_absent_classes(fitting.labels, classes)
    for doubt in doubts_about(fitting.rows.labels, fitting.rows.probs):
        warnings.warn(doubt, UserWarning, stacklevel=3)
    standard = standard_settings(settings, fitting.n_classes)
    # The matrices are small, so that multi-threaded linear algebra would only add overhead.
    with threadpool_limits(limits=1):
        fits = fitting.judge(standard, mapper=mapper, progress=progress)
        return front_of(fitting, fits, settings=settings, classes=classes)


def standard_settings(settings: SelectionSettings, n_classes: int) -> list[Hyperparameters]:
    """Return the settings to compare, those without a search first."""
    # A chain visits every class the same number of times, whose cost grows with their number too.
    share = min(1.0, _FULL_CLASSES / n_classes)
    grid, candidates = [], settings.candidates
    if settings.preference.prefer == "offsets":
        candidates = tuple(each for each in candidates if each.adds_offsets) or candidates
    for each in candidates:
        schedule = each.schedule
        if schedule.per_class:
            first, second = schedule.lambda1 * share, schedule.lambda2 * share
            schedule = replace(schedule, lambda1=first, lambda2=second)
        # The first one makes the front; the others compete with it at some betas.
        betas = settings.betas if each == candidates[0] else settings.betas[::2]
        own = replace(each, schedule=schedule)
        grid += [own.at(beta) for beta in betas or (own.beta,)]
    return sorted(dict.fromkeys(grid), key=lambda each: each.corrections != "none")


def front_of(
    fitting: Fitting,
    fits: Sequence[Fit],
    *,
    settings: SelectionSettings,
    classes: Sequence[str],
    reference: ArrayLike | None = None,
) -> FittedScheme:
    """Build the front of judged settings and pick a point.

    Parameters
    ----------
    fitting : Fitting
        The judge of the settings.
    fits : sequence of Fit
        All judged settings, standard and sampled.
    settings : SelectionSettings
        Betas and preference.
    classes : sequence of str
        Class names.
    reference : array of int, shape [M], optional
        Predictions with which accuracy is compared, by default those of the uncorrected
        probabilities. For combined tables, those before the combination.

    Returns
    -------
    FittedScheme
        The front and the picked point.
    """
    plain = fitting.uncorrected(classes)
    before = plain.predictions
    if reference is not None:
        before = np.asarray(reference)[fitting.rows.place >= 0]
    best = _best(fitting, fits, settings)
    middle, _ = min(best, key=lambda each: abs(each[1] - _REFERENCE_BETA))
    origin = {"method": settings.method, "seed": fitting.rows.seed}
    builder = _Front(fitting, plain, before, middle, origin)
    return FittedScheme(builder.points(best), settings.preference, fitting.pool)


def reference_of(fitting: Fitting, fits: Sequence[Fit], settings: SelectionSettings) -> Fit:
    """Return the fit that ``"balance"`` refers to: the mean of the best settings at beta 1."""
    nearest = sorted(settings.betas, key=lambda beta: abs(beta - _REFERENCE_BETA))[:1]
    return _best(fitting, fits, replace(settings, betas=tuple(nearest)))[0][0]


def _best(
    fitting: Fitting, fits: Sequence[Fit], settings: SelectionSettings
) -> list[tuple[Fit, float]]:
    """Return the fits of the front, with their betas.

    For each beta the mean of the best few settings that have one; and alone, if Pareto-optimal,
    those that have none or do not search.
    """
    if settings.preference.prefer == "offsets":
        fits = [fit for fit in fits if fit.setting and fit.setting.adds_offsets] or fits
    linear = [fit for fit in fits if fit.setting is not None and fit.is_linear]
    best: list[tuple[Fit, float]] = []
    for beta in settings.betas:
        parts = _best_few(linear or fits, beta, fitting.truth.size)
        known = [(fitting.complete(fit), share) for fit, share in parts]
        best.append((fitting.averaged(known), beta))
    averaged = {fit for fit in linear if fit.setting and fit.setting.corrections != "none"}
    alone = [fit for fit in fits if not settings.betas or fit not in averaged]
    tried = best or [(fits[0], _REFERENCE_BETA)]
    for fit in pareto_front(alone):
        beta = min(tried, key=lambda each: fit.z(each[1]) - each[0].z(each[1]))[1]
        best.append((fitting.complete(fit), beta))
    # Of equal ones, the one nearest to the reference.
    best.sort(key=lambda each: abs(each[1] - _REFERENCE_BETA))
    distinct: dict[Any, tuple[Fit, float]] = {}
    for fit, beta in best:
        distinct.setdefault((fit.setting, *fit.shares.items()), (fit, beta))
    return sorted(distinct.values(), key=lambda each: each[1])


def _best_few(fits: Sequence[Fit], beta: float, n_rows: int) -> list[tuple[Fit, float]]:
    """Return the best settings at a beta and their shares in the mean.

    On few rows they share equally; as rows increase, those that are worse fade. They count by the
    difference in Z to the best one, relative to the standard error of its accuracy. Of those that
    have no mean it is the best one alone.
    """
    number = min(len(fits), round(math.sqrt(len(fits))) + 1) if fits[0].is_linear else 1
    few = sorted(fits, key=lambda fit: (fit.z(beta), fit.moves))[:number]
    least = few[0].z(beta)
    # One right and one wrong row more: the accuracy of the best one may be 1.
    right = (few[0].accuracy * n_rows + 1.0) / (n_rows + 2.0)
    error = math.sqrt(right * (1.0 - right) / n_rows)
    weights = [math.exp(-(fit.z(beta) - least) / error) for fit in few]
    kept = [(fit, weight) for fit, weight in zip(few, weights, strict=True) if weight > _FADED]
    total = sum(weight for _, weight in kept)
    return [(fit, weight / total) for fit, weight in kept]


#: An end of a part of the front: a point, and the fit that it was made of.
_End: TypeAlias = tuple[FrontPoint, Fit]


@dataclass(frozen=True, slots=True)
class _Front:
    """Builds the points of a front."""

    fitting: Fitting
    plain: Fit
    before: NDArray[np.int64]
    middle: Fit
    origin: dict[str, Any]

    def points(self, best: Sequence[tuple[Fit, float]]) -> tuple[FrontPoint, ...]:
        """Return the points of fits, those between them, and those on the way to the reference."""
        ends = [(self.point(fit), fit) for fit, _ in best]
        plain = self.point(self.plain)
        linear = [each for each in ends if each[1].is_linear]
        front = {id(point) for point in pareto_front([point for point, _ in linear])}
        line = [each for each in linear if id(each[0]) in front]
        line.sort(key=lambda each: each[0].change.changed)
        gaps = pairwise([(plain, self.plain), *line])
        found = [point for first, second in gaps for point in self._between(first, second)]
        points = [point for point, _ in ends]
        kept = {id(point) for point in pareto_front([*points, plain, *found])}
        way = [self._on_the_way(share) for share in _WAY] if self.middle.is_linear else []
        return (*points, *(point for point in found if id(point) in kept), *way, plain)

    def point(self, fit: Fit, path: float | None = None) -> FrontPoint:
        fitting = self.fitting
        scheme, judged = fitting.whole(fit), fit.predictions
        estimate = fitting.metrics(judged, fit.shares)
        if fitting.n_folds > 1:
            # The scheme for new rows is another one than those of the folds, and differs from
            # them in many rows at once where many are alike. Its metrics on the rows that it was
            # fitted on are optimistic, and therefore bound the estimate.
            again = scheme.predict(fitting.rows.probs[fitting.rows.labels >= 0])
            own = ClassificationMetrics.from_predictions(fitting.labels, again, fitting.n_classes)
            judged = again if own.accuracy < estimate.accuracy else judged
            accuracy = min(estimate.accuracy, own.accuracy)
            cobias = max(estimate.cobias, own.cobias)
            estimate = replace(estimate, accuracy=accuracy, cobias=cobias)
        parts = () if fit is self.plain else fit.shares.items()
        settings = tuple(
            {"share": share, **(each.to_params() if each else {})} for each, share in parts
        )
        shown = {"accuracy": estimate.accuracy, "cobias": estimate.cobias}
        shown |= {"rows": estimate.n_rows, "folds": fitting.n_folds}
        provenance = self.origin | {"estimate": shown}
        if settings:
            provenance["settings"] = list(settings)
        confusion = confusion_matrix(fitting.truth, judged, fitting.n_classes)
        return FrontPoint(
            settings=settings,
            accuracy=estimate.accuracy,
            cobias=estimate.cobias,
            confusion=tuple(map(tuple, confusion.tolist())),
            scheme=replace(scheme, classes=self.plain.schemes[0].classes, provenance=provenance),
            noise=cobias_noise(estimate, fitting.counts),
            change=fitting.change(self.before, judged),
            doubt=fitting.change(self.middle.predictions, fit.predictions).score_error,
            path=path,
        )

    def _on_the_way(self, share: float) -> FrontPoint:
        fit = self.fitting.averaged([(self.plain, 1.0 - share), (self.middle, share)])
        return self.point(fit, share)

    def _between(self, first: _End, second: _End, step: float = 1.0) -> Iterator[FrontPoint]:
        """Yield points interpolated between two, by bisection until the steps are small."""
        (low_point, low_fit), (high_point, high_fit) = first, second
        rows = high_point.estimate.n_rows
        small = (
            abs(high_point.accuracy - low_point.accuracy) <= _ACCURACY_STEP
            and abs(high_point.cobias - low_point.cobias) <= _COBIAS_STEP
            and abs(high_point.change.changed - low_point.change.changed) <= _CHANGED_STEP * rows
        )
        if small or step <= _SHORTEST:
            return
        fit = self.fitting.averaged([(low_fit, 0.5), (high_fit, 0.5)])
        point = self.point(fit)
        yield from self._between(first, (point, fit), step / 2.0)
        yield point
        yield from self._between((point, fit), second, step / 2.0)
