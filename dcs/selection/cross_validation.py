"""Choosing a scheme by cross-validation: the default way to fit one.

Settings are judged on rows they were not fitted on; the best at every weight of COBias make a
front, and the preference picks one of its points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_rows, warn_of_absent_classes, whole_number
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics, cobias, confusion_matrix
from dcs.evaluation.uncertainty import compare_predictions
from dcs.schemes.scheme import CorrectionScheme
from dcs.seeds import derive_generator, derive_seed
from dcs.selection.front import Preference, choose, pareto_front
from dcs.selection.settings import CorrectionFamily, Hyperparameters, Prepared

__all__ = [
    "FittedScheme",
    "Folds",
    "FrontPoint",
    "Mapper",
    "SelectionSettings",
    "choose_point",
    "cobias_noise",
    "cross_validate",
    "fit_scheme",
    "stratified_folds",
]

T = TypeVar("T")
R = TypeVar("R")

#: Rows per class below which the COBias of a fold says nothing.
_FEW_ROWS: Final = 200


class Mapper(Protocol):
    """Applies a function to items, here or elsewhere; results come in order."""

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """Yield ``function(item)`` for every item."""


def stratified_folds(labels: ArrayLike, folds: int, *, seed: int) -> NDArray[np.int64]:
    """Return the fold of every row, each fold with nearly the same mix of classes."""
    values = np.asarray(labels, dtype=np.int64)
    generator = derive_generator(seed, "folds")
    shuffled = generator.permutation(values.size)
    order = shuffled[np.argsort(values[shuffled], kind="stable")]
    places = np.empty(values.size, dtype=np.int64)
    places[order] = np.arange(values.size) % folds
    return places


def cross_validate(
    probs: ArrayLike,
    labels: ArrayLike,
    setting: Hyperparameters,
    *,
    folds: int = 5,
    seed: int = 0,
) -> ClassificationMetrics:
    """Judge one setting by K-fold cross-validation.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices.
    setting : Hyperparameters
        What to judge.
    folds : int, optional
        Number of folds, 2 or more; at most M are used.
    seed : int, optional
        Seed of folds and searches.

    Returns
    -------
    ClassificationMetrics
        Accuracy, COBias and class accuracies of rows that their scheme has not seen. COBias is
        the mean of that of the folds, see Notes.

    Raises
    ------
    InvalidInputError
        When an argument is not allowed or there are fewer than two rows.

    Notes
    -----
    COBias is not counted over the predictions of all folds together. A search that makes the
    classes equal on the rows it sees leaves each with the noise of those rows, turned round; added
    up over the folds, this noise cancels that of the rows judged, and what is left is the COBias
    on the rows searched: near 0 whatever new rows would show. Schemes that were not searched for
    equality have no such advantage. Within a fold nothing cancels: its COBias is what as many new
    rows would show, noise included, and the same noise for all schemes.

    Below 200 rows per class the folds would show little but noise. There it is counted over all
    of them together, and what a search cancels is added again: of the noise e of the rows, its
    part f that follows the labels leaves (1 - f) e where other schemes show e, and new rows see
    another f e. The squares differ by 2 f e^2.
    """
    values, indices, _ = checked_rows(probs, labels)
    judged = Folds(values, indices, folds, seed)
    return judged.metrics(judged.predictions([setting])[0], setting)


def cobias_noise(metrics: ClassificationMetrics, counts: ArrayLike) -> float:
    """Return the COBias that so many rows show of a scheme that has none.

    The mean over pairs of classes of the expected difference of two class accuracies that are
    alike but for sampling: ``sqrt(2 / pi)`` of its standard deviation.

    Parameters
    ----------
    metrics : ClassificationMetrics
        For the class accuracies; a class with no rows is left out.
    counts : array of int, shape [N]
        Rows per class.
    """
    rates, rows = np.array(metrics.class_accuracies), np.asarray(counts, np.float64)
    there = rows > 0
    # One right and one wrong row more: an accuracy of 1 on few rows is not without noise.
    rates = (rates[there] * rows[there] + 1.0) / (rows[there] + 2.0)
    variances = rates * (1.0 - rates) / rows[there]
    pairs = np.triu_indices(variances.size, 1)
    if pairs[0].size == 0:
        return 0.0
    spread = np.sqrt(variances[pairs[0]] + variances[pairs[1]])
    return math.sqrt(2.0 / math.pi) * float(spread.mean())


@dataclass(frozen=True, slots=True)
class _Work:
    """Fits settings without one fold; picklable, so that it can run elsewhere."""

    probs: NDArray[np.float64]
    labels: NDArray[np.int64]
    place: NDArray[np.int64]
    seed: int

    def __call__(self, item: tuple[int, tuple[Hyperparameters, ...]]) -> list[NDArray[np.int64]]:
        """Return the predictions of the fold's rows by each of the settings."""
        fold, settings = item
        inside = self.place != fold
        prepared = Prepared.from_arguments(
            self.probs[inside],
            self.labels[inside],
            kind=settings[0].calibration,
            ridge=settings[0].ridge,
        )
        seed = derive_seed(self.seed, "anneal", fold)
        return [
            prepared.fit(setting, seed=seed).predict(self.probs[~inside]) for setting in settings
        ]


class Folds:
    """Rows divided into folds, and predictions of settings fitted without them.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices.
    folds : int
        Number of folds, 2 or more; at most M are used.
    seed : int
        Seed of folds and searches.

    Attributes
    ----------
    place : array of int, shape [M]
        The fold of every row.
    few : bool
        Whether the rows are too few to look at folds one by one.
    part : array of int, shape [M]
        The part of every row on which COBias is counted: its fold, or 0 with few rows.
    n_parts : int
        Number of parts.

    Raises
    ------
    InvalidInputError
        When there are fewer than two folds or rows.
    """

    def __init__(
        self, probs: NDArray[np.float64], labels: NDArray[np.int64], folds: int, seed: int
    ) -> None:
        whole_number(folds, "folds", least=2)
        if labels.size < 2:
            raise InvalidInputError("probs has 1 row; cross-validation needs at least two")
        self.probs, self.labels, self.seed = probs, labels, seed
        self.n_folds = min(folds, labels.size)
        self.place = stratified_folds(labels, self.n_folds, seed=seed)
        self.few = labels.size < _FEW_ROWS * probs.shape[1]
        self.n_parts = 1 if self.few else self.n_folds
        self.part = self.place % self.n_parts

    def predictions(
        self,
        grid: Sequence[Hyperparameters],
        *,
        mapper: Mapper = map,
        progress: Callable[[float], None] | None = None,
    ) -> list[NDArray[np.int64]]:
        """Return, for each setting, the prediction of every row by a scheme without it.

        Settings next to each other with the same calibration are fitted together; `mapper` is
        given one item for each such group and fold.
        """
        alike = groupby(grid, key=lambda setting: (setting.calibration, setting.ridge))
        groups = [tuple(group) for _, group in alike]
        items = [(fold, group) for fold in range(self.n_folds) for group in groups]
        work = _Work(self.probs, self.labels, self.place, self.seed)
        found = [np.zeros(self.labels.size, np.int64) for _ in grid]
        at = done = 0
        for (fold, group), predictions in zip(items, mapper(work, items), strict=True):
            at = 0 if at == len(grid) else at
            for i, predicted in enumerate(predictions, at):
                found[i][self.place == fold] = predicted
            at, done = at + len(group), done + len(group)
            if progress is not None:
                progress(done / (self.n_folds * len(grid)))
        return found

    def metrics(
        self, predictions: NDArray[np.int64], setting: Hyperparameters | None = None
    ) -> ClassificationMetrics:
        """Judge predictions of all rows by `setting`, None if nothing was fitted.

        COBias is the mean of that of the parts. See :func:`cross_validate`.
        """
        n_classes = self.probs.shape[1]
        whole = ClassificationMetrics.from_predictions(self.labels, predictions, n_classes)
        biases = [
            cobias(confusion_matrix(self.labels[rows], predictions[rows], n_classes))
            for rows in (self.part == part for part in range(self.n_parts))
        ]
        bias = float(np.mean(biases))
        if self.few and setting is not None:
            bias = math.sqrt(
                bias**2 + 2.0 * setting.follows(self.labels.size) * self.noise(whole) ** 2
            )
        return replace(whole, cobias=bias)

    def noise(self, metrics: ClassificationMetrics) -> float:
        """Return the part of the COBias of these metrics that is due to the parts being small."""
        n_classes = self.probs.shape[1]
        counts = np.bincount(self.labels, minlength=n_classes) / self.n_parts
        return cobias_noise(metrics, counts)

    def standard_errors(
        self, before: NDArray[np.int64], after: NDArray[np.int64]
    ) -> tuple[float, float]:
        """Return the noise of two differences: of accuracy, and of accuracy minus COBias."""
        pair = compare_predictions(
            self.labels, before, after, self.probs.shape[1], parts=self.part, resamples=500
        )
        return pair.accuracy.standard_error, pair.score.standard_error


_BETAS: Final = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0, 2.0)

_PAPER_BETAS: Final = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)

_PAPER_FAMILIES: Final[dict[str, CorrectionFamily]] = {"dnip": "weights", "furud": "memberships"}

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

#: The point that stands where the rows are too few to choose one, and how many are few.
_MIDDLE_BETA: Final = 0.3

_CAUTIOUS_ROWS: Final = 100.0


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

    @classmethod
    def of_method(cls, name: str) -> SelectionSettings:
        """Return what a method of the paper is chosen from.

        ``dnip`` and ``furud`` are what their papers made them: their own corrections, and no
        calibration. Of every other name these are the settings of the default, ``dcs``.
        """
        if name not in _PAPER_FAMILIES:
            return cls()
        setting = Hyperparameters(
            calibration="none",
            corrections=_PAPER_FAMILIES[name],
            weight_scale=30,
            spacing="linear",
            prior_rows=0.0,
            averages=0,
        )
        return cls(candidates=(setting,), betas=_PAPER_BETAS)


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """One point of the trade-off between accuracy and COBias.

    Attributes
    ----------
    setting : Hyperparameters or None
        What was fitted; None for the uncorrected probabilities.
    estimate : ClassificationMetrics
        Cross-validated: every row is judged by a scheme fitted without it, COBias within each
        fold (see :func:`cross_validate`); no better than `scheme` is on the rows it was fitted on.
    scheme : CorrectionScheme
        The setting fitted on all rows.
    beta : float
        The weight of COBias at which the setting was the best.
    noise : float
        COBias that a scheme without any would show on rows as few as those of a fold.
    predictions : array of int, shape [M]
        Those that the estimate judges.
    """

    setting: Hyperparameters | None
    estimate: ClassificationMetrics
    scheme: CorrectionScheme
    beta: float
    noise: float
    predictions: NDArray[np.int64] = field(repr=False, compare=False)

    @property
    def accuracy(self) -> float:
        """Cross-validated accuracy, 0..1."""
        return self.estimate.accuracy

    @property
    def cobias(self) -> float:
        """Cross-validated COBias, 0..1, as measured on rows as few as those of a fold."""
        return self.estimate.cobias

    @property
    def lasting_cobias(self) -> float:
        """What of the COBias is not due to the folds being small: that of very many rows."""
        return math.sqrt(max(0.0, self.cobias**2 - self.noise**2))


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
    """

    scheme: CorrectionScheme
    chosen: FrontPoint
    points: tuple[FrontPoint, ...]
    front: tuple[FrontPoint, ...]


def fit_scheme(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    settings: SelectionSettings | None = None,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    progress: Callable[[float], None] | None = None,
    mapper: Mapper = map,
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
        Class names, by default ``"class_0", "class_1", ...``.
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
    for beta in settings.betas:
        among = (*(_at(c, beta) for c in candidates), *settings.fixed)
        setting = min(among, key=lambda s: 1.0 - judged[s].accuracy + beta * judged[s].cobias)
        prepared = prepare(kind=setting.calibration, ridge=setting.ridge)
        scheme = prepared.fit(setting, seed=derive_seed(seed, "anneal"))
        own = ClassificationMetrics.from_predictions(indices, scheme.predict(values), n_classes)
        estimate = _no_better(judged[setting], own)
        noise = folds.noise(estimate)
        points.append(FrontPoint(setting, estimate, scheme, beta, noise, predictions[setting]))
    plain = values.argmax(axis=1).astype(np.int64)
    before = folds.metrics(plain)
    untouched = CorrectionScheme.identity(names)
    points.append(FrontPoint(None, before, untouched, 0.0, folds.noise(before), plain))
    chosen = choose_point(points, folds, settings)
    return FittedScheme(
        scheme=replace(chosen.scheme, provenance=_provenance(chosen, settings, seed)),
        chosen=chosen,
        points=tuple(points),
        front=pareto_front(points),
    )


def choose_point(
    points: Sequence[FrontPoint], folds: Folds, settings: SelectionSettings
) -> FrontPoint:
    """Pick a point; what cross-validation cannot tell apart is decided by caution.

    With few rows the best of many estimates is mostly luck: the point of middle beta stays unless
    another is better by more than the noise of the difference. And the probabilities stay as they
    are unless correcting them is an improvement beyond noise.

    Parameters
    ----------
    points : sequence of FrontPoint
        At least two; the last is that of the uncorrected probabilities.
    folds : Folds
        The rows, and the folds they were predicted in.
    settings : SelectionSettings
        The preference, and whether the last point may be chosen.
    """
    preference, keep_uncorrected = settings.preference, settings.keep_uncorrected
    corrected, plain = points[:-1], points[-1]
    if preference.max_cobias is not None or preference.max_accuracy_loss is not None:
        # A limit is meant for many rows; the noise of small folds would use up most of it.
        among = [
            replace(p, estimate=replace(p.estimate, cobias=p.lasting_cobias))
            for p in (points if keep_uncorrected else corrected)
        ]
        found = choose(among, preference)
        return points[next(i for i, point in enumerate(among) if point is found)]
    best = choose(corrected, preference)

    def beats(a: FrontPoint, b: FrontPoint, errors: float) -> bool:
        accuracy, score = folds.standard_errors(b.predictions, a.predictions)
        gain = a.accuracy - b.accuracy
        if preference.prefer == "accuracy":
            return gain > errors * accuracy
        return gain - a.cobias + b.cobias > errors * score

    if preference.prefer == "balance":
        middle = min(corrected, key=lambda p: abs(p.beta - _MIDDLE_BETA))
        share = _CAUTIOUS_ROWS / (_CAUTIOUS_ROWS + folds.labels.size)
        if not beats(best, middle, 1.5 * share):
            best = middle
    if keep_uncorrected:
        # The best of many points flatters itself; where it costs accuracy it must show more.
        accuracy, _ = folds.standard_errors(plain.predictions, best.predictions)
        costs = best.accuracy - plain.accuracy < -accuracy
        if not beats(best, plain, 1.0 if costs else 0.5):
            return plain
    return best


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
