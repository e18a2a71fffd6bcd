"""What a sweep consists of, and what of it is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dcs.io import content_key
from tracking import Archive, CellRecord
from workflows.cells import (
    Cell,
    TableRequest,
    Variant,
    cells_of,
    request_key,
    table_requests,
    texts_key,
    variants_of,
)
from workflows.config.scoring import INDECISIVE
from workflows.config.sweep import SweepConfig
from workflows.tables import ProbabilityStore

__all__ = [
    "SweepPlan",
    "plan_sweep",
    "sweep_key",
]


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What a sweep consists of and what of it has been done.

    Attributes
    ----------
    config : SweepConfig
        The sweep.
    output : pathlib.Path
        The folder that everything is written to.
    requests : dict of str to list of TableRequest
        By the key of each table, in the order of the configuration, the requests that it answers.
        Several do where there are no demonstrations, since the seed then changes no prompt: the
        table is scored once, and each request has cells of its own.
    cells : dict of str to list of Cell
        The cells of those tables that have been scored, by the table's key. Those of the others
        are not known yet, since a cell is named by its numbers.
    ended : dict of str to CellRecord
        Cells of earlier runs that are not to be computed again, by key: finished ones, and
        failed ones unless they are to be retried.
    texts : dict of str to str
        By key, the hash of the texts that the table is planned with.
    """

    config: SweepConfig
    output: Path
    requests: dict[str, list[TableRequest]]
    cells: dict[str, list[Cell]]
    ended: dict[str, CellRecord]
    texts: dict[str, str] = field(default_factory=dict)

    def cells_on(self, key: str, digests: Mapping[str, str]) -> list[Cell]:
        """Return the cells that are tuned on a table with these digests.

        Parameters
        ----------
        key : str
            The table's key.
        digests : mapping of str to str
            Content hashes of the ``optimization`` and ``test`` tables.

        Returns
        -------
        list of Cell
            Each once.
        """
        return [
            cell
            for request in self.requests[key]
            for cell in cells_of(request, self.config, digests)
        ]

    @property
    def missing_tables(self) -> dict[str, TableRequest]:
        """Tables to be scored, by key: the first request of each."""
        return {key: some[0] for key, some in self.requests.items() if key not in self.cells}

    @property
    def missing_cells(self) -> dict[str, list[Cell]]:
        """Cells to be computed whose tables have been scored, by the table's key."""
        missing = {
            key: [cell for cell in cells if cell.key not in self.ended]
            for key, cells in self.cells.items()
        }
        return {key: cells for key, cells in missing.items() if cells}

    @property
    def has_work(self) -> bool:
        """Whether anything has to be computed."""
        return bool(self.missing_tables or self.missing_cells)

    @property
    def variants(self) -> list[Variant]:
        """What the cells of one table are, in their order."""
        return variants_of(self.config)

    @property
    def n_tables(self) -> int:
        """Number of tables in the sweep."""
        return len(self.requests)

    @property
    def n_cells(self) -> int:
        """Number of cells in the sweep."""
        return sum(map(len, self.requests.values())) * len(self.variants)

    @property
    def n_failed(self) -> int:
        """Number of cells that failed earlier and are left so."""
        return sum(not record.finished for record in self.ended.values())


def sweep_key(config: SweepConfig) -> str:
    """Return the key under which reruns of a sweep find its parent run again.

    Parameters
    ----------
    config : SweepConfig
        The sweep.

    Returns
    -------
    str
        Hash of all in it that decides results.
    """
    left_out: dict[str, Any] = {"tracking": True, "data": True, "scoring": set(INDECISIVE)}
    return content_key(config.model_dump(mode="json", exclude=left_out))


def plan_sweep(config: SweepConfig, output: Path, *, retry_failed: bool = False) -> SweepPlan:
    """Compare a sweep with what is on disk.

    Parameters
    ----------
    config : SweepConfig
        The sweep.
    output : pathlib.Path
        The folder of earlier work, or a new one.
    retry_failed : bool
        Whether cells that failed earlier are to be computed again.

    Returns
    -------
    SweepPlan
        Nothing is computed or written yet.

    Raises
    ------
    DCSError
        A model or task is not known, or a file of earlier work is damaged.
    """
    store, archive = ProbabilityStore.under(output), Archive(output)
    plan = SweepPlan(config=config, output=output, requests={}, cells={}, ended={})
    known: dict[Any, Any] = {}
    for request in table_requests(config):
        key = request_key(request, known=known)
        plan.requests.setdefault(key, []).append(request)
        plan.texts[key] = texts_key(request, known=known)
    for key in plan.requests:
        digests = store.digests(key)
        if digests is not None:
            plan.cells[key] = plan.cells_on(key, digests)
            records = archive.load([cell.key for cell in plan.cells[key]]).records
            plan.ended.update(
                (key, record)
                for key, record in records.items()
                if record.finished or not retry_failed
            )
    return plan
