"""A job on a head of this machine, started and used as docs/cluster.md says."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.servers import free_port, ray_head
from tests.workflows.conftest import run_dcs
from tracking import Archive

CONFIG = """
name: job
tasks: [helpdesk]
methods: [icl, dcs]
limit: 60
tuner: {trials: 2, space: {calibration: none, corrections: both, beta: 0.5}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def head() -> Iterator[str]:
    """The jobs' address of ``ray start --head``, with these tests' token."""
    with ray_head(free_port()) as (_, address):
        yield address


@pytest.mark.slow
def test_a_sweep_is_submitted_followed_and_done(head: str, config: Path, tmp_path: Path) -> None:
    output = tmp_path / "runs"
    done = run_dcs(
        "submit", config, "--address", head, "--output", output, "--only", "methods=icl"
    )
    assert done.code == 0, done.out + done.err
    assert len(Archive(output).finished()) == 1


@pytest.mark.slow
def test_the_exit_code_is_that_of_the_job(head: str, config: Path, tmp_path: Path) -> None:
    done = run_dcs(
        "submit", config, "--address", head, "--output", tmp_path, "--tracking-uri", "./mlruns"
    )
    assert done.code == 2
    assert "dcs: error: " in done.out


@pytest.mark.slow
def test_nobody_submits_without_the_token(head: str, config: Path) -> None:
    code = "from workflows.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "submit", str(config), "--address", head],
        env={**os.environ, "RAY_AUTH_TOKEN": "0" * 64},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_what_a_job_takes_along(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    jobs: list[dict[str, Any]] = []

    class Jobs:
        def submit_job(self, **job: Any) -> str:
            taken.extend(os.listdir(job["runtime_env"]["working_dir"]))
            jobs.append(job)
            return "raysubmit_1"

    monkeypatch.setattr("workflows.cluster.connect.open_jobs", lambda address: Jobs())
    sweep = ("--set", "tuner.trials=3", "--only", "methods=icl", "--retry-failed")
    outcome = run_dcs("submit", *sweep, config, "--detach")
    assert outcome.code == 0, outcome
    assert taken == ["small.yaml"]
    entry = shlex.split(jobs[0]["entrypoint"])
    assert entry[:5] == ["dcs", "sweep", "small.yaml", "--address", "auto"]
    assert {sweep[:2], sweep[2:4], ("--output", "/mnt/dcs/runs")} <= {*pairwise(entry)}
    assert "--retry-failed" in entry
    assert os.environ["RAY_AUTH_TOKEN"] not in repr(jobs)
