"""Records of cells and sweeps: plain values, one canonical JSON form, files.

A record is self-contained: it is on disk before anything is sent to a tracking store, and
everything that MLflow shows can be recreated from it. In the output folder::

    cells/<key>.json          one finished cell, which is never computed again
    cells/<key>/figures/      its figures
    sweeps/<key>.json         a sweep: its experiment, settings and tracking store
    sweeps/<key>.cells        the keys of its cells, one per line
    sweeps/<key>.lock         held by the process that records the sweep
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass as plain_dataclass
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from filelock import FileLock, Timeout
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)
from pydantic.dataclasses import dataclass
from pydantic_core import to_json, to_jsonable_python

from dcs.errors import ConfigError, TrackingError, show, suggest
from dcs.io import atomic_write_text, first_fault, parse_json, read_text
from dcs.schemes.scheme import CorrectionScheme

if TYPE_CHECKING:
    from dcs.search.problem import TracePoint

_log = logging.getLogger(__name__)

RECORD_FORMAT = "dcs-cell"

RECORD_VERSION = 4
"""Version 2 added `histograms`, 3 `importances`, 4 `front`; unused fields are not written."""

TRACE_COLUMNS = ("temperature", "current", "best", "acceptance")
"""Columns of a trace, in order."""

CellStatus = Literal["FINISHED", "FAILED"]

TrialState = Literal["COMPLETE", "PRUNED", "FAIL"]

SweepStatus = Literal["FINISHED", "FAILED", "KILLED"]

TraceRow = tuple[float, float, float, float]

#: Maximum number of bytes of a record; 100,000 trials take a tenth of it.
_MAX_BYTES = 2**30

#: Keys of cells and sweeps, which are used as file names.
KEY_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

#: The end of a record in a file: the digest of the text before it. Early versions wrote none.
_SEAL = re.compile(r',"digest":"[0-9a-f]{64}"\}$')


def sealed(text: str) -> str:
    """Return the canonical JSON of a record with its digest, as written to files."""
    return f'{text[:-1]},"digest":"{text_digest(text)}"}}'


def text_digest(text: str) -> str:
    """Return the digest of a record from its canonical JSON, without a digest in it."""
    return hashlib.sha256(_SEAL.sub("}", text).encode()).hexdigest()


def plain(value: Any) -> Any:
    """Return `value` converted to dict, list, str, int, float, bool and None."""
    return to_jsonable_python(value, fallback=_numpy_to_python)


def _numpy_to_python(value: Any) -> Any:
    # NumPy scalars and arrays, without importing NumPy.
    if not hasattr(value, "tolist"):
        raise ValueError(f"{type(value).__name__} cannot be written as JSON")
    return value.tolist()


_Plain = BeforeValidator(plain)
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
    params: Annotated[Mapping[str, Any], _Plain]
    metrics: Mapping[str, float]
    state: TrialState
    seconds: float
    started_ms: int
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class CellRecord:
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
        Flat names: ``test/accuracy``, ``test/cobias``, ``dev/...``, ``opt/...``,
        ``uncorrected/test/accuracy``.
    scheme : mapping, optional
        The correction scheme as a dictionary; None for a failed cell.
    class_accuracies : mapping of str to list
        Columns of equal length on the test split: ``class``, ``before``, ``after`` and any
        others, such as ``counts_before`` and ``counts_after``: test rows by predicted class.
        None (or NaN) marks a class without rows.
    started_ms, finished_ms : int
        Start and end, in milliseconds since the epoch.
    trials : tuple of TrialRecord
        Trials of the study.
    trace : tuple of 4-tuples
        Annealing trace with the columns `TRACE_COLUMNS`; see `trace_rows`.
    histograms : mapping of str to list
        Frequency of each probability in each class of the optimization rows; see
        `workflows.study.cell.class_histograms`. Empty if not recorded.
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
        Git commit, package versions, seeds; see `tracking.collect_provenance`.

    Raises
    ------
    pydantic.ValidationError
        Raised if a value cannot be written as JSON or the scheme is invalid; names the field.
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
    def _check_scheme(cls, scheme: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        # An invalid scheme could not be recorded as a model.
        if scheme is not None:
            CorrectionScheme.from_dict(scheme)
        return scheme

    @field_validator("class_accuracies")
    @classmethod
    def _check_columns(cls, table: Mapping[str, list[Any]]) -> Mapping[str, list[Any]]:
        if table and not {"class", "before", "after"} <= set(table):
            raise ValueError("the columns class, before and after are required")
        if len({len(column) for column in table.values()}) > 1:
            raise ValueError("columns of unequal length")
        return {
            name: [None if isinstance(v, float) and math.isnan(v) else v for v in column]
            for name, column in table.items()
        }

    @property
    def who(self) -> dict[str, Any]:
        """Model, task, shots, seed and method of the cell, with the display name of the task."""
        names = ("model", "task", "shots", "seed", "method")
        own = {name: self.identity.get(name) for name in names}
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
    def summary(self) -> CellRecord:
        """The record without the large fields on the search, which tables do not need."""
        return replace(self, trials=(), trace=(), histograms={}, front=None)

    @property
    def moves(self) -> int:
        """Number of evaluated candidate solutions, in all trials or the single search."""
        own = sum(trial.metrics.get("opt/evaluations", 0.0) for trial in self.trials)
        return int(own or self.metrics.get("opt/evaluations", 0.0))

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, hexadecimal."""
        return text_digest(self.to_json())

    def to_json(self) -> str:
        """Return the canonical JSON: sorted keys, one line, no NaN literals."""
        body = json.loads(to_json(self))
        # Unused fields are left out, so that records of earlier versions keep their digest.
        added = ("histograms", "importances", "front")
        version = max([1, *(i for i, name in enumerate(added, 2) if body[name])])
        for name in added:
            if not body[name]:
                del body[name]
        body |= {"format": RECORD_FORMAT, "version": version}
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
class ScoringRecord:
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
        Ids of its run and experiment in the store.
    """

    record: CellRecord
    run_id: str
    experiment_id: str


def trace_rows(points: Iterable[TracePoint]) -> tuple[TraceRow, ...]:
    """Convert the trace of an annealing result to the rows of a `CellRecord`.

    Parameters
    ----------
    points : iterable of TracePoint
        Points of :attr:`dcs.AnnealingResult.trace`.

    Returns
    -------
    tuple of tuple of float
        One row per temperature, with the columns `TRACE_COLUMNS`.
    """
    return tuple((p.temperature, p.current, p.best, p.acceptance) for p in points)


def parse_trials(text: str | int) -> str | int:
    """Parse the option for the trials that get runs: ``all``, ``none``, ``best:K`` or ``K``.

    Parameters
    ----------
    text : str or int
        User-specified value.

    Returns
    -------
    str or int
        ``all``, ``none``, or a number of trials.

    Raises
    ------
    dcs.errors.ConfigError
        Raised for any other value.
    """
    number = str(text).removeprefix("best:")
    if number.isascii() and number.isdigit():
        return int(number)
    if text in ("all", "none"):
        return text
    hint = suggest(text, ["all", "none"])
    raise ConfigError(f"tracking.trials is {text!r}{hint}; allowed: all, none, best:K")


class Sweep(BaseModel):
    """One sweep and its tracking settings.

    Attributes
    ----------
    experiment : str
        Name of the sweep and of its MLflow experiment.
    sweep_key : str
        Distinguishes sweeps of the same name.
    tracking_uri : str or None
        The store that was last used, without a password; None for the default store of the
        output folder.
    sweep_params : dict
        Parameters of the parent run.
    run_name : str or None
        Name of the parent run; by default that of the experiment.
    trials : {"all", "none"} or int
        Trials that get a run; an integer is a number of the best ones.
    figures : {"all", "none"}
        Whether figures of the sweep are drawn at its end.
    scorings : tuple of ScoringRecord
        Records of its scored tables.
    status : {"FINISHED", "FAILED", "KILLED"} or None
        Final status; None while it runs and after a crash.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: Annotated[str, Field(pattern=r"\S")]
    sweep_key: Annotated[str, Field(pattern=f"^{KEY_PATTERN.pattern}$")]
    tracking_uri: str | None = None
    sweep_params: Annotated[dict[str, Any], BeforeValidator(plain)] = {}
    run_name: str | None = None
    trials: Annotated[str | int, BeforeValidator(parse_trials)] = 5
    figures: Literal["all", "none"] = "all"
    scorings: tuple[ScoringRecord, ...] = ()
    status: SweepStatus | None = None


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files to a folder, by relative path."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of all files of a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class Archive:
    """The finished cells and the sweeps of an output folder.

    Parameters
    ----------
    output : path-like
        The folder; created by the first write.
    """

    def __init__(self, output: Path | str) -> None:
        self.output = Path(output).absolute()
        self.cells = self.output / "cells"
        self._sweeps = self.output / "sweeps"

    @property
    def owner(self) -> str:
        """Identifier of the writer of a sweep: a hash of the machine and the folder."""
        return text_digest(f"{platform.node()}:{self.output}")[:16]

    def path(self, key: str) -> Path:
        """Return the path of the file of a cell, which may not exist."""
        return self.cells / f"{key}.json"

    def write(self, record: CellRecord, figures: Mapping[str, bytes] | None = None) -> Path:
        """Write a record and its figures to disk.

        Parameters
        ----------
        record : CellRecord
            The record, which is written atomically.
        figures : mapping of str to bytes, optional
            Files by relative path; they replace those of an earlier, different record.

        Returns
        -------
        pathlib.Path
            Path of the record.

        Raises
        ------
        dcs.errors.TrackingError
            Raised if a file cannot be written; names the file and the reason.
        """
        path = self.path(record.key)
        text = record.to_json()
        with _name_file_on_error(path):
            if self.digest(record.key) != text_digest(text):
                shutil.rmtree(self.cells / record.key, ignore_errors=True)
                write_files(self.cells / record.key, figures or {})
                atomic_write_text(path, sealed(text))
        return path

    def read(self, key: str) -> CellRecord:
        """Read one record.

        Raises
        ------
        dcs.errors.TrackingError
            Raised if the file does not exist or is damaged; names the file.
        """
        path, advice = self.path(key), "delete it to compute the cell again"
        text = read_text(path, error=TrackingError, limit=_MAX_BYTES, advice=advice)
        try:
            record = CellRecord.from_json(text, source=str(path))
        except TrackingError as error:
            raise TrackingError(f"{error}; {advice}") from error
        if record.key != key:
            raise TrackingError(f"{path}: holds the cell {record.key!r}; the file was renamed")
        return record

    def figures(self, key: str) -> dict[str, bytes]:
        """Return the figures of a cell by relative path."""
        return files_of(self.cells / key)

    def digest(self, key: str) -> str | None:
        """Return the digest of a record without parsing it; None if it does not exist."""
        path = self.path(key)
        return text_digest(path.read_text("utf-8", "replace")) if path.is_file() else None

    def load(self, keys: Iterable[str] | None = None) -> dict[str, CellRecord]:
        """Read the records of `keys`, except for missing ones.

        A damaged or modified file is also left out, with a warning that names it.

        Parameters
        ----------
        keys : iterable of str, optional
            Keys of the cells; by default all.

        Returns
        -------
        dict of str to CellRecord
            Records by key.
        """
        records: dict[str, CellRecord] = {}
        if keys is None:
            keys = sorted(path.stem for path in self.cells.glob("[!.]*.json"))
        for key in keys:
            if not self.path(key).exists():
                continue
            try:
                records[key] = self.read(key)
            except TrackingError as error:
                _log.warning("%s", error)
        return records

    def finished(self, keys: Iterable[str] | None = None) -> dict[str, CellRecord]:
        """Return the finished cells of `keys` (by default all), by key."""
        return {key: record for key, record in self.load(keys).items() if record.finished}

    def sweeps(self) -> list[Sweep]:
        """Return all sweeps of the folder.

        Raises
        ------
        dcs.errors.TrackingError
            Raised if the file of a sweep is damaged; names the file.
        """
        found, advice = [], "delete it and run the sweep again to record it"
        for path in sorted(self._sweeps.glob("[!.]*.json")):
            text = read_text(path, error=TrackingError, advice=advice)
            try:
                found.append(Sweep.model_validate_json(text))
            except ValidationError as error:
                raise TrackingError(
                    f"{path}: invalid description of a sweep ({first_fault(error)}); {advice}"
                ) from error
        return found

    def save_sweep(self, sweep: Sweep) -> None:
        """Write the file of a sweep, replacing an earlier one."""
        path = self._sweeps / f"{sweep.sweep_key}.json"
        with _name_file_on_error(path):
            atomic_write_text(path, sweep.model_dump_json(indent=2))

    def add(self, sweep_key: str, key: str) -> None:
        """Add a cell to the list of a sweep."""
        path = self._list_path(sweep_key)
        with _name_file_on_error(path), path.open("a", encoding="ascii") as file:
            # The line break comes first, so that a line cut by a crash does not affect the next.
            file.write(f"\n{key}")
            file.flush()
            os.fsync(file.fileno())

    def keys(self, sweep_key: str) -> list[str]:
        """Return the keys of the existing cells of a sweep, in the order of their addition."""
        path = self._list_path(sweep_key)
        lines = path.read_text("utf-8", errors="replace").split() if path.exists() else []
        return [
            key
            for key in dict.fromkeys(lines)
            if KEY_PATTERN.fullmatch(key) and self.path(key).exists()
        ]

    def lock(self, sweep: Sweep) -> FileLock:
        """Acquire the lock on recording a sweep, which the system releases when the process ends.

        Raises
        ------
        dcs.errors.TrackingError
            Raised if another process holds the lock.
        """
        path = self._sweeps / f"{sweep.sweep_key}.lock"
        lock = FileLock(path, thread_local=False)
        with _name_file_on_error(path):
            self._sweeps.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                raise TrackingError(
                    f"sweep {sweep.experiment!r} in {self.output} is being recorded by another "
                    "process; wait for it or use another output folder"
                ) from None
        return lock

    def _list_path(self, sweep_key: str) -> Path:
        return self._sweeps / f"{sweep_key}.cells"


@contextmanager
def _name_file_on_error(path: Path) -> Iterator[None]:
    """Convert an OSError on writing a file to a TrackingError that names it."""
    try:
        yield
    except OSError as error:
        raise TrackingError(
            f"{path}: cannot be written ({error.strerror or error}); check the disk space and the "
            "permissions, then run the same command again"
        ) from error
