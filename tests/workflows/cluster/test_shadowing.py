"""Files in the folder of a sweep are not imported instead of what is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dcs.data.table import ProbabilityTable
from dcs_tracking import Archive


@pytest.mark.slow
def test_modules_beside_a_sweep_are_not_imported(tmp_path: Path, output: Path) -> None:
    folder = tmp_path / "mine"
    trap = "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n"
    for name in ("tracking/__init__.py", "workflows/__init__.py", "scipy.py", "numba.py"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(trap)
    probs = np.random.default_rng(0).dirichlet([1.0, 1.0, 1.0], size=200)
    table = ProbabilityTable.from_arrays(probs, np.arange(200) % 3, classes=("a", "b", "c"))
    table.write(folder / "mine.parquet")
    settings = "name: mine\ntables: [mine.parquet]\nmethods: [batch, dnip]\nseeds: [0, 1]\n"
    (folder / "sweep.yaml").write_text(settings)
    # As the installed script does: the current folder is not on its own path.
    code = "import sys; sys.path.remove(''); from dcs_workflows.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "sweep", "sweep.yaml", "--output", output],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert len(Archive(output).finished()) == 4
    assert not list(folder.rglob("*.ran"))
