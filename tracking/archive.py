"""The write-ahead archive: finished cells on disk, and which of them a tracking store has.

Under the output folder::

    cells/<key>.json             one finished cell each; what is here is never computed again
    archive/<id>/sweep.json       a destination: store, experiment, sweep
    archive/<id>/journal.jsonl    which cells are to go there, and which have arrived
    archive/<id>/lock             held by the one process that records there
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dcs.errors import TrackingError
from dcs.io import atomic_write_bytes, read_text
from tracking.records import CellRecord
from tracking.store.destinations import Destination, DestinationInfo, read_info

__all__ = ["Archive", "ArchiveContents"]

#: Bytes of a record: 100,000 trials take a tenth of it.
_LARGEST = 2**30


@dataclass(frozen=True, slots=True)
class ArchiveContents:
    """What the archive holds.

    Attributes
    ----------
    records : dict of str to CellRecord
        Whole records, by key.
    damaged : tuple of str
        One line for each damaged file.
    """

    records: dict[str, CellRecord]
    damaged: tuple[str, ...]


class Archive:
    """The finished cells of an output folder.

    Parameters
    ----------
    output : path-like
        The folder; made when first written to.
    """

    def __init__(self, output: Path | str) -> None:
        self.output = Path(output).absolute()
        self.cells = self.output / "cells"
        self.folder = self.output / "archive"

    def path(self, key: str) -> Path:
        """Return the file of a cell.

        Parameters
        ----------
        key : str
            The cell's key.

        Returns
        -------
        pathlib.Path
            Whether or not it is there.
        """
        return self.cells / f"{key}.json"

    def write(self, record: CellRecord) -> Path:
        """Keep a record, all or nothing; it is on the disk when this returns.

        Parameters
        ----------
        record : CellRecord
            What to keep.

        Returns
        -------
        pathlib.Path
            Its file.

        Raises
        ------
        dcs.errors.TrackingError
            When it cannot be written; names the file and the reason.
        """
        path = self.path(record.key)
        data = record.to_json().encode()
        try:
            if not (path.exists() and path.read_bytes() == data):
                atomic_write_bytes(path, data)
        except OSError as error:
            raise TrackingError(
                f"{path}: the finished cell cannot be written ({error.strerror or error}); make "
                "room and run the same command again"
            ) from error
        return path

    def read(self, key: str) -> CellRecord:
        """Read one record.

        Parameters
        ----------
        key : str
            The cell's key.

        Returns
        -------
        CellRecord
            The record.

        Raises
        ------
        dcs.errors.TrackingError
            When there is none or it is damaged; names the file.
        """
        path = self.path(key)
        if not path.exists():
            raise TrackingError(f"{path}: there is no record of this cell")
        text = read_text(path, error=TrackingError, limit=_LARGEST)
        try:
            record = CellRecord.from_json(text, source=str(path))
        except TrackingError as error:
            raise TrackingError(f"{error}; delete it to compute the cell again") from error
        if record.key != key:
            raise TrackingError(f"{path}: holds the cell {record.key!r}; the file was renamed")
        return record

    def load(self, keys: Iterable[str] | None = None, *, slim: bool = False) -> ArchiveContents:
        """Read the records of `keys` (all when None); a missing one is simply left out.

        Parameters
        ----------
        keys : iterable of str, optional
            Which cells.
        slim : bool
            Leave out trials and trace, to keep thousands of records small in memory.

        Returns
        -------
        ArchiveContents
            Whole records, and what is damaged.
        """
        records: dict[str, CellRecord] = {}
        damaged: list[str] = []
        if keys is None:
            keys = sorted(path.stem for path in self.cells.glob("[!.]*.json"))
        for key in keys:
            if not self.path(key).exists():
                continue
            try:
                record = self.read(key)
            except TrackingError as error:
                damaged.append(str(error))
            else:
                records[key] = record.slim() if slim else record
        return ArchiveContents(records, tuple(damaged))

    def finished(self, keys: Iterable[str] | None = None) -> dict[str, CellRecord]:
        """Return the cells that need not be computed again; failed and damaged ones are not.

        Parameters
        ----------
        keys : iterable of str, optional
            Which cells; all by default.

        Returns
        -------
        dict of str to CellRecord
            Records by key.
        """
        records = self.load(keys).records
        return {key: record for key, record in records.items() if record.finished}

    def destination(self, info: DestinationInfo) -> Destination:
        """Return the destination for `info`, new or known.

        Parameters
        ----------
        info : DestinationInfo
            Store, experiment and sweep.

        Returns
        -------
        Destination
            With what is known of it.
        """
        return Destination(self.folder / info.id, info)

    def destinations(self) -> list[Destination]:
        """Return all destinations that anything was ever recorded to.

        Returns
        -------
        list of Destination
            In the order of their folders.

        Raises
        ------
        dcs.errors.TrackingError
            When a description is damaged; names the file.
        """
        return [
            Destination(path.parent, read_info(path))
            for path in sorted(self.folder.glob("*/sweep.json"))
        ]

    def pending(self) -> int:
        """Return how many records still wait for their store, over all destinations.

        Returns
        -------
        int
            Records that have not arrived.
        """
        return sum(len(d.pending()) for d in self.destinations() if not d.info.moved)
