"""MLflow: runs, queries and tables of sweeps.

`Recorder` writes the runs of a sweep, `Outbox` keeps every finished cell on the disk first,
`sync` replays what a store missed, `queries` reads it back and `tables` lays it out.
"""

from __future__ import annotations

from tracking import queries, tables
from tracking.outbox import Outbox, OutboxContents
from tracking.provenance import collect_provenance
from tracking.recorder import Recorder
from tracking.records import CellRecord, TrialRecord, trace_rows
from tracking.replay import sync
from tracking.reports import RecorderReport
from tracking.stores import default_tracking_uri, resolve_tracking_uri, ui_arguments

__all__ = [
    "CellRecord",
    "Outbox",
    "OutboxContents",
    "Recorder",
    "RecorderReport",
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
