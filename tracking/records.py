"""What is kept of one finished cell: plain values, one canonical JSON form.

A record is complete in itself. It is written to the archive before anything is sent to a
tracking store, and everything that MLflow shows can be made again from it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol

from dcs.errors import InvalidInputError, TrackingError
from dcs.messages import reason, show, suggest
from dcs.schemes.scheme import CorrectionScheme

__all__ = [
    "CellRecord",
    "CellStatus",
    "RECORD_FORMAT",
    "RECORD_VERSION",
    "StoredCell",
    "TRACE_COLUMNS",
    "TrialRecord",
    "TrialState",
    "trace_rows",
]


# JSON has no such numbers; Python would write them bare, which other readers refuse.
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def plain(value: Any, name: str) -> Any:
    """Return `value` made of dict, list, str, int, float, bool and None only."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{name}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{name}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    # NumPy scalars and arrays, without importing NumPy.
    convert = getattr(value, "tolist", None)
    if callable(convert):
        return plain(convert(), name)
    raise InvalidInputError(
        f"{name} is a {type(value).__name__}; only text, numbers, truth values, None, lists and "
        "mappings of them can be recorded"
    )


def encode(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def decode(value: Any) -> Any:
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def decode_numbers(values: dict[str, Any]) -> dict[str, Any]:
    return {key: decode(value) for key, value in values.items()}


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse what is not one of a few words."""
    if value not in allowed:
        raise InvalidInputError(f"{name} is {show(value)}; allowed: {', '.join(allowed)}")


def integer(name: str, value: Any) -> int:
    """Return a whole number, or say what is not one."""
    try:
        if int(value) == value:
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass  # Said below, together with every other value that is not a whole number.
    raise InvalidInputError(f"{name} is {show(value)}; a whole number is needed")


def number(name: str, value: Any) -> float:
    """Return a number, or say what is not one."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(f"{name} is {show(value)}; a number is needed") from None


def numbers(values: Mapping[str, Any], name: str) -> dict[str, float]:
    """Return numbers by name."""
    return {str(key): number(f"{name}[{key!r}]", value) for key, value in values.items()}


def class_columns(table: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the columns of class accuracies, all of one length; None for NaN."""
    found = {str(name): plain(list(values), str(name)) for name, values in table.items()}
    for name, values in found.items():
        found[name] = [
            None if isinstance(value, float) and math.isnan(value) else value for value in values
        ]
    if found and not {"class", "before", "after"} <= set(found):
        raise InvalidInputError(
            f"class_accuracies has the columns {', '.join(found)}; class, before and after "
            "are needed"
        )
    if len({len(values) for values in found.values()}) > 1:
        sizes = ", ".join(f"{name}: {len(values)}" for name, values in found.items())
        raise InvalidInputError(f"class_accuracies has columns of unequal length ({sizes})")
    return found


RECORD_FORMAT = "dcs-cell"

RECORD_VERSION = 2

"""Version 2 added `histograms`; a record without them is written as version 1."""

TRACE_COLUMNS = ("temperature", "current", "best", "acceptance")

"""What is kept of an annealing run at each temperature, in this order."""

CellStatus = Literal["FINISHED", "FAILED"]

TrialState = Literal["COMPLETE", "PRUNED", "FAIL"]

TraceRow = tuple[float, float, float, float]

KEY_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
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
    params: Mapping[str, Any]
    metrics: Mapping[str, float]
    state: TrialState
    seconds: float
    started_ms: int
    value: float | None = None

    def __post_init__(self) -> None:
        name = f"trial {self.number}"
        one_of(f"{name}: state", self.state, ("COMPLETE", "PRUNED", "FAIL"))
        _set(self, "number", integer("trial number", self.number))
        _set(self, "params", plain(self.params, f"{name}: params"))
        _set(self, "metrics", numbers(self.metrics, f"{name}: metrics"))
        _set(self, "seconds", number(f"{name}: seconds", self.seconds))
        _set(self, "started_ms", integer(f"{name}: started_ms", self.started_ms))
        if self.value is not None:
            _set(self, "value", number(f"{name}: value", self.value))


@dataclass(frozen=True, slots=True, kw_only=True)
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
        others. None (or NaN) marks a class without rows.
    started_ms, finished_ms : int
        Start and end, milliseconds since the epoch.
    trials : tuple of TrialRecord
        The study's trials.
    trace : tuple of 4-tuples
        Annealing trace in the order of `TRACE_COLUMNS`; see `trace_rows`.
    histograms : mapping of str to list
        How often each probability occurs in each class of the optimization rows; see
        `tracking.histograms`. Empty where that was not recorded.
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
    dcs.errors.InvalidInputError
        When a value cannot be kept as plain JSON, or the scheme is none; names the field.
    """

    key: str
    sweep: str
    identity: Mapping[str, Any]
    params: Mapping[str, Any]
    metrics: Mapping[str, float]
    scheme: Mapping[str, Any] | None
    class_accuracies: Mapping[str, list[Any]]
    started_ms: int
    finished_ms: int
    trials: tuple[TrialRecord, ...] = ()
    trace: tuple[TraceRow, ...] = ()
    histograms: Mapping[str, list[Any]] = field(default_factory=dict)
    status: CellStatus = "FINISHED"
    error: str | None = None
    direction: Literal["maximize", "minimize"] = "maximize"
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not KEY_PATTERN.fullmatch(self.key):
            raise InvalidInputError(
                f"cell key {self.key!r} cannot name a file: letters, digits, '.', '_' and '-' "
                "are allowed, at most 128"
            )
        one_of("cell status", self.status, ("FINISHED", "FAILED"))
        one_of("cell direction", self.direction, ("maximize", "minimize"))
        for name in ("sweep", "error"):
            value = getattr(self, name)
            if not isinstance(value, str) and (name == "sweep" or value is not None):
                raise InvalidInputError(f"cell {name} is {show(value)}; a text is needed")
        for name in ("identity", "params", "provenance", "scheme"):
            value = getattr(self, name)
            if name == "scheme" and value is None:
                continue
            if not isinstance(value, Mapping):
                raise InvalidInputError(f"{name} is {show(value)}; a mapping is needed")
            _set(self, name, plain(value, name))
        if self.scheme is not None:
            # What cannot be read as a scheme could never be recorded as a model.
            CorrectionScheme.from_dict(self.scheme, source=f"scheme of cell {self.key}")
        _set(self, "metrics", numbers(self.metrics, "metrics"))
        _set(self, "class_accuracies", class_columns(self.class_accuracies))
        _set(self, "trials", tuple(self.trials))
        _set(self, "trace", tuple(_trace_row(row) for row in self.trace))
        for name in ("started_ms", "finished_ms"):
            _set(self, name, integer(name, getattr(self, name)))

    @property
    def finished(self) -> bool:
        """Whether the cell has a result (and need not be computed again)."""
        return self.status == "FINISHED"

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def slim(self) -> CellRecord:
        """Return the record without trials, trace and histograms: tables need none of them.

        Returns
        -------
        CellRecord
            With all else as it is.
        """
        return replace(self, trials=(), trace=(), histograms={})

    def to_json(self) -> str:
        """Return the canonical JSON: sorted keys, one line, no NaN literals.

        Returns
        -------
        str
            What :meth:`from_json` reads.
        """
        body: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        body["trials"] = [
            {item.name: getattr(trial, item.name) for item in fields(trial)}
            for trial in self.trials
        ]
        # Without them the record of an earlier version keeps its form, and with it its digest.
        version = RECORD_VERSION if self.histograms else 1
        if not self.histograms:
            del body["histograms"]
        body |= {"format": RECORD_FORMAT, "version": version}
        try:
            return _canonical(body)
        except ValueError:
            # A number that JSON does not have: few records hold one, and looking takes longer
            # than writing.
            return _canonical(encode(body))

    @classmethod
    def from_json(cls, text: str, *, source: str = "cell record") -> CellRecord:
        """Read what `to_json` wrote.

        Parameters
        ----------
        text : str
            The JSON.
        source : str
            What to call it in an error, usually the file's path.

        Raises
        ------
        dcs.errors.TrackingError
            When it is not a cell record, is damaged, or was written by a newer version.
        """
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TrackingError(f"{source}: not a whole cell record ({reason(error)})") from error
        if not isinstance(body, dict) or body.get("format") != RECORD_FORMAT:
            raise TrackingError(f"{source}: not a cell record (no format {RECORD_FORMAT!r})")
        version = body.get("version")
        if type(version) is not int or not 1 <= version <= RECORD_VERSION:
            raise TrackingError(
                f"{source}: cell record version {show(version)} cannot be read, only 1 to "
                f"{RECORD_VERSION}; update this package"
            )
        del body["format"], body["version"]
        return _build(cls, body, source)


class _TracePoint(Protocol):
    @property
    def temperature(self) -> float: ...
    @property
    def current(self) -> float: ...
    @property
    def best(self) -> float: ...
    @property
    def acceptance(self) -> float: ...


def trace_rows(points: Iterable[_TracePoint]) -> tuple[TraceRow, ...]:
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
    return tuple(
        (float(p.temperature), float(p.current), float(p.best), float(p.acceptance))
        for p in points
    )


def _build(cls: type[CellRecord], body: dict[str, Any], source: str) -> CellRecord:
    _known_keys(cls, body, source)
    try:
        trials = body.pop("trials", [])
        for trial in trials:
            _known_keys(TrialRecord, trial, source)
            trial["metrics"] = decode_numbers(trial["metrics"])
            trial["value"] = decode(trial.get("value"))
            trial["seconds"] = decode(trial["seconds"])
        body["trials"] = tuple(TrialRecord(**trial) for trial in trials)
        body["metrics"] = decode_numbers(body["metrics"])
        body["trace"] = tuple(
            tuple(decode(value) for value in row) for row in body.get("trace", [])
        )
        return cls(**body)
    except KeyError as error:
        raise TrackingError(f"{source}: not a whole cell record (no key {error})") from error
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise TrackingError(f"{source}: not a whole cell record ({reason(error)})") from error


def _canonical(body: Any) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _known_keys(kind: type[CellRecord | TrialRecord], body: Any, source: str) -> None:
    allowed = [item.name for item in fields(kind)]
    for key in body if isinstance(body, dict) else ():
        if key not in allowed:
            raise TrackingError(
                f"{source}: unknown key {key!r}{suggest(key, allowed)}; "
                "was it written by another version?"
            )


def _set(record: object, name: str, value: Any) -> None:
    object.__setattr__(record, name, value)


def _trace_row(row: Iterable[Any]) -> TraceRow:
    values = tuple(number("trace value", value) for value in row)
    if len(values) != len(TRACE_COLUMNS):
        raise InvalidInputError(
            f"a trace row has {len(values)} values; it needs {', '.join(TRACE_COLUMNS)}"
        )
    return values[0], values[1], values[2], values[3]


@dataclass(frozen=True, slots=True)
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
