"""What a sweep counts for Ray's dashboard and Prometheus."""

from __future__ import annotations

from typing import Final

from ray.util.metrics import Counter, Gauge

from tracking import CellRecord
from workflows.tables import Scoring

__all__ = ["Meters"]

_COUNTERS: Final = {
    "cells": "Cells that were computed",
    "failed": "Those of them that failed",
    "trials": "Trials of their studies",
    "moves": "Candidate solutions that their searches judged",
    "prompts": "Prompts of the tables that were scored",
    "tokens": "Tokens of those that a model was asked",
}
_GAUGES: Final = {
    "recorded": "Cells that were written to MLflow",
    "pending": "Cells that are on disk and wait for it",
}


class Meters:
    """Counters ``dcs_<name>`` with the tag ``sweep``; those of a process that is not on Ray rest.

    Parameters
    ----------
    sweep : str
        Name of the sweep.
    """

    def __init__(self, sweep: str) -> None:
        self._tags = {"sweep": sweep}
        self._counters = {
            name: Counter(f"dcs_{name}", description=about, tag_keys=("sweep",))
            for name, about in _COUNTERS.items()
        }
        self._gauges = {
            name: Gauge(f"dcs_{name}", description=about, tag_keys=("sweep",))
            for name, about in _GAUGES.items()
        }

    def computed(self, record: CellRecord) -> None:
        """Count a cell that was computed."""
        self._count(
            cells=1, failed=not record.finished, trials=len(record.trials), moves=record.moves
        )

    def scored(self, scoring: Scoring) -> None:
        """Count a pair of tables that was scored."""
        self._count(prompts=scoring.rows, tokens=scoring.tokens)

    def recorded(self, recorded: int, pending: int) -> None:
        """Say how far the recorder is."""
        self._gauges["recorded"].set(recorded, self._tags)
        self._gauges["pending"].set(pending, self._tags)

    def _count(self, **amounts: float) -> None:
        for name, amount in amounts.items():
            if amount > 0:  # Ray counts nothing else.
                self._counters[name].inc(amount, self._tags)
