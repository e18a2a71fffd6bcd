"""A sweep run as a job on a cluster of which a node dies: the job ends well all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.servers import free_port, ray_node

from .processes import descendants, find_worker, wait_for
from .sweeps import check_complete, sweep_command


def test_a_node_dies_under_a_submitted_sweep(undisturbed, scored, tmp_path):
    port = free_port()
    ray = str(Path(sys.executable).parent / "ray")
    command = [ray, "job", "submit", "--address", "JOBS", "--working-dir", str(tmp_path)]
    command += ["--", "dcs", *map(str, sweep_command(None, scored)), "--address", "auto"]
    with (
        ray_node(port, cpus=0) as (_, jobs),
        ray_node(port, head=False) as (lost, _),
        ExitStack() as other,
    ):
        command[4] = jobs
        job = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        worker = wait_for(lambda: find_worker(lost, "run_cell"), "a cell on the node")
        # The cell does not end before the other node is there.
        os.kill(worker, signal.SIGSTOP)
        other.enter_context(ray_node(port, head=False))
        for pid in [lost, *descendants(lost)]:
            os.kill(pid, signal.SIGKILL)
        log, _ = job.communicate(timeout=600)
        assert job.returncode == 0, log
    check_complete(scored, undisturbed[1])
