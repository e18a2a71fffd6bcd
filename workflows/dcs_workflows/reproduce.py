"""Recompute a recorded cell from its tables and compare the results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from dcs.errors import last_line
from dcs.prompting.tasks import SPLITS
from dcs_tracking import Archive, CellRecord
from dcs_tracking.environment import DISTRIBUTION
from dcs_workflows.config.sweep import SweepConfig
from dcs_workflows.plan import Cell, plan_sweep
from dcs_workflows.study.cell import compute_cell, failed_record
from dcs_workflows.tables import Rows, StoredTables

Tables = Mapping[str, Rows]

#: Metrics that differ between runs.
_TIMES = ("seconds", "started_ms")
_SOFTWARE = ("git_commit", "sources", "plugin", "python", "platform", "cpu")


class Compared(NamedTuple):
    """A recorded value and its current counterpart, both plain JSON values."""

    name: str
    recorded: Any
    now: Any

    @property
    def same(self) -> bool:
        """Whether both are equal, to the last bit of every number."""
        return bool(self.recorded == self.now)


def compare_results(recorded: CellRecord, now: CellRecord) -> list[Compared]:
    """Compare all results of a cell except times: ending, scheme, trials, each metric.

    Metrics and columns that only one of them has, by an older version, are omitted.
    """
    recorded_results, current = _comparable_results(recorded), _comparable_results(now)
    for old, new in zip(recorded_results["trials"], current["trials"], strict=False):
        new["metrics"] = {k: v for k, v in new["metrics"].items() if k in old["metrics"]}
    return [
        Compared(name, value, current[name])
        for name, value in recorded_results.items()
        if name in current
    ]


def _comparable_results(record: CellRecord) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record.to_json())
    (found["scheme"] or {}).pop("provenance", None)
    for each in (found, *found["trials"]):
        each["metrics"] = _drop_times(each["metrics"])
    return {
        "ending": "finished" if record.finished else last_line(record.error or "failed"),
        **{name: found[name] for name in ("scheme", "params")},
        "trials": [_drop_times(trial) for trial in found["trials"]],
        **found["class_accuracies"],
        **found["metrics"],
    }


def _drop_times(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k.rpartition("/")[2] not in _TIMES}


def compare_software(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[Compared]:
    """Compare two results of :func:`dcs_tracking.collect_provenance`, omitting missing values."""
    here = _software_of(now)
    return [
        Compared(name, value, here.get(name)) for name, value in _software_of(recorded).items()
    ]


def _software_of(provenance: Mapping[str, Any]) -> dict[str, str]:
    found = {name: provenance[name] for name in _SOFTWARE if provenance.get(name) is not None}
    found |= provenance.get("packages", {})
    found.pop(DISTRIBUTION, None)  # Commit and sources are more precise.
    return found


def stored_tables(record: CellRecord, runs: Path) -> Tables | None:
    """Return the tables of a cell by their recorded hashes: scored in `runs`, or given ones.

    Raises
    ------
    DCSError
        If a file has changed since it was scored, or a given one cannot be read.
    """
    wanted = {str(split): record.identity[f"{split}_digest"] for split in SPLITS}
    for folder in sorted(StoredTables.under(runs, "").folder.glob("*/")):
        if (stored := StoredTables(folder)).digests == wanted:
            return stored.read()
    archive = Archive(runs)
    for sweep in archive.sweeps():
        if record.key not in archive.keys(sweep.sweep_key):
            continue
        known = SweepConfig.model_fields.keys() & sweep.sweep_params.keys()
        config = {name: sweep.sweep_params[name] for name in known}
        try:
            plan = plan_sweep(SweepConfig.model_validate(config), runs)
        except ValidationError:
            continue  # A sweep of another version.
        for key, cells in plan.cells.items():
            if any(cell.key == record.key for cell in cells):
                return plan.tables[key].read()
    return None


def recompute(
    record: CellRecord, tables: Tables, *, progress: Callable[[float], None] = lambda share: None
) -> CellRecord:
    """Recompute a recorded cell; if it raises, return a FAILED record like a sweep.

    Raises
    ------
    ConfigError
        If it was recorded by a version with other settings, which are named.
    """
    cell = Cell.from_identity(record.identity)
    started_ms = time.time_ns() // 1_000_000
    try:
        return compute_cell(
            cell, tables["optimization"], tables["test"], sweep=record.sweep, progress=progress
        )
    except Exception as error:
        return failed_record(cell, error, sweep=record.sweep, started_ms=started_ms)
