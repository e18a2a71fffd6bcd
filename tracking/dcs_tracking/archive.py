"""The output folder of sweeps: a file for every finished cell, written before it is recorded.

In the folder::

    cells/<key>.json          one finished cell, which is never computed again
    cells.parquet             the summaries of many cells in one file, for speed alone
    sweeps/<key>.json         a sweep: its experiment, settings and tracking store
    sweeps/<key>.cells        the keys of its cells, one per line
    sweeps/<key>.runs         their runs in tracking stores, for links to them
    sweeps/<key>.lock         held by the process that records the sweep
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from sys import intern
from typing import Annotated, Any, Final, Literal

from filelock import FileLock, Timeout
from pydantic import BeforeValidator, Field, TypeAdapter

from dcs.errors import TrackingError
from dcs.io import Strict, atomic_path, atomic_write, naming, parse_json, read_text, validated
from dcs_tracking import schema
from dcs_tracking.records import (
    KEY_PATTERN,
    CellRecord,
    ScoringRecord,
    StoredCell,
    SweepStatus,
    plain,
    sealed,
    text_digest,
)

_log = logging.getLogger(__name__)

#: Maximum number of bytes of a record; 100,000 trials take a tenth of it.
_MAX_BYTES = 2**30


class TrackingSettings(Strict):
    """What a sweep records in MLflow; the results are not affected.

    Attributes
    ----------
    trials : "table" or "none"
        Whether to record the trials of a cell, as step metrics and a table of its run.
    figures : "sweep" or "none"
        Whether to draw the figures of the sweep.
    """

    trials: Literal["table", "none"] = "table"
    figures: Literal["sweep", "none"] = "sweep"


class Sweep(TrackingSettings):
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
    varies : tuple of str
        Fields of the identity that differ between cells: ``model``, ``task``, ``shots``, ``seed``.
    run_name : str or None
        Name of the parent run; by default that of the experiment.
    scorings : tuple of ScoringRecord
        Records of its scored tables.
    status : {"FINISHED", "FAILED", "KILLED"} or None
        Final status; None while it runs and after a crash.
    """

    experiment: Annotated[str, Field(pattern=r"\S")]
    sweep_key: Annotated[str, Field(pattern=f"^{KEY_PATTERN.pattern}$")]
    tracking_uri: str | None = None
    sweep_params: Annotated[dict[str, Any], BeforeValidator(plain)] = {}
    varies: tuple[str, ...] = ()
    run_name: str | None = None
    scorings: tuple[ScoringRecord, ...] = ()
    status: SweepStatus | None = None

    @property
    def varied(self) -> tuple[str, ...]:
        """What differs between its cells: settings, then fields of the identity."""
        given, listed = self.sweep_params, ("method", *schema.SETTING_TAGS)
        several = [name for name in listed if len(given.get(f"{name}s") or ()) > 1]
        return (*(given.get("axes") or ()), *several, *self.varies)


#: Begins a line of a list of cells that leaves one out.
_LEFT_OUT: Final = "-"

#: Columns of the index, and how many of its rows are in memory at a time.
_INDEX: Final = ("key", "version", "digest", "summary")
_ROWS: Final = 500

#: For the index alone, which is no contract: it checks less than `CellRecord.from_json`.
_RECORD = TypeAdapter(CellRecord)


def _version(path: Path) -> str:
    """Return what changes with a file; empty if there is none."""
    with suppress(FileNotFoundError):
        found = path.stat()
        return f"{found.st_mtime_ns} {found.st_size}"
    return ""


def _share(record: CellRecord, shared: dict[str, Any]) -> CellRecord:
    """Let a record have names and settings of other records, which take most of the memory."""
    own = {"metrics": {intern(name): value for name, value in record.metrics.items()}}
    for part in ("identity", "provenance", "class_accuracies"):
        values = getattr(record, part).items()
        own[part] = {name: shared.setdefault(repr(value), value) for name, value in values}
    for part, values in own.items():
        # A new record would be validated, and validation copies.
        object.__setattr__(record, part, values)
    return record


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
        self._index = self.output / "cells.parquet"

    def path(self, key: str) -> Path:
        """Return the path of the file of a cell, which may not exist."""
        return self.cells / f"{key}.json"

    def write(self, record: CellRecord) -> Path:
        """Write a record to disk atomically, unless the file has it already.

        Parameters
        ----------
        record : CellRecord
            The record.

        Returns
        -------
        pathlib.Path
            Path of the record.

        Raises
        ------
        OSError
            Raised if the file cannot be written; names the file.
        """
        path, text = self.path(record.key), record.to_json()
        if self.digest(record.key) != text_digest(text):
            atomic_write(path, sealed(text))
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

    def with_scheme(self, record: CellRecord) -> CellRecord:
        """Return a record as on disk, if its scheme was left out."""
        return self.read(record.key) if record.scheme == {} else record

    def digest(self, key: str) -> str | None:
        """Return the digest of a record without parsing it; None if it does not exist."""
        path = self.path(key)
        if not (now := _version(path)):
            return None
        version, digest = self._digests.get(key, ("", ""))
        return digest if version == now else text_digest(path.read_text("utf-8", "replace"))

    @cached_property
    def _digests(self) -> Mapping[str, tuple[str, str]]:
        return {key: (version, digest) for key, version, digest in self._indexed("digest")}

    def index(self) -> None:
        """Write the summaries of all cells to one file; later changes of a cell take precedence.

        Reading them from there takes a fraction of the time of reading the records.
        """
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter

        # Versions are read before the files, so that a later change is noticed.
        versions = {path.stem: _version(path) for path in self.cells.glob("[!.]*.json")}
        if versions == {key: version for key, (version, _) in self._digests.items()}:
            return
        rows = self._summaries(versions)
        columns = pa.schema([(name, pa.string()) for name in _INDEX])
        with (
            atomic_path(self._index) as file,
            ParquetWriter(file, columns, compression="zstd", write_page_checksum=True) as writer,
        ):
            while some := [dict(zip(_INDEX, row, strict=True)) for row in islice(rows, _ROWS)]:
                writer.write_table(pa.Table.from_pylist(some, columns))

    def _summaries(self, versions: dict[str, str]) -> Iterator[tuple[str, ...]]:
        """Yield the rows of a new index: those of the old one that are current, and all others."""
        for key, version, *own in self._indexed("digest", "summary"):
            if versions.get(key) == version:
                yield key, versions.pop(key), *own
        for key, version in versions.items():
            with suppress(TrackingError):
                record = self.read(key)
                yield key, version, record.digest, _RECORD.dump_json(record.summary).decode()

    def _indexed(self, *columns: str) -> Iterator[Sequence[str]]:
        """Yield key, version and other columns of the index."""
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile

        # Damaged or missing: the records are the truth.
        with (
            suppress(ArrowException, OSError),
            ParquetFile(self._index, page_checksum_verification=True) as file,
        ):
            whole = {*_INDEX} <= {*file.schema_arrow.names}
            wanted = [*_INDEX[:2], *columns]
            # Each thread would keep memory of its own.
            batches = file.iter_batches(_ROWS, columns=wanted, use_threads=False)
            for batch in batches if whole else ():
                yield from zip(*(each.to_pylist() for each in batch.columns), strict=True)

    def load(
        self, keys: Iterable[str] | None = None, *, summaries: bool = False
    ) -> dict[str, CellRecord]:
        """Read the records of `keys`, except for missing ones.

        A damaged or modified file is also left out, with a warning that names it.

        Parameters
        ----------
        keys : iterable of str, optional
            Keys of the cells; by default all.
        summaries : bool
            Whether to leave out search and scheme, which take most of the memory.

        Returns
        -------
        dict of str to CellRecord
            Records by key.
        """
        if keys is None:
            keys = sorted(path.stem for path in self.cells.glob("[!.]*.json"))
        wanted, shared = dict.fromkeys(keys), dict[str, Any]()
        records: dict[str, CellRecord] = {}
        for key, version, summary in self._indexed("summary") if summaries else ():
            if key in wanted and version == _version(self.path(key)):
                records[key] = _share(_RECORD.validate_json(summary), shared)
        for key in wanted:
            if key in records or not self.path(key).exists():
                continue
            try:
                record = self.read(key)
                records[key] = _share(record.summary, shared) if summaries else record
            except TrackingError as error:
                _log.warning("%s", error)
        return {key: records[key] for key in wanted if key in records}

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
            about: Any = {"source": f"{path} ({advice})", "error": TrackingError}
            found.append(validated(Sweep, parse_json(text, **about, finite=False), **about))
        return found

    def save_sweep(self, sweep: Sweep) -> None:
        """Write the file of a sweep, replacing an earlier one."""
        atomic_write(self._file(sweep.sweep_key, "json"), sweep.model_dump_json(indent=2))

    def add(self, sweep_key: str, key: str) -> None:
        """Add a cell to the list of a sweep."""
        self._append(sweep_key, "cells", key)

    def leave_out(self, sweep_key: str, key: str) -> None:
        """Note that a sweep has a cell no longer, for example one of an earlier table."""
        self._append(sweep_key, "cells", _LEFT_OUT + key)

    def _append(self, sweep_key: str, kind: str, line: str) -> None:
        path = self._file(sweep_key, kind)
        with naming(path), path.open("a", encoding="utf-8") as file:
            # The line break comes first, so that a line cut by a crash does not affect the next.
            file.write(f"\n{line}")
            file.flush()
            os.fsync(file.fileno())

    def _lines(self, sweep_key: str, kind: str) -> list[str]:
        path = self._file(sweep_key, kind)
        return path.read_text("utf-8", errors="replace").split("\n") if path.exists() else []

    def keys(self, sweep_key: str) -> list[str]:
        """Return the keys of the existing cells of a sweep, in the order of their addition."""
        listed = self._listed(sweep_key)
        return [key for key, own in listed.items() if own and self.path(key).exists()]

    def left_out(self, sweep: Sweep) -> set[str]:
        """Return the keys of the cells that a sweep had, and that none of its name has now."""
        found = {key for key, own in self._listed(sweep.sweep_key).items() if not own}
        named = [s for s in self.sweeps() if s.experiment == sweep.experiment] if found else []
        return found.difference(*(self.keys(each.sweep_key) for each in named))

    def _listed(self, sweep_key: str) -> dict[str, bool]:
        """Return whether a sweep has the cells that it had at some time, by key."""
        found: dict[str, bool] = {}
        for line in self._lines(sweep_key, "cells"):
            if KEY_PATTERN.fullmatch(key := line.removeprefix(_LEFT_OUT)):
                found[key] = line == key
        return found

    def add_run(self, sweep_key: str, key: str, *run: str) -> None:
        """Note the run of a cell.

        Its id, that of its experiment, the digest of the record, and the name of the store.
        """
        self._append(sweep_key, "runs", " ".join((key, *run)))

    def runs(self, sweep_key: str, store: str) -> dict[str, tuple[str, str, str]]:
        """Return ids of runs and experiments in a store, and digests of records, by cell."""
        # A line that was cut by a crash has no store, or a part of its name.
        parts = [line.split(" ", 4) for line in self._lines(sweep_key, "runs")]
        return {own[0]: (own[1], own[2], own[3]) for own in parts if own[4:] == [store]}

    def stored(self, experiment: str | None, store: str) -> list[tuple[Sweep, StoredCell]]:
        """Return the cells of sweeps, by default of all, with their runs in a store.

        Parameters
        ----------
        experiment : str or None
            Name of sweeps.
        store : str
            Name of the store; see `runs`.

        Returns
        -------
        list of (Sweep, StoredCell)
            Oldest first, without search and scheme. Cells of several sweeps of one name are
            there once.
        """
        sweeps = [each for each in self.sweeps() if experiment in (None, each.experiment)]
        keys = {each.sweep_key: self.keys(each.sweep_key) for each in sweeps}
        records = self.load({key for own in keys.values() for key in own}, summaries=True)
        found: dict[tuple[str, str], tuple[Sweep, StoredCell]] = {}
        for sweep in sweeps:
            runs = self.runs(sweep.sweep_key, store)
            for key in filter(records.__contains__, keys[sweep.sweep_key]):
                cell = StoredCell(records[key], *runs.get(key, (None, None))[:2])
                if cell.run_id or (sweep.experiment, key) not in found:
                    found[sweep.experiment, key] = sweep, cell
        return sorted(found.values(), key=lambda each: each[1].record.started_ms)

    def remove(self, key: str) -> None:
        """Delete the record of a cell."""
        self.path(key).unlink(missing_ok=True)

    def remove_sweep(self, sweep: Sweep) -> None:
        """Delete a sweep, without its cells."""
        for kind in ("cells", "runs", "json"):
            self._file(sweep.sweep_key, kind).unlink(missing_ok=True)

    def own_keys(self, sweeps: Iterable[Sweep]) -> list[str]:
        """Return the keys of the cells of some sweeps that no other sweep has."""
        own = {sweep.sweep_key for sweep in sweeps}
        keys = {each.sweep_key: self.keys(each.sweep_key) for each in self.sweeps()}
        shared = {key for sweep, some in keys.items() if sweep not in own for key in some}
        return sorted({key for sweep in own for key in keys[sweep]} - shared)

    def lock(self, sweep: Sweep) -> FileLock:
        """Acquire the lock on recording a sweep, which the system releases when the process ends.

        Raises
        ------
        dcs.errors.TrackingError
            Raised if another process holds the lock.
        """
        lock = FileLock(self._file(sweep.sweep_key, "lock"), thread_local=False)
        self._sweeps.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise TrackingError(
                f"sweep {sweep.experiment!r} in {self.output} is being recorded by another "
                "process; wait for it or use another output folder"
            ) from None
        return lock

    def _file(self, sweep_key: str, kind: str) -> Path:
        return self._sweeps / f"{sweep_key}.{kind}"
