"""MLflow: runs, queries and tables of sweeps.

`Archive` saves every finished cell on disk, `Recorder` writes the runs of a sweep, `sync` sends
missing runs to a store and `queries` reads cells back; `Cells` are what tables and figures are
made of (`dcs_tracking.results`).
"""

from __future__ import annotations

from dcs_tracking.archive import Archive, Sweep
from dcs_tracking.environment import collect_provenance
from dcs_tracking.records import CellRecord, ScoringRecord, TrialRecord
from dcs_tracking.results.cells import Cells
from dcs_tracking.store import queries
from dcs_tracking.store.recorder import Recorder, RecorderReport, sync

__all__ = [
    "Archive",
    "CellRecord",
    "Cells",
    "Recorder",
    "RecorderReport",
    "ScoringRecord",
    "Sweep",
    "TrialRecord",
    "collect_provenance",
    "queries",
    "sync",
]
