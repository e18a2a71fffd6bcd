"""The driver killed or told to stop: the same command finishes the sweep."""

from __future__ import annotations

import os
import signal

from tests.tracking.cells import runs_of
from tests.workflows.conftest import done

from .processes import descendants, end, find_worker, start_dcs, title, wait_for
from .sweeps import CONFIG, check_complete, kept, sweep_command


def test_a_driver_that_is_stopped_is_run_again(cluster, undisturbed, scored):
    arguments = sweep_command(cluster, scored)
    for number in (signal.SIGKILL, signal.SIGINT):
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
            # None at all where the first cell was not sent yet.
            runs = runs_of(f"sqlite:///{scored / 'mlflow.db'}", CONFIG.name)
            assert "RUNNING" not in {run.info.status for run in runs}
        assert 1 <= len(kept(scored)) < 6
        wait_for(lambda: find_worker(os.getpid(), "run_cell") is None, "the tasks to be dropped")

    assert "finished earlier" in done(*sweep_command(None, scored)).out
    check_complete(scored, undisturbed[1])


def test_a_local_ray_ends_with_its_driver(scored):
    process = start_dcs(*sweep_command(None, scored))
    wait_for(lambda: find_worker(process.pid, "run_cell"), "work")
    below = descendants(process.pid)
    process.kill()
    end(process)
    # Two small helpers of Ray take a minute to notice; they compute nothing.
    at_work = [pid for pid in below if not title(pid).endswith("Agent")]
    wait_for(lambda: not any(map(title, at_work)), "Ray to end")
