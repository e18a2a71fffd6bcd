"""Cells on a probability table that somebody brings along, computed in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dcs.methods import get_method
from dcs.probabilities import ProbabilityTable
from dcs.prompting import parse_shots
from tracking import CellRecord, Outbox
from workflows.cells import Cell, effective_settings
from workflows.compute import compute_cell
from workflows.settings import TunerSettings

__all__ = ["table_cells", "tune_cells"]


def table_cells(
    optimization: ProbabilityTable,
    test: ProbabilityTable,
    *,
    name: str,
    methods: Sequence[str],
    tuner: TunerSettings,
    seed: int,
) -> list[Cell]:
    """Return the cells of a table, one per method.

    Parameters
    ----------
    optimization, test : ProbabilityTable
        Rows to tune on, and rows for the final figures.
    name : str
        Stands for model or task where the table's provenance does not say.
    methods : sequence of str
        Method names.
    tuner : TunerSettings
        How methods that have something to tune are tuned.
    seed : int
        Root seed.

    Returns
    -------
    list of Cell
        In the order of `methods`.

    Raises
    ------
    ConfigError
        A method is not known.
    """
    origin = optimization.provenance
    return [
        Cell(
            model=origin.model or name,
            task=origin.task or name,
            shots=None if origin.shots is None else parse_shots(origin.shots),
            seed=seed,
            method=method,
            tuner=effective_settings(get_method(method), tuner),
            optimization_digest=optimization.digest,
            test_digest=test.digest,
        )
        for method in methods
    ]


def tune_cells(
    cells: Sequence[Cell],
    optimization: ProbabilityTable,
    test: ProbabilityTable,
    *,
    sweep: str,
    output: Path,
    progress: Callable[[float], None] | None = None,
) -> list[CellRecord]:
    """Compute the cells that are not finished yet, one after the other.

    Parameters
    ----------
    cells : sequence of Cell
        From :func:`table_cells`.
    optimization, test : ProbabilityTable
        The tables that the cells were made of.
    sweep : str
        The sweep the records are filed under.
    output : pathlib.Path
        Folder of earlier work.
    progress : callable, optional
        Called with the share done of the cell at work, 0..1.

    Returns
    -------
    list of CellRecord
        One per cell, in their order.
    """
    outbox = Outbox(output)
    finished = outbox.finished([cell.key for cell in cells])
    return [
        finished.get(cell.key)
        or compute_cell(cell, optimization, test, sweep=sweep, progress=progress)
        for cell in cells
    ]
