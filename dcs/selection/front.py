"""The cross-validated front, and the selection of a point by a preference."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias, TypeVar, get_args

import numpy as np
from pydantic import BaseModel, Field, PlainValidator

from dcs.data.checks import finite_number
from dcs.errors import SchemeError, check_choice, escaped
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.evaluation.noninferiority import NonInferiority
from dcs.io import atomic_write_text, read_json, validated
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.page import result_page
from dcs.selection.settings import Hyperparameters, Setting

Prefer: TypeAlias = Literal[
    "no-harm",
    "balance",
    "accuracy",
    "balanced-accuracy",
    "macro-f1",
    "weakest-class",
    "offsets",
]

_TIE: Final = 1e-12


class _Point(Protocol):
    @property
    def accuracy(self) -> float: ...
    @property
    def cobias(self) -> float: ...


_P = TypeVar("_P", bound=_Point)


@dataclass(frozen=True, slots=True)
class Preference:
    """Rule that selects a point of a front.

    Parameters
    ----------
    prefer : str
        ``"no-harm"``: the lowest COBias among points that are shown to be at most `margin` less
        accurate than the uncorrected probabilities on new rows of the same distribution. The
        points of the front are tested in the order of the number of predictions they change, up
        to the first that fails; see :class:`dcs.evaluation.noninferiority.NonInferiority`. Where
        none passes, the probabilities stay as they are.
        ``"balance"``: the highest accuracy minus COBias. ``"accuracy"``,
        ``"balanced-accuracy"``, ``"macro-f1"``, ``"weakest-class"``: the highest of these.
        ``"offsets"``: as ``"balance"``, but only of schemes that add an offset to the
        log-probability of each class, such as token biases of an API. Fits compare only these.
    max_accuracy_loss : float, optional
        In points. Select the lowest COBias among points at most this much less accurate than the
        most accurate one. Takes precedence over `prefer`.
    max_cobias : float, optional
        In points. Consider only points with at most this COBias; if there are none, select the
        lowest COBias. Takes precedence over everything else.
    margin : float, optional
        In points. Largest acceptable loss of accuracy under ``"no-harm"``.
    confidence : float, optional
        Confidence of the test of ``"no-harm"``, 0.5 to 0.9999.

    Raises
    ------
    InvalidInputError
        If a value is invalid.
    """

    prefer: Prefer = "no-harm"
    max_accuracy_loss: float | None = None
    max_cobias: float | None = None
    margin: float = 0.5
    confidence: float = 0.95

    def __post_init__(self) -> None:
        check_choice("prefer", self.prefer, get_args(Prefer))
        for name in ("max_accuracy_loss", "max_cobias", "margin", "confidence"):
            if (value := getattr(self, name)) is not None:
                least, most = (0.5, 0.9999) if name == "confidence" else (0.0, 100.0)
                number = finite_number(value, name, least=least, most=most)
                object.__setattr__(self, name, number)

    @property
    def limited(self) -> bool:
        """Whether a limit is set."""
        return self.max_accuracy_loss is not None or self.max_cobias is not None

    @property
    def cobias_rate(self) -> float | None:
        """Weight of COBias against accuracy; None if the rule uses another metric."""
        return {"no-harm": 1.0, "balance": 1.0, "accuracy": 0.0}.get(self.prefer)


def pareto_front(points: Sequence[_P]) -> tuple[_P, ...]:
    """Return the Pareto-optimal points in accuracy and COBias, the most accurate first.

    Of points that are equal in both, the first is returned.
    """
    front: list[_P] = []
    for point in sorted(points, key=lambda p: (-p.accuracy, p.cobias)):
        if not front or point.cobias < front[-1].cobias - _TIE:
            front.append(point)
    return tuple(front)


def conservative_first(pool: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Return the Pareto-optimal points in the order of the number of changed predictions."""
    return sorted(pareto_front(pool), key=lambda p: p.change.changed)


def proven(pool: Sequence[FrontPoint], preference: Preference) -> list[FrontPoint]:
    """Return the points that pass the fixed sequence of tests; see :class:`Preference`.

    In a sequence that is fixed in advance, testing each hypothesis at the full level and stopping
    at the first failure controls the probability of any false rejection.
    """
    return list(takewhile(lambda p: p.test(preference).passed, conservative_first(pool)))


def choose(points: Sequence[FrontPoint], preference: Preference) -> FrontPoint:
    """Return the point that a preference selects, without regard to the noise of estimates.

    Parameters
    ----------
    points : sequence of FrontPoint
        At least one.
    preference : Preference
        Rule that selects the point.
    """
    judged = list(points)
    if preference.limited:
        # Limits refer to large data sets; the noise of small folds would exhaust most of them.
        judged = [replace(p, cobias=p.lasting_cobias) for p in points]
    found = _picked(judged, preference)
    return next(p for p, each in zip(points, judged, strict=True) if each is found)


def _picked(pool: list[FrontPoint], preference: Preference) -> FrontPoint:
    if preference.max_cobias is not None:
        low = [p for p in pool if p.cobias <= preference.max_cobias / 100.0 + _TIE]
        # If no COBias is low enough, use the last point of the front, which has the lowest.
        pool = low or [pareto_front(pool)[-1]]
    front = pareto_front(pool)
    if preference.max_accuracy_loss is not None:
        least = front[0].accuracy - preference.max_accuracy_loss / 100.0 - _TIE
        return [p for p in front if p.accuracy >= least][-1]
    if preference.prefer == "no-harm":
        return pareto_front(proven(pool, preference) or front[:1])[-1]
    rate = preference.cobias_rate
    if rate is not None:
        return max(front, key=lambda p: p.accuracy - rate * p.cobias)
    name = preference.prefer.replace("-", "_")
    # Of equal points, prefer the one on the front.
    return max((*front, *pool), key=lambda p: getattr(p.estimate, name))


def is_smooth(setting: Setting | None) -> bool:
    """Whether a setting is the smooth surrogate, the reference of ``"balance"``."""
    return isinstance(setting, Hyperparameters) and setting.calibration == "surrogate"


#: Number of rows at which the caution in deviating from the point of middle beta is halved.
_CAUTIOUS_ROWS: Final = 300.0

#: Number of rows per class, labelled or not, from which their mean probabilities are reliable.
_TRUSTED_ROWS: Final = 25.0


@dataclass(frozen=True, slots=True)
class Change:
    """Changes of a point relative to the uncorrected probabilities, on the same rows.

    Attributes
    ----------
    accuracy : float
        Difference of accuracy, after minus before, -1..1.
    accuracy_error, cobias_error, score_error : float
        Standard errors of the differences of accuracy, of COBias, and of accuracy minus COBias.
    gained, lost, changed : int
        Numbers of rows that only these predictions or only the uncorrected ones have right, and
        of rows on which they differ.
    """

    accuracy: float
    accuracy_error: float
    cobias_error: float
    score_error: float
    gained: int
    lost: int
    changed: int

    def error(self, cobias_rate: float) -> float:
        """Return the standard error of the change in accuracy minus weighted COBias."""
        twice_covariance = self.accuracy_error**2 + self.cobias_error**2 - self.score_error**2
        variance = self.accuracy_error**2 + (cobias_rate * self.cobias_error) ** 2
        return math.sqrt(max(0.0, variance - cobias_rate * twice_covariance))


def _read_scheme(data: Any) -> CorrectionScheme:
    return data if isinstance(data, CorrectionScheme) else CorrectionScheme.from_dict(data)


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """One point of the trade-off between accuracy and COBias.

    Attributes
    ----------
    setting : Hyperparameters, Interpolated or None
        The fitted or interpolated setting; None for the uncorrected probabilities.
    accuracy, cobias : float
        Cross-validated, 0..1: every row is predicted by a scheme fitted without it. COBias is
        that of the number of rows of a fold; see :class:`dcs.selection.cross_validation.Folds`.
        Both are bounded by the metrics of `scheme` on its training rows.
    confusion : array of int, shape [N, N]
        Confusion matrix of the pooled cross-validated predictions; row = true class.
    scheme : CorrectionScheme
        The setting fitted on all rows.
    beta : float
        Weight of COBias at which the setting was the best, or closest to it.
    noise : float
        Expected COBias of an unbiased scheme on the number of rows of a fold.
    change : Change
        Changes relative to the uncorrected probabilities.
    doubt : float
        Standard error of accuracy minus COBias, relative to the reference of ``"balance"``.
    unlabelled : int
        Number of unlabelled rows in the fit.
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
        # Raises if the confusion matrix is invalid.
        ClassificationMetrics.from_confusion(np.array(self.confusion))

    @property
    def estimate(self) -> ClassificationMetrics:
        """All cross-validated metrics."""
        counted = ClassificationMetrics.from_confusion(np.array(self.confusion))
        return replace(counted, accuracy=self.accuracy, cobias=self.cobias)

    @property
    def lasting_cobias(self) -> float:
        """Estimate of COBias without the sampling noise of small folds."""
        return math.sqrt(max(0.0, self.cobias**2 - self.noise**2))

    def test(self, preference: Preference) -> NonInferiority:
        """Return the test of accuracy against the margin of a preference."""
        return NonInferiority(
            gained=self.change.gained,
            lost=self.change.lost,
            n_rows=self.estimate.n_rows,
            margin=preference.margin / 100.0,
            confidence=preference.confidence,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the point as stored in a front."""
        confusion = [list(row) for row in self.confusion]
        return asdict(self) | {"confusion": confusion, "scheme": self.scheme.to_dict()}


@dataclass(frozen=True, slots=True)
class FittedScheme:
    """Result of :func:`fit_scheme`: a front and the selected point.

    Attributes
    ----------
    points : tuple of FrontPoint
        All points; the last one is the uncorrected probabilities.
    chosen : FrontPoint
        The selected point.
    preference : Preference
        Rule that selected the point.
    """

    points: tuple[FrontPoint, ...]
    chosen: FrontPoint
    preference: Preference

    @property
    def scheme(self) -> CorrectionScheme:
        """The scheme of the chosen point."""
        scheme = self.chosen.scheme
        rule = {k: v for k, v in asdict(self.preference).items() if v is not None}
        return replace(scheme, provenance={**scheme.provenance, "rule": rule})

    @property
    def guarantee(self) -> str:
        """What the rows show about accuracy, in one sentence; empty under other rules."""
        rule = self.preference
        if rule.limited or rule.prefer != "no-harm":
            return ""
        level = f"{100 * rule.confidence:g} % confidence"
        if self.chosen is not self.points[-1]:
            return (
                f"With {level}, accuracy on new rows of the same distribution is at most "
                f"{rule.margin:g} points below uncorrected."
            )
        ordered = conservative_first(self.points[:-1])
        if proven(self.points[:-1], rule):
            return "The probabilities stay as they are: no improvement exceeds its noise."
        text = (
            "The probabilities stay as they are: these rows do not show with "
            f"{level} that a correction costs at most {rule.margin:g} points of accuracy"
        )
        needed = ordered[0].test(rule).rows_needed
        if needed is None:
            return f"{text}."
        more = float(f"{max(1, needed - ordered[0].estimate.n_rows):.1g}")
        return f"{text}; about {more:,.0f} more labelled rows could."

    @property
    def front(self) -> tuple[FrontPoint, ...]:
        """The Pareto-optimal points, the most accurate first."""
        return pareto_front(self.points)

    @classmethod
    def picked(cls, points: Sequence[FrontPoint], preference: Preference) -> FittedScheme:
        """Return a front with the point that a preference selects.

        The selection is conservative where cross-validation cannot distinguish points. With few
        rows the best of many estimates is mostly chance: under ``"balance"`` a reference is
        selected unless another point is better by more than the noise of the difference. It is the
        smooth surrogate, from which annealing must differ by a standard error, or the point of
        middle beta if the surrogate is no candidate. The
        uncorrected probabilities are kept unless the improvement exceeds half a standard error of
        the preferred quantity, or a whole one if accuracy decreases. Shrinkage towards batch
        calibration, on 25 rows per class or more, labelled or not, is assumed to be fairer: it can
        appear worse by the weighted noise of COBias (two standard errors, and the COBias due to
        chance), hence by nothing under ``"accuracy"``.

        Parameters
        ----------
        points : sequence of FrontPoint
            At least two; the last one is the uncorrected probabilities.
        preference : Preference
            Rule that selects the point.
        """
        return cls(tuple(points), _chosen(points, preference), preference)

    def pick(self, preference: Preference) -> FittedScheme:
        """Return the same front with the point that another preference selects, without fitting.

        Parameters
        ----------
        preference : Preference
            Rule that selects the point.
        """
        return self.picked(self.points, preference)

    def report(
        self,
        *,
        name: str = "scheme",
        verdict: str = "",
        words: Sequence[str] = (),
        apply: str = "",
    ) -> str:
        """Return a page on which points can be compared and another one be chosen.

        Parameters
        ----------
        name : str, optional
            Title.
        verdict : str, optional
            What held-out rows show, see :func:`dcs.selection.page.verdict`.
        words : sequence of str, optional
            The scheme in words; by default its explanation.
        apply : str, optional
            How to apply the scheme.

        Returns
        -------
        str
            HTML of one file, without network.
        """
        front = {id(point) for point in self.front}
        points = [
            {
                "accuracy": point.accuracy,
                "cobias": point.lasting_cobias,
                "classes": [None if a != a else a for a in point.estimate.class_accuracies],
                "front": id(point) in front,
                "pick": self._command(point, name),
            }
            for point in self.points
        ]
        return result_page(
            {
                "name": name,
                "verdict": verdict or "Not evaluated on held-out rows.",
                "guarantee": self.guarantee,
                "words": [*words] or self.scheme.explain(),
                "apply": apply or "scheme.apply(probs)",
                "classes": list(self.scheme.classes),
                "points": points,
                "chosen": next(k for k, p in enumerate(self.points) if p is self.chosen),
            }
        )

    def _command(self, point: FrontPoint, name: str) -> str:
        """Return the command that picks a point, or an empty text if no option does."""
        best = max(each.accuracy for each in self.points)
        bias = math.ceil(1000 * point.lasting_cobias) / 10
        loss = math.ceil(1000 * (best - point.accuracy)) / 10
        options = {f"--prefer {each}": Preference(each) for each in get_args(Prefer)}
        options[f"--max-cobias {bias:g}"] = Preference(max_cobias=bias)
        options[f"--max-accuracy-loss {loss:g}"] = Preference(max_accuracy_loss=loss)
        both = Preference("accuracy", max_cobias=bias)
        options[f"--prefer accuracy --max-cobias {bias:g}"] = both
        found = (text for text, each in options.items() if self.pick(each).chosen is point)
        text = next(found, "")
        return text and f"dcs pick {name} {text}"

    def to_dict(self) -> dict[str, Any]:
        """Return the front as JSON-serialisable values, as written by :meth:`save`."""
        return {
            "format": "dcs-front",
            "version": 1,
            "preference": asdict(self.preference),
            "points": [point.to_dict() for point in self.points],
        }

    def to_json(self) -> str:
        """Return the text of a file of the front; see :meth:`load`."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_dict(cls, data: Any, *, source: str = "front") -> FittedScheme:
        """Create a front from the values returned by :meth:`to_dict`.

        Parameters
        ----------
        data : dict
            The values.
        source : str, optional
            Name of the values in error messages.

        Raises
        ------
        SchemeError
            If they are not a valid front; the message names `source` and the key.
        """
        file = validated(_File, data, source=source, error=SchemeError)
        return cls.picked(file.points, file.preference)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the front with all its schemes to a JSON file, atomically.

        Parameters
        ----------
        path : path-like
            File to write.
        """
        atomic_write_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FittedScheme:
        """Read a front written by :meth:`save`.

        Parameters
        ----------
        path : path-like
            File to read.

        Raises
        ------
        SchemeError
            If the file does not exist or is not a front.
        """
        return cls.from_dict(read_json(path, error=SchemeError), source=escaped(path))


def _chosen(points: Sequence[FrontPoint], preference: Preference) -> FrontPoint:
    corrected, plain = points[:-1], points[-1]
    if preference.prefer == "offsets":
        corrected = [point for point in corrected if point.scheme.adds_offsets]
        preference = replace(preference, prefer="balance")
        return _chosen([*corrected, plain], preference) if corrected else plain
    rate = preference.cobias_rate
    if preference.limited or rate is None:
        return choose(points, preference)
    best = choose(corrected, preference)

    def gain(a: FrontPoint, b: FrontPoint) -> float:
        return (a.accuracy - b.accuracy) - rate * (a.cobias - b.cobias)

    if preference.prefer == "balance":
        # The reference has the smallest doubt, since doubt is relative to it.
        middle = min(corrected, key=lambda p: p.doubt)
        least = 3.0 * _CAUTIOUS_ROWS / (_CAUTIOUS_ROWS + plain.estimate.n_rows)
        if is_smooth(middle.setting):
            least = max(least, 1.0)
        if gain(best, middle) <= least * best.doubt:
            best = middle
    # The estimate of the best of many points is optimistic; require more if it costs accuracy.
    costs = best.change.accuracy < -best.change.accuracy_error
    least = (1.0 if costs else 0.5) * best.change.error(rate)
    rows_per_class = (best.estimate.n_rows + best.unlabelled) / len(best.confusion)
    shrunk = best.setting is not None and best.setting.calibration == "shrunk"
    if shrunk and rows_per_class >= _TRUSTED_ROWS:
        # All rows indicate, without labels, that it is fairer: labels must clearly contradict it.
        least = -rate * (2.0 * best.change.cobias_error + best.noise)
    enough = gain(best, plain) > least
    unproven = preference.prefer == "no-harm" and best not in proven(corrected, preference)
    return best if enough and not unproven else plain


class _File(BaseModel):
    """Schema of a stored front; other keys, such as those of earlier versions, are ignored."""

    format: Literal["dcs-front"]
    version: Literal[1]
    preference: Preference
    points: list[FrontPoint] = Field(min_length=2)
