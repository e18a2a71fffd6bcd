"""The sweeps behind reports/findings.md, small, on tables of which the answers are known."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.findings import finding_tables, sweep_records
from tests.workflows.conftest import cell_times, done

SCRIPT = Path(__file__).parents[2] / "scripts" / "overlapping_tables.py"
CONFIGS = sorted((Path(__file__).parents[2] / "benchmarks" / "configs").glob("*.yaml"))
SMALL = (
    *("--only", "seeds=0", "--set", "tuner.search.budget=3000"),
    *("--set", "optimization_sizes=[60, full]", "--set", "tuner.trials=1"),
)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("overlapping")
    subprocess.run([sys.executable, SCRIPT, folder, "--rows", "600"], check=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_each_sweep_fills_its_tables_and_computes_nothing_twice(cluster, output, config, tables):
    command = ("sweep", config, "--tables", tables, *SMALL, "--output", output)
    done(*command)
    made = finding_tables(sweep_records(output, config.stem))
    assert made
    assert all(table.frame["sources"].eq(6).all() for table in made)
    times = cell_times(output)
    done(*command)
    assert times == cell_times(output)
    if config.stem == "findings":
        # Where classes overlap non-monotonically no weight does what memberships do; 60 rows are
        # too few to find it.
        change = made[0].frame.set_index(["method", "schedule"])["change"]
        assert change["dcs", "tuned"].max() > 0.05
