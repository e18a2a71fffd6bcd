"""Workers, actors and nodes that die under a sweep: it goes on, and nothing is lost or twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracking.store import queries
from tracking.store.queries import stored_cells

from .processes import add_node, kill_worker, wait_for
from .sweeps import (
    CONFIG,
    SCORING,
    check_complete,
    disturbed_sweep,
    kept,
    of_scoring,
    results,
    same_cells,
    sweep,
)


def test_a_worker_killed_in_mid_annealing(cluster, undisturbed, scored):
    _, report = disturbed_sweep(lambda: kill_worker(os.getpid(), "run_cell"), scored)
    assert report.pending == 0
    check_complete(scored, undisturbed[1])


def test_a_scoring_actor_killed_in_mid_work(cluster, undisturbed, output):
    disturbed_sweep(lambda: kill_worker(os.getpid(), "ScoringActor.score"), output, SCORING)
    check_complete(output, of_scoring(undisturbed[1]))


def test_a_cell_that_hangs_is_ended_by_its_time_limit(cluster, undisturbed, scored):
    """Its worker is stopped: its node is alive, and Ray would wait for it for ever."""
    config = CONFIG.model_copy(update={"cell_time_limit": 60.0})
    records, report = disturbed_sweep(
        lambda: kill_worker(os.getpid(), "run_cell", number=signal.SIGSTOP), scored, config
    )
    assert report.pending == 0
    (failed,) = [record for record in records if not record.finished]
    assert "cell_time_limit" in failed.error
    records, _ = sweep(scored, config, retry=True)
    assert results(records) == same_cells(records, undisturbed[1])


def test_a_node_lost_with_all_that_ran_on_it(cluster, undisturbed, scored):
    node = add_node(cluster, num_cpus=3)

    def lose_it() -> int:
        raylet = node.all_processes["raylet"][0].process.pid
        pid = kill_worker(raylet, "run_cell", after=0.1)
        cluster.remove_node(node, allow_graceful=False)
        return pid

    disturbed_sweep(lose_it, scored)
    check_complete(scored, undisturbed[1])


def test_a_poisoned_cell_fails_alone_and_is_retried_when_asked(cluster, scored):
    # It is imported by the study alone.
    tuner = CONFIG.tuner.model_copy(update={"sampler": "nowhere:Sampler"})
    poisoned = CONFIG.model_copy(update={"tuner": tuner, "seeds": (0,)})
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


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group with little memory: who enters and takes more is killed by the kernel."""
    root = Path("/sys/fs/cgroup")
    version_2 = (root / "cgroup.controllers").exists()
    group = (root if version_2 else root / "memory") / f"dcs-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        limit = "memory.max" if version_2 else "memory.limit_in_bytes"
        (group / limit).write_text(str(200 * 2**20))
        yield group
    except OSError as error:
        pytest.skip(f"no control group with a memory limit can be made here: {error}")
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text().strip(), "the group to empty")
        group.rmdir()


@pytest.mark.parametrize("death", ["crash", "out of memory"])
def test_a_cell_that_takes_its_worker_with_it(
    cluster, undisturbed, scored, death, request, monkeypatch
):
    """Again and again: the cell is FAILED, the others are not."""
    import workflows.cluster.driver

    group = request.getfixturevalue("small_memory") if death == "out of memory" else None
    config = CONFIG.model_copy(update={"seeds": (0,), "methods": ("icl", "dnip")})
    monkeypatch.setattr(workflows.cluster.driver, "_RETRIES", 1)
    monkeypatch.setattr(workflows.cluster.driver, "run_cell", _deadly(group))
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


def _deadly(group: Path | None):
    def run(cell, *more):
        # On a worker nothing is patched: this is the real one.
        from workflows.cluster.driver import run_cell

        if cell.method == "dnip":
            if group is None:
                os.abort()
            (group / "cgroup.procs").write_text(str(os.getpid()))
            bytearray(os.urandom(2**20) * 1024)
        return run_cell(cell, *more)

    return run
