"""A job on a head of this machine, started and used as docs/cluster.md says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dcs.data.table import ProbabilityTable
from dcs_tracking import Archive
from tests.servers import free_port, ray_head

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


def submit(head: str, folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    ray = Path(sys.executable).with_name("ray")
    command = [ray, "job", "submit", "--address", head, "--working-dir", folder, "--"]
    command += ["dcs", "sweep", "small.yaml", "--address", "auto", *arguments]
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=500)


@pytest.mark.slow
def test_a_submitted_sweep_computes_its_uploaded_tables(
    head: str, tmp_path: Path, output: Path
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    probs = np.random.default_rng(0).dirichlet([1.0, 1.0, 1.0], size=60)
    table = ProbabilityTable.from_arrays(probs, np.arange(60) % 3, classes=("a", "b", "c"))
    table.write(folder / "mine.parquet")
    settings = "name: job\ntables: [mine.parquet]\nmethods: [icl, batch]\n"
    (folder / "small.yaml").write_text(settings)
    done = submit(head, folder, "--output", output)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(Archive(output).finished()) == 2


@pytest.mark.slow
def test_a_submitted_sweep_that_is_refused_fails(head: str, config: Path, tmp_path: Path) -> None:
    done = submit(head, config.parent, "--output", tmp_path, "--tracking-uri", "./mlruns")
    assert done.returncode != 0
    assert "dcs: error: " in done.stdout
