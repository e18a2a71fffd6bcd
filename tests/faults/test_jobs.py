"""A sweep run as a job on a cluster of which a node dies: the job ends well all the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.servers import free_port, ray_head, running

from .processes import descendants, find_worker, wait_for
from .sweeps import check_complete, sweep_command


def test_a_node_dies_under_a_submitted_sweep(undisturbed, scored, tmp_path):
    port = free_port()
    ray = str(Path(sys.executable).parent / "ray")
    command = [ray, "job", "submit", "--address", "JOBS", "--working-dir", str(tmp_path)]
    command += ["--", "dcs", *map(str, sweep_command(None, scored)), "--address", "auto"]
    with ray_head(port, cpus=0) as (_, jobs), _node(port) as lost, ExitStack() as other:
        command[4] = jobs
        job = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        worker = wait_for(lambda: find_worker(lost, "run_cell"), "a cell on the node")
        # The cell does not end before the other node is there.
        os.kill(worker, signal.SIGSTOP)
        other.enter_context(_node(port))
        for pid in [lost, *descendants(lost)]:
            os.kill(pid, signal.SIGKILL)
        log, _ = job.communicate(timeout=600)
        assert job.returncode == 0, log
    check_complete(scored, undisturbed[1])


@contextmanager
def _node(port: int) -> Iterator[int]:
    """Run a node of two CPUs on this machine; give the id of the process above all its others."""
    agent = free_port()
    # In one folder the nodes of a machine would clear away each other's files of jobs.
    folder = Path(f"/tmp/ray-dcs-{os.getpid()}-{agent}")
    command = ["ray", "start", f"--address=127.0.0.1:{port}", "--block", "--num-cpus=2"]
    command += ["--node-ip-address=127.0.0.1", f"--dashboard-agent-listen-port={agent}"]
    command += [f"--temp-dir={folder}"]
    try:
        with running(command, f"http://127.0.0.1:{agent}/api/local_raylet_healthz") as pid:
            yield pid
    finally:
        shutil.rmtree(folder, ignore_errors=True)
