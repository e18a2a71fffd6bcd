"""Studies written down in PostgreSQL, and trials fanned out, while processes are killed."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator

import optuna
import pytest
from pydantic import SecretStr

from dcs_tracking import CellRecord
from dcs_workflows.plan import STORAGE_VARIABLE
from tests.workflows.conftest import done

from .processes import end, find_worker, kill_worker, start_dcs, wait_for
from .sweeps import (
    ALONE,
    CONFIG,
    check_complete,
    disturbed_sweep,
    kept,
    results,
    same_cells,
    sweep_command,
)

PASSWORD = "a%21pass-word"
TRIALS = CONFIG.tuner.trials


@pytest.fixture
def studies(postgres) -> Iterator[str]:
    """A database of its own: MLflow keeps its version in a table that Optuna has too."""
    import psycopg

    name = f"optuna_{time.monotonic_ns()}"
    with psycopg.connect(postgres.uri, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield postgres.uri.replace("dcs@", f"dcs:{PASSWORD}@").rpartition("/")[0] + f"/{name}"
    with psycopg.connect(postgres.uri, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _states(url: str) -> Counter[str]:
    """Count all trials in a storage by their state; none while there are no tables."""
    storage = optuna.storages.RDBStorage(url)
    try:
        return Counter(
            trial.state.name
            for study in optuna.get_all_study_summaries(storage)
            for trial in optuna.load_study(study_name=study.study_name, storage=storage).trials
        )
    finally:
        storage.engine.dispose()


def _check_studies(url: str, records: list[CellRecord]) -> None:
    """Every trial of every cell finished once, with the figures of the cell's record."""
    storage = optuna.storages.RDBStorage(url)
    tuned = [record for record in records if record.trials]
    names = {s.study_name[-8:]: s.study_name for s in optuna.get_all_study_summaries(storage)}
    assert {*names} == {record.key[:8] for record in tuned}
    for record in tuned:
        study = optuna.load_study(study_name=names[record.key[:8]], storage=storage)
        complete = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
        by_number = {trial.number: trial for trial in complete}
        assert len(complete) == len(by_number) == TRIALS
        for trial in record.trials:
            assert by_number[trial.number].user_attrs["score"] == trial.value
        assert not study.get_trials(states=[optuna.trial.TrialState.RUNNING])
    storage.engine.dispose()


def test_a_worker_killed_in_mid_study_goes_on_from_there(cluster, undisturbed, scored, studies):
    config = CONFIG.model_copy(update={"optuna_storage": SecretStr(studies)})

    def kill_in_mid_study() -> int:
        wait_for(lambda: find_worker(os.getpid(), "run_cell"), "a cell")
        wait_for(lambda: _states(studies)["COMPLETE"] > 2, "some trials")
        return kill_worker(os.getpid(), "run_cell", after=0)

    records, _ = disturbed_sweep(kill_in_mid_study, scored, config)
    check_complete(scored, undisturbed[1])
    _check_studies(studies, records)


def test_a_driver_killed_in_mid_study_and_run_again(
    cluster, undisturbed, scored, studies, tmp_path, monkeypatch
):
    monkeypatch.setenv(STORAGE_VARIABLE, studies)
    process = start_dcs(*sweep_command(cluster, scored))
    wait_for(lambda: find_worker(os.getpid(), "run_cell"), "a cell")
    wait_for(lambda: _states(studies)["COMPLETE"] > 2, "some trials")
    process.kill()
    said = [*end(process)[1:]]
    wait_for(lambda: find_worker(os.getpid(), "run_cell") is None, "the tasks to be dropped")

    again = done(*sweep_command(None, scored))
    check_complete(scored, undisturbed[1])
    _check_studies(studies, kept(scored))

    # The password is written down and said nowhere.
    for text in [*said, again.out, again.err]:
        assert PASSWORD not in text
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert PASSWORD.encode() not in path.read_bytes(), path


def test_a_storage_that_cannot_be_reached_is_said_at_once(cluster, scored, monkeypatch):
    monkeypatch.setenv(STORAGE_VARIABLE, f"postgresql://dcs:{PASSWORD}@127.0.0.1:1/x")
    err = done(*sweep_command(None, scored), code=2).err
    assert err.startswith("dcs: error: optuna_storage postgresql://")
    assert "127.0.0.1:1" in err
    assert err.count("\n") == 1
    assert PASSWORD not in err
    assert kept(scored) == []


@pytest.mark.parametrize("victim", ["_apply", "run_cell"])
def test_a_lone_cell_or_a_trial_of_it_killed(cluster, undisturbed, scored, victim):
    """On two CPUs its trials are fanned out."""

    def kill_in_mid_trial() -> int:
        wait_for(lambda: find_worker(os.getpid(), "_apply"), "a trial")
        return kill_worker(os.getpid(), victim, after=0)

    records, _ = disturbed_sweep(kill_in_mid_trial, scored, ALONE)
    assert results(records) == same_cells(records, undisturbed[1])


def test_trials_elsewhere_end_with_their_driver(cluster, scored):
    process = start_dcs(*sweep_command(cluster, scored, config=ALONE))
    wait_for(lambda: find_worker(os.getpid(), "_apply"), "a trial")
    os.kill(process.pid, signal.SIGTERM)
    code, _, err = end(process)
    assert code == 128 + signal.SIGTERM, err
    for name in ("_apply", "run_cell"):
        wait_for(lambda name=name: find_worker(os.getpid(), name) is None, f"{name} to end")
