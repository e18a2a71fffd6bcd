"""Measure the overhead of a sweep beyond annealing and scoring.

Three parts, each of which prints its results::

    python -m benchmarks.sweep overhead             # the quickstart on 2 CPUs, tracking included
    python -m benchmarks.sweep scheduling           # 10,000 sleeping cells on virtual CPUs,
                                                    # recorded in SQLite
    python -m benchmarks.sweep glue                 # the same trials by Ray Tune, OptunaSearch and
                                                    # MLflowLoggerCallback: pip install ray[tune]

The virtual CPUs of `scheduling` are real Ray workers that sleep: 115 MB of memory each.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.recording import finished_cell
from dcs.data.reader import read_table
from dcs.data.splits import stratified_split
from dcs.data.table import ProbabilityTable
from dcs.data.values import to_shares
from dcs.evaluation.metrics import ClassificationMetrics, Objective
from dcs.schemes.corrections import CorrectionSet
from dcs.search.annealing import anneal
from dcs.search.schedule import Schedule
from dcs_tracking import Recorder
from dcs_workflows.cluster.sweep import run_sweep
from dcs_workflows.config.sweep import SweepConfig, TunerSettings, load_config, packaged_config
from dcs_workflows.parallel import one_thread, repeating
from dcs_workflows.plan import Cell, Progress, SweepPlan, plan_sweep, sweep_key
from dcs_workflows.sources.scored import StoredTables, TableRequest


@contextmanager
def local_ray(cpus: int) -> Iterator[None]:
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray

    ray.init(
        address="local",
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        yield
    finally:
        ray.shutdown()


def resident() -> float:
    """Return the memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


#: Process titles of workers that compute cells or their trials.
_CELLS = "ray::run_cell", "ray::_apply"


class CpuTime:
    """Measure the CPU time of this process and its descendants, by kind of work."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._kinds: dict[int, str] = {}
        self._ended = threading.Event()
        # The CPU time of a process is lost when it ends: poll often.
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            self._poll()

    def _poll(self) -> None:
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    fields = (process / "stat").read_text().rpartition(")")[2].split()
                    title = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue
                pid = int(process.name)
                ours = pid == os.getpid() or int(fields[1]) in self._seconds
                if ours or pid in self._seconds:
                    ticks = int(fields[11]) + int(fields[12])
                    self._seconds[pid] = ticks / os.sysconf("SC_CLK_TCK")
                    self._kinds[pid] = self._kind(pid, title, self._kinds.get(pid))

    @staticmethod
    def _kind(pid: int, title: str, before: str | None) -> str:
        if pid == os.getpid():
            return "driver"
        if title.startswith("ray::ScoringActor") or before == "scoring":
            return "scoring"
        if title.startswith(_CELLS) or before == "cells":
            return "cells"
        return "Ray and idle workers"

    def end(self) -> dict[str, float]:
        """Return the seconds by kind of work."""
        self._ended.set()
        self._thread.join()
        self._poll()
        found: dict[str, float] = {}
        for pid, kind in self._kinds.items():
            found[kind] = found.get(kind, 0.0) + self._seconds[pid]
        return found


def overhead(folder: Path, *, cpus: int, trials: int) -> None:
    config = load_config(packaged_config("quickstart"))
    config = config.model_copy(
        update={"tuner": config.tuner.model_copy(update={"trials": trials})}
    )
    with local_ray(cpus):
        clock, watched = time.perf_counter(), CpuTime()
        with Recorder(output=folder, experiment="overhead", sweep_key=sweep_key(config)) as to:
            records = run_sweep(plan_sweep(config, folder), to, Progress())
            computed = time.perf_counter() - clock
            report = to.finish()
        wall, used = time.perf_counter() - clock, watched.end()
    notes = [
        StoredTables(folder, each.name).scoring for each in (folder / "probabilities").iterdir()
    ]
    scoring = sum(note.seconds for note in notes if note is not None)
    whole = [to.archive.read(record.key) for record in records]
    annealing = sum(trial.seconds for record in whole for trial in record.trials)
    share = 1 - (scoring + annealing) / (cpus * wall)
    print(
        f"overhead: {len(records)} cells, {report.recorded} recorded on {cpus} CPUs in "
        f"{wall:.1f} s (results after {computed:.1f} s); {scoring:.1f} s of scoring and "
        f"{annealing:.1f} s of annealing: {100 * share:.1f} % of CPU time was spent elsewhere"
    )
    # Independent of other load on the machine.
    print(
        "overhead: CPU time: " + ", ".join(f"{kind} {used[kind]:.1f} s" for kind in sorted(used))
    )


def _make_sleeper(seconds: float):
    def run(cells: tuple[Cell, ...], *more: object):
        started = time.time_ns() // 1_000_000
        time.sleep(seconds)
        return [finished_cell(cell.seed, cell=cell, started_ms=started) for cell in cells]

    return run


def scheduling(folder: Path, *, cpus: int, cells: int, seconds: float) -> None:
    config = SweepConfig(name="sleep", tasks=("reviews",), methods=("icl",))
    rng = np.random.default_rng(0)
    table = ProbabilityTable.from_arrays(rng.dirichlet(np.ones(5), 2000), rng.integers(0, 5, 2000))
    per_table = 200
    plan = SweepPlan(config, folder, ())
    for first in range(0, cells, per_table):
        key = f"table{first}"
        stored = StoredTables(folder, key)
        stored.write({"optimization": table, "test": table}, seconds=0.0, gpus=0.0)
        request = TableRequest(model="none", task="reviews", shots=1, seed=first, limit=None)
        plan.add(key, request, stored)
        plan.cells[key] = [
            Cell(
                model="none",
                task="reviews",
                shots=1,
                seed=seed,
                method="icl",
                tuner=None,
                optimization_digest=table.digest,
                test_digest=table.digest,
            )
            for seed in range(first, min(cells, first + per_table))
        ]
    import dcs_workflows.cluster.driver

    dcs_workflows.cluster.driver.run_cells = _make_sleeper(seconds)  # type: ignore[assignment]
    memory: list[float] = []
    # About ten times.
    pause = max(1.0, seconds * cells / cpus / 10)
    with local_ray(cpus), repeating(lambda: memory.append(resident()), pause):
        clock = time.perf_counter()
        with Recorder(output=folder, experiment="sleep", sweep_key="s", figures="none") as to:
            records = run_sweep(plan, to, Progress())
            wall = time.perf_counter() - clock
            recorded, *_ = to.progress
            to.finish()
        whole = time.perf_counter() - clock
    memory.append(resident())
    spans = [(record.started_ms, record.finished_ms) for record in records]
    # Ray starts workers one after the other; utilisation is measured from when all of them run
    # until the last cell starts.
    starts = sorted(start for start, _ in spans)
    begin, end = starts[min(2 * cpus, len(starts) - 1)], starts[-1]
    work = sum(max(0, min(e, end) - max(s, begin)) for s, e in spans)
    busy = work / (cpus * max(1, end - begin))
    rate = sum(begin <= e <= end for _, e in spans) / max(1, end - begin) * 1000
    print(
        f"scheduling: {len(spans)} cells of {seconds} s on {cpus} virtual CPUs in {wall:.0f} s; "
        f"{100 * busy:.1f} % busy and {rate:.1f} cells/s once the workers are up; {recorded} of "
        f"them recorded by then, all after {whole:.0f} s; driver memory "
        f"{', '.join(f'{value:.0f}' for value in memory)} MB"
    )


def glue(folder: Path, *, cpus: int, trials: int, tables: int = 4) -> None:
    """Run the same annealing on the same tables as a sweep and with the usual integrations.

    Both record all trials in MLflow on SQLite; only the sweep also computes figures, intervals and
    test metrics.
    """
    rng, paths = np.random.default_rng(0), []
    for number in range(tables):
        labels = rng.integers(0, 5, 1200)
        probs = np.exp(rng.normal(size=(1200, 5)) + 1.5 * np.eye(5)[labels] + [2, 1, 0, 0, 0])
        paths.append(folder / f"table{number}.parquet")
        ProbabilityTable.from_arrays(to_shares(probs, "scores"), labels).write(paths[-1])
    tuner = {"trials": trials, "judge": {"development": 0.3}}
    settings = {"methods": ["dcs"], "tuner": tuner, "tracking": {"trials": "runs"}}
    config = SweepConfig(name="ours", tables=list(map(str, paths)), **settings)
    with local_ray(cpus):
        clock, before, watched = time.perf_counter(), time.process_time(), CpuTime()
        with Recorder(output=folder, experiment="ours", sweep_key="s", trials="runs") as recorder:
            records = run_sweep(plan_sweep(config, folder), recorder, Progress())
        ours, busy = time.perf_counter() - clock, sum(watched.end().values()) - before
    with local_ray(cpus):
        clock, before, watched = time.perf_counter(), time.process_time(), CpuTime()
        number = sum(_glued(path, folder, trials=trials, tuner=config.tuner) for path in paths)
        other, busier = time.perf_counter() - clock, sum(watched.end().values()) - before
    whole = [recorder.archive.read(record.key) for record in records]
    annealing = np.mean([trial.seconds for record in whole for trial in record.trials])
    print(
        f"glue: {number} trials on {tables} tables and {cpus} CPUs: {ours / number:.2f} s a trial "
        f"as a sweep ({busy / number:.2f} s of CPU time), {other / number:.2f} s by Ray Tune with "
        f"OptunaSearch and MLflowLoggerCallback ({busier / number:.2f} s of CPU time); a trial's "
        f"annealing took {annealing:.2f} s"
    )


def _glued(path: Path, folder: Path, *, trials: int, tuner: TunerSettings) -> int:
    """Tune one table with Ray Tune and return the number of trials."""
    from ray import tune
    from ray.air.integrations.mlflow import MLflowLoggerCallback
    from ray.tune.search.optuna import OptunaSearch

    table = read_table(path)
    parts = stratified_split(table.labels, {"rows": 0.7, "held_out": 0.3}, seed=0)
    rows, held_out = table.subset(parts["rows"]), table.subset(parts["held_out"])

    def trainable(params: dict[str, float], rows: ProbabilityTable, held_out: ProbabilityTable):
        with one_thread():
            found = anneal(
                rows.probs,
                rows.labels,
                corrections=CorrectionSet.dcs(weight_scale=params["weight_scale"]),
                objective=Objective(beta=params["beta"], tau=params["tau"]),
                schedule=Schedule(budget=750_000),
                classes=rows.classes,
            )
        predicted = found.scheme.predict(held_out.probs)
        judged = ClassificationMetrics.from_predictions(
            held_out.labels, predicted, held_out.n_classes
        )
        tune.report({"score": judged.accuracy - judged.cobias, "z": found.z})

    bounds = tuner.space
    found = tune.Tuner(
        tune.with_parameters(trainable, rows=rows, held_out=held_out),
        param_space={
            "weight_scale": tune.randint(bounds.weight_scale[0], bounds.weight_scale[-1] + 1),
            "beta": tune.uniform(*bounds.beta),
            "tau": tune.uniform(*bounds.tau),
        },
        tune_config=tune.TuneConfig(
            metric="score", mode="max", num_samples=trials, search_alg=OptunaSearch(seed=0)
        ),
        run_config=tune.RunConfig(
            storage_path=str(folder / "tune"),
            callbacks=[
                MLflowLoggerCallback(
                    tracking_uri=f"sqlite:///{folder}/glue.db", experiment_name="glue"
                )
            ],
            verbose=0,
        ),
    ).fit()
    return len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["overhead", "scheduling", "glue"])
    parser.add_argument("--cpus", type=int, help="default 2, or 200 virtual ones for scheduling")
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=4.0, help="sleep time of a cell")
    parser.add_argument("--trials", type=int, default=15, help="per cell, for overhead and glue")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dcs-bench-") as name:
        folder = Path(name)
        if options.part == "scheduling":
            cpus = options.cpus or 200
            scheduling(folder, cpus=cpus, cells=options.cells, seconds=options.seconds)
        else:
            run = overhead if options.part == "overhead" else glue
            run(folder, cpus=options.cpus or 2, trials=options.trials)


if __name__ == "__main__":
    main()
