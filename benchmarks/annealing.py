"""Measure the cost of moves, their scaling, and the time of each solver to the best-known Z.

    python -m benchmarks.annealing [TABLE.npz ...] [--part rates|bounds|sizes|...] ...

Tables are npz files with `probs` [M, N] and `labels` [M]; by default generated ones are used.
Prints text tables, each followed by the same data as JSON lines. Requires the extra `bench`. Times
are CPU times of this process, so that other load on the machine affects them less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from benchmarks.annealing_solvers import SOLVERS, Target
from benchmarks.evaluator import SchemeEvaluator
from benchmarks.exact import exact_search
from benchmarks.lower_bound import lower_bound
from dcs import ClassificationMetrics, CorrectionSet, Objective, Schedule, anneal
from dcs.data.splits import stratified_choice
from dcs.search import kernels

CORRECTIONS = CorrectionSet.dcs(weight_scale=30)
OBJECTIVE = Objective()
PARTS = (
    *("rates", "scaling", "solvers", "quality", "published", "first-call", "bounds", "sizes"),
    "spread",
)


def generated(n_rows: int, n_classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return skewed probabilities and labels: predictions on 60 % of the rows, else random."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.linspace(0.2, 0.5, n_classes), size=n_rows)
    right = rng.random(n_rows) < 0.6
    labels = np.where(right, probs.argmax(axis=1), rng.integers(0, n_classes, n_rows))
    return probs, labels.astype(np.int64)


def read(path: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(path) as data:
        probs = data["probs"].astype(np.float64)
        return probs / probs.sum(axis=1, keepdims=True), data["labels"].astype(np.int64)


def best_time(call: Callable[[], Any], repeats: int = 5) -> float:
    call()
    times = []
    for _ in range(repeats):
        started = time.process_time()
        call()
        times.append(time.process_time() - started)
    return min(times)


def report(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    names = list(rows[0])
    cells = [[_format(row.get(name, "")) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in [names, *cells]) for i in range(len(names))]
    for line in [names, *cells]:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    for row in rows:
        print(json.dumps({"benchmark": title, **row}))
    sys.stdout.flush()


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


class Bench:
    """One table in the layout of the kernels, and timings of their operations."""

    def __init__(self, probs: np.ndarray, labels: np.ndarray) -> None:
        self.table = kernels.make_table(probs, labels, CORRECTIONS, OBJECTIVE)
        self.state = kernels.make_state(self.table)
        n_classes = probs.shape[1]
        self.choice = np.full(n_classes, CORRECTIONS.identity)
        kernels.descend(self.table, self.state, self.choice)

    def chain(self, moves: str, n: int, temperature: float) -> float:
        """Return the seconds per move, starting after descent."""
        temperatures, limits = np.array([temperature]), np.array([n + 1, n])
        found = self.choice.copy()

        def call() -> None:
            stream, choice = np.array([7], np.uint64), self.choice.copy()
            heat_bath = moves == "heat-bath"
            chain = (stream, temperatures, limits, True, heat_bath, choice, found)
            kernels.cool(self.table, self.state, *chain)

        return best_time(call, 3) / n

    def judge_time(self, n: int = 300) -> float:
        """Return the seconds to evaluate one random move."""
        return best_time(lambda: _judge_many(self.table, self.state, n), 3) / n

    def pass_time(self, n: int = 60) -> float:
        """Return the seconds to evaluate all corrections of one class."""
        return best_time(lambda: _pass_many(self.table, self.state, n), 3) / n

    def stream_time(self, n: int = 300) -> float:
        """Return the seconds to read the data of one move once."""
        state = self.state
        arrays = (self.table.columns, state.first, state.second, state.first_class)
        return best_time(lambda: _stream(*arrays, n), 3) / n


@njit(nogil=True)
def _judge_many(table, state, n):
    stream = np.array([3], np.uint64)
    for _ in range(n):
        j = kernels.random_index(stream, table.columns.shape[0])
        k = kernels.random_index(stream, table.functions.shape[0])
        kernels.eval_move(table, state, j, k)


@njit(nogil=True)
def _pass_many(table, state, n):
    for i in range(n):
        j = i % table.columns.shape[0]
        kernels.eval_class(table, state, j)


@njit(nogil=True, error_model="numpy")
def _stream(columns, b, c, d, n):
    """Read a random column, two value columns and one of class indices, n times."""
    total = 0
    stream = np.array([3], np.uint64)
    for i in range(n):
        a = columns[kernels.random_index(stream, columns.shape[0])]
        hits = 0
        x = a[i]
        for m in range(a.size):
            hits += (a[m] > x) ^ (b[m] > x) ^ (c[m] > x) ^ (d[m] == 0)
        total += hits
    return total


def rates(n_rows: int, n_classes: int) -> None:
    probs, labels = generated(n_rows, n_classes)
    bench = Bench(probs, labels)
    stream = bench.stream_time()
    kernels.set_choice(bench.table, bench.state, bench.choice)
    judge = bench.judge_time()
    rows = [
        {"what": "streaming read of the same bytes", "per second": 1 / stream},
        {"what": "move judged, not taken", "per second": 1 / judge},
    ]
    for temperature in (1e-3, 1e-2, 1e-1):
        seconds = bench.chain("metropolis", 20_000, temperature)
        rows.append({"what": f"Metropolis move at T={temperature:g}", "per second": 1 / seconds})
    kernels.descend(bench.table, bench.state, bench.choice)
    per_pass = bench.pass_time()
    rows.append(
        {"what": "candidate judged in class passes", "per second": len(CORRECTIONS) / per_pass}
    )
    solution = bench.choice
    evaluator = SchemeEvaluator(probs, labels)
    seconds = best_time(lambda: evaluator.confusion(solution))
    rows.append({"what": "whole scheme judged, compiled", "per second": 1 / seconds})
    seconds = best_time(lambda: SOLVERS["numpy"].move(probs, labels, solution))
    rows.append({"what": "move, vectorised NumPy", "per second": 1 / seconds})
    for row in rows:
        row["of a streaming read"] = row["per second"] * stream
    report(f"rates at M={n_rows}, N={n_classes}, D={len(CORRECTIONS)}", rows)


def scaling() -> None:
    sizes = [(m, 14) for m in (2_000, 10_000, 50_000, 200_000)]
    sizes += [(10_000, n) for n in (4, 20, 50, 100, 200)] + [(200_000, 200)]
    rows = []
    for n_rows, n_classes in sizes:
        bench = Bench(*generated(n_rows, n_classes))
        kernels.set_choice(bench.table, bench.state, bench.choice)
        seconds = bench.chain("heat-bath", 2 * n_classes, 1e-3)
        rows.append(
            {
                "M": n_rows,
                "N": n_classes,
                "us per judged move": 1e6 * bench.judge_time(100),
                "us per class pass": 1e6 * bench.pass_time(10),
                "ms per heat-bath sweep": 1e3 * n_classes * seconds,
            }
        )
    report("scaling", rows)
    slopes = []
    for name, fixed, varied in (("M", "N", 14), ("N", "M", 10_000)):
        chosen = [row for row in rows if row[fixed] == varied]
        x = np.log([row[name] for row in chosen])
        slopes += [
            {"of": key, "in": name, "slope": float(np.polyfit(x, np.log(y), 1)[0])}
            for key in list(rows[0])[2:]
            for y in [[row[key] for row in chosen]]
        ]
    report("log-log slopes (1 is linear)", slopes)


def first_call() -> None:
    code = (
        "import time, numpy as np; t = time.perf_counter(); from dcs import anneal; "
        "from dcs import Schedule; i = time.perf_counter(); "
        "anneal(np.full((20, 2), 0.5), [0, 1] * 10, schedule=Schedule(restarts=1)); "
        "print(i - t, time.perf_counter() - i)"
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for what in ("no cache", "cache"):
            env = os.environ | {"NUMBA_CACHE_DIR": folder}
            done = subprocess.run(
                [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
            )
            load, call = (float(v) for v in done.stdout.split())
            rows.append({"first call with": what, "s to import": load, "s to search": call})
    report("first call in a new process", rows)


def quality(tables: dict[str, Any], seeds: int) -> None:
    rows = []
    for name, (probs, labels) in tables.items():
        proven = probs.shape[1] <= 4
        started = time.process_time()
        if proven:
            best = exact_search(probs, labels).z
        else:
            long = Schedule(budget=10_000_000)
            best = min(anneal(probs, labels, seed=1000 + s, schedule=long).z for s in range(2))
        exact_seconds = time.process_time() - started
        results, seconds, walls = [], [], []
        for seed in range(seeds):
            started = time.process_time()
            result = anneal(probs, labels, seed=seed)
            seconds.append(time.process_time() - started)
            results.append(result.z)
            walls.append(result.seconds)
        best = min(best, *results)
        rows.append(
            {
                "table": name,
                "N": probs.shape[1],
                "best Z": best,
                "proven": str(proven),
                "s to prove": exact_seconds if proven else "",
                "hits": f"{sum(z <= best + 1e-9 for z in results)}/{seeds}",
                "worst gap": max(results) - best,
                "most s": max(seconds),
                "most wall s": max(walls),
            }
        )
    report("default schedule against the best known", rows)


def published(tables: dict[str, Any], seeds: int) -> None:
    rows = []
    for name, (probs, labels) in tables.items():
        row: dict[str, Any] = {"table": name}
        for moves, runs in (((3, 6), seeds), ((150, 300), max(2, seeds // 4))):
            schedule = Schedule.published(labels.size, *moves)
            found = [anneal(probs, labels, schedule=schedule, seed=seed) for seed in range(runs)]
            values = np.array([result.z for result in found])
            limits = "{}/{}".format(*moves)
            row |= {f"Z {limits}": values.mean(), f"deviation {limits}": values.std(ddof=1)}
            row[f"moves {limits}"] = float(np.mean([result.evaluations for result in found]))
        rows.append(row)
    report("the published schedule", rows)


def solvers(tables: dict[str, Any], names: list[str], seeds: int, limit: float) -> None:
    for name, (probs, labels) in tables.items():
        long = Schedule(budget=5_000_000)
        best = (
            exact_search(probs, labels).z
            if probs.shape[1] <= 4
            else anneal(probs, labels, seed=1000, schedule=long).z
        )
        rows = []
        for solver_name in names:
            solver = SOLVERS[solver_name]
            gaps, times, judged = [], [], []
            for seed in range(seeds):
                target = Target(probs, labels, best=best, limit=limit)
                solver.run(target, seed)
                gaps.append(target.lowest - best)
                times.append(target.seconds if target.reached else np.inf)
                judged.append(target.judged / max(target.elapsed, 1e-9))
            rows.append(
                {
                    "solver": solver_name,
                    "reached": f"{int(np.isfinite(times).sum())}/{seeds}",
                    "median s to best": float(np.median(times)),
                    "median gap": float(np.median(gaps)),
                    "solutions/s": float(np.median(judged)),
                }
            )
        report(f"time to the best known Z={best:.6f} on {name}, limit {limit:g} s", rows)


def bounds(tables: dict[str, Any], steps: int) -> None:
    rows = []
    for name, (probs, labels) in tables.items():
        for objective in (OBJECTIVE, Objective(beta=1.0, tau=0.0)):
            found = anneal(probs, labels, objective=objective)
            started = time.process_time()
            about = lower_bound(probs, labels, found.indices, objective=objective, steps=steps)
            rows.append(
                {
                    "table": name,
                    "N": probs.shape[1],
                    "M": labels.size,
                    "tau": objective.tau,
                    "Z uncorrected": found.initial_z,
                    "Z": about.z,
                    "bound": about.bound,
                    "gap": about.gap,
                    "gap closed": (found.initial_z - about.z)
                    / max(1e-12, found.initial_z - about.bound),
                    "s": time.process_time() - started,
                }
            )
    report(f"lower bound of Z, {steps} steps", rows)


def sizes(seeds: int) -> None:
    """Double the budget until a search reaches the best-known Z, exactly or within 0.001."""
    rows = []
    shapes = [(1_000, n) for n in (2, 5, 14, 50, 150)] + [(m, 14) for m in (10_000, 100_000)]
    for n_rows, n_classes in shapes:
        probs, labels = generated(n_rows, n_classes)
        long = Schedule(budget=1_000_000)
        best = min(anneal(probs, labels, seed=1000 + s, schedule=long).z for s in range(2))
        row: dict[str, Any] = {"M": n_rows, "N": n_classes, "best Z": best}
        for within in (1e-9, 1e-3):
            times = []
            for seed in range(seeds):
                budget, z, seconds = 5_000, np.inf, np.inf
                while z > best + within and budget <= long.budget:
                    started = time.process_time()
                    z = anneal(probs, labels, seed=seed, schedule=Schedule(budget=budget)).z
                    seconds, budget = time.process_time() - started, 2 * budget
                times.append(seconds if z <= best + within else np.inf)
            name = "best" if within < 1e-6 else "best + 0.001"
            row |= {
                f"s to {name}": float(np.median(times)),
                f"reach {name}": f"{np.isfinite(times).sum()}/{seeds}",
            }
        rows.append(row)
    report("time to the best known Z by size", rows)


def spread(tables: dict[str, Any], seeds: int) -> None:
    """Separate the deviation of held-out figures by split from that by annealing.

    A random-effects analysis of variance: `seeds` annealing runs in each of `seeds` splits.
    """
    rows = []
    for name, (probs, labels) in tables.items():
        row: dict[str, Any] = {"table": name}
        for search in ("published", "heat-bath"):
            scores = np.empty((seeds, seeds))
            for split in range(seeds):
                held_out = stratified_choice(labels, round(0.3 * labels.size), seed=split)
                rest = np.delete(np.arange(labels.size), held_out)
                fast = Schedule(budget=60_000)
                schedule = Schedule.published(rest.size) if search == "published" else fast
                for seed in range(seeds):
                    found = anneal(probs[rest], labels[rest], schedule=schedule, seed=seed)
                    judged = ClassificationMetrics.from_predictions(
                        labels[held_out], found.scheme.predict(probs[held_out]), probs.shape[1]
                    )
                    scores[split, seed] = 100 * (judged.accuracy - judged.cobias)
            annealing = scores.var(axis=1, ddof=1).mean()
            splits = max(0.0, scores.mean(axis=1).var(ddof=1) - annealing / seeds)
            row |= {
                f"mean {search}": scores.mean(),
                f"by annealing {search}": annealing**0.5,
                f"by split {search}": splits**0.5,
            }
        rows.append(row)
    report("standard deviations of accuracy - COBias, points of held-out rows", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", help="npz files with probs and labels")
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    parser.add_argument("--solver", action="append", choices=SOLVERS, help="default: all")
    parser.add_argument("--seeds", type=int, help="default 20, but 3 for solvers")
    parser.add_argument("--limit", type=float, default=5.0, help="seconds per solver and seed")
    parser.add_argument("--steps", type=int, default=100, help="number of steps of a lower bound")
    parser.add_argument("--rows", type=int, default=9_500)
    parser.add_argument("--classes", type=int, default=14)
    options = parser.parse_args()
    tables = {Path(path).stem: read(path) for path in options.tables} or {
        f"generated-M{m}-N{n}": generated(m, n) for m, n in ((3_000, 3), (5_000, 4), (9_500, 14))
    }
    print(f"# {platform.processor() or platform.machine()}, Python {platform.python_version()}, ")
    print(f"# {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    runs: dict[str, Callable[[], None]] = {
        "rates": lambda: rates(options.rows, options.classes),
        "first-call": first_call,
        "scaling": scaling,
        "quality": lambda: quality(tables, options.seeds or 20),
        "bounds": lambda: bounds(tables, options.steps),
        "sizes": lambda: sizes(options.seeds or 3),
        "spread": lambda: spread(tables, options.seeds or 8),
        "published": lambda: published(tables, options.seeds or 20),
        "solvers": lambda: solvers(
            tables, options.solver or list(SOLVERS), options.seeds or 3, options.limit
        ),
    }
    for part, run in runs.items():
        if part in (options.part or PARTS):
            run()


if __name__ == "__main__":
    main()
