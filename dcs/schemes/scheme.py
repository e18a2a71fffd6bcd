"""Correction schemes: one correction function per class, applied to new probabilities."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, Field
from scipy.special import bdtrc

from dcs.data.checks import (
    checked_classes,
    checked_probabilities,
    named_columns,
    refuse_other_order,
)
from dcs.errors import InvalidInputError, SchemeError, escaped, quoted, show
from dcs.evaluation.uncertainty import percent
from dcs.io import atomic_write, read_json, validated
from dcs.schemes.apply import corrected, normalised
from dcs.schemes.calibration import Calibration
from dcs.schemes.corrections import DONT_CHANGE, Correction, Membership, Weight

if TYPE_CHECKING:
    from dcs.data.table import ProbabilityTable

#: Probability of as many equal rows by chance, above which they are not those of the fit.
_COINCIDENCE: Final = 1e-3


class _FilePart(BaseModel, extra="forbid", strict=True):
    """Part of a scheme file, without unknown keys or type conversions."""


class _Correction(_FilePart):
    name: str = Field(alias="class")
    kind: Literal["weight", "membership"]
    value: float | None = None
    a: float | None = None
    b: float | None = None
    c: float | None = None
    title: str = Field("", alias="name")  # of a membership, in files of earlier versions

    def correction(self) -> Correction:
        weight: Any = (self.value,)
        corners: Any = (self.a, self.b, self.c)
        is_weight = self.kind == "weight"
        if any(each is not None for each in (corners if is_weight else weight)):
            raise InvalidInputError(
                f"class {show(self.name)}: is a {self.kind}, but has value and a, b or c; remove "
                "those of the other kind"
            )
        return Weight(*weight) if is_weight else Membership(*corners)


class _Calibration(_FilePart):
    name: str
    matrix: list[list[float]]
    offset: list[float]
    floor: float
    products: bool = False

    def calibration(self) -> Calibration:
        return Calibration(**dict(self))


class _File(_FilePart):
    """A scheme file.

    Version 2 added the calibration and weights above 1, version 3 the combination of several
    tables and their names, version 4 calibrations with products.
    """

    format: Literal["dcs-scheme"]
    version: Literal[1, 2, 3, 4]
    inputs: list[str] = []
    combination: _Calibration | None = None
    calibration: _Calibration | None = None
    corrections: list[_Correction]
    provenance: dict[str, Any] = {}


def _largest(changes: ArrayLike, count: int = 10) -> list[int]:
    """Return the places of the largest changes, in their order."""
    return sorted(np.argsort(-np.asarray(changes), kind="stable")[:count].tolist())


def _digest_of(data: Mapping[str, Any]) -> str:
    """Return the digest of the values of a scheme."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CorrectionScheme:
    """One correction per class (a "probability correction scheme" in the paper).

    Parameters
    ----------
    classes : tuple of str
        N different class names.
    corrections : tuple of Membership or Weight
        The correction of each class, in the order of `classes`.
    provenance : mapping, optional
        Origin of the scheme, as values that JSON can represent.
    calibration : Calibration, optional
        Calibration applied before the corrections, by default none.
    combination : Calibration, optional
        Combination of K tables of the same rows, applied first; None for a single table.
    inputs : tuple of str, optional
        K different names of these tables, in order.

    Raises
    ------
    InvalidInputError
        If names, corrections, calibration, combination and inputs do not match.
    """

    classes: tuple[str, ...]
    corrections: tuple[Correction, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = None
    combination: Calibration | None = None
    inputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n_tables = 1 if self.combination is None else self.combination.n_tables
        names = checked_classes(self.classes, n_classes=len(self.classes))
        if self.inputs or n_tables > 1:
            inputs = checked_classes(self.inputs, n_classes=n_tables, source="inputs")
            object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "classes", names)
        object.__setattr__(self, "corrections", tuple(self.corrections))
        object.__setattr__(self, "provenance", dict(self.provenance))
        if len(names) < 2:
            raise SchemeError(f"a scheme requires at least two classes, got {len(names)}")
        if len(self.corrections) != len(names):
            raise SchemeError(
                f"{len(self.corrections)} corrections for {len(names)} classes; give one per class"
            )
        for part in (self.calibration, self.combination):
            if part is not None and part.n_classes != len(names):
                raise SchemeError(
                    f"the calibration {part.name!r} is for {part.n_classes} classes; "
                    f"the scheme has {len(names)}"
                )
        if self.calibration is not None and self.calibration.n_tables > 1:
            raise SchemeError("the calibration is for several tables; it must be for one")

    @classmethod
    def identity(cls, classes: Sequence[str], **parts: Any) -> CorrectionScheme:
        """Return the scheme that changes nothing, except by the given parts.

        Parameters
        ----------
        classes : sequence of str
            N different class names.
        **parts
            Provenance, calibration, combination and inputs, as in the class.

        Returns
        -------
        CorrectionScheme
            Don't Change for every class.
        """
        return cls(tuple(classes), (DONT_CHANGE,) * len(classes), **parts)

    def correct(self, probs: ArrayLike) -> NDArray[np.float64]:
        """Correct class probabilities.

        Parameters
        ----------
        probs : array of float, shape [M, N], or data frame
            Class probabilities, columns in the order of `classes`, or named by them; for a scheme
            of K tables a list of K such arrays of the same rows, in the order of `inputs`.

        Returns
        -------
        array of float64, shape [M, N]
            Corrected values, not normalised. A row that corrects to all zeros keeps its
            probabilities from before the corrections.

        Raises
        ------
        InvalidInputError
            If a value is not a probability, or the number of classes or tables differs.
        """
        given: Any = probs
        if self.combination is None:
            given = named_columns(given, self.classes)[0]
            values = checked_probabilities(given, n_classes=len(self.classes))
        else:
            if isinstance(given, list | tuple):
                for name, each in zip(self.inputs, given, strict=False):
                    refuse_other_order(given[0], **{name: each})
                given = [named_columns(each, self.classes)[0] for each in given]
            values = self.combination.checked(given)
        steps = [part.step for part in (self.combination, self.calibration) if part is not None]
        functions = [correction.coefficients for correction in self.corrections]
        return corrected(values, steps, functions)

    def apply(self, probs: ArrayLike) -> NDArray[np.float64]:
        """Correct class probabilities and normalise every row to sum to 1.

        Parameters
        ----------
        probs : array of float, shape [M, N]
            Class probabilities, as in :meth:`correct`.

        Returns
        -------
        array of float64, shape [M, N]
            Corrected probabilities, every row with sum 1.
        """
        return normalised(self.correct(probs))

    def predict(self, probs: ArrayLike) -> NDArray[np.int64]:
        """Return the corrected predictions, shape [M]; ties go to the lowest class index.

        Parameters
        ----------
        probs : array of float, shape [M, N]
            Class probabilities, as in :meth:`correct`.

        Returns
        -------
        array of int64, shape [M]
            Class indices.
        """
        return np.asarray(np.argmax(self.correct(probs), axis=1), dtype=np.int64)

    @property
    def offsets(self) -> NDArray[np.float64]:
        """What the scheme adds to the log-probability of each class, [N], with mean 0.

        Raises
        ------
        SchemeError
            If the scheme does more than that; names what.
        """
        total = np.zeros(len(self.classes))
        if self.combination is not None:
            raise SchemeError(f"the scheme combines the tables {quoted(self.inputs)}")
        if self.calibration is not None:
            if not np.array_equal(self.calibration.matrix, np.eye(total.size)):
                raise SchemeError(
                    f"the {self.calibration.name} calibration is not a sum of offsets"
                )
            total += self.calibration.offset
        for j, correction in enumerate(self.corrections):
            if isinstance(correction, Weight):
                total[j] += math.log(correction.value)
            elif correction != DONT_CHANGE:
                raise SchemeError(f"class {show(self.classes[j])} has a membership function")
        return np.asarray(total - total.mean())

    @property
    def adds_offsets(self) -> bool:
        """Whether the scheme only adds an offset to the log-probability of each class."""
        try:
            return self.offsets.size > 0
        except SchemeError:
            return False

    def explain(self) -> list[str]:
        """Return the sentences that say what the scheme changes.

        Returns
        -------
        list of str
            One on the combination and one on the calibration, if any, then one per class, of many
            classes for those that change most; a single one if the scheme changes nothing.
        """
        first, *others = dict.fromkeys(self.corrections)
        # Corrections that preserve the order of the probabilities.
        is_uniform = not others and (first == DONT_CHANGE or isinstance(first, Weight))
        if is_uniform and self.calibration is None and self.combination is None:
            return ["Nothing is changed: every class keeps its probabilities."]
        sentences = []
        if self.combination is not None:
            tables = f"{self.combination.name} of the tables {quoted(self.inputs)}"
            sentences.append(f"Before all, the {tables} becomes one table.")
        elif self.inputs:
            sentences.append(f"Of the tables of the fit, only {quoted(self.inputs)} is corrected.")
        if self.calibration is not None:
            even = np.full(len(self.classes), 1.0 / len(self.classes))
            made = self.calibration.apply([even])[0]
            shown = _largest(np.abs(made - even))
            parts = ", ".join(f"{self.classes[k]} {percent(made[k])} %" for k in shown)
            less = ", and the others less changed" if len(shown) < even.size else ""
            sentences.append(
                f"First, {self.calibration.name} calibration of all classes: of equal "
                f"probabilities, {percent(even[0])} % each, it makes {parts}{less}."
            )
        if is_uniform:
            return [*sentences, "No class has a correction of its own."]
        grid = np.linspace(0.0, 1.0, 65)
        shown = _largest([float(np.abs(each(grid) - grid).mean()) for each in self.corrections])
        sentences += [f"{self.classes[k]}: {self.corrections[k].effect}." for k in shown]
        left = len(self.classes) - len(shown)
        rest = [f"The other {left} classes change less; see the file."] if left else []
        return sentences + rest

    def share_fitted(self, table: ProbabilityTable) -> float:
        """Return the approximate share of the rows used to fit the scheme that are in a table.

        Metrics on such rows are optimistic. The provenance contains hashes of a sample of the
        rows, see :attr:`ProbabilityTable.sample`; without these the share is 0, as it is if no
        more are equal than by chance: those of votes on numbered rows can be.
        """
        noted = self.provenance.get("fitted_on")
        sample = noted.get("sample") if isinstance(noted, Mapping) else None
        if not isinstance(sample, list) or not sample:
            return 0.0
        there = set(table.row_hashes())
        found = sum(str(each) in there for each in sample)
        _, counts = np.unique(table.probs, axis=0, return_counts=True)
        pairs = max(1, table.n_rows * (table.n_rows - 1))
        coincide = float((counts * (counts - 1)).sum() / pairs)
        by_chance = bdtrc(found - 1, len(sample), coincide) > _COINCIDENCE
        return 0.0 if by_chance else found / len(sample)

    def to_dict(self) -> dict[str, Any]:
        """Return the scheme as plain values, as written by :meth:`to_json`.

        Returns
        -------
        dict
            Plain values.
        """
        both = {"combination": self.combination, "calibration": self.calibration}
        return {
            "format": "dcs-scheme",
            "version": 4,
            **({"inputs": list(self.inputs)} if self.inputs else {}),
            **{name: part.to_dict() for name, part in both.items() if part is not None},
            "corrections": [
                {"class": name, **correction.to_dict()}
                for name, correction in zip(self.classes, self.corrections, strict=True)
            ],
            "provenance": dict(self.provenance),
        }

    def to_json(self) -> str:
        """Return the scheme as JSON text.

        Returns
        -------
        str
            The text of a scheme file; see :meth:`load`.
        """
        # Sorted keys: the text does not depend on how the provenance was made.
        data = self.to_dict()
        data["provenance"] = json.loads(json.dumps(data["provenance"], sort_keys=True))
        data["digest"] = _digest_of(data)
        return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_dict(cls, data: Any, *, source: str = "scheme") -> CorrectionScheme:
        """Create a scheme from the plain values of :meth:`to_dict`, or of a scheme file.

        Parameters
        ----------
        data : dict
            Plain values.
        source : str, optional
            Name of the values in error messages.

        Returns
        -------
        CorrectionScheme
            The scheme.

        Raises
        ------
        SchemeError
            If the values are not those of a scheme, or were changed after they were written;
            names `source` and the key. Without the key ``digest``, changes are accepted.
        """
        if isinstance(data, dict) and "digest" in data:
            written = data["digest"]
            data = {name: value for name, value in data.items() if name != "digest"}
            if written != _digest_of(data):
                raise SchemeError(
                    f"{source}: key 'digest': the scheme was changed after it was written; delete "
                    "this key to accept the changes"
                )
        file = validated(_File, data, source=source, error=SchemeError)
        try:
            return cls(
                tuple(entry.name for entry in file.corrections),
                tuple(entry.correction() for entry in file.corrections),
                file.provenance,
                file.calibration.calibration() if file.calibration else None,
                file.combination.calibration() if file.combination else None,
                tuple(file.inputs),
            )
        except InvalidInputError as error:
            raise SchemeError(f"{source}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the scheme to a JSON file atomically.

        Parameters
        ----------
        path : path-like
            File to write.
        """
        atomic_write(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CorrectionScheme:
        """Read a scheme from a JSON file.

        Parameters
        ----------
        path : path-like
            File to read, or the folder with `scheme.json` of `dcs tune`.

        Returns
        -------
        CorrectionScheme
            The scheme.

        Raises
        ------
        SchemeError
            If the file does not exist or is not a scheme.
        """
        file = Path(path) / "scheme.json" if Path(path).is_dir() else path
        return cls.from_dict(read_json(file, error=SchemeError), source=escaped(file))
