"""Choosing a scheme by cross-validation: the default way to fit one.

Settings are judged on rows they were not fitted on; the best at every weight of COBias make a
front, and the preference picks one of its points.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby, islice, pairwise
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_rows, warn_of_absent_classes, whole_number
from dcs.errors import InvalidInputError, show
from dcs.evaluation.metrics import ClassificationMetrics, confusion_matrix
from dcs.evaluation.uncertainty import compare_predictions
from dcs.schemes.calibration import FEWEST_FITTED, batch_calibration
from dcs.schemes.scheme import CorrectionScheme
from dcs.seeds import derive_generator, derive_seed
from dcs.selection.front import Change, FittedScheme, FrontPoint, Preference, pareto_front
from dcs.selection.settings import (
    CorrectionFamily,
    Hyperparameters,
    Interpolated,
    Setting,
    between,
    fit_settings,
)

T = TypeVar("T")
R = TypeVar("R")

#: Enough for a standard error to a twentieth of itself.
_RESAMPLES: Final = 200

#: Rows per class below which the COBias of a fold says nothing.
_FEW_ROWS: Final = 200


#: Applies a function to items, here or elsewhere; results come in order.
Mapper: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]


@dataclass(frozen=True, slots=True)
class Threads:
    """Applies a function to items in threads: the compiled searches run beside each other.

    Item ``n + ahead`` is taken only after result ``n`` has been yielded and the next one asked
    for, so that items may be made from earlier results.

    Parameters
    ----------
    width : int
        Threads at once, 1 or more.
    """

    width: int

    def __call__(
        self,
        function: Callable[[T], R],
        items: Iterable[T],
        /,
        *,
        ahead: int | None = None,
    ) -> Iterator[R]:
        """Yield ``function(item)`` for every item, in order."""
        source, running = iter(items), deque[Future[R]]()
        most = 2 * self.width if ahead is None else ahead
        with ThreadPoolExecutor(self.width) as pool:
            try:
                while True:
                    room = islice(source, most - len(running))
                    running.extend(pool.submit(function, item) for item in room)
                    if not running:
                        return
                    yield running.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)


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
        True class indices, -1 for unlabelled rows, which take part in the fits.
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
    values, indices, _ = checked_rows(probs, labels, missing=True)
    judged = Folds(values, indices, folds, seed)
    (schemes,) = judged.schemes([setting], whole=False)
    return judged.metrics(judged.predictions(schemes), setting)


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


class Folds:
    """Rows divided into folds, and predictions of settings fitted without them.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices, -1 for unlabelled rows, which take part in every fit.
    folds : int
        Number of folds, 2 or more; at most as many as labelled rows are used.
    seed : int
        Seed of folds and searches.

    Attributes
    ----------
    probs, labels : array
        Those of the labelled rows; from here on M is their number.
    unlabelled : int
        Number of the other rows.
    place : array of int, shape [M]
        The fold of every row.
    few : bool
        Whether the rows are too few to look at folds one by one.
    part : array of int, shape [M]
        The part of every row on which COBias is counted: its fold, or 0 with few rows.
    n_parts : int
        Number of parts.
    counts : array of float, shape [N]
        Rows per class and part.

    Raises
    ------
    InvalidInputError
        When there are fewer than two folds or labelled rows.
    """

    def __init__(
        self, probs: NDArray[np.float64], labels: NDArray[np.int64], folds: int, seed: int
    ) -> None:
        whole_number(folds, "folds", least=2)
        known = labels >= 0
        self.probs, self.labels = probs[known], labels[known]
        if self.labels.size < 2:
            raise InvalidInputError(
                f"{self.labels.size} labelled rows; cross-validation needs at least two"
            )
        self.unlabelled = labels.size - self.labels.size
        self.n_folds = min(folds, self.labels.size)
        self.place = stratified_folds(self.labels, self.n_folds, seed=seed)
        places = np.full(labels.size, -1)
        places[known] = self.place
        # Picklable, so that it can run elsewhere.
        self._fit = partial(_without, probs, labels, places, seed)
        self.few = self.labels.size < _FEW_ROWS * probs.shape[1]
        self.n_parts = 1 if self.few else self.n_folds
        self.part = self.place % self.n_parts
        self.counts = np.bincount(self.labels, minlength=probs.shape[1]) / self.n_parts

    def schemes(
        self,
        grid: Sequence[Hyperparameters],
        *,
        whole: bool = True,
        mapper: Mapper = map,
        progress: Callable[[float], None] | None = None,
    ) -> list[list[CorrectionScheme]]:
        """Return, for each setting, the schemes without each fold, then that of all rows.

        Settings next to each other with the same calibration are fitted together; `mapper` is
        given one item for each such group and fold.
        """
        alike = groupby(grid, key=lambda setting: (setting.calibration, setting.ridge))
        groups = [tuple(group) for _, group in alike]
        left_out = [*range(self.n_folds), *([None] if whole else [])]
        items = [(fold, group) for fold in left_out for group in groups]
        found: list[CorrectionScheme] = []
        for schemes in mapper(self._fit, items):
            found += schemes
            if progress is not None:
                progress(len(found) / (len(left_out) * len(grid)))
        return [found[i :: len(grid)] for i in range(len(grid))]

    def predictions(self, schemes: Sequence[CorrectionScheme]) -> NDArray[np.int64]:
        """Return the prediction of every row by the scheme fitted without its fold."""
        found = np.zeros(self.labels.size, np.int64)
        for fold, scheme in zip(range(self.n_folds), schemes, strict=False):
            rows = self.place == fold
            found[rows] = scheme.predict(self.probs[rows])
        return found

    def metrics(
        self, predictions: NDArray[np.int64], setting: Setting | None = None
    ) -> ClassificationMetrics:
        """Judge predictions of all rows by `setting`, None if nothing was fitted.

        COBias is the mean of that of the parts. See :func:`cross_validate`.
        """
        n_classes = self.probs.shape[1]
        judged = ClassificationMetrics.from_predictions
        whole = judged(self.labels, predictions, n_classes)
        biases = [
            judged(self.labels[rows], predictions[rows], n_classes).cobias
            for rows in (self.part == part for part in range(self.n_parts))
        ]
        bias = float(np.mean(biases))
        if self.few and setting is not None:
            noise = cobias_noise(whole, self.counts)
            bias = math.sqrt(bias**2 + 2.0 * setting.follows(self.labels.size) * noise**2)
        return replace(whole, cobias=bias)

    def change(self, before: NDArray[np.int64], after: NDArray[np.int64]) -> Change:
        """Compare two sets of predictions of all rows, COBias within the parts."""
        pair = compare_predictions(
            self.labels, before, after, self.probs.shape[1], parts=self.part, resamples=_RESAMPLES
        )
        return Change(
            accuracy=pair.accuracy.estimate,
            accuracy_p=pair.accuracy_p,
            accuracy_error=pair.accuracy.standard_error,
            cobias_error=pair.cobias.standard_error,
            score_error=pair.score.standard_error,
        )


def _without(
    probs: NDArray[np.float64],
    labels: NDArray[np.int64],
    place: NDArray[np.int64],
    seed: int,
    item: tuple[int | None, tuple[Hyperparameters, ...]],
) -> tuple[CorrectionScheme, ...]:
    """Fit settings without one fold, or on all rows; unlabelled rows, of place -1, are in all."""
    fold, settings = item
    inside = np.full(place.shape, True) if fold is None else place != fold
    seed = derive_seed(seed, "anneal", *([] if fold is None else [fold]))
    return fit_settings(probs[inside], labels[inside], settings, seed=seed)


FEWEST_LABELS: Final = 2
"""With fewer labelled rows nothing can be cross-validated."""

_BETAS: Final = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0)

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
    # The prior is worth more rows where it is that of all rows, and labels are few.
    Hyperparameters(calibration="shrunk", prior_rows=400.0),
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

#: The point that stands where the rows are too few to choose one.
_MIDDLE_BETA: Final = 0.3

#: What of the accuracy neighbours of the front are apart at most, where there are points between
#: them, and the shortest part of the way that is looked at.
_STEP: Final = 0.004
_SHORTEST: Final = 1 / 128


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """What cross-validation chooses from, and how.

    Parameters
    ----------
    candidates : tuple of Hyperparameters
        Settings to compare; those that search are tried with every beta. Those that would
        overfit are left out when others remain: a logistic calibration above 12 classes,
        membership functions below 400 rows per class, and below 1,000 rows or 100 per class all
        but ``"shrunk"``, which above that takes part where there are unlabelled rows too.
    betas : tuple of float
        Weights of COBias at which is searched; the rest of the front is interpolated.
    fixed : tuple of Hyperparameters
        Settings that compete at every point as they are, with the beta that they have.
    folds : int
        Number of folds, 2 or more; fewer when there are fewer rows.
    preference : Preference
        Which point of the front becomes the scheme.
    keep_uncorrected : bool
        Whether the uncorrected probabilities stay unless correcting them is an improvement
        beyond the noise of cross-validation; see :meth:`FittedScheme.picked`.
    method : str
        What the provenance of the schemes calls the method.

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
    method: str = "dcs"

    def __post_init__(self) -> None:
        for name in ("candidates", "betas"):
            if not getattr(self, name):
                raise InvalidInputError(f"{name} is empty; at least one is needed")
        betas = tuple(replace(self.candidates[0], beta=beta).beta for beta in self.betas)
        object.__setattr__(self, "betas", betas)
        object.__setattr__(self, "folds", whole_number(self.folds, "folds", least=2))
        if not isinstance(self.preference, Preference):
            raise InvalidInputError(f"preference is {self.preference!r}; a Preference is needed")

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
        return cls(candidates=(setting,), betas=_PAPER_BETAS, method=name)


def fit_scheme(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    settings: SelectionSettings | None = None,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    reference: ArrayLike | None = None,
    progress: Callable[[float], None] | None = None,
    mapper: Mapper = map,
) -> FittedScheme:
    """Fit the front of schemes and choose one of them, all by cross-validation.

    For every weight of COBias (beta) the candidates are compared on rows they were not fitted on.
    The best of each and what no other beats are points of the front; more are found between
    neighbours, until a step costs less than half a point of accuracy. The preference picks one.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices, -1 for unlabelled rows. At least two rows have a label: they are
        searched and judged, while mean probabilities and what
        :func:`dcs.schemes.calibration.shrunk_calibration` learns are those of all rows.
    settings : SelectionSettings, optional
        Candidates, betas, folds and preference.
    seed : int, optional
        The same arguments give the same schemes.
    classes : sequence of str, optional
        Class names, by default ``"class_0", "class_1", ...``.
    reference : array of int, shape [M], optional
        Predictions that accuracy is held against, by default those of the probabilities as they
        are. Of combined tables, those from before.
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
        When an argument is not allowed or there are fewer than two labelled rows.

    Warns
    -----
    UserWarning
        When a class has no rows.
    """
    settings = SelectionSettings() if settings is None else settings
    if not isinstance(settings, SelectionSettings):
        raise InvalidInputError(f"settings {show(settings)}: SelectionSettings are needed")
    everything, known, names = checked_rows(probs, labels, classes, missing=True)
    if reference is not None and np.shape(reference) != known.shape:
        raise InvalidInputError(f"reference {show(reference)}: one prediction per row is needed")
    folds = Folds(everything, known, settings.folds, seed)
    warn_of_absent_classes(folds.labels, names)
    candidates = _usable(settings.candidates, folds)
    # By candidate, so that those that share a calibration are fitted together.
    searched = [_at(c, beta) for c in candidates for beta in settings.betas]
    grid = list(dict.fromkeys((*searched, *settings.fixed)))
    schemes = folds.schemes(grid, mapper=mapper, progress=progress)
    fits = {
        setting: _Fit.judged(setting, found, folds)
        for setting, found in zip(grid, schemes, strict=True)
    }
    best: list[tuple[Hyperparameters, float]] = []
    for beta in settings.betas:
        among = (*(_at(c, beta) for c in candidates), *settings.fixed)
        best.append((min(among, key=lambda setting: fits[setting].z(beta)), beta))
    middle, _ = min(best, key=lambda each: abs(each[1] - _MIDDLE_BETA))
    plain = _Fit.judged(None, [CorrectionScheme.identity(names)] * (folds.n_folds + 1), folds)
    before = plain.predictions if reference is None else np.asarray(reference)[known >= 0]
    origin = {"method": settings.method, "seed": int(seed)}
    front = _Front(folds, plain, before, fits[middle], origin)
    # What no other beats in both figures has its place too, where it is nearest to being the best.
    chosen = {setting for setting, _ in best}
    unbeaten = {id(metrics) for metrics in pareto_front([f.metrics for f in fits.values()])}
    others = [s for s in grid if s not in chosen and id(fits[s].metrics) in unbeaten]
    best += [
        (s, min(best, key=lambda each: fits[s].z(each[1]) - fits[each[0]].z(each[1]))[1])
        for s in others
    ]
    ends = [front.end(fits[setting], beta) for setting, beta in best]
    ends.append(front.end(plain, 0.0))
    return FittedScheme.picked(
        front.dense(ends), settings.preference, keep_uncorrected=settings.keep_uncorrected
    )


def label_free_scheme(
    probs: ArrayLike, labels: ArrayLike, *, classes: Sequence[str] | None = None
) -> CorrectionScheme:
    """Return the scheme that needs no labels: batch calibration.

    It makes the mean probabilities of all classes alike. That is fair where the classes are about
    as frequent as each other; without labels nobody can tell whether accuracy rises or falls.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices, -1 for unlabelled rows; only counted.
    classes : sequence of str, optional
        Class names, by default ``"class_0", "class_1", ...``.

    Returns
    -------
    CorrectionScheme
        Its provenance says how many rows had labels, and holds no estimate.

    Raises
    ------
    InvalidInputError
        When an argument is not allowed.

    Notes
    -----
    Source: batch calibration, Zhou et al. 2024, arXiv 2309.17249.
    """
    values, indices, names = checked_rows(probs, labels, classes, missing=True)
    origin = {"method": "batch", "rows": indices.size, "labelled": int((indices >= 0).sum())}
    return CorrectionScheme.identity(
        names, provenance=origin, calibration=batch_calibration(values)
    )


@dataclass(frozen=True, slots=True)
class _Fit:
    """A setting fitted without each fold and on all rows, and what that says of it."""

    setting: Setting | None
    schemes: Sequence[CorrectionScheme]
    predictions: NDArray[np.int64]
    metrics: ClassificationMetrics

    @classmethod
    def judged(
        cls, setting: Setting | None, schemes: Sequence[CorrectionScheme], folds: Folds
    ) -> _Fit:
        predictions = folds.predictions(schemes)
        return cls(setting, schemes, predictions, folds.metrics(predictions, setting))

    def z(self, beta: float) -> float:
        return 1.0 - self.metrics.accuracy + beta * self.metrics.cobias


#: A point, and what it was judged by.
_End: TypeAlias = tuple[_Fit, FrontPoint]


@dataclass(frozen=True, slots=True)
class _Front:
    """Makes the points of a front."""

    folds: Folds
    plain: _Fit
    before: NDArray[np.int64]
    middle: _Fit
    origin: dict[str, Any]

    def end(self, fit: _Fit, beta: float) -> _End:
        folds, estimate, scheme = self.folds, fit.metrics, fit.schemes[-1]
        n_classes = len(scheme.classes)
        if fit is not self.plain:
            # Where the trade-off is nearly straight, small changes of the rows move the optimum
            # far along it: the scheme fitted on all rows can lie elsewhere than those of the
            # folds. On its own rows it looks better than it is, never worse.
            own = ClassificationMetrics.from_predictions(
                folds.labels, scheme.predict(folds.probs), n_classes
            )
            estimate = replace(
                estimate,
                accuracy=min(estimate.accuracy, own.accuracy),
                cobias=max(estimate.cobias, own.cobias),
            )
        provenance = self.origin | {
            "estimate": {
                "accuracy": estimate.accuracy,
                "cobias": estimate.cobias,
                "rows": estimate.n_rows,
                "folds": folds.n_folds,
            }
        }
        if fit.setting is not None:
            provenance["setting"] = _plain_values(fit.setting)
        confusion = confusion_matrix(folds.labels, fit.predictions, n_classes)
        return fit, FrontPoint(
            setting=fit.setting,
            accuracy=estimate.accuracy,
            cobias=estimate.cobias,
            confusion=tuple(map(tuple, confusion.tolist())),
            scheme=replace(scheme, classes=self.plain.schemes[-1].classes, provenance=provenance),
            beta=beta,
            noise=cobias_noise(estimate, folds.counts),
            change=folds.change(self.before, fit.predictions),
            doubt=folds.change(self.middle.predictions, fit.predictions).score_error,
            unlabelled=folds.unlabelled,
        )

    def dense(self, ends: Sequence[_End]) -> list[FrontPoint]:
        """Return the points of `ends` with those between neighbours; the last stays the last."""
        fits = {id(point): fit for fit, point in ends}
        points = [point for _, point in ends]
        linear = [p for p in points if between(p.scheme, p.scheme, 0.0) is not None]
        found = [
            point
            for a, b in pairwise(pareto_front(linear))
            for point in self._line((fits[id(a)], a), (fits[id(b)], b), (0.0, a), (1.0, b))
        ]
        front = {id(point) for point in pareto_front([*points, *found])}
        return [*points[:-1], *(point for point in found if id(point) in front), points[-1]]

    def _line(
        self,
        first: _End,
        second: _End,
        low: tuple[float, FrontPoint],
        high: tuple[float, FrontPoint],
    ) -> Iterator[FrontPoint]:
        """Yield points on the line between two ends, by halves, as long as a step is large."""
        if low[1].accuracy - high[1].accuracy <= _STEP or high[0] - low[0] <= _SHORTEST:
            return
        share = (low[0] + high[0]) / 2
        pairs = zip(first[0].schemes, second[0].schemes, strict=True)
        schemes = [s for s in (between(a, b, share) for a, b in pairs) if s is not None]
        if len(schemes) < len(first[0].schemes):
            return
        setting = Interpolated(first[0].setting, second[0].setting, share)
        beta = (1.0 - share) * first[1].beta + share * second[1].beta
        _, middle = self.end(_Fit.judged(setting, schemes, self.folds), beta)
        yield from self._line(first, second, low, (share, middle))
        yield middle
        yield from self._line(first, second, (share, middle), high)


def _at(candidate: Hyperparameters, beta: float) -> Hyperparameters:
    """Return a candidate at a weight of COBias, which counts only where there is a search."""
    return candidate if candidate.corrections == "none" else replace(candidate, beta=beta)


def _usable(candidates: tuple[Hyperparameters, ...], folds: Folds) -> tuple[Hyperparameters, ...]:
    """Leave out what would overfit, unless nothing else is left."""
    n_rows, n_classes = folds.probs.shape
    fewest = max(_CALIBRATED_ROWS, _CALIBRATED_CLASS_ROWS * n_classes)
    shrunk = tuple(c for c in candidates if c.calibration == "shrunk")
    if shrunk and n_rows < fewest:
        if n_rows < FEWEST_FITTED:
            return tuple(replace(c, corrections="none") for c in shrunk)
        # As many rows of each class as the prior is worth with four.
        return tuple(replace(c, prior_rows=c.prior_rows * max(1.0, n_classes / 4)) for c in shrunk)
    kept = tuple(
        c
        for c in candidates
        if (c not in shrunk or folds.unlabelled)
        and not (c.calibration in ("logistic", "balanced") and n_classes > _MOST_LOGISTIC_CLASSES)
        and not (
            c.corrections in ("memberships", "both") and n_rows < _MEMBERSHIP_ROWS * n_classes
        )
        and (c.calibration in _FRUGAL or n_rows >= fewest)
    )
    return kept or candidates


def _plain_values(setting: Setting | None) -> dict[str, Any]:
    """Return what a scheme's provenance says of a setting."""
    if isinstance(setting, Interpolated):
        ends = {"first": _plain_values(setting.first), "second": _plain_values(setting.second)}
        return {**ends, "share": setting.share}
    values = {} if setting is None else asdict(setting)
    values.pop("schedule", None)
    return {name: value for name, value in values.items() if value is not None}
