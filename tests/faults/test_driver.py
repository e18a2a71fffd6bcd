"""The driver killed or told to stop: the same command finishes the sweep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tracking.store import queries
from workflows.cluster.connect import ClusterError, check_software

from .processes import DEADLINE, descendants, done, end, find_worker, start_dcs, title, wait_for
from .sweeps import CONFIG, SCORING, check_complete, kept, sweep_command


def test_a_driver_that_is_stopped_is_run_again(cluster, undisturbed, scored):
    arguments = sweep_command(cluster, scored)
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        process = start_dcs(*arguments)
        if number == signal.SIGKILL:
            wait_for(lambda: list(scored.glob("cells/*.json")), "the first cell")
        else:
            wait_for(lambda: find_worker(os.getpid(), "run_cell"), "work")
        os.kill(process.pid, number)
        code, _, err = end(process)
        if number == signal.SIGKILL:
            assert code == -signal.SIGKILL
        else:
            assert code == 128 + number
            assert err.strip().splitlines() == [
                "dcs: stopped; finished work is saved, run the same command to continue"
            ]
            parents = queries.cells(f"sqlite:///{scored / 'mlflow.db'}", CONFIG.name)
            # None at all where the first cell was not sent yet.
            assert "RUNNING" not in set(parents.get("status", ()))
        assert 1 <= len(kept(scored)) < 6
        wait_for(lambda: find_worker(os.getpid(), "run_cell") is None, "the tasks to be dropped")

    out, _ = done(*arguments)
    assert "finished earlier" in out
    check_complete(scored, undisturbed[1])


def test_nodes_that_run_something_else_are_named_at_the_start(cluster, monkeypatch):
    check_software()
    # Of the driver alone: the nodes have processes of their own.
    monkeypatch.setattr("workflows.cluster.connect.source_digest", lambda: "another")
    with pytest.raises(ClusterError, match="another") as caught:
        check_software()
    assert "\n" not in str(caught.value)


def test_a_local_ray_ends_with_its_driver(scored):
    process = start_dcs(*sweep_command(None, scored))
    wait_for(lambda: find_worker(process.pid, "run_cell"), "work")
    below = descendants(process.pid)
    process.kill()
    end(process)
    # Two small helpers of Ray take a minute to notice; they compute nothing.
    at_work = [pid for pid in below if not title(pid).endswith("Agent")]
    wait_for(lambda: not any(map(title, at_work)), "Ray to end")


def test_workers_import_nothing_from_the_current_folder(tmp_path):
    """A folder that holds packages of the same names as ours, and one of a dependency."""
    for name in ("tracking/__init__.py", "workflows/__init__.py", "scipy.py"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()", encoding="utf-8")
    config = SCORING.model_copy(update={"methods": ("icl", "dnip"), "seeds": (0,)})
    arguments = [str(each) for each in sweep_command(None, tmp_path / "runs", config=config)]
    script = Path(sys.executable).with_name("dcs")
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [script, *arguments],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert ended.returncode == 0, ended.stderr
    assert {record.status for record in kept(tmp_path / "runs")} == {"FINISHED"}
    assert not (tmp_path / "executed").exists()


def test_a_stop_at_any_time_after_the_start_is_one_line(tmp_path):
    output = tmp_path / "runs"
    for delay in (1.0, 2.0, 4.0, 8.0):
        number = signal.SIGHUP if delay == 4.0 else signal.SIGTERM
        process = start_dcs(*sweep_command(None, output))
        time.sleep(delay)
        os.kill(process.pid, number)
        code, _, err = end(process)
        # Before its handlers are installed, a command ends by the signal and says nothing.
        if delay == 1.0 and code == -number:
            continue
        assert code == 128 + number, err
        assert err.strip().splitlines() == [
            "dcs: stopped; finished work is saved, run the same command to continue"
        ]
