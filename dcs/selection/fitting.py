"""Fits of settings, each judged on rows that it was not fitted on.

The labelled rows are divided into folds. Calibrations are fitted without each fold; the
corrections of a fold are searched on the rows of the other folds, as calibrated there without
their labels. So every row is predicted by a calibration that was not fitted on its label, a search
costs nothing but itself, and the mean of the schemes of the folds is what was judged. The label
still has a little influence: through the common mean logits of all folds, and the calibrations of
the other folds on whose rows corrections are searched. Held-out figures are therefore slightly
optimistic with few rows; `benchmarks/calibration.py` simulates the guarantee with it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import whole_number
from dcs.data.splits import copied_rows, stratified_choice, stratified_folds, stratified_split
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.evaluation.uncertainty import design_effect, paired_counts, paired_errors
from dcs.methods.calibrations import CALIBRATIONS, DIGITS, MOST_PRODUCT_CLASSES, Labels
from dcs.methods.parameters import MIXTURE, Hyperparameters
from dcs.methods.search import logarithms, search, to_weights
from dcs.schemes.apply import softmax
from dcs.schemes.calibration import DEFAULT_FLOOR, Array, Calibration, from_arrays
from dcs.schemes.corrections import DONT_CHANGE
from dcs.schemes.scheme import CorrectionScheme
from dcs.seeds import derive_generator, derive_seed
from dcs.selection.preference import Change

T = TypeVar("T")
R = TypeVar("R")

#: Minimum number of labelled rows for cross-validation.
FEWEST_LABELS: Final = 2

#: Batch calibration in a mixture, and its prior weight in rows per class.
_BATCH: Final = ("batch", 0.0, 0.0)
_BATCH_ROWS: Final = 12.0

#: Calibrations that equalise the classes by themselves, and compete alone as well.
ALONE: Final = (("surrogate", 25.0, 1.0), ("drops", 2.0, 0.0))

#: The calibrations that a mixture is made of: name, ridge and anchor.
_POOL: Final = (
    ("none", 0.0, 0.0),
    _BATCH,
    *(("offsets", ridge, 1.0) for ridge in (10.0, 50.0)),
    *(("linear", ridge, anchor) for anchor in (0.0, 1.0) for ridge in (2.0, 10.0, 50.0)),
    *ALONE,
)
#: And those that differ from them with few classes, which have products.
_PRODUCTS: Final = tuple(
    ("products", ridge, anchor) for anchor in (0.0, 1.0) for ridge in (25.0, 100.0)
)

#: Range of the factor by which the logits of a calibration are scaled.
_LEAST_SCALE, _MOST_SCALE = 0.02, 20.0
_SCALE_STEPS: Final = 12
_SCALE_ROWS: Final = 4000

#: Applies a function to items, here or remotely. Function, items and results must be picklable;
#: arrays that the function holds are read-only where it runs. Results are yielded in the order of
#: the items. At most `ahead` items (default: chosen by the mapper) are taken before their results:
#: item ``n + ahead`` only after result ``n`` has been yielded and the next one requested. So items
#: may depend on earlier results, and do not depend on how many are computed in parallel.
Mapper: TypeAlias = Callable[..., Iterator[Any]]


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
        self, function: Callable[[T], R], items: Iterable[T], /, *, ahead: int | None = None
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


def mean_scheme(parts: Sequence[tuple[CorrectionScheme, float]]) -> CorrectionScheme:
    """Return the mean of linear schemes: of their calibrated logits, and of their log-weights.

    Every such scheme predicts the class with the largest of N functions that are linear in the
    log-probabilities, or in these and their products, and so does their mean.

    Parameters
    ----------
    parts : sequence of tuple
        Schemes of the same classes, and their weights, with sum 1.
    """
    first = parts[0][0]
    logs = sum(share * logarithms(scheme.corrections) for scheme, share in parts)
    calibration = mean_calibration([(scheme.calibration, share) for scheme, share in parts])
    weighted = any(c != DONT_CHANGE for scheme, _ in parts for c in scheme.corrections)
    corrections = to_weights(np.asarray(logs)) if weighted else first.corrections
    return CorrectionScheme(first.classes, corrections, first.provenance, calibration)


def mean_calibration(parts: Sequence[tuple[Calibration | None, float]]) -> Calibration | None:
    """Return the calibration with the weighted logits of several; None is no calibration."""
    distinct = list(dict.fromkeys(each for each, _ in parts))
    if len(distinct) == 1 and math.isclose(sum(share for _, share in parts), 1.0):
        return distinct[0]
    n = next(each.n_classes for each in distinct if each is not None)
    products = any(each is not None and each.products for each in distinct)
    matrix, offset = np.zeros((n, n * (n + 3) // 2 if products else n)), np.zeros(n)
    for each, share in parts:
        weights, added = (np.eye(n), np.zeros(n)) if each is None else each.step[:2]
        matrix[:, : len(weights)] += share * weights.T
        offset += share * added
    return from_arrays(MIXTURE, matrix.round(DIGITS), offset.round(DIGITS), products=products)


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
    correct, rows = np.array(metrics.class_accuracies), np.asarray(counts, np.float64)
    present = rows > 0
    # Add one correct and one wrong row: an accuracy of 1 on few rows still has sampling noise.
    correct = (correct[present] * rows[present] + 1.0) / (rows[present] + 2.0)
    variances = correct * (1.0 - correct) / rows[present]
    pairs = np.triu_indices(variances.size, 1)
    if pairs[0].size == 0:
        return 0.0
    spread = np.sqrt(variances[pairs[0]] + variances[pairs[1]])
    return math.sqrt(2.0 / math.pi) * float(spread.mean())


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A setting and its metrics on rows that it was not fitted on.

    Attributes
    ----------
    setting : Hyperparameters or None
        The setting; None for a mean, and for the uncorrected probabilities.
    accuracy, cobias : float
        On held-out rows, 0..1; see :class:`Fitting`.
    moves : int
        Number of candidate solutions that its searches evaluated.
    schemes : tuple of CorrectionScheme
        Fitted without each fold. Empty for a mean, and if only the metrics are known, from an
        earlier run.
    predictions : array of int
        Predictions of the held-out rows.
    parts : tuple
        The fits that a mean is made of, and their weights.
    logits : array of float, shape [M, N], optional
        Corrected logits of the held-out rows, of a mean.
    """

    setting: Hyperparameters | None
    accuracy: float
    cobias: float
    moves: int = 0
    schemes: tuple[CorrectionScheme, ...] = ()
    predictions: Labels = field(default_factory=lambda: np.zeros(0, np.int64))
    parts: tuple[tuple[Fit, float], ...] = ()
    logits: Array | None = None

    def z(self, beta: float) -> float:
        """Return the error rate plus `beta` times COBias on held-out rows."""
        return 1.0 - self.accuracy + beta * self.cobias

    @property
    def is_linear(self) -> bool:
        """Whether the scheme for new rows is the mean of those that were judged."""
        return self.setting is None or self.setting.is_linear

    @property
    def shares(self) -> dict[Hyperparameters | None, float]:
        """The settings that it is made of, and their shares, which have the sum 1."""
        total: dict[Hyperparameters | None, float] = {}
        for leaf, share in self.parts or ((self, 1.0),):
            total[leaf.setting] = total.get(leaf.setting, 0.0) + share
        return total


#: Name, ridge and anchor of a calibration, and what was fitted of it without each fold.
_Item: TypeAlias = tuple[str, float, float]
_Folded: TypeAlias = tuple[Calibration | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FoldedRows:
    """Rows with their folds, which fit settings here or in other processes.

    Attributes
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices, -1 for unlabelled rows.
    place : array of int, shape [M]
        The fold of every row, copies are in one; -1 for rows that are in every fit.
    n_folds : int
        Number of folds. With a single one its rows are development rows.
    seed : int
        Root seed of the searches.
    made : mapping of tuple to tuple of Calibration or None
        Calibrations that are not fitted again, one per fold, by name, ridge and anchor: those of
        the mixture, once it has been made, and those that compete alone.
    """

    probs: Array
    labels: Labels
    place: Labels
    n_folds: int
    seed: int
    made: Mapping[_Item, _Folded] = field(default_factory=dict)

    def calibrations(self, item: _Item) -> _Folded:
        """Fit a calibration without each fold.

        The differences in offset of those of all folds, which go against the labels of the fold,
        are removed, so that they are not taken for differences of the classes.
        """
        name, ridge, anchor = item
        if item in self.made:
            return self.made[item]
        kind = CALIBRATIONS[name]
        known = (np.where(self.place != fold, self.labels, -1) for fold in range(self.n_folds))
        found = tuple(kind.fit(self.probs, own, ridge=ridge, anchor=anchor) for own in known)
        return self.level(found) if kind.needs_labels else found

    def level(self, found: Sequence[Calibration | None]) -> _Folded:
        """Shift the calibrations of all folds to the same mean logits over all rows."""
        own = [each for each in found if each is not None]
        if self.n_folds == 1 or len(own) < len(found):
            return tuple(found)
        means = np.array([each.logits(self.probs).mean(axis=0) for each in own])
        shifts = means - means.mean(axis=0)
        shifts -= shifts.mean(axis=1, keepdims=True)
        return tuple(
            replace(each, offset=tuple((np.array(each.offset) - shift).round(DIGITS)))
            for each, shift in zip(own, shifts, strict=True)
        )

    def fit(self, setting: Hyperparameters) -> tuple[CorrectionScheme, ...]:
        """Fit a setting without each fold."""
        calibrations = self.calibrations(setting.calibrated)
        probs, labels, place = self._calibrated(calibrations)
        names = tuple(f"class_{j}" for j in range(self.probs.shape[1]))
        schemes = []
        for fold, calibration in enumerate(calibrations):
            inside = place != fold
            seed = derive_seed(self.seed, "anneal", setting.stream + fold)
            corrections, moves = search(probs[inside], labels[inside], setting, seed=seed)
            origin = {"rows": int(inside.sum()), "moves": moves}
            schemes.append(CorrectionScheme(names, corrections, origin, calibration))
        return tuple(schemes)

    def whole(self, fit: Fit) -> CorrectionScheme:
        """Return the scheme of a fit for new rows.

        The mean of the schemes of the folds; where these have no mean, their mean calibration and
        a search on the rows of all folds.
        """
        if self.n_folds == 1:
            return fit.schemes[0]
        share = 1.0 / len(fit.schemes)
        if fit.setting is None or fit.is_linear:
            return mean_scheme([(scheme, share) for scheme in fit.schemes])
        calibrations = tuple(scheme.calibration for scheme in fit.schemes)
        probs, labels, _ = self._calibrated(calibrations)
        seed = derive_seed(self.seed, "anneal")
        corrections, moves = search(probs, labels, fit.setting, seed=seed)
        origin = {"rows": labels.size, "moves": moves}
        calibration = mean_calibration([(each, share) for each in calibrations])
        return CorrectionScheme(fit.schemes[0].classes, corrections, origin, calibration)

    def _calibrated(self, calibrations: _Folded) -> tuple[Array, Labels, Labels]:
        """Return the labelled rows, calibrated without the labels of their fold, and the folds.

        With development rows, the fitted rows have the calibration that was fitted on them.
        """
        known = self.labels >= 0
        probs, place = self.probs[known], self.place[known]
        calibrated = probs.copy()
        for fold, calibration in enumerate(calibrations):
            rows = np.maximum(place, 0) == fold
            if calibration is not None:
                calibrated[rows] = calibration.apply(probs[rows])
        return calibrated, self.labels[known], place


class Fitting:
    """Judge of settings: cross-validation folds, or one share of development rows.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices, -1 for unlabelled rows, whose probabilities take part in every fit.
    folds : int
        Number of folds, 2 or more; limited to the number of different labelled rows.
    development : float, optional
        Share of the labelled rows on which settings are judged, instead of folds.
    stratified : bool, optional
        Whether these rows have the class shares of all.
    seed : int
        Seed of folds and searches.
    groups : array of int, shape [M], optional
        Numbers that are equal in rows of the same text.

    Attributes
    ----------
    rows : FoldedRows
        All rows with their folds.
    labels : array
        Labels of the labelled rows.
    held_out, truth : array
        Probabilities and labels of the rows that settings are judged on.
    counts : array of int, shape [N]
        Held-out rows per class.
    pool : dict of str to float
        The calibrations of the mixture with their weights; empty until :meth:`prepare`.

    Raises
    ------
    InvalidInputError
        If there are fewer than two labelled rows or different rows.

    Notes
    -----
    COBias is computed from the predictions of all held-out rows. A search that equalises the
    classes on some rows leaves the noise of those rows with the opposite sign on the others; over
    all folds this noise cancels that of the held-out rows, which is therefore added back. For
    noise e of the rows, a search that follows the labels to the degree f leaves (1 - f) e where
    other schemes show e, and new rows show another f e: the squares differ by 2 f e^2.
    """

    def __init__(
        self,
        probs: Array,
        labels: Labels,
        folds: int,
        *,
        development: float | None = None,
        stratified: bool = True,
        seed: int,
        groups: Labels | None = None,
    ) -> None:
        seed = whole_number(seed, "seed", least=0)
        known = labels >= 0
        self.labels = labels[known]
        whole_number(self.labels.size, "number of labelled rows", least=FEWEST_LABELS)
        group = copied_rows(probs[known], None if groups is None else groups[known])
        different = np.unique(group).size
        if development is None:
            if different < 2:
                raise InvalidInputError(
                    f"all {group.size:,} labelled rows are copies of one, by probabilities or "
                    "groups, so that none can be held out; check the prompts and the file"
                )
            self.n_folds = min(folds, different)
            place = stratified_folds(self.labels, self.n_folds, seed=seed, groups=group)
        else:
            self.n_folds = 1
            if stratified:
                shares = {"optimization": 1.0 - development, "development": development}
                own_seed = derive_seed(seed, "split")
                parts = stratified_split(self.labels, shares, seed=own_seed, groups=group)
                outside = parts["development"]
            else:
                shuffled = derive_generator(seed, "split").permutation(self.labels.size)
                most = shuffled.size - 1  # one row is left to fit
                outside = shuffled[: max(1, min(round(development * shuffled.size), most))]
            place = np.full(self.labels.size, -1)
            place[outside] = 0
        everywhere = np.full(labels.size, -1)
        everywhere[known] = place
        self.rows = FoldedRows(probs, labels, everywhere, self.n_folds, seed)
        judged, self._group = everywhere >= 0, group[place >= 0]
        self.held_out, self.truth, self._fold = probs[judged], labels[judged], everywhere[judged]
        rows = np.bincount(self.truth, minlength=probs.shape[1])
        self.counts = rows / design_effect(self._group)
        self.pool: dict[str, float] = {}
        self._whole: dict[Fit, CorrectionScheme] = {}
        self._complete: dict[Hyperparameters, Fit] = {}

    @property
    def n_classes(self) -> int:
        """Number of classes N."""
        return int(self.counts.size)

    def prepare(self, mapper: Mapper = map) -> None:
        """Make the mixture: the mean of the calibrations that held-out rows favour.

        Half of the weight is divided among the best by likelihood, half among the best by accuracy
        minus COBias; the best are the square root of their number, and one. The best single one
        would mostly be the luckiest. Batch calibration counts as 12 rows per class.
        """
        if self.pool:
            return
        pool = _POOL + (_PRODUCTS if self.n_classes <= MOST_PRODUCT_CLASSES else ())
        found = list(mapper(self.rows.calibrations, pool))
        logits = [self.logits_of(each) for each in found]
        scales = [self._scale(each) for each in logits]
        scaled = [scale * each for scale, each in zip(scales, logits, strict=True)]
        likelihoods = (softmax(each)[np.arange(self.truth.size), self.truth] for each in scaled)
        losses = [-np.log(np.maximum(each, 1e-12)) for each in likelihoods]
        predictions = [each.argmax(axis=1) for each in scaled]
        # The rows outside a fold decide; development rows have been in no fit.
        deciding = ((self._fold != fold) | (self.n_folds == 1) for fold in range(self.n_folds))
        weights = [self._weights(losses, predictions, rows) for rows in deciding]
        # The share of batch calibration, which needs no labels, fades as labels increase.
        prior = _BATCH_ROWS * self.n_classes
        prior /= prior + self.labels.size
        for own in weights:
            own *= 1.0 - prior
            own[pool.index(_BATCH)] += prior
        mixtures = []
        for fold, own in enumerate(weights):
            parts = [(found[i][fold], own[i] * scales[i]) for i in np.flatnonzero(own)]
            mixtures.append(mean_calibration(parts))
        final = self._scale(self.logits_of(mixtures))
        mixtures = [mean_calibration([(each, final)]) for each in mixtures]
        made = {item: found[pool.index(item)] for item in ALONE}
        made[MIXTURE, 0.0, 0.0] = self.rows.level(mixtures)
        self.rows = replace(self.rows, made=made)
        shares = np.mean(weights, axis=0)
        used = np.flatnonzero(shares)
        self.pool = {"{} {:g} {:g}".format(*pool[i]): float(shares[i]) for i in used}

    def _weights(
        self, losses: Sequence[Array], predictions: Sequence[Labels], rows: NDArray[np.bool_]
    ) -> Array:
        """Return the weights of calibrations that some rows favour."""
        truth = self.truth[rows]
        # All classes weigh the same in the likelihood.
        shares = 1.0 / np.bincount(truth, minlength=self.n_classes)[truth]
        judged = ClassificationMetrics.from_predictions
        found = [judged(truth, each[rows], self.n_classes) for each in predictions]
        criteria = (
            [-float((shares * each[rows]).sum() / shares.sum()) for each in losses],
            [each.accuracy - each.cobias for each in found],
        )
        number = round(math.sqrt(len(losses))) + 1
        weights = np.zeros(len(losses))
        for values in criteria:
            best = np.argsort(-np.array(values), kind="stable")[:number]
            weights[best] += 0.5 / number
        return weights

    def logits_of(self, calibrations: Sequence[Calibration | None]) -> Array:
        """Return the logits of the held-out rows, each calibrated without its fold."""
        logits = np.log(np.maximum(self.held_out, DEFAULT_FLOOR))
        for fold, calibration in enumerate(calibrations):
            if calibration is not None:
                rows = self._fold == fold
                logits[rows] = calibration.logits(self.held_out[rows])
        return np.asarray(logits - logits.mean(axis=1, keepdims=True))

    def logits(self, fit: Fit) -> Array:
        """Return the corrected logits of the held-out rows, of a linear fit."""
        if fit.logits is not None:
            return fit.logits
        logits = self.logits_of([scheme.calibration for scheme in fit.schemes])
        for fold, scheme in enumerate(fit.schemes):
            logits[self._fold == fold] += logarithms(scheme.corrections)
        return logits

    def _scale(self, logits: Array) -> float:
        """Return the factor of the logits with the smallest loss, by Newton's method."""
        chosen = stratified_choice(self.truth, min(_SCALE_ROWS, self.truth.size), seed=0)
        rows, truth = logits[chosen], self.truth[chosen]
        weights = 1.0 / self.counts[truth]
        weights /= weights.sum()
        own = rows[np.arange(truth.size), truth]
        factor = 1.0
        for _ in range(_SCALE_STEPS):
            posterior = softmax(factor * rows)
            means = (posterior * rows).sum(axis=1)
            slope = float(weights @ (means - own))
            bend = float(weights @ ((posterior * rows**2).sum(axis=1) - means**2))
            step = -slope / max(bend, 1e-12)
            factor = min(max(factor + step, factor / 2.0, _LEAST_SCALE), factor * 2.0, _MOST_SCALE)
        return factor

    def judge(
        self,
        settings: Sequence[Hyperparameters],
        *,
        mapper: Mapper = map,
        progress: Callable[[float], None] | None = None,
    ) -> list[Fit]:
        """Fit settings without each fold and evaluate them there; one item each for the mapper."""
        if any(setting.calibration == MIXTURE for setting in settings):
            self.prepare(mapper)
        fits: list[Fit] = []
        for schemes in mapper(self.rows.fit, settings):
            fits.append(self.judged(settings[len(fits)], schemes))
            if progress is not None:
                progress(len(fits) / len(settings))
        return fits

    def complete(self, fit: Fit) -> Fit:
        """Return the fit with its schemes, which those of an earlier run lack."""
        if fit.schemes or fit.setting is None:
            return fit
        if fit.setting not in self._complete:
            self._complete[fit.setting] = self.judge([fit.setting])[0]
        return self._complete[fit.setting]

    def judged(self, setting: Hyperparameters | None, schemes: Sequence[CorrectionScheme]) -> Fit:
        """Evaluate the schemes fitted without each fold."""
        predictions = np.zeros(self.truth.size, np.int64)
        for fold, scheme in enumerate(schemes):
            rows = self._fold == fold
            predictions[rows] = scheme.predict(self.held_out[rows])
        metrics = self.metrics(predictions, [setting])
        moves = sum(scheme.provenance.get("moves", 0) for scheme in schemes)
        return Fit(setting, metrics.accuracy, metrics.cobias, moves, tuple(schemes), predictions)

    def uncorrected(self, classes: Sequence[str]) -> Fit:
        """Return the uncorrected probabilities, as a fit."""
        return self.judged(None, [CorrectionScheme.identity(classes)] * self.n_folds)

    def averaged(self, parts: Sequence[tuple[Fit, float]]) -> Fit:
        """Return the mean of linear fits, judged; the weights have the sum 1."""
        if len(parts) == 1:
            return parts[0][0]
        logits = np.sum([share * self.logits(fit) for fit, share in parts], axis=0)
        leaves: dict[Fit, float] = {}
        for fit, share in parts:
            for leaf, own in fit.parts or ((fit, 1.0),):
                leaves[leaf] = leaves.get(leaf, 0.0) + share * own
        predictions = logits.argmax(axis=1)
        metrics = self.metrics(predictions, [leaf.setting for leaf in leaves])
        moves = sum(leaf.moves for leaf in leaves)
        known = {"predictions": predictions, "parts": tuple(leaves.items()), "logits": logits}
        return Fit(None, metrics.accuracy, metrics.cobias, moves, **known)

    def whole(self, fit: Fit) -> CorrectionScheme:
        """Return the scheme of a fit for new rows; see :meth:`FoldedRows.whole`."""
        if fit.parts:
            return mean_scheme([(self.whole(leaf), share) for leaf, share in fit.parts])
        if fit not in self._whole:
            self._whole[fit] = self.rows.whole(fit)
        return self._whole[fit]

    def metrics(
        self, predictions: Labels, settings: Iterable[Hyperparameters | None]
    ) -> ClassificationMetrics:
        """Compute the metrics of held-out predictions of settings; None if nothing was fitted.

        COBias includes the noise that cross-validation hides; see :class:`Fitting`.
        """
        found = ClassificationMetrics.from_predictions(self.truth, predictions, self.n_classes)
        # Development rows do not take part in the fit, so that no noise cancels.
        size = self.labels.size, self.n_classes
        degrees = [each.follows(*size) for each in settings if each is not None]
        if not degrees or self.n_folds == 1:
            return found
        noise = cobias_noise(found, self.counts)
        return replace(found, cobias=math.sqrt(found.cobias**2 + 2.0 * max(degrees) * noise**2))

    def change(self, before: Labels, after: Labels) -> Change:
        """Compare two sets of predictions of the held-out rows; copies count once in errors."""
        changed = before != after
        effect = design_effect(self._group, changed)
        cells = paired_counts(self.truth, before, after, self.n_classes)
        accuracy_error, score_error = (math.sqrt(effect) * each for each in paired_errors(cells))
        _, gained, lost, _ = cells.sum(axis=1).tolist()
        return Change(
            accuracy=(gained - lost) / self.truth.size,
            accuracy_error=accuracy_error,
            score_error=score_error,
            gained=gained,
            lost=lost,
            changed=int(changed.sum()),
            effect=effect,
        )
