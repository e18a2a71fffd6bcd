"""What Ray runs as tasks: the cells of a sweep, and what makes a worker ready for them."""

from __future__ import annotations

import logging
import time
from typing import TypeAlias

import numpy as np

from dcs.data.table import ProbabilityTable
from dcs.search.annealing import Schedule, anneal
from tracking import CellRecord
from tracking.results.figures import cell_figures
from workflows.cells import Cell
from workflows.config.storage import StudyStorage, StudyStorageError
from workflows.parallel import Mapper
from workflows.tuning.cell import compute_cell, failed_record

__all__ = ["Figures", "run_cell", "warm_up"]

_log = logging.getLogger(__name__)

#: Files of figures, by artifact path.
Figures: TypeAlias = dict[str, bytes]

#: A storage that fails is given so long to come back before the cell is tried again.
_STORAGE_SECONDS = 10.0


def run_cell(
    cell: Cell,
    tables: dict[str, ProbabilityTable],
    sweep: str,
    mapper: Mapper,
    storage: StudyStorage | None,
    drawn: bool,
) -> tuple[CellRecord, Figures]:
    """Compute a cell; an error becomes a record, so that it stops no other cell.

    Parameters
    ----------
    cell : Cell
        What to compute.
    tables : dict of str to ProbabilityTable
        By split.
    sweep : str
        The sweep the record is filed under.
    mapper : Mapper
        Where trials are computed.
    storage : StudyStorage or None
        Where the cell's study is kept.
    drawn : bool
        Whether its figures are drawn.

    Returns
    -------
    record : CellRecord
        Finished or failed.
    figures : dict of str to bytes
        Files by artifact path.

    Raises
    ------
    StudyStorageError
        The storage fails. Ray tries the cell again, which goes on where it was.
    """
    started_ms = time.time_ns() // 1_000_000
    try:
        record = compute_cell(
            cell,
            tables["optimization"],
            tables["test"],
            sweep=sweep,
            mapper=mapper,
            storage=storage,
        )
    except StudyStorageError:
        time.sleep(_STORAGE_SECONDS)
        raise
    except Exception as error:
        return failed_record(cell, error, sweep=sweep, started_ms=started_ms), {}
    return record, _figures(record) if drawn else {}


def _figures(record: CellRecord) -> Figures:
    """Draw a cell; a search is not lost for its pictures, which `dcs report` draws again."""
    try:
        return cell_figures(record)
    except Exception:
        _log.exception("the figures of cell %s were not drawn", record.key)
        return {}


def warm_up() -> None:
    """Load what a cell takes: the imports of this module, and compiled code."""
    table = np.full((4, 2), 0.5)
    anneal(table, np.array([0, 1, 0, 1]), schedule=Schedule(budget=100), classes=("a", "b"))
