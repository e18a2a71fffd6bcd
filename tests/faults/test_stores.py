"""MLflow and the disk failing under a sweep, and the sweep recorded in PostgreSQL."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcs_tracking import sync
from tests.servers import free_port, mlflow_server
from tests.workflows.conftest import done, refused

from .processes import disk, fill
from .sweeps import CONFIG, check_complete, kept, results, sweep, sweep_command


def test_a_server_gone_for_a_while_holds_nothing_up(cluster, undisturbed, scored, tmp_path):
    port = free_port()
    back, over = threading.Event(), threading.Event()
    address = f"http://127.0.0.1:{port}"

    def come_back() -> None:
        # The server is gone when the sweep starts, and comes back while it runs or soon after.
        time.sleep(3)
        with mlflow_server(tmp_path, port):
            back.set()
            over.wait()

    server = threading.Thread(target=come_back)
    server.start()
    try:
        records, report = sweep(scored, tracking_uri=address)
        assert results(records) == undisturbed[1]
        assert back.wait(300), "the server did not come back"
        if report.pending:
            (report,) = sync(scored)
        assert report.pending == 0, report.message
        check_complete(scored, undisturbed[1], address)
    finally:
        over.set()
        server.join()


def test_a_server_gone_for_good_is_replaced_by_postgresql(undisturbed, finished, postgres):
    address = f"http://127.0.0.1:{free_port()}"
    ended = done(*sweep_command(None, finished, "--tracking-uri", address), code=3)
    assert f"dcs sync --output {finished}" in ended.out
    (report,) = sync(finished, tracking_uri=postgres.uri)
    assert report.pending == 0
    check_complete(finished, undisturbed[1], postgres.uri)
    # Nothing is left for the old one.
    assert sync(finished) == ()


def test_a_server_on_postgresql_killed_between_runs(undisturbed, finished, postgres, tmp_path):
    port = free_port()
    half = CONFIG.model_copy(update={"seeds": (0,)})
    with mlflow_server(tmp_path, port, backend=postgres.uri) as address:
        sweep(finished, half, tracking_uri=address)
    _, report = sweep(finished, tracking_uri=address)
    assert report.pending == len(undisturbed[1])
    with mlflow_server(tmp_path, port, backend=postgres.uri):
        _, report = sweep(finished, tracking_uri=address)
        assert report.pending == 0
        check_complete(finished, undisturbed[1], address)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with little room."""
    with disk(tmp_path / "small", "2m") as folder:
        yield folder


def test_a_full_disk_stops_the_sweep_and_loses_nothing(cluster, undisturbed, small_disk, output):
    runs = small_disk / "runs"
    runs.mkdir()
    elsewhere = f"sqlite:///{output / 'mlflow.db'}"
    arguments = sweep_command(None, runs, "--tracking-uri", elsewhere)
    # First no table can be written, then, where they all are there, no cell.
    for leave in (16_000, 40_000):
        ballast = fill(small_disk, leave=leave)
        refused(*arguments, says=["No space left on device", "command again"])
        for record in kept(runs):
            assert record.finished
        ballast.unlink()
        shutil.copytree(
            undisturbed[0] / "probabilities", runs / "probabilities", dirs_exist_ok=True
        )

    done(*arguments)
    check_complete(runs, undisturbed[1], elsewhere)
    assert not list(runs.rglob("*.part"))
