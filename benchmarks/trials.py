"""Quality by number of trials: the standard settings alone, 24 trials, and 48.

    python -m benchmarks.trials run FILE TABLE ... --seeds 0 1    # append what FILE lacks
    python -m benchmarks.trials table FILE

A study of 48 trials contains those of the shorter ones, so that each table and split has one
study: the shorter ones resume from its storage and judge nothing again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pandas as pd

from benchmarks.results import clustered_error, differences, markdown_table
from dcs.evaluation.metrics import ClassificationMetrics
from dcs_workflows.config.sweep import SweepConfig
from dcs_workflows.config.tuner import TunerSettings
from dcs_workflows.parallel import one_thread
from dcs_workflows.plan import Variant, cells_of
from dcs_workflows.sources.given import given_tables, source_name
from dcs_workflows.study.storage import StoredStudy
from dcs_workflows.study.study import Setup, study_scheme

#: Numbers of trials; 0 stands for the standard settings alone.
TRIALS: Final = (0, 24, 48)
PREFERENCES: Final = ("no-harm", "balance")
_HELD_OUT: Final = 0.3


@one_thread()
def judge(path: Path, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the test figures of one split by number of trials and preference, in points."""
    name = source_name(path)
    config = SweepConfig(name="trials", tables=(str(path),), seeds=(seed,), held_out=_HELD_OUT)
    (given,) = given_tables(config)
    rows = given.read()
    test = rows["test"]
    model, _, task = name.partition("__")
    texts = task.partition("_")[0].rstrip("0123456789")
    with tempfile.TemporaryDirectory(prefix="dcs-bench-") as folder:
        stored = StoredStudy(name, Path(folder) / "study.journal")
        # The longest first: the others find its trials in the storage.
        for trials in sorted(TRIALS, reverse=True):
            setup = Setup(stored=lambda key, label: stored)
            for prefer in PREFERENCES:
                variant = Variant(method="dcs", tuner=TunerSettings(trials=trials, prefer=prefer))
                (cell,) = cells_of([given], [variant], given.digests)
                tuned = study_scheme(cell, rows["optimization"], setup=setup)
                found = ClassificationMetrics.from_predictions(
                    test.labels, tuned.scheme.predict(test.probs), test.n_classes
                )
                yield {
                    "table": f"{model}, {task}",
                    "texts": texts,
                    "seed": seed,
                    "trials": trials,
                    "prefer": prefer,
                    "ratio": test.n_rows / rows["optimization"].n_rows,
                    "judged": len(tuned.trials),
                    "seconds": sum(trial.seconds for trial in tuned.trials),
                    "accuracy": 100.0 * found.accuracy,
                    "cobias": 100.0 * found.cobias,
                    "score": 100.0 * (found.accuracy - found.cobias),
                }


def run(file: Path, tables: list[Path], seeds: list[int]) -> None:
    """Append the figures of the tables and splits that the file lacks."""
    lines = file.read_text().splitlines() if file.exists() else []
    done = {(each["table"], each["seed"]) for each in map(json.loads, lines)}
    for seed in seeds:
        for path in tables:
            if (source_name(path).replace("__", ", ", 1), seed) not in done:
                clock = time.perf_counter()
                found = [*judge(path, seed)]
                with file.open("a") as out:
                    out.writelines(json.dumps(each) + "\n" for each in found)
                print(f"{found[0]['table']}, split {seed}: {time.perf_counter() - clock:.0f} s")


def table(file: Path) -> str:
    """Return the figures by preference and number of trials, with the change from none."""
    cells = pd.read_json(file, lines=True)
    cells["method"], cells["p"] = cells["trials"].astype(str), float("nan")
    rows = []
    for prefer in PREFERENCES:
        own = cells[cells["prefer"] == prefer]
        for trials in TRIALS:
            some = own[own["trials"] == trials]
            means = some.groupby("table")[["accuracy", "cobias", "score"]].mean().mean()
            name = f"{trials}, of {some['judged'].max()}" if trials else "standard settings"
            row = [prefer, name, *(f"{value:.2f}" for value in means)]
            if trials:
                row += _change(own, str(trials))
            else:
                row += [""] * 5
            rows.append([*row, f"{some['seconds'].mean():.1f}"])
    head = ["prefer", "trials", "accuracy", "COBias", "accuracy − COBias", "change"]
    head += ["splits ahead / same / behind", "tables beyond 0.5, ahead / behind"]
    head += ["p < 0.05, ahead / behind", "worst table", "s a study"]
    return markdown_table(head, rows)


def _change(cells: pd.DataFrame, trials: str) -> list[str]:
    """Compare a number of trials with the standard settings, paired by table and split."""
    by_table = differences(cells, "score", trials, "0")
    wide = cells.pivot(index=["table", "seed"], columns="method", values="score")
    change = wide[trials] - wide["0"]
    error = clustered_error(by_table["mean"], by_table["texts"])
    counts = (change > 0).sum(), (change == 0).sum(), (change < 0).sum()
    beyond = (by_table["mean"] > 0.5).sum(), (by_table["mean"] < -0.5).sum()
    sure = by_table[by_table["p"] < 0.05]["mean"]
    worst = by_table.loc[by_table["mean"].idxmin()]
    return [
        f"{by_table['mean'].mean():+.2f} ± {error:.2f}",
        " / ".join(map(str, counts)),
        " / ".join(map(str, beyond)),
        f"{(sure > 0).sum()} / {(sure < 0).sum()}",
        f"{worst['mean']:+.2f} ({worst['table']})",
    ]


def main() -> None:
    """Compute figures or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["run", "table"])
    parser.add_argument("file", type=Path)
    parser.add_argument("tables", type=Path, nargs="*")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    if options.part == "run":
        run(options.file, options.tables, options.seeds)
    else:
        print(table(options.file))


if __name__ == "__main__":
    main()
