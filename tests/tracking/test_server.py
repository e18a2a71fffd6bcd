"""A real MLflow server: records arrive over HTTP, also after it was gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tracking import Recorder, queries, sync

from .cells import content, make_cell, runs, table

pytestmark = pytest.mark.slow


@contextmanager
def _server(folder: Path, port: int) -> Iterator[str]:
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    settings = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with subprocess.Popen(
        command,
        env=os.environ | settings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            _wait_for(address)
            yield address
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def _wait_for(address: str) -> None:
    for _ in range(300):
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"no MLflow server at {address}")


def test_a_server_that_goes_and_comes_back_has_every_cell_once(
    output: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    warnings: list[str] = []
    with Recorder(
        address, output=output, experiment="demo", sweep_key="s1", warn=warnings.append
    ) as recorder:
        with _server(output, port):
            recorder.record(make_cell(1))
            for _ in range(200):
                if recorder.outbox.pending() == 0:
                    break
                time.sleep(0.1)
        recorder.record(make_cell(2))
        report = recorder.finish()
    assert report.pending == 1
    assert len(warnings) == 1

    with _server(output, port):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        assert [(r.recorded, r.pending) for r in sync(output)] == [(1, 0)]
        assert content() == (
            1,
            {"cell0001": "FINISHED", "cell0002": "FINISHED"},
            {"cell0001": 2, "cell0002": 2},
        )
        assert set(runs()["status"]) == {"FINISHED"}
        sweep = runs(kind="sweep").iloc[0]
        assert table("leaderboard.json", sweep["run_id"])["seeds"].tolist() == [2]
        assert len(queries.schemes(address, "demo")) == 4
    assert capfd.readouterr().out == ""
