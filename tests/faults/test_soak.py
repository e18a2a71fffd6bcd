"""A long sweep on three nodes while something dies every minute; run by ``make soak``."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress

import numpy as np
import psutil
import pytest

from dcs_tracking import sync
from tests.servers import free_port, mlflow_server
from tests.tracking.cells import runs_of
from tests.workflows.conftest import biased_table, swept

from .processes import (
    add_node,
    descendants,
    disk,
    end,
    fill,
    find_workers,
    kill_worker,
    remove_node,
    start_dcs,
    title,
)
from .sweeps import kept, kept_files, results, sweep, sweep_command

pytestmark = pytest.mark.soak

CELLS = int(os.environ.get("DCS_SOAK_CELLS", "20000"))
#: Number of seeds of which all cells are compared with those of an undisturbed sweep.
COMPARED = 500
SECONDS = float(os.environ.get("DCS_SOAK_SECONDS", "60"))
METHODS = ("icl", "batch", "prior", "surrogate")


#: The clock of all processes jumps every minute: ahead by an hour, back by three, ahead by a day.
JUMPS = """
import time
_real = time.time_ns
time.time_ns = lambda: _real() + (0, 3600, -7200, 86400)[_real() // 60 // 10**9 % 4] * 10**9
time.time = lambda: time.time_ns() / 1e9
"""


@pytest.fixture(scope="session", autouse=True)
def jumping_clock(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clock")
    (folder / "sitecustomize.py").write_text(JUMPS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        yield


def resident(pid: int) -> float:
    """Return the memory of a process in megabytes; 0 if it is gone."""
    with suppress(psutil.Error):
        return float(psutil.Process(pid).memory_info().rss) / 1e6
    return 0.0


@pytest.fixture
def own_disk(tmp_path):
    with disk(tmp_path / "disk", "1g") as folder:
        yield folder


def test_a_long_sweep_is_that_of_a_quiet_day(cluster, postgres, own_disk, tmp_path):
    biased_table(200).write(tmp_path / "my.parquet")
    table, seeds = str(tmp_path / "my.parquet"), [*range(CELLS // len(METHODS))]
    config = swept(table, name="soak", seeds=seeds, methods=METHODS)
    port, output = free_port(), own_disk / "runs"
    nodes = [add_node(cluster, num_cpus=1) for _ in range(2)]

    def lose_a_node() -> None:
        remove_node(cluster, nodes.pop(0))
        nodes.append(add_node(cluster, num_cpus=1))

    def fill_the_disk() -> None:
        ballast = fill(own_disk)
        time.sleep(SECONDS)
        ballast.unlink()

    def restart_postgres() -> None:
        postgres.stop()
        time.sleep(2.0)
        postgres.start()

    def start_mlflow() -> None:
        store.enter_context(mlflow_server(tmp_path, port, backend=postgres.uri, workers=2))

    def restart_mlflow() -> None:
        store.close()
        time.sleep(2.0)
        start_mlflow()

    started, deaths = time.monotonic(), Counter[str]()
    memory: dict[bool, list[float]] = {True: [], False: []}  # while cells are computed, and after
    workers, recorders = [0.0], [0.0]
    address = f"http://127.0.0.1:{port}"
    arguments = sweep_command(cluster, output, "--tracking-uri", address, config=config)
    with ExitStack() as store:
        start_mlflow()
        faults: dict[str, Callable[[], object]] = {
            "worker": lambda: kill_worker(os.getpid(), "run_cell", after=0.0),
            "node": lose_a_node,
            "MLflow server": restart_mlflow,
            "PostgreSQL": restart_postgres,
            "disk": fill_the_disk,
        }
        driver = start_dcs(*arguments)
        try:
            for name in itertools.cycle(faults):
                until = time.monotonic() + SECONDS
                while driver.poll() is None and time.monotonic() < until:
                    memory[len(kept_files(output)) < CELLS].append(resident(driver.pid))
                    time.sleep(1.0)
                workers += map(resident, find_workers(os.getpid(), "run_cell"))
                own = descendants(driver.pid)
                recorders += [resident(pid) for pid in own if "store.process" in title(pid)]
                # The disk was full; or Ray crashed, as it may at its end if a node was lost.
                if (code := driver.poll()) in (2, -11):
                    assert "Traceback" not in end(driver)[2]
                    deaths[f"driver, code {code}"] += 1
                    driver = start_dcs(*arguments)
                if driver.poll() is not None:
                    break
                written = len(kept_files(output))
                if name == "worker" and written == CELLS:  # only recording is left
                    continue
                print(f"{written} cells, ends: {name}", flush=True)
                faults[name]()
                deaths[name] += 1
        finally:
            code, out, err = end(driver)
        computed = time.monotonic() - started
        assert code in (0, 3), out + err  # 3: the store was away for longer than a minute
        while any(report.pending for report in sync(output)):
            time.sleep(5.0)
        stored = Counter(run.data.tags["dcs.cell_key"] for run in runs_of(address, config.name))
    quiet, nowhere = tmp_path / "quiet", f"http://127.0.0.1:{free_port()}"
    some = config.model_copy(update={"seeds": config.seeds[:COMPARED]})
    sweep(quiet, some, tracking_uri=nowhere, here=True)
    found, alone = (
        {cell["key"]: cell for cell in results(kept(folder))} for folder in (output, quiet)
    )
    computing = np.array_split(memory[True], 3)
    # By the clock of the file system, which does not jump.
    ended = np.sort([path.stat().st_mtime for path in kept_files(output)])
    part = min(1000, CELLS // 2)
    summary = {
        "compared": len(alone),
        "runs in MLflow": stored.total(),
        "seconds until the driver ended": round(computed),
        "died": dict(deaths),
        "exit code": code,
        "cells/s, of the first and the last thousand": [
            round(part / (cells[-1] - cells[0]), 1) for cells in (ended[:part], ended[-part:])
        ],
        "worker MB, largest": round(max(workers)),
        "recording process MB, largest": round(max(recorders)),
        "driver MB, mean of thirds of the computing": [round(part.mean()) for part in computing],
        "driver MB, largest while computing": round(max(memory[True])),
        "driver MB, largest afterwards": round(max(memory[False], default=0.0)),
    }
    print(json.dumps(summary), flush=True)
    assert alone == {key: found[key] for key in alone}
    assert len(found) == CELLS
    assert stored == Counter(found.keys())
    assert max(memory[True]) < computing[0].max() + 100.0, "the driver grows"
