"""The front of a fit, the selected point, and their file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field

from dcs.errors import SchemeError, escaped
from dcs.io import atomic_write, read_json, validated
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.page import result_page
from dcs.selection.preference import (
    FrontPoint,
    Prefer,
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
        if test.rows_needed is None or first.change.gained < first.change.lost:
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
        named = {
            f"--prefer {each}": self.pick(Preference(each)).chosen for each in get_args(Prefer)
        }
        points = [
            {
                "accuracy": point.accuracy,
                "cobias": point.lasting_cobias,
                "classes": [None if a != a else a for a in point.estimate.class_accuracies],
                "front": id(point) in front,
                "pick": self._command(point, name, named),
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

    def _command(self, point: FrontPoint, name: str, named: dict[str, FrontPoint]) -> str:
        """Return the command that picks a point, or an empty text if no option does."""
        best = max(each.accuracy for each in self.points)
        bias = math.ceil(1000 * point.lasting_cobias) / 10
        loss = math.ceil(1000 * (best - point.accuracy)) / 10
        limits = {
            f"--max-cobias {bias:g}": Preference(max_cobias=bias),
            f"--max-accuracy-loss {loss:g}": Preference(max_accuracy_loss=loss),
            f"--prefer accuracy --max-cobias {bias:g}": Preference("accuracy", max_cobias=bias),
        }
        chosen = named | {text: self.pick(rule).chosen for text, rule in limits.items()}
        found = [f"dcs pick {name} {text}" for text, each in chosen.items() if each is point]
        return next(iter(found), "")

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
