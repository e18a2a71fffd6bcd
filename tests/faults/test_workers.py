"""Workers, actors and nodes that die under a sweep: it goes on, and nothing is lost or twice."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracking.store import queries
from tracking.store.queries import stored_cells
from workflows.parallel import StoppedWorkers

from .processes import add_node, find_workers, kill_worker, title, wait_for
from .sweeps import (
    ALONE,
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
    disturbed_sweep(lambda: kill_worker(os.getpid(), "ScoringActor.generate"), output, SCORING)
    check_complete(output, of_scoring(undisturbed[1]))


# The last cells are fanned out.
@pytest.mark.parametrize(
    ("name", "config"),
    [("run_cell", CONFIG), ("_apply", ALONE), ("ScoringActor.generate", SCORING)],
)
def test_a_stopped_worker_is_ended_and_its_work_done_again(
    cluster, undisturbed, output, name, config, monkeypatch
):
    """Its node is alive, and Ray would wait for it for ever."""
    monkeypatch.setattr("workflows.parallel._SILENT_SECONDS", 12.0)
    sweeps: list[str] = []
    stopped: list[int] = []

    class Noted(StoppedWorkers):
        def __init__(self) -> None:
            super().__init__()
            sweeps.append(self.heartbeat.sweep)

    monkeypatch.setattr("workflows.cluster.driver.StoppedWorkers", Noted)
    if config != SCORING:
        shutil.copytree(undisturbed[0] / "probabilities", output / "probabilities")

    def stop_one() -> bool:
        """Stop a worker that this sweep has heard of, and not an earlier one it worked for."""
        from ray.experimental.internal_kv import _internal_kv_list

        keys = _internal_kv_list(sweeps[0]) if sweeps else []
        beating = {int(key.rpartition(b"/")[2]) for key in keys}
        for pid in beating.intersection(find_workers(os.getpid(), name)):
            os.kill(pid, signal.SIGSTOP)
            if title(pid).startswith(f"ray::{name}"):
                stopped.append(pid)
                return True
            # It had just finished.
            os.kill(pid, signal.SIGCONT)
        return False

    def stop() -> int:
        wait_for(stop_one, f"a worker that runs {name} and is heard of")
        return stopped[0]

    with pytest.warns(UserWarning, match="did not run") as said:
        records, _ = disturbed_sweep(stop, output, config)
    # On a busy machine others may be silent for so long too, and are ended as well.
    ended = [re.findall(r"worker (\d+) on", str(warning.message)) for warning in said]
    assert [str(stopped[0])] in ended
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
    # Validation refuses this, so that only a study meets it.
    tuner = CONFIG.tuner.model_copy(update={"trials": 0})
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
