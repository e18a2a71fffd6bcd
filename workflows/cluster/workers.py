"""What Ray runs on a worker for a sweep: a cell, or what makes a worker ready for one."""

from __future__ import annotations

import time
from contextlib import ExitStack

import numpy as np

from dcs.data.table import ProbabilityTable
from dcs.search.annealing import Schedule, anneal
from tracking import CellRecord
from workflows.cells import Cell
from workflows.cluster.parallel import Mapper
from workflows.tuning.cell import compute_cell, failed_record
from workflows.tuning.storage import StudyStorage

__all__ = ["run_cell", "warm_up"]


def run_cell(
    cell: Cell,
    tables: dict[str, ProbabilityTable],
    sweep: str,
    mapper: Mapper,
    storage: StudyStorage | None,
) -> CellRecord:
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
        Where the cell's study is written down.

    Returns
    -------
    CellRecord
        Finished or failed.
    """
    started_ms = time.time_ns() // 1_000_000
    try:
        with ExitStack() as stack:
            ledger = None
            if storage is not None and cell.tuner is not None:
                notes = {"cell": cell.label, "sweep": sweep}
                ledger = stack.enter_context(storage.ledger(cell.key, notes=notes))
            return compute_cell(
                cell,
                tables["optimization"],
                tables["test"],
                sweep=sweep,
                mapper=mapper,
                ledger=ledger,
            )
    except Exception as error:
        return failed_record(cell, error, sweep=sweep, started_ms=started_ms)


def warm_up() -> None:
    """Load what a cell takes: the imports of this module, and compiled code."""
    table = np.full((4, 2), 0.5)
    anneal(table, np.array([0, 1, 0, 1]), schedule=Schedule(budget=100), classes=("a", "b"))
