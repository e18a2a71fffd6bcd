"""Records of cells and sweeps: plain values with one canonical JSON form.

A record is self-contained: everything that MLflow shows can be recreated from it.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import to_json, to_jsonable_python

from dcs.errors import TrackingError, last_line, show
from dcs.io import first_fault, parse_json

RECORD_FORMAT = "dcs-cell"

#: Version 2 added `histograms`, 3 `importances`, 4 `front`.
RECORD_VERSION = 4

SweepStatus = Literal["FINISHED", "FAILED", "KILLED"]

#: Name of the method ``icl``, which corrects nothing.
UNCORRECTED = "uncorrected"

#: Keys of cells and sweeps, which are used as file names.
KEY_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

#: The end of a record in a file: the digest of the text before it. Early versions wrote none.
_SEAL = re.compile(r',"digest":"[0-9a-f]{64}"\}$')


def now_ms() -> int:
    """Return the time, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def sealed(text: str) -> str:
    """Return the canonical JSON of a record with its digest, as written to files."""
    return f'{text[:-1]},"digest":"{text_digest(text)}"}}'


def text_digest(text: str) -> str:
    """Return the digest of a record from its canonical JSON, without a digest in it."""
    return hashlib.sha256(_SEAL.sub("}", text).encode()).hexdigest()


def plain(value: Any, nan: Literal["constants", "null"] = "constants") -> Any:
    """Return `value` converted to dict, list, str, int, float, bool and None, perhaps of NaN."""
    return to_jsonable_python(value, fallback=_numpy_to_python, inf_nan_mode=nan)


def _numpy_to_python(value: Any) -> Any:
    # NumPy scalars and arrays, without importing NumPy.
    if not hasattr(value, "tolist"):
        raise ValueError(f"{type(value).__name__} cannot be written as JSON")
    return value.tolist()


_Plain = BeforeValidator(plain)
_PlainMapping = Annotated[Mapping[str, Any], _Plain]
_PlainColumns = Annotated[Mapping[str, list[Any]], BeforeValidator(partial(plain, nan="null"))]
# JSON has no NaN and infinities; pydantic parses these strings as numbers.
_STRICT = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class TrialRecord:
    """One trial of the study that tuned a cell.

    Parameters
    ----------
    number : int
        The trial's number in its study.
    params : mapping of str to plain value
        Suggested hyperparameters.
    metrics : mapping of str to float
        Metrics of the trial, for example ``dev/accuracy``.
    state : {"COMPLETE", "PRUNED", "FAIL"}
        State in which it ended.
    seconds : float
        Wall time.
    started_ms : int
        Start, in milliseconds since the epoch.
    value : float, optional
        Value of the study's objective; used to select the best trials.
    """

    number: int
    params: _PlainMapping
    metrics: Mapping[str, float]
    state: Literal["COMPLETE", "PRUNED", "FAIL"]
    seconds: float
    started_ms: int
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class _Record:
    """What the records of cells and of scorings have."""

    key: Annotated[str, Field(pattern=f"^{KEY_PATTERN.pattern}$")]
    identity: _PlainMapping
    params: _PlainMapping = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    started_ms: int
    finished_ms: int


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class CellRecord(_Record):
    """One cell of a sweep: its identity, the chosen scheme and settings, and its results.

    Values may be NumPy scalars; they are stored as plain Python values.

    Parameters
    ----------
    key : str
        Hash of the cell's canonical JSON; name of its file in the archive.
    sweep : str
        Name of the sweep that the cell was computed for.
    identity : mapping
        Values that define the cell: ``model``, ``task``, ``shots``, ``seed``, ``method``,
        ``table_digest``, and so on.
    params : mapping
        Chosen hyperparameters and settings.
    metrics : mapping of str to float
        Flat names: ``test/accuracy``, ``test/cobias``, ``dev/...``,
        ``uncorrected/test/accuracy``.
    scheme : mapping, optional
        The correction scheme as a dictionary; None for a failed cell.
    class_accuracies : mapping of str to list
        Columns of equal length on the test split: ``class``, ``before``, ``after`` and any
        others. None (or NaN) marks a class without rows.
    started_ms, finished_ms : int
        Start and end, in milliseconds since the epoch.
    trials : tuple of TrialRecord
        Trials of the study.
    trace, histograms
        Empty; earlier versions recorded the course of the annealing, and the probabilities of
        each class.
    importances : mapping of str to float
        Importance of each tuned hyperparameter, with sum 1; empty without a study or with too
        few trials.
    front : mapping, optional
        The front that the scheme was selected from, as :meth:`dcs.FittedScheme.to_dict` returns
        it; None without a front.
    status : {"FINISHED", "FAILED"}
        Status of the cell.
    error : str, optional
        Traceback of a failed cell.
    direction : {"maximize", "minimize"}
        Direction of the study's objective.
    provenance : mapping
        Git commit, package versions, seeds; see `dcs_tracking.collect_provenance`.

    Raises
    ------
    pydantic.ValidationError
        Raised if a value cannot be written as JSON; names the field.
    """

    sweep: str
    scheme: Annotated[Mapping[str, Any] | None, _Plain] = None
    class_accuracies: _PlainColumns = field(default_factory=dict)
    trials: tuple[TrialRecord, ...] = ()
    trace: tuple[tuple[float, float, float, float], ...] = ()
    histograms: Annotated[Mapping[str, list[Any]], _Plain] = field(default_factory=dict)
    importances: Mapping[str, float] = field(default_factory=dict)
    front: Annotated[Mapping[str, Any] | None, _Plain] = None
    status: Literal["FINISHED", "FAILED"] = "FINISHED"
    error: str | None = None
    direction: Literal["maximize", "minimize"] = "maximize"
    provenance: _PlainMapping = field(default_factory=dict)

    @property
    def who(self) -> dict[str, Any]:
        """Model, task, shots, seed and method of the cell, as people read them.

        A task file has the name of its task, and the method ``icl`` is called uncorrected.
        """
        names = ("model", "task", "shots", "seed", "method")
        own = {name: self.identity.get(name) for name in names}
        if own["method"] == "icl":
            own["method"] = UNCORRECTED
        if str(own["task"]).endswith((".yaml", ".yml")):
            # The path of a task file; the provenance of the table has the name in the file.
            tables = self.provenance.get("tables", {})
            own["task"] = tables.get("test", {}).get("task") or Path(str(own["task"])).stem
        return own

    @property
    def finished(self) -> bool:
        """Whether the cell has a result and is not computed again."""
        return self.status == "FINISHED"

    @property
    def reason(self) -> str:
        """Why the cell failed: the last line of its error."""
        return last_line(self.error or "no traceback recorded")

    @property
    def summary(self) -> CellRecord:
        """The record without the large fields, which tables do not need.

        Without the search; a scheme is an empty mapping, which shows that there is one.
        """
        scheme: Mapping[str, Any] | None = None if self.scheme is None else {}
        return replace(self, trials=(), trace=(), histograms={}, front=None, scheme=scheme)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, hexadecimal."""
        return text_digest(self.to_json())

    def to_json(self) -> str:
        """Return the canonical JSON: sorted keys, one line, no NaN literals."""
        body = json.loads(to_json(self))
        body |= {"format": RECORD_FORMAT, "version": RECORD_VERSION}
        return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str, *, source: str = "cell record") -> CellRecord:
        """Read a record from the JSON of `to_json`, with or without a digest.

        Parameters
        ----------
        text : str
            The JSON.
        source : str
            Name for error messages, usually the path of the file.

        Raises
        ------
        dcs.errors.TrackingError
            Raised if the text is not a cell record, is damaged, was modified after it was
            written, or was written by a newer version.
        """
        body = parse_json(text, source=source, error=TrackingError, finite=False)
        if not isinstance(body, dict) or body.pop("format", None) != RECORD_FORMAT:
            raise TrackingError(f"{source}: not a cell record (no format {RECORD_FORMAT!r})")
        if body.pop("digest", None) not in (None, text_digest(text)):
            raise TrackingError(f"{source}: was modified after it was written")
        version = body.pop("version", None)
        if type(version) is not int or not 1 <= version <= RECORD_VERSION:
            raise TrackingError(
                f"{source}: cell record version {show(version)} is not supported, expected 1 to "
                f"{RECORD_VERSION}; update this package"
            )
        try:
            return cls(**body)
        except ValidationError as error:
            raise TrackingError(f"{source}: invalid cell record ({first_fault(error)})") from error


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ScoringRecord(_Record):
    """Record of scoring the probability tables of one model, task and prompt.

    Parameters
    ----------
    key : str
        Key of the tables.
    identity : mapping
        ``model``, ``task``, ``shots``, ``seed``.
    params : mapping
        Engine, its settings, and digests of the tables.
    metrics : mapping of str to float
        ``scoring/seconds``, ``scoring/prompts_per_second`` and so on.
    started_ms, finished_ms : int
        Start and end, in milliseconds since the epoch.
    """

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, hexadecimal."""
        return text_digest(json.dumps(plain(self), sort_keys=True))


@dataclass(frozen=True, slots=True)
class StoredCell:
    """A cell and its run.

    Attributes
    ----------
    record : CellRecord
        The cell.
    run_id, experiment_id : str or None
        Ids of its run and experiment in the store; None if it is not known to be recorded there.
    """

    record: CellRecord
    run_id: str | None
    experiment_id: str | None
