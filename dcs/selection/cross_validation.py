"""Selection of a scheme by cross-validation, which is the default.

Settings are evaluated on rows they were not fitted on. The best setting for each weight of COBias
becomes a point of the front, and the preference selects one of the points.
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
from dcs.data.splits import identical_rows, stratified_split
from dcs.evaluation.metrics import ClassificationMetrics, confusion_matrix
from dcs.evaluation.uncertainty import paired_errors
from dcs.schemes.calibration import FEWEST_FITTED, batch_calibration
from dcs.schemes.scheme import CorrectionScheme
from dcs.seeds import derive_generator, derive_seed
from dcs.selection.front import (
    Change,
    FittedScheme,
    FrontPoint,
    Preference,
    is_smooth,
    pareto_front,
)
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

#: Minimum number of rows per class for an informative COBias of each fold.
_FEW_ROWS: Final = 200


#: Applies a function to items, locally or remotely, and yields the results in order.
Mapper: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]


@dataclass(frozen=True, slots=True)
class Threads:
    """Apply a function to items in threads; the compiled searches run in parallel.

    Item ``n + ahead`` is requested only after result ``n`` has been yielded and the next one
    requested, so that items can depend on earlier results.

    Parameters
    ----------
    width : int
        Number of threads, 1 or more.
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


def stratified_folds(
    labels: ArrayLike, folds: int, *, seed: int, groups: ArrayLike | None = None
) -> NDArray[np.int64]:
    """Return the fold of every row, with similar class proportions in every fold.

    Parameters
    ----------
    labels : array of int, shape [M]
        True class indices.
    folds : int
        Number of folds.
    seed : int
        Random seed.
    groups : array of int, shape [M], optional
        Group of every row; the rows of a group are in one fold. A group belongs to the class of
        its first row.
    """
    values = np.asarray(labels, dtype=np.int64)
    members = np.arange(values.size) if groups is None else groups
    _, first, of_row, sizes = np.unique(
        members, return_index=True, return_inverse=True, return_counts=True
    )
    generator = derive_generator(seed, "folds")
    shuffled = generator.permutation(first.size)
    # Deal out the largest groups of each class first, so that the folds are of similar size.
    order = shuffled[np.lexsort((-sizes[shuffled], values[first][shuffled]))]
    places = np.empty(first.size, dtype=np.int64)
    places[order] = np.arange(first.size) % folds
    return places[of_row]


def cobias_noise(metrics: ClassificationMetrics, counts: ArrayLike) -> float:
    """Return the expected COBias, due to sampling alone, of a scheme without bias.

    It is the mean over pairs of classes of the expected absolute difference of two class
    accuracies that are equal up to sampling: ``sqrt(2 / pi)`` times its standard deviation.

    Parameters
    ----------
    metrics : ClassificationMetrics
        Provides the class accuracies; classes without rows are ignored.
    counts : array of int, shape [N]
        Rows per class.
    """
    rates, rows = np.array(metrics.class_accuracies), np.asarray(counts, np.float64)
    present = rows > 0
    # Add one correct and one wrong row: an accuracy of 1 on few rows still has sampling noise.
    rates = (rates[present] * rows[present] + 1.0) / (rows[present] + 2.0)
    variances = rates * (1.0 - rates) / rows[present]
    pairs = np.triu_indices(variances.size, 1)
    if pairs[0].size == 0:
        return 0.0
    spread = np.sqrt(variances[pairs[0]] + variances[pairs[1]])
    return math.sqrt(2.0 / math.pi) * float(spread.mean())


@dataclass(frozen=True, slots=True)
class Fit:
    """A setting and its metrics on rows that it was not fitted on.

    Attributes
    ----------
    setting : Hyperparameters, Interpolated or None
        The setting; None for the uncorrected probabilities.
    accuracy, cobias : float
        On held-out rows, 0..1; see :class:`Folds`.
    moves : int
        Number of candidate solutions that its searches evaluated.
    schemes : tuple of CorrectionScheme
        Fitted without each fold, then, if requested, on all rows. Empty if only the metrics are
        known, from an earlier run.
    predictions : array of int
        Predictions of the held-out rows.
    """

    setting: Setting | None
    accuracy: float
    cobias: float
    moves: int = 0
    schemes: tuple[CorrectionScheme, ...] = ()
    predictions: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def z(self, beta: float) -> float:
        """Return the error rate plus `beta` times COBias on held-out rows."""
        return 1.0 - self.accuracy + beta * self.cobias


class Folds:
    """Judge of settings: cross-validation folds, or one share of development rows.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices, -1 for unlabelled rows, which take part in every fit.
    folds : int
        Number of folds, 2 or more; limited to the number of labelled rows.
    development : float, optional
        Share of the labelled rows on which settings are judged, instead of folds.
    seed : int
        Seed of folds and searches.

    Attributes
    ----------
    probs, labels : array
        Probabilities and labels of the labelled rows; M is their number from here on.
    known : array of bool
        Whether each of all rows is labelled.
    unlabelled : int
        Number of unlabelled rows.
    place : array of int, shape [M]
        The fold of every row, -1 for rows that are in every fit.
    duplicates : int
        Number of rows that repeat another one; identical rows are in one fold.
    held_out, truth : array
        Probabilities and labels of the rows that settings are judged on.
    few : bool
        Whether there are too few rows to compute COBias within each fold.
    part : array of int
        Part of every held-out row within which COBias is computed: its fold, or 0 with few rows.
    n_parts : int
        Number of parts.
    counts : array of float, shape [N]
        Held-out rows per class and part.

    Raises
    ------
    InvalidInputError
        If there are fewer than two folds or labelled rows.

    Notes
    -----
    COBias is not computed from the pooled predictions of all folds. A search that equalises the
    classes on its rows leaves the noise of those rows with the opposite sign on the held-out rows.
    Pooled over the folds, this noise cancels that of the held-out rows, and the result is the
    COBias on the searched rows: near 0, whatever it is on new rows. Schemes that were not searched
    for equality have no such advantage. Within a fold nothing cancels: its COBias is that of the
    same number of new rows, including noise, which is the same for all schemes.

    Below 200 rows per class the COBias of a fold is mostly noise. It is then computed from the
    pooled predictions, and the cancelled noise is added back: for noise e of the rows, a search
    that follows the labels to the degree f leaves (1 - f) e where other schemes show e, and new
    rows show another f e. The squares differ by 2 f e^2.
    """

    def __init__(
        self,
        probs: NDArray[np.float64],
        labels: NDArray[np.int64],
        folds: int,
        *,
        development: float | None = None,
        seed: int,
    ) -> None:
        whole_number(folds, "folds", least=2)
        self.known = known = labels >= 0
        self.probs, self.labels = probs[known], labels[known]
        whole_number(self.labels.size, "number of labelled rows", least=FEWEST_LABELS)
        self.unlabelled = labels.size - self.labels.size
        groups = identical_rows(self.probs)
        self.duplicates = int(self.labels.size - np.unique(groups).size)
        if development is None:
            self.n_folds = min(folds, self.labels.size)
            self.place = stratified_folds(self.labels, self.n_folds, seed=seed, groups=groups)
        else:
            self.n_folds = 1
            shares = {"optimization": 1.0 - development, "development": development}
            parts = stratified_split(self.labels, shares, seed=derive_seed(seed, "split"))
            self.place = np.full(self.labels.size, -1)
            self.place[parts["development"]] = 0
        judged = self.place >= 0
        self.held_out, self.truth, self._fold = (
            self.probs[judged],
            self.labels[judged],
            self.place[judged],
        )
        places = np.full(labels.size, -1)
        places[known] = self.place
        # Picklable, so that it can run in other processes.
        self.fit_fold = partial(_fit_fold, probs, labels, places, seed)
        # Development rows do not take part in the fit, so that no noise cancels.
        self.few = self.n_folds > 1 and self.labels.size < _FEW_ROWS * probs.shape[1]
        self.n_parts = 1 if self.few else self.n_folds
        self.part = self._fold % self.n_parts
        self.counts = np.bincount(self.truth, minlength=probs.shape[1]) / self.n_parts

    def judge(
        self,
        settings: Sequence[Hyperparameters],
        *,
        mapper: Mapper = map,
        progress: Callable[[float], None] | None = None,
    ) -> list[Fit]:
        """Fit settings without each fold and evaluate them there.

        Consecutive settings with the same calibration are fitted together; `mapper` receives one
        item for each such group and fold.
        """
        found = self._fit_all(settings, range(self.n_folds), mapper, progress)
        return [self.judged(*each) for each in zip(settings, found, strict=True)]

    def fit_whole(self, fits: Sequence[Fit], mapper: Mapper = map) -> list[Fit]:
        """Return the fits with their schemes, at the end the one fitted on all rows."""
        settings = [f.setting for f in fits if isinstance(f.setting, Hyperparameters)]
        lacking = [f.setting for f in fits if not f.schemes]
        again = dict(zip(lacking, self.judge(lacking, mapper=mapper), strict=True))  # type: ignore[arg-type]
        whole = dict(zip(settings, self._fit_all(settings, [None], mapper, None), strict=True))
        complete = [again.get(fit.setting, fit) for fit in fits]
        return [
            replace(fit, schemes=(*fit.schemes[: self.n_folds], *whole[fit.setting]))  # type: ignore[index]
            for fit in complete
        ]

    def _fit_all(
        self,
        settings: Sequence[Hyperparameters],
        held_out: Sequence[int | None],
        mapper: Mapper,
        progress: Callable[[float], None] | None,
    ) -> list[tuple[CorrectionScheme, ...]]:
        by_calibration = groupby(settings, key=lambda each: each.calibrated)
        groups = [tuple(group) for _, group in by_calibration]
        items = [(fold, group) for fold in held_out for group in groups]
        fitted: list[CorrectionScheme] = []
        for schemes in mapper(self.fit_fold, items):
            fitted += schemes
            if progress is not None:
                progress(len(fitted) / (len(held_out) * len(settings)))
        return [tuple(fitted[i :: len(settings)]) for i in range(len(settings))]

    def judged(self, setting: Setting | None, schemes: Sequence[CorrectionScheme]) -> Fit:
        """Evaluate the schemes fitted without each fold."""
        predictions = self.predictions(schemes)
        metrics = self.metrics(predictions, setting)
        moves = sum(s.provenance.get("moves", 0) for s in schemes[: self.n_folds])
        return Fit(setting, metrics.accuracy, metrics.cobias, moves, tuple(schemes), predictions)

    def predictions(self, schemes: Sequence[CorrectionScheme]) -> NDArray[np.int64]:
        """Return the prediction of every held-out row by the scheme fitted without its fold."""
        predictions = np.zeros(self.truth.size, np.int64)
        for fold, scheme in zip(range(self.n_folds), schemes, strict=False):
            rows = self._fold == fold
            predictions[rows] = scheme.predict(self.held_out[rows])
        return predictions

    def metrics(
        self, predictions: NDArray[np.int64], setting: Setting | None = None
    ) -> ClassificationMetrics:
        """Compute the metrics of held-out predictions of `setting`; None if nothing was fitted.

        COBias is the mean over the parts; see :class:`Folds`.
        """
        n_classes = self.probs.shape[1]
        compute = ClassificationMetrics.from_predictions
        pooled = compute(self.truth, predictions, n_classes)
        biases = [
            compute(self.truth[rows], predictions[rows], n_classes).cobias
            for rows in (self.part == part for part in range(self.n_parts))
        ]
        bias = float(np.mean(biases))
        if self.few and setting is not None:
            noise = cobias_noise(pooled, self.counts)
            bias = math.sqrt(bias**2 + 2.0 * setting.follows(self.labels.size) * noise**2)
        return replace(pooled, cobias=bias)

    def change(self, before: NDArray[np.int64], after: NDArray[np.int64]) -> Change:
        """Compare two sets of predictions of all rows; COBias is computed within the parts."""
        accuracy_error, cobias_error, score_error = paired_errors(
            self.truth, before, after, self.probs.shape[1], parts=self.part
        )
        right, wrong = after == self.truth, before != self.truth
        gained, lost = int((right & wrong).sum()), int((~right & ~wrong).sum())
        return Change(
            accuracy=(gained - lost) / self.truth.size,
            accuracy_error=accuracy_error,
            cobias_error=cobias_error,
            score_error=score_error,
            gained=gained,
            lost=lost,
            changed=int((before != after).sum()),
        )


def _fit_fold(
    probs: NDArray[np.float64],
    labels: NDArray[np.int64],
    place: NDArray[np.int64],
    seed: int,
    item: tuple[int | None, tuple[Hyperparameters, ...]],
) -> tuple[CorrectionScheme, ...]:
    """Fit settings without one fold, or on all rows; unlabelled rows, of fold -1, are in all."""
    fold, settings = item
    inside = np.full(place.shape, True) if fold is None else place != fold
    seed = derive_seed(seed, "anneal", *([] if fold is None else [fold]))
    return fit_settings(probs[inside], labels[inside], settings, seed=seed)


FEWEST_LABELS: Final = 2
"""Minimum number of labelled rows for cross-validation."""

#: The front is interpolated between them.
_BETAS: Final = (0.0, 0.1, 0.25, 0.5, 1.5)

_PAPER_BETAS: Final = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)

_PAPER_FAMILIES: Final[dict[str, CorrectionFamily]] = {"dnip": "weights", "furud": "memberships"}

_CANDIDATES: Final = (
    Hyperparameters(calibration="none", corrections="both"),
    Hyperparameters(calibration="none"),
    # Common calibrations without a search, so that the selection is at least as good as them.
    Hyperparameters(calibration="batch", corrections="none"),
    Hyperparameters(calibration="prior", corrections="none"),
    Hyperparameters(calibration="vector", corrections="none"),
    Hyperparameters(calibration="logistic", corrections="none"),
    Hyperparameters(calibration="logistic"),
    Hyperparameters(calibration="balanced", corrections="none"),
    Hyperparameters(calibration="balanced"),
    # The prior has more weight because it uses all rows, and labelled rows are few.
    Hyperparameters(calibration="shrunk", prior_rows=400.0),
    Hyperparameters(calibration="surrogate", corrections="none", beta=1.0),
)

#: Calibrations with at most one parameter per class, for small numbers of rows.
_FRUGAL: Final = ("none", "batch")

#: Tables with more classes have too few rows per entry of a full calibration matrix.
_MOST_LOGISTIC_CLASSES: Final = 12

#: Minimum numbers of rows, in total and per class, at which calibrations fitted to labels can be
#: distinguished from noise.
_CALIBRATED_ROWS: Final = 1000
_CALIBRATED_CLASS_ROWS: Final = 100

#: Minimum number of rows per class for membership functions, which are not shrunk.
_MEMBERSHIP_ROWS: Final = 400

#: Number of classes above which the number of moves of a search no longer grows with them.
_FULL_CLASSES: Final = 20

#: Maximum number of sampled settings that are compared with a standard one.
_MOST_CHALLENGERS: Final = 5

#: Beta of the default point if there are too few rows to select one.
_MIDDLE_BETA: Final = 0.3

#: Maximum difference in accuracy between neighbours on an interpolated front, and minimum
#: interpolation step.
_STEP: Final = 0.004
_SHORTEST: Final = 1 / 128


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """Settings of the selection by cross-validation.

    Parameters
    ----------
    candidates : tuple of Hyperparameters
        Settings to compare; those with a search are evaluated at every beta. Settings that would
        overfit are excluded if others remain: logistic calibration above 12 classes, membership
        functions below 400 rows per class, and below 1,000 rows or 100 per class all except
        ``"shrunk"``, which above that is used only with unlabelled rows.
    betas : tuple of float
        Weights of COBias for the searches; the front is interpolated between them.
    folds : int
        Number of folds, 2 or more; limited to the number of labelled rows.
    development : float, optional
        Share of the labelled rows on which settings are judged, instead of folds.
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
    preference: Preference = field(default_factory=Preference)
    method: str = "dcs"

    def __post_init__(self) -> None:
        betas = tuple(replace(self.candidates[0], beta=beta).beta for beta in self.betas)
        object.__setattr__(self, "betas", betas)
        object.__setattr__(self, "folds", whole_number(self.folds, "folds", least=2))

    @classmethod
    def of_method(cls, name: str) -> SelectionSettings:
        """Return the settings for a method of the paper.

        ``dnip`` and ``furud`` are defined as in their papers: their own corrections without
        calibration. For any other name, return the settings of the default, ``dcs``.
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
    """Fit a front of schemes and select one of them by cross-validation.

    For every weight of COBias (beta), the candidates are compared on held-out rows. The best
    candidate for each beta and all Pareto-optimal ones are points of the front. Further points are
    interpolated until neighbours differ by less than half a point of accuracy. The preference
    selects one point.

    Parameters
    ----------
    probs : array of float, shape [M, N], or data frame
        Class probabilities. The columns of a data frame are matched to `classes` by name.
    labels : array of int or str, shape [M]
        True class indices, -1 for unlabelled rows; or class names, "" or None for unlabelled
        rows. At least two rows must be labelled; these are
        used for search and evaluation, whereas mean probabilities and
        :func:`dcs.schemes.calibration.shrunk_calibration` use all rows.
    settings : SelectionSettings, optional
        Candidates, betas, folds and preference.
    seed : int, optional
        Random seed; the same arguments give the same schemes.
    classes : sequence of str, optional
        Class names, by default ``"class_0", "class_1", ...``.
    reference : array of int, shape [M], optional
        Predictions with which accuracy is compared, by default those of the uncorrected
        probabilities. For combined tables, those before the combination.
    progress : callable, optional
        Called with the completed share of the work, 0..1.
    mapper : callable, optional
        Applies a function to items in order, like the builtin ``map``; use it to fit the folds in
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
        If a class has no rows.
    """
    settings = SelectionSettings() if settings is None else settings
    everything, known, names = checked_rows(probs, labels, classes, missing=True)
    folds = Folds(everything, known, settings.folds, development=settings.development, seed=seed)
    warn_of_absent_classes(folds.labels, names)
    fits = folds.judge(standard_settings(settings, folds), mapper=mapper, progress=progress)
    return front_of(
        folds,
        fits,
        settings=settings,
        classes=names,
        seed=seed,
        reference=reference,
        mapper=mapper,
    )


def standard_settings(settings: SelectionSettings, folds: Folds) -> list[Hyperparameters]:
    """Return the settings to compare on some rows, those with the same calibration together."""
    # A chain visits every class the same number of times, whose cost grows with their number too.
    share = min(1.0, _FULL_CLASSES / folds.probs.shape[1])
    grid, candidates = [], settings.candidates
    if settings.preference.prefer == "offsets":
        candidates = tuple(filter(_adds_offsets, candidates)) or candidates
    for each in _prune(candidates, folds):
        schedule = replace(
            each.schedule,
            lambda1=each.schedule.lambda1 * share,
            lambda2=each.schedule.lambda2 * share,
        )
        grid += [replace(each, schedule=schedule).at(beta) for beta in settings.betas]
    # Those that share a calibration are fitted together.
    shared = {each.calibrated: i for i, each in reversed([*enumerate(grid)])}
    return sorted(dict.fromkeys(grid), key=lambda each: shared[each.calibrated])


def front_of(
    folds: Folds,
    fits: Sequence[Fit],
    sampled: Sequence[Fit] = (),
    *,
    settings: SelectionSettings,
    classes: Sequence[str],
    seed: int,
    reference: ArrayLike | None = None,
    mapper: Mapper = map,
) -> FittedScheme:
    """Build the front of judged settings and pick a point.

    Of many sampled settings the best looks better than it is. One takes the place of the best
    standard setting only if the difference exceeds what the largest of as many differences without
    any effect would reach; of several that are tied within a standard error, the one with the
    fewest moves.

    Parameters
    ----------
    folds : Folds
        The judge of the settings.
    fits : sequence of Fit
        The standard settings.
    sampled : sequence of Fit
        Settings that a sampler suggested.
    settings : SelectionSettings
        Betas and preference.
    classes : sequence of str
        Class names.
    seed : int
        Seed in the provenance of the schemes.
    reference : array of int, optional
        See :func:`fit_scheme`.
    mapper : callable, optional
        See :func:`fit_scheme`.

    Returns
    -------
    FittedScheme
        The front, whose schemes are fitted on all rows, and the picked point.
    """
    if settings.preference.prefer == "offsets":
        sampled = [fit for fit in sampled if _adds_offsets(fit.setting)]
    best = [(min(fits, key=lambda fit: (fit.z(beta), fit.moves)), beta) for beta in settings.betas]
    # Include all Pareto-optimal settings, each at the beta at which it is closest to the best.
    chosen = {id(fit) for fit, _ in best}
    smooth = [fit for fit in fits if is_smooth(fit.setting) and id(fit) not in chosen]
    best += [
        (fit, min(best, key=lambda each: fit.z(each[1]) - each[0].z(each[1]))[1])
        for fit in pareto_front(fits)
        if id(fit) not in chosen
    ]
    # The reference of "balance" is on the front in any case.
    on_front = {id(fit) for fit, _ in best}
    best += [(fit, 1.0) for fit in smooth if id(fit) not in on_front]
    if sampled:
        challenge = _Challenge(folds, sampled, mapper)
        best = [
            (fit if is_smooth(fit.setting) else challenge.winner(fit, beta), beta)
            for fit, beta in best
        ]
    # In an order that shares calibrations, and each once.
    distinct = {fit.setting: fit for fit, _ in best}
    whole = {fit.setting: fit for fit in folds.fit_whole([*distinct.values()], mapper)}
    best = [(whole[fit.setting], beta) for fit, beta in best]
    middle, _ = min(
        best, key=lambda each: (not is_smooth(each[0].setting), abs(each[1] - _MIDDLE_BETA))
    )
    plain = folds.judged(None, [CorrectionScheme.identity(classes)] * (folds.n_folds + 1))
    before = plain.predictions
    if reference is not None:
        everywhere = np.asarray(reference)
        before = everywhere[folds.known][folds.place >= 0]
    origin = {"method": settings.method, "seed": int(seed)}
    front = _Front(folds, plain, before, middle, origin)
    ends = [front.end(fit, beta) for fit, beta in best]
    ends.append(front.end(plain, 0.0))
    return FittedScheme.picked(front.dense(ends), settings.preference)


def _adds_offsets(setting: Setting | None) -> bool:
    """Whether a setting fits schemes that only add offsets; see :class:`Preference`."""
    return (
        isinstance(setting, Hyperparameters)
        and setting.calibration in ("none", "batch", "prior")
        and setting.corrections in ("none", "weights")
    )


class _Challenge:
    """Decides where a sampled setting takes the place of a standard one."""

    def __init__(self, folds: Folds, sampled: Sequence[Fit], mapper: Mapper) -> None:
        self._folds, self._sampled, self._mapper = folds, sampled, mapper
        self._margin = math.sqrt(2.0 * math.log(1 + len(sampled)))
        self._complete: dict[Setting | None, Fit] = {}

    def winner(self, fit: Fit, beta: float) -> Fit:
        better = [each for each in self._sampled if each.z(beta) < fit.z(beta)]
        winners: list[Fit] = []
        for each in sorted(better, key=lambda each: each.z(beta))[:_MOST_CHALLENGERS]:
            gain = fit.z(beta) - each.z(beta)
            if gain > self._margin * self._error(fit, each, beta):
                winners.append(each)
        if not winners:
            return fit
        first = winners[0]
        tied = [
            each
            for each in winners
            if each.z(beta) - first.z(beta) <= self._error(first, each, beta)
        ]
        return self._known(min(tied, key=lambda each: each.moves))

    def _error(self, first: Fit, second: Fit, beta: float) -> float:
        pair = (self._known(fit).predictions for fit in (first, second))
        return self._folds.change(*pair).error(beta)

    def _known(self, fit: Fit) -> Fit:
        """Return the fit with predictions, which those of an earlier run lack."""
        if fit.schemes:
            return fit
        if fit.setting not in self._complete:
            (found,) = self._folds.judge([fit.setting], mapper=self._mapper)  # type: ignore[list-item]
            self._complete[fit.setting] = found
        return self._complete[fit.setting]


def label_free_scheme(
    probs: ArrayLike, labels: ArrayLike, *, classes: Sequence[str] | None = None
) -> CorrectionScheme:
    """Return the scheme that requires no labels: batch calibration.

    It equalises the mean probabilities of all classes, which is fair if the classes are about
    equally frequent. Without labels its effect on accuracy cannot be estimated.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices, -1 for unlabelled rows; only their number is used.
    classes : sequence of str, optional
        Class names, by default ``"class_0", "class_1", ...``.

    Returns
    -------
    CorrectionScheme
        Its provenance has the number of labelled rows, and no estimate.

    Raises
    ------
    InvalidInputError
        If an argument is invalid.

    Notes
    -----
    Source: batch calibration, Zhou et al. 2024, arXiv 2309.17249.
    """
    values, indices, names = checked_rows(probs, labels, classes, missing=True)
    origin = {"method": "batch", "rows": indices.size, "labelled": int((indices >= 0).sum())}
    return CorrectionScheme.identity(
        names, provenance=origin, calibration=batch_calibration(values)
    )


#: A point of the front with the fit it was computed from.
_End: TypeAlias = tuple[Fit, FrontPoint]


@dataclass(frozen=True, slots=True)
class _Front:
    """Builds the points of a front."""

    folds: Folds
    plain: Fit
    before: NDArray[np.int64]
    middle: Fit
    origin: dict[str, Any]

    def end(self, fit: Fit, beta: float) -> _End:
        folds, scheme = self.folds, fit.schemes[-1]
        estimate = folds.metrics(fit.predictions, fit.setting)
        n_classes = len(scheme.classes)
        if fit is not self.plain:
            # If the trade-off is nearly linear, small changes of the rows move the optimum far
            # along it: the scheme fitted on all rows can differ from those of the folds. Its
            # metrics on its training rows are optimistic, and therefore bound the estimate.
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
            provenance["setting"] = _as_dict(fit.setting)
        confusion = confusion_matrix(folds.truth, fit.predictions, n_classes)
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
        """Return the points of `ends` and interpolated ones; the last point remains the last."""
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
        """Yield points interpolated between two ends, by bisection until the steps are small."""
        if low[1].accuracy - high[1].accuracy <= _STEP or high[0] - low[0] <= _SHORTEST:
            return
        share = (low[0] + high[0]) / 2
        pairs = zip(first[0].schemes, second[0].schemes, strict=True)
        schemes = [s for s in (between(a, b, share) for a, b in pairs) if s is not None]
        if len(schemes) < len(first[0].schemes):
            return
        setting = Interpolated(first[0].setting, second[0].setting, share)
        beta = (1.0 - share) * first[1].beta + share * second[1].beta
        _, middle = self.end(self.folds.judged(setting, schemes), beta)
        yield from self._line(first, second, low, (share, middle))
        yield middle
        yield from self._line(first, second, (share, middle), high)


def _prune(candidates: tuple[Hyperparameters, ...], folds: Folds) -> tuple[Hyperparameters, ...]:
    """Exclude candidates that would overfit, unless no others remain."""
    n_rows, n_classes = folds.probs.shape
    fewest = max(_CALIBRATED_ROWS, _CALIBRATED_CLASS_ROWS * n_classes)
    shrunk = tuple(c for c in candidates if c.calibration == "shrunk")
    if shrunk and n_rows < fewest:
        if n_rows < FEWEST_FITTED:
            return tuple(replace(c, corrections="none") for c in shrunk)
        # Keep the prior rows per class constant; the default is for four classes.
        return tuple(replace(c, prior_rows=c.prior_rows * max(1.0, n_classes / 4)) for c in shrunk)
    usable = tuple(
        c
        for c in candidates
        if (c not in shrunk or folds.unlabelled)
        and not (
            c.calibration in ("logistic", "balanced", "surrogate")
            and n_classes > _MOST_LOGISTIC_CLASSES
        )
        and not (
            c.corrections in ("memberships", "both") and n_rows < _MEMBERSHIP_ROWS * n_classes
        )
        and (c.calibration in _FRUGAL or n_rows >= fewest)
    )
    return usable or candidates


def _as_dict(setting: Setting | None) -> dict[str, Any]:
    """Return a setting as recorded in the provenance of a scheme."""
    if isinstance(setting, Interpolated):
        ends = {"first": _as_dict(setting.first), "second": _as_dict(setting.second)}
        return {**ends, "share": setting.share}
    values = {} if setting is None else asdict(setting)
    values.pop("schedule", None)
    return {name: value for name, value in values.items() if value is not None}
