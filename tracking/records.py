"""What is kept of finished cells and of sweeps: plain values, one canonical JSON form, files.

A record is complete in itself: it is on disk before anything is sent to a tracking store, and
everything that MLflow shows can be made again from it. Under the output folder::

    cells/<key>.json          one finished cell each; what is here is never computed again
    cells/<key>/figures/      its figures
    sweeps/<key>.json         a sweep: its experiment, settings and tracking store
    sweeps/<key>.cells        the keys of its cells, one on each line
    sweeps/<key>.lock         held by the one process that records the sweep
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
"""Version 2 added `histograms`, 3 `importances`, 4 `front`; a record without keeps its form."""

TRACE_COLUMNS = ("temperature", "current", "best", "acceptance")
"""Columns of a trace, in this order."""

CellStatus = Literal["FINISHED", "FAILED"]

TrialState = Literal["COMPLETE", "PRUNED", "FAIL"]

SweepStatus = Literal["FINISHED", "FAILED", "KILLED"]

TraceRow = tuple[float, float, float, float]

#: Bytes of a record: 100,000 trials take a tenth of it.
_LARGEST = 2**30

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
        `tracking.results.figures.class_histograms`. Empty where that was not recorded.
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
    def summary(self) -> CellRecord:
        """The record without what is long and tables do not need: how it was searched for."""
        return replace(self, trials=(), trace=(), histograms={}, front=None)

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


def parse_trials(text: str | int) -> str | int:
    """Read the option of which trials get runs: ``all``, ``none``, ``best:K`` or ``K``.

    Parameters
    ----------
    text : str or int
        What was typed.

    Returns
    -------
    str or int
        ``all``, ``none``, or a number of trials.

    Raises
    ------
    dcs.errors.ConfigError
        For anything else.
    """
    number = str(text).removeprefix("best:")
    if number.isascii() and number.isdigit():
        return int(number)
    if text in ("all", "none"):
        return text
    hint = suggest(text, ["all", "none"])
    raise ConfigError(f"tracking.trials is {text!r}{hint}; allowed: all, none, best:K")


class Sweep(BaseModel):
    """One sweep: where its cells are recorded, and how.

    Attributes
    ----------
    experiment : str
        The MLflow experiment, which has the name of the sweep.
    sweep_key : str
        What tells this sweep from another one of the same name.
    tracking_uri : str or None
        The store that it was last recorded to, without a password; None for the default store of
        the output folder.
    sweep_params : dict
        Parameters of the parent run.
    run_name : str or None
        Name of the parent run; the experiment's by default.
    trials : {"all", "none"} or int
        Which trials get a run of their own; a number means that many of the best.
    figures : {"all", "none"}
        Whether figures of the sweep are drawn at its end.
    scorings : tuple of ScoringRecord
        How its tables came about.
    status : {"FINISHED", "FAILED", "KILLED"} or None
        How it ended; None while it runs and after a crash.
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
    """Write files into a folder, by their relative paths."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder, by their relative paths."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class Archive:
    """The finished cells of an output folder, and its sweeps.

    Parameters
    ----------
    output : path-like
        The folder; made when first written to.
    """

    def __init__(self, output: Path | str) -> None:
        self.output = Path(output).absolute()
        self.cells = self.output / "cells"
        self._sweeps = self.output / "sweeps"

    @property
    def owner(self) -> str:
        """What tells the writers of one sweep apart: a hash of the machine and the folder."""
        return text_digest(f"{platform.node()}:{self.output}")[:16]

    def path(self, key: str) -> Path:
        """Return the file of a cell, whether or not it is there."""
        return self.cells / f"{key}.json"

    def write(self, record: CellRecord, figures: Mapping[str, bytes] | None = None) -> Path:
        """Keep a record and its figures; they are on the disk when this returns.

        Parameters
        ----------
        record : CellRecord
            What to keep; written all or nothing.
        figures : mapping of str to bytes, optional
            Files by relative path; those of an earlier, different record are removed.

        Returns
        -------
        pathlib.Path
            The file of the record.

        Raises
        ------
        dcs.errors.TrackingError
            It cannot be written; names the file and the reason.
        """
        path = self.path(record.key)
        text = record.to_json()
        with _writing(path):
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
            There is none or it is damaged; names the file.
        """
        path, advice = self.path(key), "delete it to compute the cell again"
        text = read_text(path, error=TrackingError, limit=_LARGEST, advice=advice)
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
        """Return the digest of a record without reading it whole; None where there is none."""
        path = self.path(key)
        return text_digest(path.read_text("utf-8", "replace")) if path.is_file() else None

    def load(self, keys: Iterable[str] | None = None) -> dict[str, CellRecord]:
        """Read the records of `keys` (all when None); a missing one is simply left out.

        So is one whose file is damaged or was changed, with a warning that names it.

        Parameters
        ----------
        keys : iterable of str, optional
            Which cells.

        Returns
        -------
        dict of str to CellRecord
            By key.
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
        """Return the cells that need not be computed again, by key; all of them when None."""
        return {key: record for key, record in self.load(keys).items() if record.finished}

    def sweeps(self) -> list[Sweep]:
        """Return all sweeps that were ever recorded from here.

        Raises
        ------
        dcs.errors.TrackingError
            A description is damaged; names the file.
        """
        found, advice = [], "delete it and run the sweep again to record it"
        for path in sorted(self._sweeps.glob("[!.]*.json")):
            text = read_text(path, error=TrackingError, advice=advice)
            try:
                found.append(Sweep.model_validate_json(text))
            except ValidationError as error:
                raise TrackingError(
                    f"{path}: not a whole description of a sweep ({first_fault(error)}); {advice}"
                ) from error
        return found

    def save_sweep(self, sweep: Sweep) -> None:
        """Write the description of a sweep, replacing an earlier one."""
        path = self._sweeps / f"{sweep.sweep_key}.json"
        with _writing(path):
            atomic_write_text(path, sweep.model_dump_json(indent=2))

    def add(self, sweep_key: str, key: str) -> None:
        """Note that a cell belongs to a sweep."""
        path = self._members(sweep_key)
        with _writing(path), path.open("a", encoding="ascii") as file:
            # The break comes first: half a line of a crash spoils no other, and names no cell.
            file.write(f"\n{key}")
            file.flush()
            os.fsync(file.fileno())

    def keys(self, sweep_key: str) -> list[str]:
        """Return the keys of the cells of a sweep that are here, in the order they came in."""
        path = self._members(sweep_key)
        lines = path.read_text("utf-8", errors="replace").split() if path.exists() else []
        return [
            key
            for key in dict.fromkeys(lines)
            if KEY_PATTERN.fullmatch(key) and self.path(key).exists()
        ]

    def lock(self, sweep: Sweep) -> FileLock:
        """Become the one process that records a sweep; the system lets go when it dies.

        Raises
        ------
        dcs.errors.TrackingError
            Another process does.
        """
        path = self._sweeps / f"{sweep.sweep_key}.lock"
        lock = FileLock(path, thread_local=False)
        with _writing(path):
            self._sweeps.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                raise TrackingError(
                    f"sweep {sweep.experiment!r} in {self.output} is being recorded by another "
                    "process; wait for it or use another output folder"
                ) from None
        return lock

    def _members(self, sweep_key: str) -> Path:
        return self._sweeps / f"{sweep_key}.cells"


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say of which file it is that the disk does not take it."""
    try:
        yield
    except OSError as error:
        raise TrackingError(
            f"{path}: cannot be written ({error.strerror or error}); make room and run the same "
            "command again"
        ) from error
