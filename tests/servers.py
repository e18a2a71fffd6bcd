"""Real servers for tests: started on a free port of this machine, ended with all they started."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def free_ports(count: int) -> list[int]:
    """Return different ports of 127.0.0.1 that nothing listens on."""
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [free.getsockname()[1] for free in sockets]


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on."""
    (port,) = free_ports(1)
    return port


@contextmanager
def running(
    command: list[str],
    health: str,
    *,
    env: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> Iterator[int]:
    """Run a command while the block lasts, from when `health` answers; give its process id."""
    settings = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    # Its default is four, each of which imports MLflow.
    settings["MLFLOW_WORKERS"] = "1"
    # MLflow starts its server by name, and Ray is started so.
    settings["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    with subprocess.Popen(
        command,
        env={**env, **settings},
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            _wait_for(health, process)
            yield process.pid
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    # Ray answers only who has the token of these tests; others do not look at it.
    token = {"Authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"}
    until = time.monotonic() + 600
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(urllib.request.Request(address, headers=token), timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"nothing answers at {address}")


@contextmanager
def ray_node(port: int, *, cpus: int = 2, head: bool = True) -> Iterator[tuple[int, str]]:
    """Run a head on loopback, or a node that joins one; give its process id and its address.

    That of a head is for jobs. The process is above all others of the node.
    """
    dashboard, agent = free_ports(2)
    # Sockets of Ray have a limit on the length of their path, which pytest's folders exceed; in
    # one folder the nodes of a machine would clear away each other's files of jobs.
    folder = Path(f"/tmp/ray-dcs-{os.getpid()}-{agent}")
    command = ["ray", "start", "--block", f"--num-cpus={cpus}", f"--temp-dir={folder}"]
    # The fixed default may be taken by another Ray on this machine; jobs are started there.
    command += ["--node-ip-address=127.0.0.1", f"--dashboard-agent-listen-port={agent}"]
    address = f"http://127.0.0.1:{dashboard if head else agent}"
    if head:
        command += ["--head", f"--port={port}"]
        command += ["--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"]
    else:
        command.append(f"--address=127.0.0.1:{port}")
    try:
        health = "gcs_healthz" if head else "local_raylet_healthz"
        with running(command, f"{address}/api/{health}") as pid:
            yield pid, address
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def mlflow_server(
    folder: Path,
    port: int,
    *,
    backend: str | None = None,
    artifacts: bool = True,
    access_log: Path | None = None,
    workers: int = 1,
) -> Iterator[str]:
    """Run a server on a database, by default the SQLite file of a folder.

    With `artifacts` it keeps them itself, otherwise its clients do. Both outlive it. The
    requests are written to `access_log`, if given.
    """
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", str(workers)]
    command += ["--backend-store-uri", backend or f"sqlite:///{folder}/mlflow.db"]
    if artifacts:
        command += ["--artifacts-destination", str(folder / "artifacts")]
    else:
        command += ["--default-artifact-root", str(folder / "mlartifacts")]
    if access_log is not None:
        settings = {
            "version": 1,
            "handlers": {"file": {"class": "logging.FileHandler", "filename": str(access_log)}},
            "loggers": {"uvicorn.access": {"handlers": ["file"], "level": "INFO"}},
        }
        options = access_log.with_suffix(".json")
        options.write_text(json.dumps(settings))
        command += ["--uvicorn-opts", f"--log-config {options}"]
    with running(command, f"{address}/health"):
        yield address


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler, bytes], object]) -> Iterator[str]:
    """Run a server that leaves requests, with what is sent, to a function; give its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            answer(self, self.rfile.read(int(self.headers.get("Content-Length") or 0)))

        do_GET = do_PUT = do_PATCH = do_POST  # noqa: N815

        def log_message(self, *told: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def answering(
    status: int, body: bytes | Callable[[BaseHTTPRequestHandler, bytes], bytes]
) -> AbstractContextManager[str]:
    """Run a server that gives one answer to everything, its head and its body one by one.

    The body may depend on the request, and on what is sent with it.
    """

    def answer(asked: BaseHTTPRequestHandler, sent: bytes) -> None:
        said = body if isinstance(body, bytes) else body(asked, sent)
        asked.send_response(status)
        asked.send_header("Content-Length", str(len(said)))
        asked.end_headers()
        asked.wfile.write(said)

    return serving(answer)
