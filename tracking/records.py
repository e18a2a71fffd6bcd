"""What is kept of one finished cell: plain values, one canonical JSON form.

A record is complete in itself: it is on disk before anything is sent to a tracking store, and
everything that MLflow shows can be made again from it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from pydantic.dataclasses import dataclass
from pydantic_core import to_json, to_jsonable_python

from dcs.errors import TrackingError, show
from dcs.io import first_fault, parse_json
from dcs.schemes.scheme import CorrectionScheme

if TYPE_CHECKING:
    from dcs.search.problem import TracePoint

RECORD_FORMAT = "dcs-cell"

RECORD_VERSION = 4
"""Version 2 added `histograms`, 3 `importances`, 4 `front`; a record without keeps its form."""

TRACE_COLUMNS = ("temperature", "current", "best", "acceptance")
"""Columns of a trace, in this order."""

CellStatus = Literal["FINISHED", "FAILED"]

TrialState = Literal["COMPLETE", "PRUNED", "FAIL"]

TraceRow = tuple[float, float, float, float]

#: Keys of cells and sweeps name files.
KEY_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

#: How a record ends in a file: with the digest of all before it. Earlier versions wrote none.
_SEAL = re.compile(r',"digest":"[0-9a-f]{64}"\}$')


def sealed(text: str) -> str:
    """Return the canonical JSON of a record with its digest, as it is kept in files."""
    return f'{text[:-1]},"digest":"{text_digest(text)}"}}'


def text_digest(text: str) -> str:
    """Return the digest of a record from its canonical JSON, whatever digest it says itself."""
    return hashlib.sha256(_SEAL.sub("}", text).encode()).hexdigest()


def plain(value: Any) -> Any:
    """Return `value` made of dict, list, str, int, float, bool and None only."""
    return to_jsonable_python(value, fallback=_listed)


def _listed(value: Any) -> Any:
    # NumPy scalars and arrays, without importing NumPy.
    if not hasattr(value, "tolist"):
        raise ValueError(f"{type(value).__name__} cannot be written as JSON")
    return value.tolist()


_Plain = BeforeValidator(plain)
# NaN and infinities as words, which pydantic reads as numbers: JSON has none.
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
        What the trial reached, for example ``dev/accuracy``.
    state : {"COMPLETE", "PRUNED", "FAIL"}
        How it ended.
    seconds : float
        Wall time.
    started_ms : int
        Start, milliseconds since the epoch.
    value : float, optional
        What the study optimises; used to pick the best trials.
    """

    number: int
    params: Annotated[Mapping[str, Any], _Plain]
    metrics: Mapping[str, float]
    state: TrialState
    seconds: float
    started_ms: int
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class CellRecord:
    """One cell of a sweep: what it was, what it chose and what it reached.

    Values may be NumPy scalars; they are stored as plain Python values.

    Parameters
    ----------
    key : str
        Hash of the cell's canonical JSON; the name of its file in the archive.
    sweep : str
        Name of the sweep it was computed for.
    identity : mapping
        What makes the cell: ``model``, ``task``, ``shots``, ``seed``, ``method``,
        ``table_digest``, and so on.
    params : mapping
        Chosen hyperparameters and settings.
    metrics : mapping of str to float
        Flat names: ``test/accuracy``, ``test/cobias``, ``dev/...``, ``opt/...``,
        ``uncorrected/test/accuracy``.
    scheme : mapping, optional
        The correction scheme as a dictionary; None where there is none (a failed cell).
    class_accuracies : mapping of str to list
        Columns of equal length on the test split: ``class``, ``before``, ``after`` and any
        others, such as ``counts_before`` and ``counts_after``: its test rows by predicted class.
        None (or NaN) marks a class without rows.
    started_ms, finished_ms : int
        Start and end, milliseconds since the epoch.
    trials : tuple of TrialRecord
        The study's trials.
    trace : tuple of 4-tuples
        Annealing trace in the order of `TRACE_COLUMNS`; see `trace_rows`.
    histograms : mapping of str to list
        How often each probability occurs in each class of the optimization rows; see
        `tracking.histograms`. Empty where that was not recorded.
    importances : mapping of str to float
        Share of each tuned hyperparameter in what the trials reached, with sum 1; empty where
        there was no study, or too few trials to tell.
    front : mapping, optional
        The front that the scheme was picked from, as :meth:`dcs.FittedScheme.to_dict` gives it;
        None where there was none.
    status : {"FINISHED", "FAILED"}
        How it ended.
    error : str, optional
        The traceback of a failed cell.
    direction : {"maximize", "minimize"}
        Which trial values are good.
    provenance : mapping
        Git commit, package versions, seeds; see `tracking.collect_provenance`.

    Raises
    ------
    pydantic.ValidationError
        A value cannot be kept as plain JSON, or the scheme is none; names the field.
    """

    key: Annotated[str, Field(pattern=f"^{KEY_PATTERN.pattern}$")]
    sweep: str
    identity: Annotated[Mapping[str, Any], _Plain]
    params: Annotated[Mapping[str, Any], _Plain]
    metrics: Mapping[str, float]
    scheme: Annotated[Mapping[str, Any] | None, _Plain]
    class_accuracies: Annotated[Mapping[str, list[Any]], _Plain]
    started_ms: int
    finished_ms: int
    trials: tuple[TrialRecord, ...] = ()
    trace: tuple[TraceRow, ...] = ()
    histograms: Annotated[Mapping[str, list[Any]], _Plain] = field(default_factory=dict)
    importances: Mapping[str, float] = field(default_factory=dict)
    front: Annotated[Mapping[str, Any] | None, _Plain] = None
    status: CellStatus = "FINISHED"
    error: str | None = None
    direction: Literal["maximize", "minimize"] = "maximize"
    provenance: Annotated[Mapping[str, Any], _Plain] = field(default_factory=dict)

    @field_validator("scheme")
    @classmethod
    def _readable(cls, scheme: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        # What cannot be read as a scheme could never be recorded as a model.
        if scheme is not None:
            CorrectionScheme.from_dict(scheme)
        return scheme

    @field_validator("class_accuracies")
    @classmethod
    def _columns(cls, table: Mapping[str, list[Any]]) -> Mapping[str, list[Any]]:
        if table and not {"class", "before", "after"} <= set(table):
            raise ValueError("the columns class, before and after are needed")
        if len({len(column) for column in table.values()}) > 1:
            raise ValueError("columns of unequal length")
        return {
            name: [None if isinstance(v, float) and math.isnan(v) else v for v in column]
            for name, column in table.items()
        }

    @property
    def who(self) -> dict[str, Any]:
        """What tells a cell in tables: model, task, shots, seed, method; a task's own name."""
        names = ("model", "task", "shots", "seed", "method")
        own = {name: self.identity.get(name) for name in names}
        if str(own["task"]).endswith((".yaml", ".yml")):
            # The path of a file: its probabilities know what the file calls the task.
            tables = self.provenance.get("tables", {})
            own["task"] = tables.get("test", {}).get("task") or Path(str(own["task"])).stem
        return own

    @property
    def finished(self) -> bool:
        """Whether the cell has a result (and need not be computed again)."""
        return self.status == "FINISHED"

    @property
    def moves(self) -> int:
        """Candidate solutions that were judged, by all trials or the one search."""
        own = sum(trial.metrics.get("opt/evaluations", 0.0) for trial in self.trials)
        return int(own or self.metrics.get("opt/evaluations", 0.0))

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, hexadecimal."""
        return text_digest(self.to_json())

    def to_json(self) -> str:
        """Return the canonical JSON: sorted keys, one line, no NaN literals."""
        body = json.loads(to_json(self))
        # Without them the record of an earlier version keeps its form, and with it its digest.
        added = ("histograms", "importances", "front")
        version = max([1, *(i for i, name in enumerate(added, 2) if body[name])])
        for name in added:
            if not body[name]:
                del body[name]
        body |= {"format": RECORD_FORMAT, "version": version}
        return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str, *, source: str = "cell record") -> CellRecord:
        """Read what `to_json` gave, sealed or not.

        Parameters
        ----------
        text : str
            The JSON.
        source : str
            What to call it in an error, usually the file's path.

        Raises
        ------
        dcs.errors.TrackingError
            It is not a cell record, is damaged, was changed after it had been written, or was
            written by a newer version.
        """
        body = parse_json(text, source=source, error=TrackingError, finite=False)
        if not isinstance(body, dict) or body.pop("format", None) != RECORD_FORMAT:
            raise TrackingError(f"{source}: not a cell record (no format {RECORD_FORMAT!r})")
        if body.pop("digest", None) not in (None, text_digest(text)):
            raise TrackingError(f"{source}: was changed after it had been written")
        version = body.pop("version", None)
        if type(version) is not int or not 1 <= version <= RECORD_VERSION:
            raise TrackingError(
                f"{source}: cell record version {show(version)} cannot be read, only 1 to "
                f"{RECORD_VERSION}; update this package"
            )
        try:
            return cls(**body)
        except ValidationError as error:
            raise TrackingError(
                f"{source}: not a whole cell record ({first_fault(error)})"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ScoringRecord:
    """How the probability tables of one model, task and prompt came about.

    Parameters
    ----------
    key : str
        The key of the tables.
    identity : mapping
        ``model``, ``task``, ``shots``, ``seed``.
    params : mapping
        Engine and its settings, digests of the tables.
    metrics : mapping of str to float
        ``scoring/seconds``, ``scoring/prompts_per_second`` and so on.
    started_ms, finished_ms : int
        Start and end, milliseconds since the epoch.
    """

    key: Annotated[str, Field(pattern=f"^{KEY_PATTERN.pattern}$")]
    identity: Annotated[Mapping[str, Any], _Plain]
    params: Annotated[Mapping[str, Any], _Plain]
    metrics: Mapping[str, float]
    started_ms: int
    finished_ms: int

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, hexadecimal."""
        return text_digest(json.dumps(plain(self), sort_keys=True))


@plain_dataclass(frozen=True, slots=True)
class StoredCell:
    """A cell and its run.

    Attributes
    ----------
    record : CellRecord
        The cell.
    run_id, experiment_id : str
        Its run in the store.
    """

    record: CellRecord
    run_id: str
    experiment_id: str


def trace_rows(points: Iterable[TracePoint]) -> tuple[TraceRow, ...]:
    """Turn the trace of an annealing result into the plain rows of a `CellRecord`.

    Parameters
    ----------
    points : iterable of TracePoint
        As in :attr:`dcs.AnnealingResult.trace`.

    Returns
    -------
    tuple of tuple of float
        One row per temperature, in the order of `TRACE_COLUMNS`.
    """
    return tuple((p.temperature, p.current, p.best, p.acceptance) for p in points)
