"""Quality against the number of labelled rows, of the default and of its peers.

Tables in NumPy files (`probs`, `labels`) are divided at random, 30 % of their
rows held out; each method is fitted to some of the others. Results are appended to a CSV file,
from which a later run continues, and summed up as Markdown and a figure::

    python -m benchmarks.rows FOLDER [FOLDER ...] --output RUNS

Methods are compared by accuracy minus COBias on the held-out rows, in points, and paired by table
and split. Standard errors are over tables. With ``--coarse``, the probabilities are also rounded
and drawn as votes.
"""

from __future__ import annotations

import argparse
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import dcs
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.selection.methods import get_method

ROWS: Final = (60, 150, 300, 600, 900, 1500, 3000, 0)
PEERS: Final = ("batch", "surrogate", "drops", "logistic-balanced")
HELD_OUT: Final = 0.3


def read(path: Path) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the normalised probabilities and labels of a table."""
    with np.load(path) as file:
        probs, labels = file["probs"].astype(np.float64), file["labels"].astype(np.int64)
    return probs / probs.sum(axis=1, keepdims=True), labels


def as_form(probs: NDArray[np.float64], form: str) -> NDArray[np.float64]:
    """Return probabilities rounded to a number of decimals, or drawn as a number of votes."""
    kind, _, number = form.partition(" ")
    if kind == "decimals":
        rounded = probs.round(int(number))
        return rounded / rounded.sum(axis=1, keepdims=True)
    if kind == "votes":
        drawn = np.random.default_rng(0).multinomial(int(number), probs)
        return (drawn + 1.0 / probs.shape[1]) / (int(number) + 1.0)
    return probs


def compute(item: tuple[Path, int, int, str]) -> list[dict[str, Any]]:
    """Fit all methods to some rows of one table; 0 stands for all."""
    path, number, split, form = item
    probs, labels = read(path)
    n_classes = probs.shape[1]
    order = np.random.default_rng([7, split]).permutation(labels.size)
    test, rest = np.split(order, [round(HELD_OUT * labels.size)])
    fitted = rest[: number or rest.size]
    probs = as_form(probs, form)
    about = {"table": path.stem, "rows": number, "split": split, "form": form}
    found: dict[str, tuple[dcs.CorrectionScheme, float]] = {}
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # Classes without rows, and regressions that do not converge.
        warnings.simplefilter("ignore")
        clock = time.process_time()
        front = dcs.fit_scheme(probs[fitted], labels[fitted])
        seconds = time.process_time() - clock
        found["default"] = front.scheme, seconds
        found["balance"] = front.pick(dcs.Preference("balance")).scheme, seconds
        found["uncorrected"] = front.plain.scheme, 0.0
        for name in PEERS if form == "plain" else ():
            clock = time.process_time()
            scheme = get_method(name).fit(probs[fitted], labels[fitted])
            found[name] = scheme, time.process_time() - clock
    rows = []
    for name, (scheme, seconds) in found.items():
        metrics = ClassificationMetrics.from_predictions(
            labels[test], scheme.predict(probs[test]), n_classes
        )
        figures = {"accuracy": 100 * metrics.accuracy, "cobias": 100 * metrics.cobias}
        rows.append(about | {"method": name, **figures, "seconds": seconds})
    return rows


def summary(frame: pd.DataFrame) -> str:
    """Return the tables of means, of paired differences, and of the worst tables."""
    frame = frame.assign(score=frame["accuracy"] - frame["cobias"])
    plain = frame[frame["form"] == "plain"]
    scores = plain.pivot_table(index=["rows", "table"], columns="method", values="score")
    numbers = sorted(scores.index.unique("rows"), key=lambda number: number or 10**9)
    names = ["default", "balance", *PEERS, "uncorrected"]
    lines = ["| rows | tables | " + " | ".join(names) + " |"]
    lines.append("| ---: | ---: |" + " ---: |" * len(names))
    for number in numbers:
        own = scores.loc[number]
        lines.append(
            f"| {number or 'all'} | {len(own)} | "
            + " | ".join(f"{own[name].mean():.1f}" for name in names)
            + " |"
        )
    lines += ["", "| rows | " + " | ".join(f"against {name}" for name in PEERS) + " | worst |"]
    lines.append("| ---: |" + " ---: |" * (len(PEERS) + 1))
    for number in numbers:
        own = scores.loc[number]
        cells = []
        for name in PEERS:
            difference = own["balance"] - own[name]
            cells.append(f"{difference.mean():+.1f} +- {difference.sem():.1f}")
        behind = own["balance"] - own[list(PEERS)].max(axis=1)
        cells.append(f"{behind.min():+.1f} {behind.idxmin()}")
        lines.append(f"| {number or 'all'} | " + " | ".join(cells) + " |")
    lines += ["", "| from | to | balance gains | default gains |", "| ---: | ---: | ---: | ---: |"]
    for less, more in zip(numbers, numbers[1:], strict=False):
        both = scores.loc[less].index.intersection(scores.loc[more].index)
        gains = [scores.loc[more, n][both] - scores.loc[less, n][both] for n in names[:2]]
        shown = " | ".join(f"{gain.mean():+.1f} +- {gain.sem():.1f}" for gain in gains)
        lines.append(f"| {less} | {more or 'all'} | {shown} |")
    forms = frame[(frame["rows"] == 0) & (frame["method"] == "balance")]
    if forms["form"].nunique() > 1:
        lines += ["", "| form | accuracy | COBias |", "| --- | ---: | ---: |"]
        for form, own in forms.groupby("form", sort=False):
            lines.append(f"| {form} | {own['accuracy'].mean():.1f} | {own['cobias'].mean():.1f} |")
    return "\n".join(lines)


def draw(frame: pd.DataFrame, path: Path) -> None:
    """Draw quality against rows, as means over the tables that have all numbers of rows."""
    from matplotlib.figure import Figure

    frame = frame[frame["form"] == "plain"].assign(score=frame["accuracy"] - frame["cobias"])
    frame = frame[frame["rows"] > 0]
    complete = frame.groupby("table")["rows"].transform("nunique") == frame["rows"].nunique()
    means = frame[complete].pivot_table(index="rows", columns="method", values="score")
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.subplots()
    for name in ("balance", "default", *PEERS, "uncorrected"):
        strong = name in ("balance", "default")
        axes.plot(means.index, means[name], "o-" if strong else "o--", label=name, alpha=0.9)
    axes.set_xscale("log")
    axes.set_xticks(means.index, [f"{number:,}" for number in means.index])
    axes.minorticks_off()
    axes.set_xlabel("labelled rows")
    axes.set_ylabel("accuracy - COBias, held out")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Compute what is missing; print the tables and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", help="folders of tables")
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="0 stands for all")
    parser.add_argument("--coarse", action="store_true", help="also rounded and drawn as votes")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / "rows.csv"
    known: set[tuple[Any, ...]] = set()
    if file.exists():
        done = pd.read_csv(file)[["table", "rows", "split", "form"]]
        known = set(done.itertuples(index=False, name=None))
    items = []
    for path in sorted(each for folder in options.folders for each in folder.glob("*.npz")):
        most = round((1.0 - HELD_OUT) * read(path)[1].size)
        forms = ("decimals 2", "decimals 3", "decimals 6", "votes 20") if options.coarse else ()
        for split in range(options.splits):
            items += [(path, n, split, "plain") for n in options.rows if n < most]
            items += [(path, 0, split, form) for form in forms]
    missing = [each for each in items if (each[0].stem, *each[1:]) not in known]
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for number, rows in enumerate(pool.map(compute, missing), start=1):
            pd.DataFrame(rows).to_csv(file, mode="a", header=not file.exists(), index=False)
            print(f"\r{number} of {len(missing)}", end="", flush=True)
    frame = pd.read_csv(file)
    print("\n" + summary(frame))
    if (frame["rows"] > 0).any():
        draw(frame, options.output / "rows.png")


if __name__ == "__main__":
    main()
