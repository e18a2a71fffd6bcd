"""Workers, actors and nodes that die under a sweep: it goes on, and nothing is lost or twice."""

from __future__ import annotations

import os

from dcs_tracking.store import queries
from dcs_tracking.store.queries import stored_cells
from dcs_workflows.cluster.connect import CELLS

from .processes import add_node, kill_worker, lose_first, remove_node
from .sweeps import (
    CONFIG,
    SCORING,
    check_complete,
    disturbed_sweep,
    kept,
    of_scoring,
    poison,
    results,
    same_cells,
    sweep,
)


def test_a_scoring_actor_killed_in_mid_work(cluster, undisturbed, output):
    disturbed_sweep(lambda: kill_worker(os.getpid(), "ScoringActor.score"), output, SCORING)
    check_complete(output, of_scoring(undisturbed[1]))


def test_a_node_lost_with_all_that_ran_on_it(cluster, undisturbed, scored):
    # Cells run on nodes that say so, if there are any.
    nodes = [add_node(cluster, num_cpus=2, resources={CELLS: 2}) for _ in range(2)]
    try:
        disturbed_sweep(lambda: lose_first(cluster, nodes, "run_cell"), scored)
        assert len(nodes) == 1
    finally:
        for node in nodes:
            remove_node(cluster, node)
    check_complete(scored, undisturbed[1])


def test_a_poisoned_cell_fails_alone_and_is_retried_when_asked(cluster, scored, monkeypatch):
    poison(monkeypatch)
    poisoned = CONFIG.model_copy(update={"seeds": (0,)})
    records, report = sweep(scored, poisoned)
    assert report.pending == 0
    assert {r.identity["method"]: r.status for r in records} == {
        "icl": "FINISHED",
        "dnip": "FAILED",
        "dcs": "FAILED",
    }
    cells = queries.cells(f"sqlite:///{scored / 'mlflow.db'}", CONFIG.name)
    assert sorted(cells["status"]) == ["FAILED", "FAILED", "FINISHED"]
    for cell in stored_cells(f"sqlite:///{scored / 'mlflow.db'}", CONFIG.name):
        assert cell.record.finished or "Traceback" in cell.record.error
    again, _ = sweep(scored, poisoned)
    assert results(again) == results(records)
    sweep(scored, poisoned, retry=True)
    assert len(kept(scored)) == 3
    cells = queries.cells(f"sqlite:///{scored / 'mlflow.db'}", CONFIG.name)
    assert len(cells) == 3


def test_a_cell_that_takes_its_worker_with_it(cluster, undisturbed, scored, monkeypatch):
    """Again and again: the cell is FAILED, the others are not."""
    import dcs_workflows.cluster.driver

    config = CONFIG.model_copy(update={"seeds": (0,), "methods": ("icl", "dnip")})
    monkeypatch.setattr(dcs_workflows.cluster.driver, "_RETRIES", 1)
    monkeypatch.setattr(dcs_workflows.cluster.driver, "run_cells", _deadly())
    records, report = sweep(scored, config)
    assert report.pending == 0
    assert {record.identity["method"]: record.finished for record in records} == {
        "icl": True,
        "dnip": False,
    }
    assert "Traceback" in next(record.error for record in records if not record.finished)
    monkeypatch.undo()
    records, _ = sweep(scored, config, retry=True)
    assert results(records) == same_cells(records, undisturbed[1])


def _deadly():
    def run(cells, *more):
        # On a worker nothing is patched: this is the real one.
        from dcs_workflows.cluster.driver import run_cells

        if cells[0].method == "dnip":
            os.abort()
        return run_cells(cells, *more)

    return run
