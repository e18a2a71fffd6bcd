"""Doing a recorded cell once more: finding its record, getting its tables back, computing it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from dcs.errors import ConfigError, DCSError, TableError, TrackingError
from dcs.generation import count_queries, generate_tables
from dcs.probabilities import ProbabilityTable
from dcs.prompting import SPLITS, get_task, parse_shots
from dcs.scorers import StoredScorer
from dcs.store import ShardStore
from tracking import CellRecord, Outbox, resolve_tracking_uri
from tracking.stored import find_cell
from workflows.agreement import commit_of
from workflows.cells import Cell, TableRequest, table_requests
from workflows.compute import compute_cell, failed_record
from workflows.config import SweepConfig
from workflows.stores import ProbabilityStore
from workflows.threads import one_thread

__all__ = [
    "FoundTables",
    "cell_of",
    "find_record",
    "given_tables",
    "recompute",
    "request_of",
    "scored_tables",
    "stored_tables",
]

_SHORTEST_PREFIX = 4


@dataclass(frozen=True, slots=True)
class FoundTables:
    """The tables of a cell, and how they were come by.

    Attributes
    ----------
    optimization, test : ProbabilityTable
        Rows to tune on, and rows for the final figures.
    origin : "stored", "given" or "scored again"
        Read from the results, from a file of the user's, or from the model.
    """

    optimization: ProbabilityTable
    test: ProbabilityTable
    origin: Literal["stored", "given", "scored again"]

    @property
    def digests(self) -> dict[str, str]:
        """Content hash of each table, by split."""
        return {"optimization": self.optimization.digest, "test": self.test.digest}

    def largest_difference(self, other: FoundTables) -> float | None:
        """Return how far any probability is from that of `other`; None for other rows."""
        gaps = []
        for mine, theirs in ((self.optimization, other.optimization), (self.test, other.test)):
            if mine.ids != theirs.ids or mine.classes != theirs.classes:
                return None
            gaps.append(float(np.abs(mine.probs - theirs.probs).max()))
        return max(gaps)


def find_record(name: str, *, runs: Path, tracking_uri: str | None) -> CellRecord:
    """Return a recorded cell by its key or the id of its run, or how one of them begins.

    Parameters
    ----------
    name : str
        At least four characters.
    runs : pathlib.Path
        The folder of a sweep's results; its records are looked at first.
    tracking_uri : str or None
        The MLflow store, by default that of `runs`.

    Raises
    ------
    TrackingError
        No cell, or several, begin so; or there are no results at all.
    """
    outbox = Outbox(runs)
    if len(name) >= _SHORTEST_PREFIX:
        keys = [path.stem for path in outbox.cells.glob("[!.]*.json")]
        found = [key for key in keys if key.startswith(name)]
        if len(found) == 1:
            return outbox.read(found[0])
    if tracking_uri is None and not (runs / "mlflow.db").is_file():
        raise TrackingError(
            f"run {name!r}: {runs} has no cell of that key and no MLflow database; give the "
            "folder of the results with --runs, or the store with --tracking-uri"
        )
    return find_cell(resolve_tracking_uri(tracking_uri, runs), name, outbox=outbox).record


def cell_of(record: CellRecord) -> Cell:
    """Return the cell that a record is of.

    Raises
    ------
    ConfigError
        It was recorded by a version with other settings; names them, and the commit.
    """
    try:
        return Cell.from_identity(record.identity)
    except ConfigError as error:
        commit = commit_of(record)
        raise ConfigError(
            f"cell {record.key}: {error}; it was recorded with "
            + (f"commit {commit}" if commit else "another version")
        ) from None


def stored_tables(record: CellRecord, runs: Path) -> tuple[FoundTables | None, list[str]]:
    """Look for the tables of a cell among the scored ones of `runs`.

    Returns
    -------
    tables : FoundTables or None
        Tables whose content has the recorded hashes.
    problems : list of str
        One line for each file that should have been it but is not.
    """
    store = ProbabilityStore.under(runs)
    wanted = _wanted(record)
    problems: list[str] = []
    for note in sorted(store.root.glob("*/scoring.json")):
        key = note.parent.name
        try:
            if store.digests(key) != wanted:
                continue
            tables = store.read(key)
        except DCSError as error:
            problems.append(str(error))
            continue
        return FoundTables(tables["optimization"], tables["test"], "stored"), problems
    return None, problems


def given_tables(
    record: CellRecord, optimization: ProbabilityTable, test: ProbabilityTable
) -> FoundTables:
    """Take the tables of a cell from what the user has.

    Raises
    ------
    TableError
        The numbers are not those that the cell was computed on.
    """
    found = FoundTables(optimization, test, "given")
    for name, digest in _wanted(record).items():
        if found.digests[name] != digest:
            raise TableError(
                f"the {name} rows are not those of cell {record.key}: their hash is "
                f"{found.digests[name][:12]}, recorded is {digest[:12]}; give what dcs tune was "
                "given"
            )
    return found


def request_of(record: CellRecord, runs: Path, *, data: str | None) -> TableRequest:
    """Return how the tables of a cell were asked for.

    The configuration of the sweep says it, where `runs` holds it; otherwise the record itself,
    whose number of rows stands for the limit.

    Parameters
    ----------
    record : CellRecord
        The cell.
    runs : pathlib.Path
        The folder of a sweep's results.
    data : str or None
        Folder with the texts of a task, if not that of the sweep.

    Raises
    ------
    TrackingError
        The record does not say: it was not computed by a sweep.
    """
    for config in _sweeps_of(record, runs):
        for request in table_requests(config):
            if all(
                getattr(request, name) == record.identity[name]
                for name in ("model", "task", "shots", "seed")
            ):
                return replace(request, data=data or request.data)
    about = record.provenance.get("tables", {})
    rows = [int(part["rows"]) for part in about.values()]
    first = about.get("optimization", {})
    # Of a part of the optimization rows the record does not say how many there were.
    whole = len(rows) == len(SPLITS) and record.identity.get("optimization_size") is None
    if not whole or first.get("demonstration_seed") != record.identity["seed"]:
        raise TrackingError(
            f"cell {record.key}: its tables are not among the results, and the record does not "
            "say how to score them; give the table that dcs tune was given with --table, or the "
            "folder of the sweep's results with --runs"
        )
    return TableRequest(
        model=record.identity["model"],
        task=record.identity["task"],
        shots=parse_shots(str(record.identity["shots"])),
        seed=record.identity["seed"],
        limit=max(rows),
        data=data,
    )


def scored_tables(
    request: TableRequest,
    *,
    shards: Path | str | None,
    progress: Callable[[float], None] | None = None,
) -> FoundTables:
    """Score the tables of a request, without keeping them.

    Parameters
    ----------
    request : TableRequest
        What to score.
    shards : path-like, str or None
        Where prompts that were scored before are kept; None scores every prompt again. Either
        way in the shards of a sweep, since numbers depend on which prompts are run together.
    progress : callable, optional
        Called with the share of the prompts that are done, 0..1.

    Raises
    ------
    DCSError
        The model or the task cannot be had.
    """
    task = get_task(request.task, request.data)
    shots, seed, limit = request.shots, request.seed, request.limit
    total = count_queries(task, shots=shots, seed=seed, limit=limit)
    done = 0

    def more(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done / total)

    with ExitStack() as kept:
        if shards is None:
            shards = kept.enter_context(TemporaryDirectory(prefix="dcs-"))
        scorer = StoredScorer(request.scoring.load(request.model), ShardStore(shards))
        kept.callback(scorer.close)
        kept.enter_context(one_thread())
        tables = generate_tables(scorer, task, shots=shots, seed=seed, limit=limit, progress=more)
    return FoundTables(tables["optimization"], tables["test"], "scored again")


def recompute(
    record: CellRecord,
    tables: FoundTables,
    *,
    progress: Callable[[float], None] | None = None,
) -> CellRecord:
    """Compute a recorded cell again, in this process.

    Returns
    -------
    CellRecord
        With status FAILED if it raises, as on a worker of a sweep.
    """
    cell = cell_of(record)
    started_ms = time.time_ns() // 1_000_000
    try:
        return compute_cell(
            cell, tables.optimization, tables.test, sweep=record.sweep, progress=progress
        )
    except Exception as error:
        return failed_record(cell, error, sweep=record.sweep, started_ms=started_ms)


def _wanted(record: CellRecord) -> dict[str, str]:
    return {str(split): str(record.identity.get(f"{split}_digest")) for split in SPLITS}


def _sweeps_of(record: CellRecord, runs: Path) -> Iterator[SweepConfig]:
    for destination in Outbox(runs).destinations():
        if record.key not in destination.keys:
            continue
        values: dict[str, Any] = destination.info.sweep_params
        try:
            yield SweepConfig.model_validate(values)
        except ValidationError:
            continue  # Of dcs tune, or of another version: not a sweep that could be run now.
