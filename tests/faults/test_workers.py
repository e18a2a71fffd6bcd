"""Workers, actors and nodes that die under a sweep: it goes on, and nothing is lost or twice."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracking.store import queries
from tracking.store.queries import stored_cells

from .processes import add_node, find_workers, kill_worker, wait_for
from .sweeps import (
    ALONE,
    CONFIG,
    check_complete,
    disturbed_sweep,
    kept,
    results,
    same_cells,
    sweep,
)


def test_a_worker_killed_in_mid_annealing(cluster, undisturbed, scored):
    _, report = disturbed_sweep(lambda: kill_worker(os.getpid(), "run_cell"), scored)
    assert report.pending == 0
    check_complete(scored, undisturbed[1])


def test_a_scoring_actor_killed_in_mid_work(cluster, undisturbed, tmp_path):
    disturbed_sweep(lambda: kill_worker(os.getpid(), "ScoringActor.generate"), tmp_path)
    check_complete(tmp_path, undisturbed[1])


@pytest.mark.parametrize("name", ["run_cell", "_apply", "ScoringActor.generate"])
def test_a_stopped_worker_is_ended_and_its_work_done_again(
    cluster, undisturbed, tmp_path, name, monkeypatch
):
    """Its node is alive, and Ray would wait for it for ever."""
    monkeypatch.setattr("workflows.parallel._SILENT_SECONDS", 12.0)
    if name != "ScoringActor.generate":
        shutil.copytree(undisturbed[0] / "probabilities", tmp_path / "probabilities")

    def beating() -> int | None:
        from ray.experimental.internal_kv import _internal_kv_list

        beats = {int(key.rpartition(b"/")[2]) for key in _internal_kv_list("dcs-")}
        return next((pid for pid in find_workers(os.getpid(), name) if pid in beats), None)

    def stop() -> int:
        pid = wait_for(beating, f"a worker that runs {name} and is heard of")
        os.kill(pid, signal.SIGSTOP)
        return pid

    # The last cells are fanned out.
    config = ALONE if name == "_apply" else CONFIG
    with pytest.warns(UserWarning, match="did not run") as said:
        records, _ = disturbed_sweep(stop, tmp_path, config)
    assert len(said) == 1
    assert results(records) == same_cells(records, undisturbed[1])


def test_a_node_lost_with_all_that_ran_on_it(cluster, undisturbed, tmp_path):
    node = add_node(cluster, num_cpus=3)

    def lose_it() -> int:
        raylet = node.all_processes["raylet"][0].process.pid
        pid = kill_worker(raylet, "run_cell", after=0.1)
        cluster.remove_node(node, allow_graceful=False)
        return pid

    disturbed_sweep(lose_it, tmp_path)
    check_complete(tmp_path, undisturbed[1])


def test_a_poisoned_cell_fails_alone_and_is_retried_when_asked(cluster, tmp_path, monkeypatch):
    # Validation refuses this, so that only a study meets it.
    tuner = CONFIG.tuner.model_copy(update={"trials": 0})
    poisoned = CONFIG.model_copy(update={"tuner": tuner, "seeds": (0,)})
    records, report = sweep(tmp_path, poisoned)
    assert report.pending == 0
    assert {r.identity["method"]: r.status for r in records} == {
        "icl": "FINISHED",
        "dnip": "FAILED",
        "dcs": "FAILED",
    }
    cells = queries.cells(f"sqlite:///{tmp_path / 'mlflow.db'}", CONFIG.name)
    assert sorted(cells["status"]) == ["FAILED", "FAILED", "FINISHED"]
    for cell in stored_cells(f"sqlite:///{tmp_path / 'mlflow.db'}", CONFIG.name):
        assert cell.record.finished or "Traceback" in cell.record.error
    again, _ = sweep(tmp_path, poisoned)
    assert results(again) == results(records)
    retried, _ = sweep(tmp_path, poisoned, retry=True)
    assert len(kept(tmp_path)) == 3
    cells = queries.cells(f"sqlite:///{tmp_path / 'mlflow.db'}", CONFIG.name)
    assert len(cells) == 3


def test_a_cell_that_takes_its_worker_with_it(cluster, scored, undisturbed, monkeypatch):
    """A crash in compiled code, again and again: the cell is FAILED, the others are not."""
    import workflows.cluster.driver

    monkeypatch.setattr(workflows.cluster.driver, "run_cell", _crash_on_dnip)
    records, report = sweep(scored)
    assert report.pending == 0
    failed = [record for record in records if not record.finished]
    assert [record.identity["method"] for record in failed] == ["dnip", "dnip"]
    assert all("Traceback" in record.error for record in failed)
    monkeypatch.undo()
    sweep(scored, retry=True)
    check_complete(scored, undisturbed[1])


def _crash_on_dnip(cell, *more):
    # On a worker nothing is patched: this is the real one.
    from workflows.cluster.driver import run_cell

    if cell.method == "dnip":
        os.abort()
    return run_cell(cell, *more)


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


@pytest.mark.parametrize("always", [False, True])
def test_a_task_out_of_memory(
    cluster, undisturbed, scored, tmp_path, small_memory, always, monkeypatch
):
    import workflows.cluster.driver

    monkeypatch.setattr(
        workflows.cluster.driver, "run_cell", _greedy(small_memory, tmp_path / "once", always)
    )
    records, report = sweep(scored)
    assert report.pending == 0
    monkeypatch.undo()
    if always:
        failed = [record for record in records if not record.finished]
        assert [record.identity["method"] for record in failed] == ["dnip", "dnip"]
        sweep(scored, retry=True)
    else:
        assert (tmp_path / "once").exists()
    check_complete(scored, undisturbed[1])


def _greedy(group: Path, once: Path, always: bool):
    def run(cell, *more):
        # On a worker nothing is patched: this is the real one.
        from workflows.cluster.driver import run_cell

        if cell.method == "dnip" and (always or not once.exists()):
            once.touch()
            (group / "cgroup.procs").write_text(str(os.getpid()))
            bytearray(os.urandom(2**20) * 1024)
        return run_cell(cell, *more)

    return run
