"""The front of a fit, the selected point, and their file."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from pydantic import BaseModel, Field

from dcs.errors import SchemeError, escaped
from dcs.io import atomic_write, read_json, validated
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.preference import (
    FrontPoint,
    Preference,
    conservative_first,
    in_points,
    pareto_front,
    proven,
    select,
)


@dataclass(frozen=True, slots=True)
class FittedScheme:
    """Result of :func:`fit_scheme`: a front and the selected point.

    Parameters
    ----------
    points : tuple of FrontPoint
        At least two; the last one is the uncorrected probabilities.
    preference : Preference
        Rule that selects the point; see :func:`dcs.selection.preference.select`.
    mixture : dict of str to float
        The calibrations that the mixture is made of, as name, ridge and anchor, and their weights.

    Attributes
    ----------
    chosen : FrontPoint
        The selected point.
    """

    points: tuple[FrontPoint, ...]
    preference: Preference
    mixture: dict[str, float] = field(default_factory=dict)
    chosen: FrontPoint = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "chosen", select(self.points, self.preference))

    @property
    def scheme(self) -> CorrectionScheme:
        """The scheme of the chosen point."""
        scheme = self.chosen.scheme
        rule = {k: v for k, v in asdict(self.preference).items() if v is not None}
        return replace(scheme, provenance={**scheme.provenance, "rule": rule})

    @property
    def plain(self) -> FrontPoint:
        """The uncorrected probabilities."""
        return self.points[-1]

    @property
    def guarantee(self) -> str:
        """What the rows show about accuracy, in a sentence; empty under other rules."""
        if not self.preference.guarded:
            return ""
        level = f"{100 * self.preference.confidence:g} % confidence"
        return self._unshown(level) if self.chosen is self.plain else self._shown(level)

    def _shown(self, level: str) -> str:
        rule, point = self.preference, self.chosen
        margin = rule.margin_of(point, self.plain)
        removed = 100.0 * (self.plain.lasting_cobias - point.lasting_cobias)
        text = (
            f"With {level}, accuracy on new rows of the same distribution is at most "
            f"{in_points(margin)} points below uncorrected"
        )
        if rule.margin is not None or not math.isclose(margin, rule.rate * removed):
            return f"{text}."
        return f"{text}, {rule.rate:g} of the {removed:.1f} points of COBias that are removed."

    def _unshown(self, level: str) -> str:
        rule, shown = self.preference, proven(self.points, self.preference)
        tested = conservative_first(self.points[:-1])
        first = next((p for p in tested if p.cobias < self.plain.cobias), None)
        if first is None or any(p.cobias < self.plain.cobias for p in shown):
            return "The probabilities stay as they are: no correction is estimated to be better."
        margin = rule.margin_of(first, self.plain)
        text = (
            "The probabilities stay as they are: these rows do not show with "
            f"{level} that a correction costs at most {in_points(margin)} points of accuracy"
        )
        test = rule.test(first, self.plain)
        # Where the estimate itself is a loss, more rows would confirm it.
        if test.passed or not test.rows_needed or first.change.gained < first.change.lost:
            return f"{text}."
        more = float(f"{max(1, test.rows_needed - test.n_rows):.1g}")
        return f"{text}; about {more:,.0f} more labelled rows could."

    @property
    def front(self) -> tuple[FrontPoint, ...]:
        """The Pareto-optimal points, the most accurate first."""
        return pareto_front([p for p in self.points if p.path is None or p is self.chosen])

    def pick(self, preference: Preference) -> FittedScheme:
        """Return the same front with the point that another preference selects, without fitting.

        Parameters
        ----------
        preference : Preference
            Rule that selects the point.
        """
        return replace(self, preference=preference)

    def to_dict(self) -> dict[str, Any]:
        """Return the front as JSON-serialisable values, as written by :meth:`save`."""
        about: Any = {"preference": self.preference, "mixture": self.mixture}
        file = _File(format="dcs-front", version=2, points=self.points, **about)
        return file.model_dump(mode="json")

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
        return cls(file.points, file.preference, file.mixture)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the front with all its schemes to a JSON file, atomically.

        Parameters
        ----------
        path : path-like
            File to write.
        """
        atomic_write(path, self.to_json())

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


class _File(BaseModel):
    """Schema of a stored front; other keys are ignored."""

    format: Literal["dcs-front"]
    version: Literal[2]
    preference: Preference
    mixture: dict[str, float] = {}
    points: tuple[FrontPoint, ...] = Field(min_length=2)
