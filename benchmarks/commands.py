"""Time and memory of the commands that read results, at several numbers of cells.

    python -m benchmarks.commands FOLDER 120 1000 3000

Two sweeps of half the cells each are computed and recorded in SQLite under FOLDER, by `dcs sweep`;
those of an earlier run are kept. Then each command is run as a process of its own, on warm files.
The cells are four methods without annealing on a table of 200 rows, with many seeds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from dcs.data.table import ProbabilityTable

METHODS = ("icl", "batch", "prior", "logistic")
ROWS = 200


def write_inputs(folder: Path) -> None:
    """Write the table of the sweeps."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet((1.0, 0.7, 0.4), ROWS)
    labels = [int(rng.choice(3, p=row)) for row in probs]
    table = ProbabilityTable.from_arrays(probs, labels, classes=("a", "b", "c"))
    table.write(folder / "table.parquet")


def write_sweep(folder: Path, name: str, seeds: int) -> Path:
    """Write the file of a sweep that differs from others by its name."""
    sizes = "" if name == "before" else "optimization_sizes: [100]\n"
    path = folder / f"{name}.yaml"
    path.write_text(
        f"name: {name}\ntables: {folder / 'table.parquet'}\nmethods: [{', '.join(METHODS)}]\n"
        f"seeds: {list(range(seeds))}\n{sizes}tracking: {{figures: none}}\n"
    )
    return path


def measured(*arguments: str) -> tuple[float, float]:
    """Run a command of dcs and return its seconds and its largest memory in MB."""
    started = time.perf_counter()
    command = [str(Path(sys.executable).with_name("dcs")), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(command)} failed: {said}")
    return time.perf_counter() - started, usage.ru_maxrss / 1024


def main() -> None:
    """Print a table of the commands at each number of cells."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("cells", type=int, nargs="+")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    write_inputs(options.folder)
    print("| cells | command | seconds | memory, MB |\n| ---: | --- | ---: | ---: |")
    for cells in options.cells:
        output = str(options.folder / f"runs-{cells}")
        seeds = cells // (2 * len(METHODS))
        paths = [write_sweep(options.folder, name, seeds) for name in ("before", "after")]
        rows = {"first run": measured("sweep", str(paths[0]), "-o", output, "--quiet")}
        measured("sweep", str(paths[1]), "-o", output, "--quiet")
        report = str(options.folder / "report.html")
        rows |= {
            "sweep, nothing to do": measured("sweep", str(paths[0]), "-o", output, "--quiet"),
            "runs": measured("runs", "-o", output),
            "runs SWEEP --sort": measured("runs", "before", "--sort", "test/cobias", "-o", output),
            "compare": measured("compare", "before", "after", "-o", output),
            "report": measured("report", "before", "--runs", output, "-o", report),
            "sync": measured("sync", "-o", output),
        }
        for name, (seconds, memory) in rows.items():
            print(f"| {cells:,} | `{name}` | {seconds:.1f} | {memory:.0f} |", flush=True)


if __name__ == "__main__":
    main()
