"""The front that cross-validation finds, and the point of it that a preference picks."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    Protocol,
    TypeAlias,
    TypeVar,
    get_args,
)

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from dcs.data.checks import finite_number
from dcs.errors import InvalidInputError, SchemeError, check_choice, escaped
from dcs.evaluation.metrics import FIGURES, ClassificationMetrics
from dcs.io import atomic_write_text, read_json, validated
from dcs.schemes.scheme import CorrectionScheme
from dcs.seeds import derive_seed
from dcs.selection.settings import Interpolated, Setting, between, fit_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Prefer: TypeAlias = Literal[
    "no-harm", "balance", "knee", "accuracy", "balanced-accuracy", "macro-f1", "weakest-class"
]

#: What of the accuracy a harmless point may seem to lose at most.
_HARMLESS: Final = 0.005

_TIE: Final = 1e-12


class _Point(Protocol):
    @property
    def accuracy(self) -> float: ...
    @property
    def cobias(self) -> float: ...


_P = TypeVar("_P", bound=_Point)


@dataclass(frozen=True, slots=True)
class Preference:
    """Which point of a front to take.

    Parameters
    ----------
    prefer : str
        ``"no-harm"``: the lowest COBias among points whose accuracy is not below that of the
        uncorrected probabilities beyond noise, that is, by no more than one standard error of the
        paired difference and no more than 0.5 points, as long as a point of COBias costs no more
        than a point of accuracy there; the highest accuracy where there is no such point.
        ``"balance"``: the highest accuracy minus COBias. ``"knee"``: the point farthest
        from the straight line between the most accurate and the fairest. ``"accuracy"``,
        ``"balanced-accuracy"``, ``"macro-f1"``, ``"weakest-class"``: the highest of these.
    exchange_rate : float, optional
        What a point of COBias is worth in points of accuracy: take the highest accuracy minus
        this many times COBias; ``"balance"`` is a rate of 1. Goes before `prefer`.
    max_accuracy_loss : float, optional
        In points. Take the lowest COBias among points at most this much less accurate than the
        most accurate one. Goes before `exchange_rate`.
    max_cobias : float, optional
        In points. Keep to points with at most this COBias; when there is none, the lowest COBias
        is taken. Goes before everything else.

    Raises
    ------
    InvalidInputError
        When a value is not allowed.
    """

    prefer: Prefer = "no-harm"
    exchange_rate: float | None = None
    max_accuracy_loss: float | None = None
    max_cobias: float | None = None

    def __post_init__(self) -> None:
        check_choice("prefer", self.prefer, get_args(Prefer))
        if self.exchange_rate is not None:
            finite_number(self.exchange_rate, "exchange_rate", least=0.0)
        for name in ("max_accuracy_loss", "max_cobias"):
            value = getattr(self, name)
            if value is not None and finite_number(value, name, least=0.0) > 100.0:
                raise InvalidInputError(
                    f"{name} {value!r}: points between 0 and 100 are needed (0.5 is half a point)"
                )

    @property
    def limited(self) -> bool:
        """Whether a limit takes part."""
        return self.max_accuracy_loss is not None or self.max_cobias is not None

    @property
    def rule(self) -> str:
        """What decides within the limits: `prefer`, or ``"exchange-rate"``."""
        return self.prefer if self.exchange_rate is None else "exchange-rate"

    @property
    def rates(self) -> tuple[float, float] | None:
        """What accuracy counts for and COBias against; None where something else is preferred."""
        return {
            "no-harm": (1.0, 1.0),
            "balance": (1.0, 1.0),
            "knee": (1.0, 1.0),
            "accuracy": (1.0, 0.0),
            "exchange-rate": (1.0, self.exchange_rate or 0.0),
        }.get(self.rule)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a choice between points goes by: estimates on rows that took no part in the fit.

    Attributes
    ----------
    accuracy, cobias, balanced_accuracy, macro_f1, weakest_class : float
        As of :class:`dcs.ClassificationMetrics`, 0..1.
    accuracy_change : float
        Accuracy minus that of the uncorrected probabilities on the same rows.
    accuracy_error : float
        Standard error of this difference.
    """

    accuracy: float
    cobias: float
    balanced_accuracy: float
    macro_f1: float
    weakest_class: float
    accuracy_change: float
    accuracy_error: float

    @classmethod
    def from_predictions(
        cls,
        labels: NDArray[np.int64],
        before: NDArray[np.int64],
        after: NDArray[np.int64],
        n_classes: int,
    ) -> Figures:
        """Judge predictions, of shape [M] each, beside the uncorrected ones of the same rows."""
        metrics = ClassificationMetrics.from_predictions(labels, after, n_classes)
        change = (after == labels) * 1.0 - (before == labels)
        return cls(
            **{name: getattr(metrics, name) for name in FIGURES},
            accuracy_change=float(change.mean()),
            accuracy_error=float(change.std()) / math.sqrt(labels.size),
        )

    @property
    def harmless(self) -> bool:
        """Whether accuracy is not below uncorrected beyond noise; see :class:`Preference`."""
        return self.accuracy_change >= -min(_HARMLESS, self.accuracy_error) - _TIE


def pareto_front(points: Sequence[_P]) -> tuple[_P, ...]:
    """Return the points that no other beats in both figures, the most accurate first.

    Of points that are alike in both, the first stays.
    """
    front: list[_P] = []
    for point in sorted(points, key=lambda p: (-p.accuracy, p.cobias)):
        if not front or point.cobias < front[-1].cobias - _TIE:
            front.append(point)
    return tuple(front)


def choose(figures: Sequence[Figures], preference: Preference) -> int:
    """Return the place of the point that a preference picks.

    Parameters
    ----------
    figures : sequence of Figures
        Those of every point; at least one.
    preference : Preference
        The rule.
    """
    picked = _picked(list(figures), preference)
    return next(i for i, candidate in enumerate(figures) if candidate is picked)


def _picked(pool: list[Figures], preference: Preference) -> Figures:
    if preference.max_cobias is not None:
        low = [p for p in pool if p.cobias <= preference.max_cobias / 100.0 + _TIE]
        # The front ends with the lowest COBias, which is what is left when none is low enough.
        pool = low or [pareto_front(pool)[-1]]
    front = pareto_front(pool)
    if preference.max_accuracy_loss is not None:
        least = front[0].accuracy - preference.max_accuracy_loss / 100.0 - _TIE
        return [p for p in front if p.accuracy >= least][-1]
    rates = preference.rates
    if rates is None:
        # Of equals the one on the front comes first.
        return max((*front, *pool), key=lambda p: getattr(p, preference.prefer.replace("-", "_")))
    if preference.rule == "no-harm":
        # Were fairness all, its noise would decide between points far apart in accuracy.
        front = pareto_front([p for p in pool if p.harmless]) or front[:1]
    if preference.rule == "knee" and len(front) > 2:
        figures = np.array([(p.accuracy, p.cobias) for p in front])
        figures = (figures - figures[-1]) / (figures[0] - figures[-1])
        # Both axes now run from the fairest (0, 0) to the most accurate (1, 1); a good point is
        # more accurate than its COBias on the straight line between the two would pay for.
        return front[int(np.argmax(figures[:, 0] - figures[:, 1]))]
    return max(front, key=lambda p: rates[0] * p.accuracy - rates[1] * p.cobias)


#: How many rows are too few to choose another point than that of middle beta.
_CAUTIOUS_ROWS: Final = 300.0

#: Rows per class, labelled or not, from which on their mean probabilities say what is to be done.
_TRUSTED_ROWS: Final = 25.0


@dataclass(frozen=True, slots=True)
class Change:
    """What a point changes against the uncorrected probabilities, on the same rows.

    Attributes
    ----------
    accuracy : float
        Difference of accuracy, after minus before, -1..1.
    accuracy_p : float
        Exact McNemar test that neither is more accurate.
    accuracy_error, cobias_error, score_error : float
        Standard errors of the differences of accuracy, of COBias, and of accuracy minus COBias.
    """

    accuracy: float
    accuracy_p: float
    accuracy_error: float
    cobias_error: float
    score_error: float

    def error(self, accuracy_rate: float, cobias_rate: float) -> float:
        """Return the standard error of the first times accuracy minus the second times COBias."""
        twice_covariance = self.accuracy_error**2 + self.cobias_error**2 - self.score_error**2
        variance = (accuracy_rate * self.accuracy_error) ** 2
        variance += (cobias_rate * self.cobias_error) ** 2
        return math.sqrt(max(0.0, variance - accuracy_rate * cobias_rate * twice_covariance))


def _read_scheme(data: Any) -> CorrectionScheme:
    return data if isinstance(data, CorrectionScheme) else CorrectionScheme.from_dict(data)


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """One point of the trade-off between accuracy and COBias.

    Attributes
    ----------
    setting : Hyperparameters, Interpolated or None
        What was fitted, or what it lies between; None for the uncorrected probabilities.
    accuracy, cobias : float
        Cross-validated, 0..1: every row is judged by a scheme fitted without it, COBias within
        each fold (see :func:`cross_validate`), as measured on rows as few as those of a fold; no
        better than `scheme` is on the rows it was fitted on.
    confusion : array of int, shape [N, N]
        Of the cross-validated predictions, all folds together; row = true class.
    scheme : CorrectionScheme
        The setting fitted on all rows.
    beta : float
        The weight of COBias at which the setting was the best, or nearest to it.
    noise : float
        COBias that a scheme without any would show on rows as few as those of a fold.
    change : Change
        Against the uncorrected probabilities.
    doubt : float
        Standard error of accuracy minus COBias, against the point of middle beta.
    unlabelled : int
        Rows without labels that took part in the fit.
    """

    setting: Setting | None
    accuracy: float
    cobias: float
    confusion: tuple[tuple[int, ...], ...]
    scheme: Annotated[CorrectionScheme, PlainValidator(_read_scheme)]
    beta: float
    noise: float
    change: Change
    doubt: float
    unlabelled: int = 0

    def __post_init__(self) -> None:
        # Refuses what is no confusion matrix.
        ClassificationMetrics.from_confusion(np.array(self.confusion))

    @property
    def estimate(self) -> ClassificationMetrics:
        """All figures, cross-validated."""
        counted = ClassificationMetrics.from_confusion(np.array(self.confusion))
        return replace(counted, accuracy=self.accuracy, cobias=self.cobias)

    @property
    def lasting_cobias(self) -> float:
        """What of the COBias is not due to the folds being small: that of very many rows."""
        return math.sqrt(max(0.0, self.cobias**2 - self.noise**2))

    @property
    def figures(self) -> Figures:
        """What a choice goes by."""
        return Figures(
            **{name: getattr(self.estimate, name) for name in FIGURES},
            accuracy_change=self.change.accuracy,
            accuracy_error=self.change.accuracy_error,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the form a stored front holds."""
        confusion = [list(row) for row in self.confusion]
        return asdict(self) | {"confusion": confusion, "scheme": self.scheme.to_dict()}


@dataclass(frozen=True, slots=True)
class FittedScheme:
    """What :func:`fit_scheme` gives back: a front, and the point that was picked.

    Attributes
    ----------
    points : tuple of FrontPoint
        All points; the last is that of the uncorrected probabilities.
    chosen : FrontPoint
        The point that the preference picked.
    preference : Preference
        The rule that picked it.
    keep_uncorrected : bool
        Whether the last point may be picked.
    """

    points: tuple[FrontPoint, ...]
    chosen: FrontPoint
    preference: Preference
    keep_uncorrected: bool

    @property
    def scheme(self) -> CorrectionScheme:
        """The scheme of the chosen point."""
        scheme = self.chosen.scheme
        rule = {k: v for k, v in asdict(self.preference).items() if v is not None}
        return replace(scheme, provenance={**scheme.provenance, "rule": rule})

    @property
    def front(self) -> tuple[FrontPoint, ...]:
        """The points that no other beats in both figures, the most accurate first."""
        return pareto_front(self.points)

    @classmethod
    def picked(
        cls,
        points: Sequence[FrontPoint],
        preference: Preference,
        *,
        keep_uncorrected: bool = True,
    ) -> FittedScheme:
        """Return a front with the point that a preference picks of it.

        What cross-validation cannot tell apart is decided by caution. With few rows the best of
        many estimates is mostly luck: under ``"balance"`` the point of middle beta stays unless
        another is better by more than the noise of the difference. And the probabilities stay as
        they are unless correcting them is an improvement beyond noise: half a standard error of
        what is preferred, a whole one where it costs accuracy. What is drawn towards batch
        calibration, on 25 rows per class or more, labelled or not, is taken to be fairer: it may
        seem worse by what the noise of COBias counts (two standard errors, and the COBias that
        chance makes), under ``"accuracy"`` thus by nothing.

        Parameters
        ----------
        points : sequence of FrontPoint
            At least two; the last is that of the uncorrected probabilities.
        preference : Preference
            The rule.
        keep_uncorrected : bool, optional
            Whether the last point may be picked.
        """
        chosen = _chosen(points, preference, keep_uncorrected)
        return cls(tuple(points), chosen, preference, keep_uncorrected)

    def pick(self, preference: Preference) -> FittedScheme:
        """Return the same front with the point that another preference picks; nothing is fitted.

        Parameters
        ----------
        preference : Preference
            The rule.
        """
        return self.picked(self.points, preference, keep_uncorrected=self.keep_uncorrected)

    def plot_front(self) -> Figure:
        """Draw accuracy against COBias of all points, both cross-validated.

        Returns
        -------
        matplotlib.figure.Figure
            The front as a line, the picked point as a diamond, the uncorrected probabilities as
            a square; for ``figure.savefig("front.png")``, or shown by a notebook.
        """
        from matplotlib.figure import Figure  # which takes a while to import

        figure = Figure(figsize=(5.0, 3.6), layout="constrained")
        axes = figure.subplots()

        def draw(points: Sequence[FrontPoint], style: str, **more: Any) -> None:
            axes.plot(
                [100 * point.cobias for point in points],
                [100 * point.accuracy for point in points],
                style,
                **more,
            )

        draw(self.points[:-1], "o", color="#8a96a3", label="other settings")
        draw(self.front, "o-", color="#0072b2", label="front")
        draw(self.points[-1:], "s", color="#26323d", label="uncorrected")
        draw([self.chosen], "D", color="#b0204f", markersize=9, label="picked")
        axes.set(xlabel="COBias, % (less is fairer)", ylabel="accuracy, %")
        axes.legend(fontsize=8)
        return figure

    def refit(self, probs: ArrayLike, labels: ArrayLike, *, seed: int = 0) -> CorrectionScheme:
        """Fit the setting of the chosen point on other rows, such as all that have labels.

        Parameters
        ----------
        probs : array of float, shape [M, N]
            Class probabilities, columns in the order of the classes of the front.
        labels : array of int, shape [M]
            True class indices.
        seed : int, optional
            As of :func:`fit_scheme`.
        """
        return _refitted(self.chosen.setting, probs, labels, self.scheme.classes, seed)

    def to_dict(self) -> dict[str, Any]:
        """Return what :meth:`save` writes, as plain values."""
        return {
            "format": "dcs-front",
            "version": 1,
            "preference": asdict(self.preference),
            "keep_uncorrected": self.keep_uncorrected,
            "points": [point.to_dict() for point in self.points],
        }

    @classmethod
    def from_dict(cls, data: Any, *, source: str = "front") -> FittedScheme:
        """Read a front from what :meth:`to_dict` gives.

        Parameters
        ----------
        data : dict
            The plain values.
        source : str, optional
            What error messages call them.

        Raises
        ------
        SchemeError
            When they are not those of a front; names `source` and the key.
        """
        file = validated(_File, data, source=source, error=SchemeError)
        return cls.picked(file.points, file.preference, keep_uncorrected=file.keep_uncorrected)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the front with all its schemes to a JSON file, all or nothing.

        Parameters
        ----------
        path : path-like
            The file to write.
        """
        atomic_write_text(path, json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FittedScheme:
        """Read what :meth:`save` wrote.

        Parameters
        ----------
        path : path-like
            The file to read.

        Raises
        ------
        SchemeError
            When the file is missing or is not a front.
        """
        return cls.from_dict(read_json(path, error=SchemeError), source=escaped(path))


def _refitted(
    setting: Setting | None,
    probs: ArrayLike,
    labels: ArrayLike,
    classes: tuple[str, ...],
    seed: int,
) -> CorrectionScheme:
    if setting is None:
        return CorrectionScheme.identity(classes)
    if isinstance(setting, Interpolated):
        ends = [
            _refitted(end, probs, labels, classes, seed) for end in (setting.first, setting.second)
        ]
        # On other rows an end may be of another kind, with nothing between it and the other.
        return between(ends[0], ends[1], setting.share) or ends[setting.share > 0.5]
    seed = derive_seed(seed, "anneal")
    return fit_settings(probs, labels, [setting], seed=seed, classes=classes)[0]


def _chosen(
    points: Sequence[FrontPoint], preference: Preference, keep_uncorrected: bool
) -> FrontPoint:
    corrected, plain = points[:-1], points[-1]
    rates = preference.rates

    def pick(among: Sequence[FrontPoint]) -> FrontPoint:
        # A limit is meant for many rows; the noise of small folds would use up most of it.
        figures = [
            replace(p.figures, cobias=p.lasting_cobias) if preference.limited else p.figures
            for p in among
        ]
        return among[choose(figures, preference)]

    if preference.limited or rates is None:
        return pick(points if keep_uncorrected else corrected)
    best = pick(corrected)

    def gain(a: FrontPoint, b: FrontPoint) -> float:
        return rates[0] * (a.accuracy - b.accuracy) - rates[1] * (a.cobias - b.cobias)

    if preference.rule == "balance":
        # Of nothing but that of middle beta is there no doubt whether it is better.
        middle = min(corrected, key=lambda p: p.doubt)
        share = _CAUTIOUS_ROWS / (_CAUTIOUS_ROWS + plain.estimate.n_rows)
        if gain(best, middle) <= 3.0 * share * best.doubt:
            best = middle
    if not keep_uncorrected:
        return best
    # The best of many points flatters itself; where it costs accuracy it must show more.
    costs = best.change.accuracy < -best.change.accuracy_error
    least = (1.0 if costs else 0.5) * best.change.error(*rates)
    rows_per_class = (best.estimate.n_rows + best.unlabelled) / len(best.confusion)
    shrunk = best.setting is not None and best.setting.calibration == "shrunk"
    if shrunk and rows_per_class >= _TRUSTED_ROWS:
        # All rows say that it is fairer before any label is known: labels must clearly deny it.
        least = -rates[1] * (2.0 * best.change.cobias_error + best.noise)
    enough = gain(best, plain) > least
    harms = preference.rule == "no-harm" and not best.figures.harmless
    return best if enough and not harms else plain


class _File(BaseModel):
    """A stored front: nothing but what is named here."""

    model_config = ConfigDict(extra="forbid")

    format: Literal["dcs-front"]
    version: Literal[1]
    preference: Preference
    keep_uncorrected: bool
    points: list[FrontPoint] = Field(min_length=2)
