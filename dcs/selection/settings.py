"""Fitting one setting: calibration, then corrections searched on top of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_rows, finite_number, whole_number
from dcs.errors import check_choice
from dcs.evaluation.metrics import Objective
from dcs.schemes.calibration import (
    CalibrationKind,
    fit_calibration,
    from_arrays,
    from_offset,
)
from dcs.schemes.corrections import DONT_CHANGE, Correction, CorrectionSet, Membership, Weight
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.schedule import Schedule

_MOST_COPIES: Final = 64


def _smoothed(
    probs: NDArray[np.float64],
    labels: NDArray[np.int64],
    share: float,
    seed: int,
    copied_rows: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Copy the rows so that a share of the labels follows the probabilities themselves.

    A search over labels alone fits their noise; what the calibrated probabilities expect has none.
    The labels of the copies are spread evenly over every row's distribution.
    """
    n_rows, n_classes = probs.shape
    copies = min(_MOST_COPIES, max(4, round(copied_rows / n_rows)))
    expected = round(share * copies)
    if expected == 0:
        return probs, labels
    below = probs.cumsum(axis=1)
    first = np.random.default_rng(seed).random(n_rows)
    targets = [
        np.minimum((((i + first) / expected)[:, None] > below).sum(axis=1), n_classes - 1)
        for i in range(expected)
    ]
    targets += [labels] * (copies - expected)
    return np.tile(probs, (copies, 1)), np.concatenate(targets)


def _logarithms(corrections: tuple[Correction, ...]) -> NDArray[np.float64]:
    """Return the logarithms of weights, with mean 0: only their ratios matter."""
    logs = np.log([c.value if isinstance(c, Weight) else 1.0 for c in corrections])
    centred: NDArray[np.float64] = logs - logs.mean()
    return centred


def _weights_of(logs: NDArray[np.float64]) -> tuple[Correction, ...]:
    """Return weights of these logarithms, the largest 1; a range above 30 has no use."""
    return tuple(Weight(float(w)) for w in np.exp(np.maximum(logs - logs.max(), -30.0)))


CorrectionFamily: TypeAlias = Literal["none", "weights", "memberships", "both"]

WeightSpacing: TypeAlias = Literal["logarithmic", "linear"]

#: Short, for a search that cross-validation repeats a hundred times.
_SCHEDULE: Final = Schedule(
    initial_temperature=0.02,
    final_temperature=0.0005,
    cooling_rate=0.6,
    lambda1=2.0,
    lambda2=2.0,
    restarts=3,
)

#: From this beta on, shrinkage draws towards equal shares of all classes.
_BALANCED_BETA: Final = 0.3

#: Averaging: rows searched in all, and rows below which halves are too few to search.
_SEARCHED_ROWS: Final = 14_000

_FEWEST_HALVED: Final = 40

#: The mean of two or three searches on halves is worse than one on all rows.
_FEWEST_AVERAGED: Final = 4

#: Calibrations that give the posterior of every class.
_LIKELY: Final = ("temperature", "vector", "logistic")

#: From so many rows on, the likelihood may speak louder than the ridge.
_RIDGE_ROWS: Final = 500

_COPIED_ROWS: Final = 4000

#: Averaging smooths as well: each of its searches needs fewer copies.
_SHARED_COPIES: Final = 8


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """One setting of the method: what `cross_validate` judges and `fit_settings` fits.

    Parameters
    ----------
    calibration : str
        ``"none"`` or one of :func:`dcs.schemes.calibration.fit_calibration`.
        What happens to the probabilities before corrections are searched.
    ridge : float
        L2 penalty of the calibration towards the identity; above 500 rows it falls as 1 / rows.
    corrections : {"none", "weights", "memberships", "both"}
        What the search chooses from; with ``"none"`` the calibration is all there is.
    weight_scale : int
        Number of weights, D_W.
    spacing : {"logarithmic", "linear"}
        Weights in equal steps of the logarithm, over the range that the probabilities make
        useful, or ``i / D_W`` as in the paper.
    memberships : int, optional
        How many of the membership functions are offered, by default all; see
        :meth:`dcs.CorrectionSet.limited`.
    beta, tau : float
        Weights of COBias and PMI in the objective.
    prior_rows : float
        Guard against overfitting: with M rows, the share ``prior_rows / (prior_rows + M)`` of the
        evidence comes from what the calibrated probabilities expect rather than from the labels.
        0 trusts the labels alone.
    averages : int
        At most so many searches on random halves of the rows, whose weights are averaged: the
        optimum on one sample follows its noise. Above 1,750 rows there are fewer, above 3,500
        none, since noise and gain shrink. 0 for one search on all rows, always; memberships are
        never averaged.
    schedule : Schedule
        How the search cools.

    Raises
    ------
    InvalidInputError
        When a value is not allowed.
    """

    calibration: CalibrationKind = "logistic"
    ridge: float = 20.0
    corrections: CorrectionFamily = "weights"
    weight_scale: int = 80
    spacing: WeightSpacing = "logarithmic"
    memberships: int | None = None
    beta: float = 0.5
    tau: float = 0.0
    prior_rows: float = 100.0
    averages: int = 8
    schedule: Schedule = field(default_factory=lambda: _SCHEDULE)

    def __post_init__(self) -> None:
        for name, allowed in (
            ("calibration", get_args(CalibrationKind)),
            ("corrections", get_args(CorrectionFamily)),
            ("spacing", get_args(WeightSpacing)),
        ):
            check_choice(name, getattr(self, name), allowed)
        for name in ("ridge", "beta", "tau", "prior_rows"):
            object.__setattr__(self, name, finite_number(getattr(self, name), name, least=0.0))
        for name, least in (("weight_scale", 2), ("averages", 0)):
            value = whole_number(getattr(self, name), name, least=least)
            object.__setattr__(self, name, value)
        CorrectionSet.dcs().limited(self.memberships)

    def smoothing(self, n_rows: int) -> float:
        """Return the share of the evidence that comes from the calibrated probabilities."""
        return self.prior_rows / (self.prior_rows + n_rows)

    def follows(self, n_rows: int) -> float:
        """Return how far the corrections follow the labels of so many rows, 0..1.

        0 without a search, 1 without guards. Labels are smoothed, and weights drawn back, by the
        same share.

        Parameters
        ----------
        n_rows : int
            Number of labelled rows.

        Returns
        -------
        float
            The share.
        """
        if self.corrections == "none":
            return 0.0
        return (1.0 - self.smoothing(n_rows)) ** (2 if self.corrections == "weights" else 1)


@dataclass(frozen=True, slots=True)
class Interpolated:
    """A setting between two others: their schemes, mixed by :func:`between`.

    Parameters
    ----------
    first, second : Hyperparameters, Interpolated or None
        None is the uncorrected probabilities.
    share : float
        Share of the second, 0..1.
    """

    first: Setting | None
    second: Setting | None
    share: float

    @property
    def calibration(self) -> CalibrationKind:
        """That of the second end, or of the first where the second is uncorrected."""
        end = self.second or self.first
        return "none" if end is None else end.calibration

    def follows(self, n_rows: int) -> float:
        """Return how far the corrections follow the labels, at most as either end does."""
        return max(end.follows(n_rows) for end in (self.first, self.second) if end is not None)


Setting: TypeAlias = Hyperparameters | Interpolated


def between(
    first: CorrectionScheme, second: CorrectionScheme, share: float
) -> CorrectionScheme | None:
    """Return the scheme between two, of calibrations and logarithms of weights alike.

    Both ends predict the largest of numbers that are linear in the log-probabilities, and so does
    what is between them.

    Parameters
    ----------
    first, second : CorrectionScheme
        Of the same classes.
    share : float
        Share of the second, 0..1.

    Returns
    -------
    CorrectionScheme or None
        None where an end has a membership function other than Don't Change.
    """
    ends = (first, second)
    corrections = (*first.corrections, *second.corrections)
    if any(isinstance(c, Membership) and c != DONT_CHANGE for c in corrections):
        return None
    calibration = first.calibration
    if calibration != second.calibration:
        none = from_offset("none", np.zeros(len(first.classes)))
        a, b = (scheme.calibration or none for scheme in ends)
        matrix, offset = (
            (1.0 - share) * np.array(x) + share * np.array(y)
            for x, y in ((a.matrix, b.matrix), (a.offset, b.offset))
        )
        calibration = from_arrays("interpolated", matrix, offset)
    logs = [_logarithms(scheme.corrections) for scheme in ends]
    chosen = _weights_of((1.0 - share) * logs[0] + share * logs[1])
    return CorrectionScheme(first.classes, chosen, first.provenance, calibration)


def fit_settings(
    probs: ArrayLike,
    labels: ArrayLike,
    path: Sequence[Hyperparameters],
    *,
    seed: int = 0,
    classes: Sequence[str] | None = None,
) -> tuple[CorrectionScheme, ...]:
    """Fit settings that share a calibration, which is fitted once, on all rows.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices, -1 for unlabelled rows: the calibration, and the mean of what it
        gives, are those of these too.
    path : sequence of Hyperparameters
        What to fit, of one kind of calibration and one ridge. Where settings that follow each
        other differ in beta alone, each search starts from what the one before it found.
    seed : int, optional
        The same arguments give the same schemes.
    classes : sequence of str, optional
        Class names, by default ``"class_0", "class_1", ...``.

    Returns
    -------
    tuple of CorrectionScheme
        One for each setting, with the calibration, if any, inside.

    Raises
    ------
    InvalidInputError
        When an argument is not allowed.
    """
    values, indices, names = checked_rows(probs, labels, classes, missing=True)
    labelled, kind = indices >= 0, path[0].calibration
    ridge = path[0].ridge * min(1.0, _RIDGE_ROWS / max(1, labelled.sum()))
    calibration = fit_calibration(values, indices, kind=kind, ridge=ridge)
    calibrated = values if calibration is None else calibration.apply(values)
    rows = _Calibrated(calibrated[labelled], indices[labelled], calibrated.mean(axis=0), kind)
    found: list[CorrectionScheme] = []
    for _, alike in groupby(path, key=lambda setting: replace(setting, beta=0.0)):
        settings = list(alike)
        for setting, chosen in zip(settings, rows.corrected(settings, seed), strict=True):
            origin = {"beta": setting.beta, "tau": setting.tau, "rows": rows.labels.size}
            found.append(CorrectionScheme(names, chosen, origin, calibration))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Calibrated:
    """Labelled rows after their calibration, and its means over all rows."""

    probs: NDArray[np.float64]
    labels: NDArray[np.int64]
    means: NDArray[np.float64]
    kind: CalibrationKind

    def corrected(
        self, path: Sequence[Hyperparameters], seed: int
    ) -> Iterator[tuple[Correction, ...]]:
        """Yield the corrections of settings that differ in beta alone."""
        n_rows, n_classes = self.labels.size, self.means.size
        first = path[0]
        if first.corrections == "none":
            yield from [(DONT_CHANGE,) * n_classes] * len(path)
            return
        weights = first.corrections == "weights"
        # Where accuracy alone counts, the most probable class is the best decision; weights that
        # say otherwise would fit noise.
        likely = weights and self.kind in _LIKELY
        searched = [s for s in path if not (likely and s.beta == s.tau == 0.0)]
        averages = 0
        if weights and n_rows >= _FEWEST_HALVED:
            averages = min(first.averages, _SEARCHED_ROWS // n_rows)
        if averages < _FEWEST_AVERAGED:
            found = self._search(np.arange(n_rows), searched, seed)
        else:
            generator = np.random.default_rng(seed)
            halves = [generator.permutation(n_rows)[: n_rows // 2] for _ in range(averages)]
            several = [self._search(half, searched, seed + i) for i, half in enumerate(halves)]
            found = [
                _weights_of(np.mean([_logarithms(one) for one in ones], axis=0))
                for ones in zip(*several, strict=True)
            ]
        results, share = dict(zip(searched, found, strict=True)), first.smoothing(n_rows)
        for setting in path:
            chosen = results.get(setting, (Weight(1.0),) * n_classes)
            if weights and share > 0.0:
                target = min(1.0, setting.beta / _BALANCED_BETA) * self._balancing_weights()
                target -= target.mean()
                chosen = _weights_of((1.0 - share) * _logarithms(chosen) + share * target)
            yield chosen

    def _search(
        self, rows: NDArray[np.int64], path: Sequence[Hyperparameters], seed: int
    ) -> list[tuple[Correction, ...]]:
        if not path:
            return []
        # The search compiles; who reads a front, or lists settings, should not wait for that.
        from dcs.search.annealing import cooled
        from dcs.search.problem import Problem

        share = path[0].smoothing(self.labels.size)
        whole = rows.size == self.labels.size
        copied = _COPIED_ROWS if whole else _COPIED_ROWS // _SHARED_COPIES
        probs, labels = _smoothed(self.probs[rows], self.labels[rows], share, seed, copied)
        corrections = _correction_set(self.probs, path[0])
        names = tuple(map(str, range(self.means.size)))
        found: list[tuple[Correction, ...]] = []
        choice: NDArray[np.int64] | None = None
        for setting in path:
            objective = Objective(beta=setting.beta, tau=setting.tau)
            problem = Problem(probs, labels, names, corrections, objective)
            *_, (choice, *_) = cooled(problem, setting.schedule, seed=seed, start=choice)
            found.append(problem.scheme(choice).corrections)
        return found

    def _balancing_weights(self) -> NDArray[np.float64]:
        """Return the logarithms of the weights that give all classes the same prior."""
        shares = np.bincount(self.labels, minlength=self.means.size) + 1.0
        if self.kind in ("none", "batch"):
            shares = np.maximum(self.means, 1e-6)
        elif self.kind in ("balanced", "shrunk"):
            shares = np.ones(self.means.size)
        logs: NDArray[np.float64] = -np.log(shares)
        return logs


def _correction_set(probs: NDArray[np.float64], setting: Hyperparameters) -> CorrectionSet:
    if setting.corrections == "memberships":
        return CorrectionSet.furud().limited(setting.memberships)
    both = setting.corrections == "both"
    if setting.spacing == "linear":
        build = CorrectionSet.dcs if both else CorrectionSet.dnip
        return build(weight_scale=setting.weight_scale).limited(setting.memberships)
    # Weights act through ratios: the useful range is that of the log-odds between a row's best
    # class and the others.
    logs = np.log(np.maximum(probs, 1e-12))
    reach = 1.5 * float(np.quantile(logs.max(axis=1, keepdims=True) - logs, 0.9))
    corrections = CorrectionSet.logarithmic(
        count=setting.weight_scale,
        smallest=float(np.exp(-min(max(reach, 0.1), 6.0))),
        largest=2.0 if both else 1.0,
        memberships=both,
    )
    return corrections.limited(setting.memberships)
