"""Folds: what settings predict of rows that they were not fitted on, and what that is worth."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_rows, whole_number
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics, cobias, confusion_matrix
from dcs.evaluation.uncertainty import compare_predictions
from dcs.schemes.scheme import CorrectionScheme
from dcs.seeds import derive_generator, derive_seed
from dcs.selection.front import Change
from dcs.selection.settings import Hyperparameters, Setting, fit_settings

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
        found: list[list[CorrectionScheme]] = [[] for _ in grid]
        done = 0
        for (_, group), schemes in zip(items, mapper(self._fit, items), strict=True):
            for i, scheme in enumerate(schemes, done):
                found[i % len(grid)].append(scheme)
            done += len(group)
            if progress is not None:
                progress(done / (len(left_out) * len(grid)))
        return found

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
