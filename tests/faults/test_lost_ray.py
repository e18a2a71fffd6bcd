"""A Ray that dies under its driver: one line, no failed cell, and the same command goes on."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

from tests.servers import free_port, ray_node
from tests.workflows.conftest import done

from .processes import descendants, end, find_worker, start_dcs, title, wait_for
from .sweeps import check_complete, kept, sweep_command


def test_a_local_ray_that_dies_ends_the_sweep_with_one_line(undisturbed, scored):
    arguments = sweep_command(None, scored)
    for part in ("raylet", "gcs_server"):
        process = start_dcs(*arguments)
        wait_for(lambda process=process: find_worker(process.pid, "run_cell"), "work")
        below = descendants(process.pid)
        victim = next(pid for pid in below if Path(title(pid).partition(" ")[0]).name == part)
        os.kill(victim, signal.SIGKILL)
        _check_end(process, scored, part)

    done(*arguments)
    check_complete(scored, undisturbed[1])


def test_a_joined_head_that_is_killed_ends_the_sweep_with_one_line(scored):
    port = free_port()
    arguments = sweep_command(SimpleNamespace(address=f"127.0.0.1:{port}"), scored)
    impatient = "from dcs_workflows.cluster import connect; connect._LOST_SECONDS = 8.0"
    with ray_node(port) as (head, _):
        process = start_dcs(*arguments, first=impatient)
        wait_for(lambda: list(scored.glob("cells/*.json")), "the first cell")
        for pid in [head, *descendants(head)]:
            os.kill(pid, signal.SIGKILL)
        _check_end(process, scored, "no living node")


def _check_end(process: subprocess.Popen[str], output: Path, reason: str) -> None:
    code, _, err = end(process)
    assert code == 2, err
    (line,) = [line for line in err.splitlines() if line.startswith("dcs: ")]
    assert reason in line and "same command" in line
    assert {record.status for record in kept(output)} <= {"FINISHED"}
