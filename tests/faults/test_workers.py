"""Workers, actors and nodes that die under a sweep: it goes on, and nothing is lost or twice."""

from __future__ import annotations

import os

from tests.tracking.cells import runs_of

from .processes import kill_worker
from .sweeps import (
    CONFIG,
    SCORING,
    check_complete,
    disturbed_sweep,
    of_scoring,
    poison,
    results,
    same_cells,
    sweep,
)


def test_a_scoring_actor_killed_in_mid_work(cluster, undisturbed, output):
    disturbed_sweep(lambda: kill_worker(os.getpid(), "ScoringActor.score"), output, SCORING)
    check_complete(output, of_scoring(undisturbed[1]))


def test_a_cell_that_takes_its_worker_with_it(cluster, undisturbed, scored, monkeypatch):
    """Again and again: the cell is FAILED, the others are not, and it is retried when asked."""
    import dcs_workflows.cluster.driver

    config = CONFIG.model_copy(update={"seeds": (0,), "methods": ("icl", "dnip")})
    monkeypatch.setattr(dcs_workflows.cluster.driver, "_RETRIES", 1)
    poison(monkeypatch, deadly=True)
    records, report = sweep(scored, config)
    assert report.pending == 0
    ended = {record.identity["method"]: record.finished for record in records}
    assert ended == {"icl": True, "dnip": False}
    assert "Traceback" in next(record.error for record in records if not record.finished)
    again, _ = sweep(scored, config)
    assert results(again) == results(records)
    monkeypatch.undo()
    records, _ = sweep(scored, config, retry=True)
    assert results(records) == same_cells(records, undisturbed[1])
    runs = runs_of(f"sqlite:///{scored / 'mlflow.db'}", CONFIG.name)
    assert [run.info.status for run in runs] == ["FINISHED"] * 2
