"""Recording of cells, compared with a bare MLflow client that sends the same requests.

    python -m benchmarks.recording                      # into SQLite
    python -m benchmarks.recording --server             # into `mlflow server` on SQLite
    python -m benchmarks.recording --server --database postgresql://...
    python -m benchmarks.recording --pending 10000      # memory while cells wait for the store

Both write to the same store in the same run, one after the other, so that their ratio holds on a
busy machine, too. The requests are those in the access log of the server.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from dcs import CorrectionScheme
from dcs_tracking import CellRecord, Recorder, TrialRecord, collect_provenance
from dcs_tracking.store.queries import cells as recorded_cells
from dcs_workflows.plan import Cell


def finished_cell(number: int, *, cell: Cell | None = None, started_ms: int = 1) -> CellRecord:
    """Return a record with the size of a tuned cell of the quickstart."""
    trial = {f"m{index}": 0.5 for index in range(6)} | {"dev/accuracy": 0.5, "dev/cobias": 0.1}
    params = {f"p{index}": index for index in range(10)}
    trials = tuple(
        TrialRecord(
            number=index,
            params=params,
            metrics=trial,
            state="COMPLETE",
            seconds=0.1,
            started_ms=1,
            value=index / 15,
        )
        for index in range(15)
    )
    who = {"model": "none", "task": "reviews", "shots": 1, "seed": number, "method": "dcs"}
    who |= {"optimization_digest": "a" * 32, "test_digest": "b" * 32}
    return CellRecord(
        key=f"cell{number}" if cell is None else cell.key,
        sweep="recording",
        identity=who if cell is None else cell.identity,
        params=params,
        metrics={"test/accuracy": 0.5} | {f"m{index}": 0.5 for index in range(15)},
        scheme=CorrectionScheme.identity(tuple("abcde")).to_dict(),
        class_accuracies={"class": list("abcde"), "before": [0.5] * 5, "after": [0.6] * 5},
        trials=trials,
        trace=tuple((0.1, 0.2, 0.2, 0.5) for _ in range(100)),
        started_ms=started_ms,
        finished_ms=1000 if cell is None else time.time_ns() // 1_000_000,
        provenance={} if cell is not None else collect_provenance(),
    )


def record(folder: Path, uri: str, cells: int, *, writers: int) -> tuple[float, float, int, str]:
    """Return the wall and CPU seconds and the requests of recording cells, and the experiment."""
    name = f"recording {time.time_ns()}"
    sweep = {"experiment": name, "sweep_key": "s", "figures": "none", "writers": writers}
    recorder = Recorder(uri, output=folder / name, **sweep)
    recorder.record(finished_cell(cells))
    # The first cell includes the time to open the store.
    _wait(lambda: recorder.progress[0] == 1)
    clock, busy, before = time.perf_counter(), time.process_time(), requests(folder)
    for cell in map(finished_cell, range(cells)):
        recorder.record(cell)
    _wait(lambda: recorder.progress[0] == cells + 1)
    spent = time.perf_counter() - clock, time.process_time() - busy, requests(folder) - before
    recorder.close()
    return *spent, name


def _wait(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 900
    while not done():
        if time.monotonic() > until:
            raise TimeoutError("the store does not answer")
        time.sleep(0.01)


def resend(folder: Path, uri: str, name: str, cells: int, *, writers: int) -> tuple[float, float]:
    """Send the requests of a recorded cell again, for many runs, and return the seconds."""
    client = MlflowClient(uri, registry_uri=uri)
    run_id = str(recorded_cells(uri, name)["run_id"].iloc[0])
    run = client.get_run(run_id)
    place = None if uri.startswith("http") else (folder / f"bare {name}").as_uri()
    experiment = client.create_experiment(f"bare {name}", place)
    tags = {key: value for key, value in run.data.tags.items() if key != "mlflow.runName"}
    params = [Param(key, value) for key, value in run.data.params.items()]
    metrics = [
        Metric(each.key, each.value, each.timestamp, each.step)
        for key in run.data.metrics
        for each in client.get_metric_history(run_id, key)
    ]
    inputs = run.inputs.dataset_inputs
    files = folder / f"files of {name}"
    files.mkdir()
    client.download_artifacts(run_id, "", str(files))

    def send(number: int) -> None:
        info = client.create_run(
            experiment, start_time=1, tags=tags, run_name=f"{run.info.run_name} {number}"
        ).info
        client.log_inputs(info.run_id, inputs)
        client.log_batch(info.run_id, metrics, params, synchronous=True)
        client.log_artifacts(info.run_id, str(files))
        client.set_terminated(info.run_id, end_time=1000)

    send(-1)
    clock, busy = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(writers) as threads:
        list(threads.map(send, range(cells)))
    return time.perf_counter() - clock, time.process_time() - busy


def requests(folder: Path) -> int:
    """Return the number of requests in the access log of the server, which is plain uvicorn's."""
    log = folder / "access.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


@contextmanager
def server(folder: Path, database: str | None, workers: int) -> Iterator[tuple[str, int]]:
    """Run `mlflow server`; yield its address and the id of its process group."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    database = database or f"sqlite:///{folder}/server.db"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    command += ["--workers", str(workers), "--port", str(port), "--backend-store-uri", database]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    log = {"class": "logging.FileHandler", "filename": str(folder / "access.log")}
    logger = {"handlers": ["file"], "level": "INFO"}
    loggers = {"version": 1, "handlers": {"file": log}, "loggers": {"uvicorn.access": logger}}
    (folder / "log.json").write_text(json.dumps(loggers))
    command += ["--uvicorn-opts", f"--log-config {folder / 'log.json'}"]
    settings = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env=os.environ | settings, start_new_session=True, **quiet)
    try:
        while process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            except OSError:
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        os.killpg(process.pid, 15)
        process.wait()


def group_seconds(group: int) -> float:
    """Return the CPU seconds of the running processes of a group."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def compare(
    folder: Path, uri: str, *, cells: int, writers: int, rounds: int, group: int | None
) -> None:
    """Print the speed of the recorder and of the bare client."""
    totals = [0.0, 0.0]
    for _ in range(rounds):
        before = group_seconds(group) if group else 0.0
        wall, busy, sent, name = record(folder, uri, cells, writers=writers)
        used = group_seconds(group) - before if group else 0.0
        bare, bare_busy = resend(folder, uri, name, cells, writers=writers)
        totals = [totals[0] + wall, totals[1] + bare]
        print(
            f"recorder {cells / wall:.1f} cells/s, {1000 * busy / cells:.0f} ms of CPU a cell in "
            f"the driver, {1000 * used / cells:.0f} ms in the server, "
            f"{sent / cells:.1f} requests a cell; bare client "
            f"{cells / bare:.1f} cells/s, {1000 * bare_busy / cells:.0f} ms of CPU",
            flush=True,
        )
    print(f"the recorder reaches {100 * totals[1] / totals[0]:.0f} % of the bare client")


def fill(folder: Path, cells: int) -> None:
    """Print the memory of the driver while it hands over cells faster than SQLite takes them."""
    options = {"experiment": "pending", "sweep_key": "s", "figures": "none"}
    recorder = Recorder(f"sqlite:///{folder}/mlflow.db", output=folder, **options)
    recorder.record(finished_cell(cells))
    _wait(lambda: recorder.progress[0] == 1)
    clock = time.perf_counter()
    for number in range(cells + 1):
        if number % max(1, cells // 5) == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            print(
                f"cells recorded and pending: {recorder.progress[:2]}, "
                f"{pages * os.sysconf('SC_PAGE_SIZE') / 1e6:.0f} MB after "
                f"{time.perf_counter() - clock:.0f} s",
                flush=True,
            )
        recorder.record(finished_cell(number))
    recorder.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--writers", type=int, help="default 1 for SQLite, 4 for a server")
    parser.add_argument("--server", action="store_true", help="record into `mlflow server`")
    parser.add_argument("--workers", type=int, default=2, help="processes of the server")
    parser.add_argument("--database", help="database of the server: postgresql://...")
    parser.add_argument("--pending", type=int, help="number of cells that wait for the store")
    options = parser.parse_args()
    amount = {"cells": options.cells, "rounds": options.rounds}
    with tempfile.TemporaryDirectory(prefix="dcs-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if options.pending:
            fill(folder, options.pending)
            return
        if not options.server:
            uri = f"sqlite:///{folder}/mlflow.db"
            compare(folder, uri, writers=options.writers or 1, group=None, **amount)
            return
        with server(folder, options.database, options.workers) as (uri, group):
            compare(folder, uri, writers=options.writers or 4, group=group, **amount)


if __name__ == "__main__":
    main()
