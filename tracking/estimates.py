"""What cells reached on the test rows, and how sure it is: over seeds, or of a single cell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

from dcs._shown import percent
from tracking.records import CellRecord

__all__ = [
    "P_VALUES",
    "STARS",
    "Estimate",
    "class_intervals",
    "mean_and_deviation",
    "notes_of",
]

#: A change of which chance is less likely than this is marked.
_SIGNIFICANT: Final = 0.05
P_VALUES: Final = "p: paired test against ICL on the same rows."
STARS: Final = f"* differs from ICL on the same rows (paired test, p < {_SIGNIFICANT})."


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure of cells that differ in their seed alone.

    Attributes
    ----------
    mean, deviation : float
        Over seeds, the deviation that of a sample; it is NaN for a single seed.
    low, high : float
        95 % interval of a single seed; NaN for several.
    p : float
        How likely chance makes such a change from ICL on the same rows, of a single seed; NaN for
        several. Not known of what earlier versions recorded, as the interval is not.
    """

    mean: float
    deviation: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan

    @classmethod
    def of(cls, cells: Sequence[CellRecord], metric: str) -> Estimate:
        """Return a metric of some cells; NaN where none of them has it.

        Parameters
        ----------
        cells : sequence of CellRecord
            One per seed.
        metric : str
            ``test/accuracy`` or ``test/cobias``.
        """
        values = [cell.metrics[metric] for cell in cells if metric in cell.metrics]
        mean, deviation = mean_and_deviation(values)
        if len(cells) != 1:
            return cls(mean, deviation)
        own = cells[0].metrics
        low, high, p = (own.get(f"{metric}_{more}", math.nan) for more in ("low", "high", "p"))
        # ICL is what the others are compared with.
        is_icl = cells[0].identity.get("method") == "icl"
        return cls(mean, deviation, low, high, math.nan if is_icl else p)

    @property
    def is_single(self) -> bool:
        """Whether it has an interval instead of a deviation."""
        return not math.isnan(self.low)

    @property
    def is_significant(self) -> bool:
        """Whether chance hardly makes such a change; False where that is not known."""
        return self.p < _SIGNIFICANT

    @property
    def reach(self) -> tuple[float, float]:
        """How far the figure may be off, downwards and upwards: what error bars show."""
        if self.is_single:
            return self.mean - self.low, self.high - self.mean
        return self.deviation, self.deviation

    def marked(self) -> str:
        """Return it in percent, with a star if it differs from ICL."""
        return self.percent() + ("*" if self.is_significant else "")

    def percent(self, *, digits: int = 1, coarse: bool = False, padded: bool = False) -> str:
        """Return it for people, as `dcs._shown.percent` writes it."""
        return percent(
            self.mean,
            self.deviation,
            interval=(self.low, self.high),
            digits=digits,
            coarse=coarse,
            padded=padded,
        )


def notes_of(shown: Iterable[Estimate], *, tested: str = STARS) -> str:
    """Return what has to be known to read some estimates; `tested` is about p-values."""
    estimates = list(shown)
    several = any(not math.isnan(each.deviation) for each in estimates)
    notes = ["Mean ± standard deviation over seeds."] if several else []
    if any(each.is_single for each in estimates):
        notes.append("One seed: figure [95 % interval].")
    if any(not math.isnan(each.p) for each in estimates):
        notes.append(tested)
    return " ".join(notes)


def class_intervals(cell: CellRecord) -> list[Estimate]:
    """Return the class accuracies of a cell after correction, NaN for a class without rows."""
    columns = cell.class_accuracies
    after = columns.get("after", [])
    low, high = (columns.get(f"after_{end}", [None] * len(after)) for end in ("low", "high"))
    return [
        Estimate(*(math.nan if value is None else value for value in (mean, None, *ends)))
        for mean, *ends in zip(after, low, high, strict=True)
    ]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample's standard deviation, NaN where there is none."""
    mean = fmean(values) if values else math.nan
    if len(values) < 2 or not math.isfinite(mean):
        return mean, math.nan
    return mean, stdev(values)
