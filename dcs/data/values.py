"""Cells as numbers, the kinds of values that they can be, and class probabilities of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from dcs.data.labels import EMPTY

if TYPE_CHECKING:
    import pandas as pd

Values: TypeAlias = Literal[
    "probabilities", "percent", "scores", "votes", "log-probabilities", "log2", "log10", "logits"
]

#: Largest distance between the sum of a row and 1, per class, that rounding explains.
ROUNDING: Final = 0.005

#: Such a distance that needs no explanation.
_FREE: Final = 0.05

#: Marks of a decimal, or "?" where commas may be decimal marks or separate thousands.
Mark: TypeAlias = Literal["", ".", ",", "?"]

_GROUPED: Final = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?%?")


@dataclass(frozen=True, slots=True)
class Number:
    """A column as numbers: NaN for empty cells, which cells are not numbers, its decimal mark."""

    values: NDArray[np.float64]
    wrong: NDArray[np.bool_]
    mark: Mark = ""

    @property
    def plausible(self) -> bool:
        """Whether at least half of the cells that are not empty are numbers."""
        filled = int((~np.isnan(self.values)).sum())
        return filled > 0 and filled >= int(self.wrong.sum())


def to_number(column: pd.Series[Any], decimal: Mark = "") -> Number:
    """Read a column as numbers; a per cent sign divides by 100.

    A comma is a decimal mark, or separates thousands if all cells with one allow it: then those
    of ``"?"`` are both, and are read as thousands unless `decimal` is a comma.
    """
    import pandas as pd

    none = np.zeros(len(column), dtype=np.bool_)
    if pd.api.types.is_bool_dtype(column.dtype) or column.dtype.kind == "c":
        return Number(np.full(len(column), np.nan), ~none)
    if pd.api.types.is_numeric_dtype(column.dtype):
        return Number(column.to_numpy(dtype=np.float64, na_value=np.nan), none)
    text = column.astype(object).where(column.notna(), "").map(str).str.strip()
    empty = text.isin(EMPTY).to_numpy()
    text = text.where(~empty, "nan")
    values = pd.to_numeric(text, errors="coerce").to_numpy(dtype=np.float64)
    mark: Mark = ""
    if (np.isnan(values) & ~empty).any():
        commas, dots = (text.str.contains(each, regex=False) for each in ",.")
        mark = decimal or (_mark_of(text[commas], text[~commas]) if commas.any() else "")
        plain = text.str.rstrip("%").str.strip()
        if mark == ",":
            # A dot beside decimal commas separates thousands, and is not read.
            plain = plain.where(~dots, "").str.replace(",", ".", regex=False)
        elif mark:
            grouped = plain.str.fullmatch(_GROUPED)
            plain = plain.where(~grouped, plain.str.replace(",", "", regex=False))
        found = pd.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64)
        values = np.where(text.str.endswith("%"), found / 100.0, found)
    return Number(values, np.isnan(values) & ~empty, mark)


def _mark_of(commas: pd.Series[Any], others: pd.Series[Any]) -> Mark:
    """Return the decimal mark of cells with commas, given other cells of the column."""
    grouped = commas.str.fullmatch(_GROUPED)
    if not grouped.all():
        return ","
    sure = commas.str.contains(".", regex=False) | (commas.str.count(",") > 1)
    return "." if sure.any() or others.str.contains(".", regex=False).any() else "?"


def likeliest(fits: Mapping[Values, NDArray[np.bool_]]) -> tuple[Values, float]:
    """Return the kind of values that most rows are, and their share."""
    kind = max(fits, key=lambda each: fits[each].mean())
    if kind == "votes" and fits["percent"].mean() >= 0.5:
        kind = "percent"  # of which some rows do not add up
    return kind, float(fits[kind].mean())


_BASES: Final[dict[Values, float]] = {"log-probabilities": np.e, "log2": 2.0, "log10": 10.0}


def _last_digit(numbers: NDArray[np.float64]) -> float:
    """Return half of the last digit of rounded numbers, 0 for others."""
    known = numbers[np.abs(numbers) <= 100.0]
    halves = (
        0.5 * 10.0**-d for d in (2, 3, 4) if np.abs(known - known.round(d)).max(initial=0.0) < 1e-9
    )
    return next(halves, 0.0)


def fitting(numbers: NDArray[np.float64]) -> dict[Values, NDArray[np.bool_]]:
    """Return which rows are a distribution, by kind of values; empty cells are zeros."""
    # Of many classes, as much as the digits explain.
    most = [max(_FREE, _last_digit(numbers / unit) * numbers.shape[1]) for unit in (1.0, 100.0)]
    tolerance, of_percent = (min(ROUNDING * numbers.shape[1], each) for each in most)
    filled = np.nan_to_num(numbers, nan=0.0, posinf=np.inf, neginf=-np.inf)
    logs = np.nan_to_num(numbers, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        positive, sums = (filled >= -1e-9).all(axis=1), filled.sum(axis=1)
        found: dict[Values, NDArray[np.bool_]] = {}
        found["probabilities"] = positive & (np.abs(sums - 1.0) <= tolerance)
        found["percent"] = positive & (np.abs(sums - 100.0) <= 100.0 * of_percent)
        negative = (logs <= 1e-6).all(axis=1)
        for kind, base in _BASES.items():
            total = (base**logs).sum(axis=1)
            found[kind] = negative & (np.abs(total - 1.0) <= tolerance)
        found["votes"] = positive & (filled == np.floor(filled)).all(axis=1) & (sums >= 1.0)
    return found


#: Votes that are added to each row of counts, spread evenly over the classes.
SMOOTHING: Final = 1.0


def smoothed(votes: NDArray[np.float64], prior: float = SMOOTHING) -> NDArray[np.float64]:
    """Return probabilities [M, N] of numbers of votes, `prior` of which are spread evenly."""
    total = votes.sum(axis=1, keepdims=True) + prior
    return np.asarray((votes + prior / votes.shape[1]) / total)


def to_shares(numbers: NDArray[np.float64], kind: Values) -> NDArray[np.float64]:
    """Return probabilities [M, N] of numbers of a kind that every row fits."""
    if kind == "votes":
        return smoothed(np.nan_to_num(numbers))
    if kind not in (*_BASES, "logits"):
        filled = np.maximum(np.nan_to_num(numbers, nan=0.0), 0.0)
        # Scale by the maximum first: sums of very large values overflow.
        filled = filled / (1.0 if kind == "probabilities" else filled.max(axis=1, keepdims=True))
        total = filled.sum(axis=1, keepdims=True)
        return np.asarray(np.where(np.abs(total - 1.0) > 1e-12, filled / total, filled))
    logits = numbers * np.log(_BASES.get(kind, np.e))
    with np.errstate(over="ignore"):  # Differences beyond the float range give 0.
        return np.asarray(softmax(np.nan_to_num(logits, nan=-np.inf, neginf=-np.inf), axis=1))
