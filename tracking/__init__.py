"""MLflow: runs, queries and tables of sweeps.

`Archive` saves every finished cell on disk, `Recorder` writes the runs of a sweep, `sync` sends
missing runs to a store and `queries` reads cells back; `Cells` are what tables and figures are
made of (`tracking.results`).
"""

from __future__ import annotations

from tracking.archive import Archive, Sweep
from tracking.environment import collect_provenance
from tracking.records import CellRecord, PromptRecord, ScoringRecord, TrialRecord
from tracking.results.cells import Cells
from tracking.store import queries
from tracking.store.recorder import Recorder, RecorderReport, sync

__all__ = [
    "Archive",
    "CellRecord",
    "Cells",
    "PromptRecord",
    "Recorder",
    "RecorderReport",
    "ScoringRecord",
    "Sweep",
    "TrialRecord",
    "collect_provenance",
    "queries",
    "sync",
]
