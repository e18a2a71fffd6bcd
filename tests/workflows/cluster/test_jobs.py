"""A job on a head of this machine, started and used as docs/cluster.md says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dcs_tracking import Archive
from tests.servers import free_port, ray_node
from tests.workflows.conftest import biased_table


@pytest.mark.slow
def test_a_submitted_sweep_computes_its_uploaded_tables(tmp_path: Path, output: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    biased_table(60).write(folder / "mine.parquet")
    settings = "name: job\ntables: [mine.parquet]\nmethods: [icl, batch]\n"
    (folder / "small.yaml").write_text(settings)
    with ray_node(free_port()) as (_, address):
        ray = Path(sys.executable).with_name("ray")
        command = [ray, "job", "submit", "--address", address, "--working-dir", folder, "--"]
        command += ["dcs", "sweep", "small.yaml", "--address", "auto", "--output", output]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(Archive(output).finished()) == 2
