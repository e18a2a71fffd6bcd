"""The same configuration and seed: the same bytes, whatever the CPUs and whatever went wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dcs_tracking import Archive
from dcs_workflows.config.sweep import SweepConfig
from tests.faults.processes import end, start_dcs
from tests.faults.sweeps import kept, results, sweep, sweep_command
from tests.workflows.conftest import QUICK

pytestmark = pytest.mark.slow

CONFIG = SweepConfig(
    name="again",
    tasks=("helpdesk",),
    shots=(1,),
    seeds=(0,),
    methods=("icl", "batch", "dcs"),
    limit=80,
    tuner=QUICK | {"trials": 4},
    # Cross-validation calibrates, which is linear algebra; a study is Optuna and annealing.
    axes={"development": (0.3, None)},
    tracking={"trials": "none", "figures": "none"},
)
N_CELLS = 4


def tables(output: Path) -> dict[str, bytes]:
    """Return every probability table of a folder, as it lies on the disk."""
    files = sorted(output.glob("probabilities/*/*.parquet"))
    return {str(path.relative_to(output)): path.read_bytes() for path in files}


def check_same(output: Path, first: Path) -> None:
    assert tables(output) == tables(first)
    assert results(kept(output)) == results(kept(first))


@pytest.fixture(scope="module")
def first(cluster, new_output) -> Path:
    """A sweep on two CPUs."""
    output = new_output()
    sweep(output, CONFIG)
    records = Archive(output).load().values()
    assert [record.status for record in records] == ["FINISHED"] * N_CELLS
    assert len(tables(output)) == 2
    return output


@pytest.mark.parametrize("lost", ["note", "table"])
def test_what_was_deleted_comes_back_as_it_was(first, tmp_path, lost):
    output = tmp_path / "runs"
    shutil.copytree(first, output)
    for path in sorted(output.glob("cells/*.json"))[::2]:
        path.unlink()
    (note,) = output.glob("probabilities/*/scoring.json")
    (note if lost == "note" else note.parent / "test.parquet").unlink()
    shards = [path for path in sorted(output.glob("shards/**/*")) if path.is_file()]
    assert shards
    for path in shards[::2]:
        path.unlink()
    sweep(output, CONFIG)
    check_same(output, first)


ONE_CPU = """
import ray
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
"""


def test_one_cpu_gives_the_same_bytes(first, output):
    command = sweep_command(None, output, config=CONFIG)
    code, _, err = end(start_dcs(*command, first=ONE_CPU))
    assert code == 0, err
    check_same(output, first)
