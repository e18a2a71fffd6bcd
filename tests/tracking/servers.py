"""Real servers for tests: started on a free port of this machine, ended with all they started."""

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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@contextmanager
def running(command: list[str], health: str) -> Iterator[None]:
    """Run a command until the block ends; the block starts when `health` answers."""
    settings = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    # MLflow starts its server by name.
    settings["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        command,
        env=os.environ | settings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            wait_for(health)
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def wait_for(address: str) -> None:
    until = time.monotonic() + 180
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(address, timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"nothing answers at {address}")


@contextmanager
def mlflow_server(folder: Path, port: int, *, artifacts: bool = True) -> Iterator[str]:
    """Run a server on the SQLite file of a folder; with `artifacts` it keeps them itself."""
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    if artifacts:
        command += ["--artifacts-destination", str(folder / "artifacts")]
    else:
        command += ["--default-artifact-root", str(folder / "mlartifacts")]
    with running(command, f"{address}/health"):
        yield address
