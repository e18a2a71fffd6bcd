"""A long sweep on three nodes while something dies every minute; run by ``make soak``."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import psutil
import pytest

from dcs_tracking import sync
from tests.servers import free_port, mlflow_server
from tests.tracking.cells import runs_of
from tests.workflows.conftest import biased_table, swept

from .processes import add_node, end, find_workers, kill_worker, remove_node, start_dcs
from .sweeps import kept, kept_files, results, sweep, sweep_command

pytestmark = pytest.mark.soak

CELLS = int(os.environ.get("DCS_SOAK_CELLS", "20000"))
#: Number of seeds of which all cells are compared with those of an undisturbed sweep.
COMPARED = 500
SECONDS = float(os.environ.get("DCS_SOAK_SECONDS", "60"))
METHODS = ("icl", "batch", "prior", "surrogate")
#: Growth of the driver's memory from the first third of the computing to its end.
MEGABYTES = 100.0


@contextmanager
def restarted(start: Callable[[ExitStack], None]) -> Iterator[Callable[[], None]]:
    """Give a function that ends what `start` entered, and starts it again."""
    with ExitStack() as held:
        start(held)

        def again() -> None:
            held.close()
            time.sleep(2.0)
            start(held)

        yield again


def resident(pid: int) -> float:
    """Return the memory of a process in megabytes; 0 if it is gone."""
    with suppress(psutil.Error):
        return float(psutil.Process(pid).memory_info().rss) / 1e6
    return 0.0


def test_a_long_sweep_is_that_of_a_quiet_day(cluster, postgres, output, tmp_path):
    biased_table(200).write(tmp_path / "my.parquet")
    seeds = range(CELLS // len(METHODS))
    table = str(tmp_path / "my.parquet")
    config = swept(table, name="soak", seeds=[*seeds], methods=METHODS)
    port = free_port()
    nodes = [add_node(cluster, num_cpus=1) for _ in range(2)]

    def lose_a_node() -> None:
        remove_node(cluster, nodes.pop(0))
        nodes.append(add_node(cluster, num_cpus=1))

    def restart_postgres() -> None:
        postgres.stop()
        time.sleep(2.0)
        postgres.start()

    def start_mlflow(held: ExitStack) -> None:
        store = mlflow_server(tmp_path, port, backend=postgres.uri, workers=2)
        held.enter_context(store)

    started, deaths = time.monotonic(), Counter[str]()
    memory: dict[bool, list[float]] = {True: [], False: []}  # while cells are computed, and after
    workers = [0.0]
    address = f"http://127.0.0.1:{port}"
    arguments = sweep_command(cluster, output, "--tracking-uri", address, config=config)
    with restarted(start_mlflow) as restart_mlflow:
        faults: dict[str, Callable[[], object]] = {
            "worker": lambda: kill_worker(os.getpid(), "run_cell", after=0.0),
            "node": lose_a_node,
            "MLflow server": restart_mlflow,
            "PostgreSQL": restart_postgres,
        }
        driver = start_dcs(*arguments)
        try:
            for name in itertools.cycle(faults):
                until = time.monotonic() + SECONDS
                while driver.poll() is None and time.monotonic() < until:
                    memory[len(kept_files(output)) < CELLS].append(resident(driver.pid))
                    time.sleep(1.0)
                workers += map(resident, find_workers(os.getpid(), "run_cell"))
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
        recorded = time.monotonic() - started
        stored = Counter(run.data.tags["dcs.cell_key"] for run in runs_of(address, config.name))
    quiet, nowhere = tmp_path / "quiet", f"http://127.0.0.1:{free_port()}"
    some = config.model_copy(update={"seeds": config.seeds[:COMPARED]})
    sweep(quiet, some, tracking_uri=nowhere, here=True)
    found, alone = (
        {cell["key"]: cell for cell in results(kept(folder))} for folder in (output, quiet)
    )
    computing = np.array_split(memory[True], 3)
    ended = np.sort([record.finished_ms for record in kept(output)]) / 1000.0
    part = min(1000, CELLS // 2)
    summary = {
        "cells": len(found),
        "compared": len(alone),
        "runs in MLflow": stored.total(),
        "seconds until the driver ended": round(computed),
        "seconds until all cells were recorded": round(recorded),
        "died": dict(deaths),
        "exit code": code,
        "cells/s, of the first and the last thousand": [
            round(part / (cells[-1] - cells[0]), 1) for cells in (ended[:part], ended[-part:])
        ],
        "worker MB, largest": round(max(workers)),
        "driver MB, mean of thirds of the computing": [round(part.mean()) for part in computing],
        "driver MB, largest while computing": round(max(memory[True])),
        "driver MB, largest afterwards": round(max(memory[False], default=0.0)),
    }
    print(json.dumps(summary), flush=True)
    assert alone == {key: found[key] for key in alone}
    assert len(found) == CELLS
    assert stored == Counter(found.keys())
    assert max(memory[True]) < computing[0].max() + MEGABYTES
