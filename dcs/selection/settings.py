"""Hyperparameters and their fit: a calibration, followed by a search for corrections."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_rows, finite_number, whole_number
from dcs.errors import check_choice
from dcs.evaluation.metrics import Objective
from dcs.schemes.calibration import (
    Calibration,
    CalibrationKind,
    fit_calibration,
    from_arrays,
    from_offset,
)
from dcs.schemes.corrections import DONT_CHANGE, Correction, CorrectionSet, Membership, Weight
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.schedule import Schedule

_MOST_COPIES: Final = 64


def _smoothed_labels(
    probs: NDArray[np.float64],
    labels: NDArray[np.int64],
    share: float,
    seed: int,
    copied_rows: int,
) -> NDArray[np.int64]:
    """Return several labels of every row [C, M], a share of them drawn from its probabilities.

    A search on the labels alone fits their noise; the expectation under the calibrated
    probabilities has none. The drawn labels are spread evenly over the distribution of each row.
    """
    n_rows, n_classes = probs.shape
    copies = min(_MOST_COPIES, max(4, round(copied_rows / n_rows)))
    expected = round(share * copies)
    if expected == 0:
        return labels
    below = probs.cumsum(axis=1)
    first = np.random.default_rng(seed).random(n_rows)
    targets = [
        np.minimum((((i + first) / expected)[:, None] > below).sum(axis=1), n_classes - 1)
        for i in range(expected)
    ]
    return np.stack([*targets, *[labels] * (copies - expected)])


def _logarithms(corrections: tuple[Correction, ...]) -> NDArray[np.float64]:
    """Return the logarithms of weights, centred because only their ratios matter."""
    logs = np.log([c.value if isinstance(c, Weight) else 1.0 for c in corrections])
    centred: NDArray[np.float64] = logs - logs.mean()
    return centred


def _to_weights(logs: NDArray[np.float64]) -> tuple[Correction, ...]:
    """Convert logarithms to weights, scaled to a maximum of 1 and clipped to a useful range."""
    return tuple(Weight(float(w)) for w in np.exp(np.maximum(logs - logs.max(), -30.0)))


CorrectionFamily: TypeAlias = Literal["none", "weights", "memberships", "both"]

WeightSpacing: TypeAlias = Literal["logarithmic", "linear"]

#: Short, because cross-validation repeats the search about a hundred times. No descent follows:
#: the temperatures, the cooling rate and both lambdas decide the result and the number of moves.
STANDARD_SCHEDULE: Final = Schedule(
    initial_temperature=0.02,
    final_temperature=0.0001,
    cooling_rate=0.4,
    lambda1=2.0,
    lambda2=2.0,
    restarts=1,
    descend=False,
    reheat=False,
)

#: At this beta and above, shrinkage is entirely towards equal class proportions.
_BALANCED_BETA: Final = 0.3

#: Averaging: total number of rows searched, and minimum number of rows for searches on halves.
_SEARCHED_ROWS: Final = 14_000

_FEWEST_HALVED: Final = 40

#: The average of two or three searches on halves is worse than one search on all rows.
_FEWEST_AVERAGED: Final = 4

#: Calibrations whose output is the posterior of every class.
_POSTERIOR: Final = ("vector", "logistic")

#: Number of rows above which the ridge penalty decreases.
_RIDGE_ROWS: Final = 500

_COPIED_ROWS: Final = 4000

#: Averaging also smooths, so that each of its searches needs fewer replicated rows.
_SHARED_COPIES: Final = 8


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Hyperparameters of the method, fitted by `fit_settings`.

    Parameters
    ----------
    calibration : str
        Calibration of the probabilities before the search: ``"none"`` or one of
        :func:`dcs.schemes.calibration.fit_calibration`.
    ridge : float
        L2 penalty of the calibration towards the identity; above 500 rows it falls as 1 / rows.
    corrections : {"none", "weights", "memberships", "both"}
        Corrections from which the search chooses; ``"none"`` disables the search.
    weight_scale : int
        Number of weights, D_W.
    spacing : {"logarithmic", "linear"}
        Weights in equal steps of the logarithm, over a range determined from the probabilities,
        or ``i / D_W`` as in the paper.
    memberships : int, optional
        Number of membership functions to search, by default all; see
        :meth:`dcs.CorrectionSet.limited`.
    beta, tau : float
        Weights of COBias and PMI in the objective.
    error_weight, pseudo_count : float
        Weight of the error rate, and k of the PMI term; see :class:`dcs.Objective`.
    prior_rows : float
        Regularisation: with M rows, the share ``prior_rows / (prior_rows + M)`` of the evidence
        comes from the expectation under the calibrated probabilities rather than from the labels.
        0 uses the labels only.
    averages : int
        Maximum number of searches on random halves of the rows whose weights are averaged, since
        the optimum on a single sample fits its noise. Fewer are used above 1,750 rows and none
        above 3,500, as noise and gain decrease. 0 always runs one search on all rows. Memberships
        are never averaged.
    schedule : Schedule
        Annealing schedule of every search, which runs as it is given.

    Raises
    ------
    InvalidInputError
        If a value is invalid.
    """

    calibration: CalibrationKind = "logistic"
    ridge: float = 20.0
    corrections: CorrectionFamily = "weights"
    weight_scale: int = 80
    spacing: WeightSpacing = "logarithmic"
    memberships: int | None = None
    beta: float = 0.5
    tau: float = 0.0
    error_weight: float = 1.0
    pseudo_count: float = 4000.0
    prior_rows: float = 100.0
    averages: int = 8
    schedule: Schedule = field(default_factory=lambda: STANDARD_SCHEDULE)

    def __post_init__(self) -> None:
        for name, allowed in (
            ("calibration", get_args(CalibrationKind)),
            ("corrections", get_args(CorrectionFamily)),
            ("spacing", get_args(WeightSpacing)),
        ):
            check_choice(name, getattr(self, name), allowed)
        for name in ("ridge", "prior_rows"):
            object.__setattr__(self, name, finite_number(getattr(self, name), name, least=0.0))
        for name, least in (("weight_scale", 2), ("averages", 0)):
            value = whole_number(getattr(self, name), name, least=least)
            object.__setattr__(self, name, value)
        CorrectionSet.dcs().limited(self.memberships)
        # Validates and normalises the weights of the terms.
        for name in ("beta", "tau", "error_weight", "pseudo_count"):
            object.__setattr__(self, name, getattr(self.objective, name))

    @property
    def calibrated(self) -> tuple[CalibrationKind, float, float]:
        """Kind, ridge and beta of the calibration, which settings can share."""
        return self.calibration, self.ridge, self.beta if self.calibration == "surrogate" else 0.0

    def at(self, beta: float) -> Hyperparameters:
        """Return the setting with another weight of COBias in its search, if it has one."""
        return self if self.corrections == "none" else replace(self, beta=beta)

    @property
    def objective(self) -> Objective:
        """The objective of every search."""
        names = ("beta", "tau", "error_weight", "pseudo_count")
        return Objective(**{name: getattr(self, name) for name in names})

    def to_params(self) -> dict[str, Any]:
        """Return all values by name, those of the schedule among them, as trials record them."""
        values: dict[str, Any] = asdict(self)
        schedule = values.pop("schedule")
        if self.corrections == "none":
            beta = {"beta": self.beta} if self.calibration == "surrogate" else {}
            own = {"calibration": self.calibration, "ridge": self.ridge, "corrections": "none"}
            return own | beta
        ratio = self.schedule.final_temperature / self.schedule.initial_temperature
        values |= schedule
        values["temperature_ratio"] = ratio
        return values

    def smoothing(self, n_rows: int) -> float:
        """Return the share of the evidence that comes from the calibrated probabilities."""
        return self.prior_rows / (self.prior_rows + n_rows)

    def follows(self, n_rows: int) -> float:
        """Return the degree to which corrections fitted on `n_rows` rows follow the labels, 0..1.

        0 without a search, 1 without regularisation. Labels are smoothed and weights shrunk by the
        same share.

        Parameters
        ----------
        n_rows : int
            Number of labelled rows.
        """
        if self.corrections == "none":
            return 0.0
        return (1.0 - self.smoothing(n_rows)) ** (2 if self.corrections == "weights" else 1)


@dataclass(frozen=True, slots=True)
class Interpolated:
    """A setting between two others, whose schemes are interpolated by :func:`between`.

    Parameters
    ----------
    first, second : Hyperparameters, Interpolated or None
        The two settings; None stands for the uncorrected probabilities.
    share : float
        Share of the second, 0..1.
    """

    first: Setting | None
    second: Setting | None
    share: float

    @property
    def calibration(self) -> CalibrationKind:
        """Calibration of the second end, or of the first if the second is uncorrected."""
        end = self.second or self.first
        return "none" if end is None else end.calibration

    def follows(self, n_rows: int) -> float:
        """Return the larger of the values of the two ends; see :class:`Hyperparameters`."""
        return max(end.follows(n_rows) for end in (self.first, self.second) if end is not None)


Setting: TypeAlias = Hyperparameters | Interpolated


def between(
    first: CorrectionScheme, second: CorrectionScheme, share: float
) -> CorrectionScheme | None:
    """Interpolate two schemes linearly in their calibrations and the logarithms of their weights.

    Both schemes predict the class with the largest of N linear functions of the log-probabilities,
    and so does any interpolation between them.

    Parameters
    ----------
    first, second : CorrectionScheme
        Schemes of the same classes.
    share : float
        Share of the second, 0..1.

    Returns
    -------
    CorrectionScheme or None
        None if either scheme has a membership function other than Don't Change, or their
        calibrations have terms of different kinds.
    """
    ends = (first, second)
    corrections = (*first.corrections, *second.corrections)
    if any(isinstance(c, Membership) and c != DONT_CHANGE for c in corrections):
        return None
    calibration = first.calibration
    if calibration != second.calibration:
        none = from_offset("none", np.zeros(len(first.classes)))
        a, b = (scheme.calibration or none for scheme in ends)
        basis, *others = sorted({a.basis, b.basis}, key="logs".__eq__)
        if others not in ([], ["logs"]):
            return None
        matrices = [np.array(each.matrix) for each in (a, b)]
        width = max(each.shape[1] for each in matrices)
        # Every basis begins with the logarithms; the coefficients of its other terms are 0.
        wide = [np.pad(each, ((0, 0), (0, width - each.shape[1]))) for each in matrices]
        matrix, offset = (
            (1.0 - share) * np.array(x) + share * np.array(y)
            for x, y in (wide, (a.offset, b.offset))
        )
        calibration = from_arrays("interpolated", matrix, offset, basis=basis)
    logs = [_logarithms(scheme.corrections) for scheme in ends]
    chosen = _to_weights((1.0 - share) * logs[0] + share * logs[1])
    return CorrectionScheme(first.classes, chosen, first.provenance, calibration)


def fit_settings(
    probs: ArrayLike,
    labels: ArrayLike,
    path: Sequence[Hyperparameters],
    *,
    seed: int = 0,
    classes: Sequence[str] | None = None,
) -> tuple[CorrectionScheme, ...]:
    """Fit settings that share a calibration, which is fitted once on all rows.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices, -1 for unlabelled rows, which take part in the calibration and in
        the mean of the calibrated probabilities.
    path : sequence of Hyperparameters
        Settings to fit, whose calibration is the same.
    seed : int, optional
        Random seed; the same arguments give the same schemes.
    classes : sequence of str, optional
        Class names, by default ``"class_0", "class_1", ...``.

    Returns
    -------
    tuple of CorrectionScheme
        One scheme per setting, including the calibration, if any. Its provenance has the number
        of moves: candidate solutions that the searches evaluated.

    Raises
    ------
    InvalidInputError
        If an argument is invalid.
    """
    values, indices, names = checked_rows(probs, labels, classes, missing=True)
    labelled = indices >= 0
    kind, ridge, beta = path[0].calibrated
    ridge *= min(1.0, _RIDGE_ROWS / max(1, labelled.sum()))
    calibration = _shared_calibration(values, indices, kind, ridge, beta)
    calibrated = values if calibration is None else calibration.apply(values)
    rows = _Calibrated(calibrated[labelled], indices[labelled], calibrated.mean(axis=0), kind)
    schemes: list[CorrectionScheme] = []
    for setting in path:
        chosen, moves = rows.corrected(setting, seed)
        origin = {"beta": setting.beta, "tau": setting.tau, "rows": rows.labels.size}
        schemes.append(CorrectionScheme(names, chosen, origin | {"moves": moves}, calibration))
    return tuple(schemes)


#: Calibrations fitted in this process, which trials on the same rows share, and their maximum
#: number.
_FITTED: Final[dict[tuple[Any, ...], Calibration]] = {}
_MOST_FITTED: Final = 256


def _shared_calibration(
    probs: NDArray[np.float64],
    labels: NDArray[np.int64],
    kind: CalibrationKind,
    ridge: float,
    beta: float,
) -> Calibration | None:
    rows = hashlib.blake2b(probs.tobytes() + labels.tobytes()).digest()
    key = (rows, probs.shape, kind, ridge, beta)
    # One lookup, because another thread may clear the dictionary.
    calibration = _FITTED.get(key)
    if calibration is not None:
        return calibration
    calibration = fit_calibration(probs, labels, kind=kind, ridge=ridge, beta=beta)
    if calibration is not None:
        if len(_FITTED) >= _MOST_FITTED:
            _FITTED.clear()
        _FITTED[key] = calibration
    return calibration


@dataclass(frozen=True, slots=True)
class _Calibrated:
    """Calibrated probabilities of the labelled rows, and their means over all rows."""

    probs: NDArray[np.float64]
    labels: NDArray[np.int64]
    means: NDArray[np.float64]
    kind: CalibrationKind

    def corrected(self, setting: Hyperparameters, seed: int) -> tuple[tuple[Correction, ...], int]:
        """Return the corrections of a setting and the number of evaluated solutions."""
        n_rows, n_classes = self.labels.size, self.means.size
        if setting.corrections == "none":
            return (DONT_CHANGE,) * n_classes, 0
        weights = setting.corrections == "weights"
        corrections = _correction_set(self.probs, setting)
        chosen: tuple[Correction, ...]
        averages = 0
        if weights and n_rows >= _FEWEST_HALVED:
            averages = min(setting.averages, _SEARCHED_ROWS // n_rows)
        if weights and self.kind in _POSTERIOR and setting.beta == setting.tau == 0.0:
            # If only accuracy matters, the most probable class of a posterior is the best
            # decision; weights that deviate from it would fit noise.
            chosen, moves = (Weight(1.0),) * n_classes, 0
        elif averages < _FEWEST_AVERAGED:
            chosen, moves = self._search(np.arange(n_rows), corrections, setting, seed)
        else:
            generator = np.random.default_rng(seed)
            halves = [generator.permutation(n_rows)[: n_rows // 2] for _ in range(averages)]
            found = [
                self._search(half, corrections, setting, seed + i) for i, half in enumerate(halves)
            ]
            chosen = _to_weights(np.mean([_logarithms(each) for each, _ in found], axis=0))
            moves = sum(each for _, each in found)
        share = setting.smoothing(n_rows)
        if weights and share > 0.0:
            target = min(1.0, setting.beta / _BALANCED_BETA) * self._balancing_weights()
            target -= target.mean()
            chosen = _to_weights((1.0 - share) * _logarithms(chosen) + share * target)
        return chosen, moves

    def _search(
        self,
        rows: NDArray[np.int64],
        corrections: CorrectionSet,
        setting: Hyperparameters,
        seed: int,
    ) -> tuple[tuple[Correction, ...], int]:
        # Import lazily: compiling the search should not delay reading a front or listing settings.
        from dcs.search.annealing import cooled
        from dcs.search.problem import Problem

        share = setting.smoothing(self.labels.size)
        whole = rows.size == self.labels.size
        copied = _COPIED_ROWS if whole else _COPIED_ROWS // _SHARED_COPIES
        probs = self.probs[rows]
        labels = _smoothed_labels(probs, self.labels[rows], share, seed, copied)
        names = tuple(map(str, range(self.means.size)))
        problem = Problem(probs, labels, names, corrections, setting.objective)
        choice, moves = cooled(problem, setting.schedule, seed=seed)
        return problem.scheme(choice).corrections, moves

    def _balancing_weights(self) -> NDArray[np.float64]:
        """Return the logarithms of the weights that equalise the class priors."""
        shares = np.bincount(self.labels, minlength=self.means.size) + 1.0
        if self.kind in ("none", "batch"):
            shares = np.maximum(self.means, 1e-6)
        elif self.kind in ("balanced", "shrunk", "surrogate"):
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
    # Only ratios of weights matter, so their useful range is that of the log-odds between the most
    # probable class of a row and the others.
    logs = np.log(np.maximum(probs, 1e-12))
    reach = 1.5 * float(np.quantile(logs.max(axis=1, keepdims=True) - logs, 0.9))
    corrections = CorrectionSet.logarithmic(
        count=setting.weight_scale,
        smallest=float(np.exp(-min(max(reach, 0.1), 6.0))),
        largest=2.0 if both else 1.0,
        memberships=both,
    )
    return corrections.limited(setting.memberships)
