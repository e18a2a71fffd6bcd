"""A job on a head of this machine, started and used as docs/cluster.md says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import free_ports, running
from tests.workflows.conftest import run_dcs
from tracking import Archive

pytestmark = pytest.mark.slow

CONFIG = """
name: job
tasks: [helpdesk]
methods: [icl, dcs]
limit: 60
tuner: {trials: 2}
"""


@pytest.fixture(scope="module")
def head() -> Iterator[str]:
    """The jobs' address of ``ray start --head``, with these tests' token, all on loopback."""
    port, dashboard, agent = free_ports(3)
    # Sockets of Ray have a limit on the length of their path, which pytest's folders exceed.
    folder = Path(f"/tmp/ray-dcs-{os.getpid()}")
    command = ["ray", "start", "--head", "--block", f"--port={port}", "--num-cpus=2"]
    command += ["--node-ip-address=127.0.0.1", f"--temp-dir={folder}"]
    command += ["--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"]
    # The fixed default may be taken by another Ray on this machine; jobs are started there.
    command += [f"--dashboard-agent-listen-port={agent}"]
    try:
        with running(command, f"http://127.0.0.1:{dashboard}/api/gcs_healthz"):
            yield f"http://127.0.0.1:{dashboard}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_sweep_is_submitted_followed_and_done(head: str, tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(CONFIG)
    output = tmp_path / "runs"
    done = run_dcs("submit", config, "--address", head, "--output", output)
    assert done.code == 0, done.out + done.err
    assert "2 cells recorded in experiment 'job'" in done.out
    assert len(Archive(output).finished()) == 2

    again = run_dcs("submit", config, "--address", head, "--output", output, "--only", "seeds=0")
    assert again.code == 0
    assert "2 cells finished earlier" in again.out


def test_the_exit_code_is_that_of_the_job(head: str, tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(CONFIG)
    done = run_dcs(
        "submit", config, "--address", head, "--output", tmp_path, "--tracking-uri", "./mlruns"
    )
    assert done.code == 2
    assert "dcs: error: " in done.out


def test_nobody_submits_without_the_token(
    head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(CONFIG)
    environment = {**os.environ, "RAY_AUTH_TOKEN": "0" * 64}
    code = "from workflows.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "submit", str(config), "--address", head],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("dcs: error: ")
    assert done.stderr.count("\n") == 1
