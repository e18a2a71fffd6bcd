"""The finished cells of an output folder, and the sweeps they belong to: the truth on disk.

Under the output folder::

    cells/<key>.json          one finished cell each; what is here is never computed again
    cells/<key>/figures/      its figures
    sweeps/<key>.json         a sweep: its experiment, settings and tracking store
    sweeps/<key>.cells        the keys of its cells, one on each line
    sweeps/<key>.lock         held by the one process that records the sweep
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from filelock import FileLock, Timeout
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dcs.errors import ConfigError, TrackingError, suggest
from dcs.io import atomic_write_text, first_fault, read_text
from tracking.records import (
    KEY_PATTERN,
    CellRecord,
    ScoringRecord,
    plain,
    sealed,
    text_digest,
)

_log = logging.getLogger(__name__)

SweepStatus = Literal["FINISHED", "FAILED", "KILLED"]

#: Bytes of a record: 100,000 trials take a tenth of it.
_LARGEST = 2**30


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
                for name, content in (figures or {}).items():
                    figure = self.cells / record.key / name
                    figure.parent.mkdir(parents=True, exist_ok=True)
                    figure.write_bytes(content)
                atomic_write_text(path, sealed(text))
        return path

    def read(self, key: str) -> CellRecord:
        """Read one record.

        Raises
        ------
        dcs.errors.TrackingError
            There is none or it is damaged; names the file.
        """
        path = self.path(key)
        text = read_text(path, error=TrackingError, limit=_LARGEST)
        try:
            record = CellRecord.from_json(text, source=str(path))
        except TrackingError as error:
            raise TrackingError(f"{error}; delete it to compute the cell again") from error
        if record.key != key:
            raise TrackingError(f"{path}: holds the cell {record.key!r}; the file was renamed")
        return record

    def figures(self, key: str) -> dict[str, bytes]:
        """Return the figures of a cell by relative path."""
        folder = self.cells / key
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

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
        found = []
        for path in sorted(self._sweeps.glob("[!.]*.json")):
            text = read_text(path, error=TrackingError)
            try:
                found.append(Sweep.model_validate_json(text))
            except ValidationError as error:
                raise TrackingError(
                    f"{path}: not a whole description of a sweep ({first_fault(error)}); delete "
                    "it and run the sweep again to record it"
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
