"""Doing a recorded cell once more: finding its record, getting its tables back, computing it."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from dcs.data.table import ProbabilityTable
from dcs.errors import ConfigError, DCSError, TableError, TrackingError
from dcs.messages import last_line
from dcs.prompting import SPLITS, get_task, parse_shots
from dcs.scoring import StoredScorer
from dcs.scoring.cache import ShardStore
from dcs.scoring.generation import count_queries, generate_tables
from tracking import Archive, CellRecord, resolve_tracking_uri
from tracking.environment import DISTRIBUTION
from tracking.store.queries import find_cell
from workflows.cells import Cell, TableRequest, table_requests
from workflows.config.sweep import SweepConfig
from workflows.parallel import one_thread
from workflows.tables import ProbabilityStore
from workflows.tuning.cell import compute_cell, failed_record

__all__ = [
    "Compared",
    "FoundTables",
    "cell_of",
    "commit_of",
    "compare_results",
    "compare_software",
    "find_record",
    "given_tables",
    "recompute",
    "request_of",
    "requirements_of",
    "scored_tables",
    "stored_tables",
]


#: Figures that are measured anew each time.
_TIMES = ("seconds", "started_ms")

#: What is compared as a whole, with its name for people.
_WHOLES = {
    "scheme": "scheme",
    "class_accuracies": "class accuracies",
    "params": "chosen settings",
    "trials": "trials",
    "trace": "annealing trace",
}

_SOFTWARE = {
    "git_commit": "git commit",
    "sources": "source files",
    "python": "Python",
    "platform": "platform",
    "cpu": "processor",
}

#: How a version that was built between releases names its commit.
_BUILT_FROM = re.compile(r"\+g([0-9a-f]{7,40})")


@dataclass(frozen=True, slots=True)
class Compared:
    """One value as it was recorded and as it is now.

    Attributes
    ----------
    name : str
        What it is.
    recorded, now : str
        Its values, for people.
    same : bool
        Whether they are equal, which the rounded texts do not show.
    """

    name: str
    recorded: str
    now: str
    same: bool


def compare_results(recorded: CellRecord, now: CellRecord) -> list[Compared]:
    """Compare all that a cell found, exactly: scheme, metrics, trials, trace.

    Times are left out, and what the recorded version did not know yet.

    Parameters
    ----------
    recorded, now : CellRecord
        Of the same cell.

    Returns
    -------
    list of Compared
        The ending, then the scheme and the other wholes, then each metric.
    """
    then, again = _content(recorded), _content(now)
    for name in again["class_accuracies"].keys() - then["class_accuracies"].keys():
        del again["class_accuracies"][name]
    rows = [_ending(recorded, now)]
    for name, title in _WHOLES.items():
        if then[name] or again[name]:
            same = then[name] == again[name]
            rows.append(Compared(title, _short(then[name]), _short(again[name]), same))
    for name, value in then["metrics"].items():
        found = again["metrics"].get(name)
        rows.append(Compared(name, _figure(name, value), _figure(name, found), value == found))
    return rows


def compare_software(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[Compared]:
    """Compare the provenance of two records: commit, sources, Python, machine, packages.

    Parameters
    ----------
    recorded, now : mapping
        As :func:`tracking.collect_provenance` makes it; what one of them lacks is left out.
    """
    rows = []
    for name, title in _SOFTWARE.items():
        then, here = recorded.get(name), now.get(name)
        if then is not None and here is not None:
            rows.append(Compared(title, _text(then), _text(here), then == here))
    then_packages, here_packages = _packages(recorded), _packages(now)
    for name, version in then_packages.items():
        here = here_packages.get(name)
        rows.append(Compared(name, version, here or "not installed", version == here))
    return rows


def requirements_of(record: CellRecord) -> str:
    """Return the packages that a record was computed with, as a requirements file for pip.

    This package is not among them: how to get it is said in a comment.
    """
    about = record.provenance
    packages = _packages(about)
    own = about.get("packages", {}).get(DISTRIBUTION, "of an unknown version")
    commit = commit_of(record)
    lines = [
        f"# Cell {record.key} was computed with {DISTRIBUTION} {own}"
        + (f", commit {commit}" if commit else ""),
        f"# on Python {about.get('python', 'of an unknown version')}, {about.get('platform', '')}",
    ]
    if "lock" not in about:
        lines.append("# The record is of a version that noted only these packages.")
    for name, version in packages.items():
        public, _, local = version.partition("+")
        lines.append(f"{name}=={public}" + (f"  # build {local}" if local else ""))
    return "\n".join(lines) + "\n"


def commit_of(record: CellRecord) -> str | None:
    """Return the commit that a record was made with: of the checkout, or of the built package."""
    about = record.provenance
    built = _BUILT_FROM.search(str(about.get("packages", {}).get(DISTRIBUTION, "")))
    return about.get("git_commit") or (built[1] if built else None)


def _packages(about: Mapping[str, Any]) -> dict[str, str]:
    named = {k: v for k, v in about.get("packages", {}).items() if k != DISTRIBUTION}
    found: dict[str, str] = {**named, **about.get("lock", {})}
    return dict(sorted(found.items()))


def _content(record: CellRecord) -> dict[str, Any]:
    """Return what a computation must find again, as it would stand in the file."""
    content: dict[str, Any] = json.loads(record.to_json())
    content["trials"] = [_without_times(trial) for trial in content["trials"]]
    for trial in content["trials"]:
        trial["metrics"] = _without_times(trial["metrics"])
    content["metrics"] = _without_times(content["metrics"])
    if content["scheme"]:
        content["scheme"] = {k: v for k, v in content["scheme"].items() if k != "provenance"}
    return content


def _without_times(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k.rpartition("/")[2] not in _TIMES}


def _ending(recorded: CellRecord, now: CellRecord) -> Compared:
    # The traceback tells of places in files; its last line tells what happened.
    then, again = (
        "finished"
        if record.finished
        else f"failed: {last_line(record.error or '') or 'no reason recorded'}"
        for record in (recorded, now)
    )
    return Compared("ending", then, again, then == again)


def _short(value: Any) -> str:
    if not value:
        return "none"
    text = json.dumps(value, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{len(value)}, {digest}" if isinstance(value, list) else digest


def _figure(name: str, value: Any) -> str:
    if not isinstance(value, int | float):
        return "none" if value is None else str(value)
    if name.endswith(("accuracy", "cobias")):
        return f"{100 * value:.2f} %"
    return f"{value:.6g}"


def _text(value: Any) -> str:
    text = str(value)
    return text[:12] if len(text) == 40 and " " not in text else text


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
    archive = Archive(runs)
    if len(name) >= _SHORTEST_PREFIX:
        keys = [path.stem for path in archive.cells.glob("[!.]*.json")]
        found = [key for key in keys if key.startswith(name)]
        if len(found) == 1:
            return archive.read(found[0])
    if tracking_uri is None and not (runs / "mlflow.db").is_file():
        raise TrackingError(
            f"run {name!r}: {runs} has no cell of that key and no MLflow database; give the "
            "folder of the results with --runs, or the store with --tracking-uri"
        )
    return find_cell(resolve_tracking_uri(tracking_uri, runs), name, archive=archive).record


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
    for destination in Archive(runs).destinations():
        if record.key not in destination.keys:
            continue
        values: dict[str, Any] = destination.info.sweep_params
        try:
            yield SweepConfig.model_validate(values)
        except ValidationError:
            continue  # Of dcs tune, or of another version: not a sweep that could be run now.
