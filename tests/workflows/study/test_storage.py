"""Stored studies of sweeps that share cells, while their processes are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import optuna
import pytest

from dcs_workflows.cli import main  # noqa: F401  (all that forked processes import)
from dcs_workflows.config.sweep import SweepConfig
from dcs_workflows.plan import Cell
from dcs_workflows.study.storage import Studies
from tests.faults.processes import wait_for
from tests.faults.sweeps import kept, results, sweep
from tests.workflows.conftest import biased_table, done

_FORK = multiprocessing.get_context("fork")


def _config(name: str, folder: Path) -> SweepConfig:
    space = {"calibration": "none", "corrections": "weights", "spacing": "linear"}
    return SweepConfig(
        name=name,
        tables=[str(folder / "my.parquet")],
        methods=("dnip",),
        tuner={"trials": 60, "judge": {"development": 0.3}, "space": space},
        tracking={"figures": "none"},
    )


def _started(output: Path, *names: str) -> list[multiprocessing.process.BaseProcess]:
    processes = [
        _FORK.Process(target=lambda n=name: sweep(output, _config(n, output.parent), here=True))
        for name in names
    ]
    for process in processes:
        process.start()
    return processes


@pytest.mark.slow
def test_two_sweeps_that_share_a_cell_and_are_killed_resume_and_end(tmp_path):
    biased_table(200).write(tmp_path / "my.parquet")
    quiet = results(sweep(tmp_path / "quiet", _config("a", tmp_path), here=True)[0])
    output = tmp_path / "runs"

    def lines() -> int:
        return sum(p.read_bytes().count(b"\n") for p in output.glob("studies/*.journal"))

    for more in (20, 10):
        enough = lines() + more
        processes = _started(output, "a", "b")
        wait_for(lambda enough=enough: lines() > enough, "some trials")
        for process in processes:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
    for process in _started(output, "a", "b"):
        process.join()
        assert process.exitcode == 0
    (record,) = kept(output)
    assert results([record]) == quiet
    stored = Studies(output).of(Cell.from_identity(record.identity))
    study = optuna.load_study(study_name=stored.name, storage=stored.storage)
    assert [trial.number for trial in study.trials] == [*range(len(record.trials))]

    collected = tmp_path / "all.journal"
    assert "1 study" in done("runs", "a", "--studies", collected, "--runs", output).out
    assert collected.stat().st_size > 0
    done("rm", record.key[:8], "--yes", "--runs", output)
    assert not (kept(output) or stored.exists)
