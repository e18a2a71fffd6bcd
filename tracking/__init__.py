"""MLflow: runs, queries and tables of sweeps.

`Recorder` writes the runs of a sweep, `Archive` keeps every finished cell on the disk first,
`sync` sends what a store lacks, `queries` reads it back and `tables` lays it out.
"""

from __future__ import annotations

from tracking.environment import collect_provenance
from tracking.records import Archive, CellRecord, ScoringRecord, Sweep, TrialRecord, trace_rows
from tracking.results import tables
from tracking.store import queries
from tracking.store.client import default_tracking_uri, resolve_tracking_uri, ui_arguments
from tracking.store.recorder import Recorder, RecorderReport, sync

__all__ = [
    "Archive",
    "CellRecord",
    "Recorder",
    "RecorderReport",
    "ScoringRecord",
    "Sweep",
    "TrialRecord",
    "collect_provenance",
    "default_tracking_uri",
    "queries",
    "resolve_tracking_uri",
    "sync",
    "tables",
    "trace_rows",
    "ui_arguments",
]
