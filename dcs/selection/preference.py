"""Points of the trade-off between accuracy and COBias, and the rule that selects one of a front.

The default rule comes with a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias, TypeVar, get_args

import numpy as np
from pydantic import PlainSerializer, PlainValidator

from dcs.data.checks import finite_number
from dcs.errors import InvalidInputError, check_choice
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.evaluation.uncertainty import NonInferiority
from dcs.schemes.scheme import CorrectionScheme

Prefer: TypeAlias = Literal[
    "no-harm", "balance", "accuracy", "balanced-accuracy", "macro-f1", "weakest-class", "offsets"
]

_TIE: Final = 1e-12

#: Limits of a margin in proportion to the COBias that is removed, in points.
LEAST_MARGIN: Final = 0.5
MOST_MARGIN: Final = 2.0

#: Share of the level that is spent on the points of the front; the rest is for the straight way.
_SEQUENCE_SHARE: Final = 0.8

#: Number of standard errors by which a point must be better than the reference of "balance": the
#: best of several that are no better is about as much better by chance.
_CLEAR: Final = 2.0

#: A share of the way is safe if a point with this many times its changed rows is.
_LOOK_AHEAD: Final = 8.0
#: Part of the margin that the look-ahead may use.
_LOOK_MARGIN: Final = 0.5


class _Point(Protocol):
    @property
    def accuracy(self) -> float: ...
    @property
    def cobias(self) -> float: ...


_P = TypeVar("_P", bound=_Point)


def pareto_front(
    points: Sequence[_P], cobias: Callable[[_P], float] = lambda p: p.cobias
) -> tuple[_P, ...]:
    """Return the Pareto-optimal points in accuracy and COBias, the most accurate first.

    Of points that are equal in both, the first is returned.
    """
    front: list[_P] = []
    for point in sorted(points, key=lambda p: (-p.accuracy, cobias(p))):
        if not front or cobias(point) < cobias(front[-1]) - _TIE:
            front.append(point)
    return tuple(front)


@dataclass(frozen=True, slots=True)
class Change:
    """Changes of a point relative to the uncorrected probabilities, on the same rows.

    Attributes
    ----------
    accuracy : float
        Difference of accuracy, after minus before, -1..1.
    accuracy_error, score_error : float
        Standard errors of the differences of accuracy, and of accuracy minus COBias.
    gained, lost, changed : int
        Numbers of rows that only these predictions or only the uncorrected ones have right, and
        of rows on which they differ.
    effect : float
        Factor by which copies of rows increase the variance, 1 or more.
    """

    accuracy: float
    accuracy_error: float
    score_error: float
    gained: int
    lost: int
    changed: int
    effect: float = 1.0


@dataclass(frozen=True)
class FrontPoint:
    """One point of the trade-off between accuracy and COBias.

    Attributes
    ----------
    settings : tuple
        The settings that the scheme is the mean of, as values by name; none of the uncorrected
        probabilities.
    accuracy, cobias : float
        Cross-validated, 0..1: every row is predicted by a scheme fitted without it.
    confusion : array of int, shape [N, N]
        Confusion matrix of the cross-validated predictions; row = true class.
    scheme : CorrectionScheme
        The scheme for new rows.
    noise : float
        Expected COBias of an unbiased scheme on as many rows.
    change : Change
        Changes relative to the uncorrected probabilities.
    doubt : float
        Standard error of accuracy minus COBias, relative to the reference of ``"balance"``, which
        has none.
    path : float, optional
        Share of the reference, for a point on the straight way to it from the uncorrected
        probabilities.
    """

    settings: tuple[dict[str, Any], ...]
    accuracy: float
    cobias: float
    confusion: tuple[tuple[int, ...], ...]
    scheme: Annotated[
        CorrectionScheme,
        PlainValidator(CorrectionScheme.from_dict),
        PlainSerializer(CorrectionScheme.to_dict),
    ]
    noise: float
    change: Change
    doubt: float
    path: float | None = None

    def __post_init__(self) -> None:
        # Raises if the confusion matrix is invalid.
        ClassificationMetrics.from_confusion(np.array(self.confusion))

    @cached_property
    def estimate(self) -> ClassificationMetrics:
        """All cross-validated metrics."""
        counted = ClassificationMetrics.from_confusion(np.array(self.confusion))
        return replace(counted, accuracy=self.accuracy, cobias=self.cobias)

    @property
    def score(self) -> float:
        """Accuracy minus COBias."""
        return self.accuracy - self.cobias

    @property
    def lasting_cobias(self) -> float:
        """Estimate of COBias without sampling noise."""
        return math.sqrt(max(0.0, self.cobias**2 - self.noise**2))

    def test(self, margin: float, confidence: float) -> NonInferiority:
        """Return the test of accuracy against the uncorrected one; copies count once.

        Parameters
        ----------
        margin : float
            Largest acceptable loss, as a fraction.
        confidence : float
            One minus the level of the test.
        """
        rows = self.change.gained, self.change.lost, self.estimate.n_rows
        gained, lost, n_rows = (number / self.change.effect for number in rows)
        return NonInferiority(gained, lost, n_rows, margin, confidence)


@dataclass(frozen=True, slots=True)
class Preference:
    """Rule that selects a point of a front.

    Parameters
    ----------
    prefer : str
        ``"no-harm"``: the fairest trade that is shown to be worth its price: of the points that
        are less biased than the uncorrected probabilities and, with `confidence`, at most a margin
        less accurate on new rows of the same distribution, the choice of ``"balance"`` if it is
        one of them, or the highest accuracy minus COBias. Where none is, the probabilities stay as
        they are; see :func:`proven`.
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
        In points. Largest acceptable loss of accuracy under ``"no-harm"``, the only rule that
        tests it. By default it is in proportion to what it buys: `rate` times the COBias that is
        removed, but 0.5 at least and 2 at most.
    rate : float, optional
        Points of accuracy that a point of COBias may cost under ``"no-harm"``, without `margin`.
    confidence : float, optional
        Confidence of the test of ``"no-harm"``, 0.5 to 0.9999.
    cautious : bool, optional
        Whether to keep the uncorrected probabilities, or the mean of the best settings, where they
        are not clearly worse. Otherwise the best point is selected, whatever it gains.

    Raises
    ------
    InvalidInputError
        If a value is invalid, or a margin is given to a rule that does not test it.
    """

    prefer: Prefer = "no-harm"
    max_accuracy_loss: float | None = None
    max_cobias: float | None = None
    margin: float | None = None
    rate: float = 0.1
    confidence: float = 0.95
    cautious: bool = True

    def __post_init__(self) -> None:
        check_choice("prefer", self.prefer, get_args(Prefer))
        for name in ("max_accuracy_loss", "max_cobias", "margin", "rate", "confidence"):
            if (value := getattr(self, name)) is not None:
                least, most = (0.5, 0.9999) if name == "confidence" else (0.0, 100.0)
                object.__setattr__(self, name, finite_number(value, name, least=least, most=most))
        tested = self.prefer == "no-harm" and self.max_accuracy_loss is None
        if self.margin is not None and not tested:
            raise InvalidInputError(
                f"margin {self.margin:g}: is tested by prefer no-harm without max_accuracy_loss; "
                "remove the margin, or the other rule"
            )

    @property
    def limited(self) -> bool:
        """Whether a limit is set."""
        return self.max_accuracy_loss is not None or self.max_cobias is not None

    @property
    def guarded(self) -> bool:
        """Whether accuracy is guaranteed."""
        return self.prefer == "no-harm" and not self.limited

    @property
    def cobias_rate(self) -> float | None:
        """Weight of COBias against accuracy; None if the rule uses another metric."""
        return {"no-harm": 1.0, "balance": 1.0, "offsets": 1.0, "accuracy": 0.0}.get(self.prefer)

    def value_of(self, point: FrontPoint) -> float:
        """Return what the rule maximises, without its limits and without sampling noise."""
        if self.cobias_rate is None:
            return float(getattr(point.estimate, self.prefer.replace("-", "_")))
        return point.accuracy - self.cobias_rate * point.lasting_cobias

    def margin_of(self, point: FrontPoint, plain: FrontPoint) -> float:
        """Return the largest acceptable loss of accuracy of a point, in points."""
        if self.margin is not None:
            return self.margin
        removed = 100.0 * (plain.lasting_cobias - point.lasting_cobias)
        return min(max(self.rate * removed, LEAST_MARGIN), MOST_MARGIN)

    def test(self, point: FrontPoint, plain: FrontPoint) -> NonInferiority:
        """Return the test of a point of the front at its margin; see :func:`proven`."""
        level = _SEQUENCE_SHARE * (1.0 - self.confidence)
        return point.test(self.margin_of(point, plain) / 100.0, 1.0 - level)


def in_points(margin: float) -> str:
    """Format a margin with two digits, rounded up: less than it has not been tested."""
    return f"{math.ceil(100.0 * margin - 1e-6) / 100.0:g}"


def conservative_first(points: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Return the points that are tested, those that change least first.

    All but those on the straight way: the Pareto-optimal ones alone would be those whose estimates
    are too good by chance.
    """
    own = [point for point in points if point.path is None]
    return sorted(own, key=lambda point: point.change.changed)


def proven(points: Sequence[FrontPoint], preference: Preference) -> list[FrontPoint]:
    """Return the points that are shown to cost at most their margin of accuracy.

    All points are tested in the order of the number of predictions that they change,
    up to the first failure: in a sequence that is fixed in advance this controls the probability
    of any false rejection (Angelopoulos et al. 2021, Learn then Test, arXiv 2110.01052). If none
    passes, so are the points on the straight way from the uncorrected probabilities to the
    reference, with a fifth of the level. Along it, the rows that change first gain at least as
    much per change as those that change later. A share of the way is therefore safe as well if a
    point with eight times its changed rows passes at half the margin in proportion.

    Parameters
    ----------
    points : sequence of FrontPoint
        All points; the last one is the uncorrected probabilities.
    preference : Preference
        Margin and confidence.
    """
    *corrected, plain = points
    tested = conservative_first(corrected)
    found = list(takewhile(lambda point: preference.test(point, plain).passed, tested))
    if any(point.cobias < plain.cobias for point in found):
        return found
    way = sorted((p for p in corrected if p.path is not None), key=lambda p: p.path or 0.0)
    confidence = 1.0 - (1.0 - _SEQUENCE_SHARE) * (1.0 - preference.confidence)

    def is_safe(point: FrontPoint) -> bool:
        margin = preference.margin_of(point, plain) / 100.0
        if point.test(margin, confidence).passed:
            return True
        changed = max(1, point.change.changed)
        later = [p for p in way if p.change.changed >= _LOOK_AHEAD * changed] or way[-1:]
        share = _LOOK_MARGIN * later[0].change.changed / changed
        return later[0].test(min(1.0, share * margin), confidence).passed

    return [*found, *takewhile(is_safe, way)]


def select(points: Sequence[FrontPoint], preference: Preference) -> FrontPoint:
    """Return the point that a preference selects.

    Where cross-validation cannot distinguish points, the choice follows the mean rather than the
    best: under ``"balance"`` it is the reference, the mean of the best settings at beta 1, unless
    another point is better by two standard errors of the difference. The uncorrected probabilities
    are kept unless the choice is estimated to be better than they are.

    Parameters
    ----------
    points : sequence of FrontPoint
        At least two; the last one is the uncorrected probabilities.
    preference : Preference
        Rule that selects the point.
    """
    *corrected, plain = points
    if preference.guarded:
        return _guaranteed(points, preference)
    own = [point for point in corrected if point.path is None]
    if preference.prefer == "offsets":
        own = [point for point in own if point.scheme.adds_offsets]
        if not own:
            return plain
    if preference.limited:
        return _within_limits([*own, plain], preference)
    rate = preference.cobias_rate
    if rate is None:
        return max([*pareto_front([*own, plain]), *own, plain], key=preference.value_of)
    best = max(own, key=lambda p: (p.accuracy - rate * p.cobias, p.accuracy, -p.cobias))
    if not preference.cautious:
        return best
    if rate > 0.0:
        reference = min(own, key=lambda p: p.doubt)
        if best.score - reference.score <= _CLEAR * best.doubt:
            best = reference
    gain = (best.accuracy - plain.accuracy) - rate * (best.cobias - plain.cobias)
    # Of many estimates of accuracy the best is optimistic.
    least = 0.5 * best.change.accuracy_error if rate == 0.0 else 0.0
    return best if gain > least else plain


def _guaranteed(points: Sequence[FrontPoint], preference: Preference) -> FrontPoint:
    plain = points[-1]
    fairer = [p for p in proven(points, preference) if p.cobias < plain.cobias]
    balanced = select(points, replace(preference, prefer="balance", margin=None))
    if any(point is balanced for point in fairer):
        return balanced
    if fairer and fairer[-1].path is not None:
        return fairer[-1]
    best = max(fairer, key=lambda p: p.score, default=plain)
    return best if best.score > plain.score else plain


def _within_limits(points: list[FrontPoint], preference: Preference) -> FrontPoint:
    """Return the choice within limits, which refer to large data sets, without noise."""
    lasting = attrgetter("lasting_cobias")
    pool = points
    if preference.max_cobias is not None:
        low = [p for p in pool if p.lasting_cobias <= preference.max_cobias / 100.0 + _TIE]
        # If no COBias is low enough, use the last point of the front, which has the lowest.
        pool = low or [pareto_front(pool, lasting)[-1]]
    front = pareto_front(pool, lasting)
    if preference.max_accuracy_loss is not None:
        least = front[0].accuracy - preference.max_accuracy_loss / 100.0 - _TIE
        return [p for p in front if p.accuracy >= least][-1]
    if preference.prefer != "no-harm":
        return max(front, key=preference.value_of)
    safe = {id(p) for p in proven(points, preference)}
    return min([front[0], *(p for p in front if id(p) in safe)], key=lasting)
