"""A job on a head of this machine, started and used as docs/cluster.md says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dcs.data.table import ProbabilityTable
from dcs_tracking import Archive
from tests.servers import free_port, ray_head


@pytest.mark.slow
def test_a_submitted_sweep_computes_its_uploaded_tables(tmp_path: Path, output: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    probs = np.random.default_rng(0).dirichlet([1.0, 1.0, 1.0], size=60)
    table = ProbabilityTable.from_arrays(probs, np.arange(60) % 3, classes=("a", "b", "c"))
    table.write(folder / "mine.parquet")
    settings = "name: job\ntables: [mine.parquet]\nmethods: [icl, batch]\n"
    (folder / "small.yaml").write_text(settings)
    with ray_head(free_port()) as (_, address):
        ray = Path(sys.executable).with_name("ray")
        command = [ray, "job", "submit", "--address", address, "--working-dir", folder, "--"]
        command += ["dcs", "sweep", "small.yaml", "--address", "auto", "--output", output]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(Archive(output).finished()) == 2
