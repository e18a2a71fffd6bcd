"""Compare the methods of a sweep over tables and splits, as in `reports/results.md`.

    python -m benchmarks.results SWEEP [--runs dcs-runs]

Splits of one table share rows: differences over them are tested by the corrected resampled t-test,
or, with a single split, on its test rows. Tables of the same texts are not independent: standard
errors of means over tables are clustered by text, the name of the task up to a digit or _.
*Apart* are the test rows whose probabilities, to four decimals, are those of no fitted row.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dcs.data.table import ProbabilityTable
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.evaluation.uncertainty import compare_over_splits, compare_predictions
from dcs.schemes.scheme import CorrectionScheme
from dcs_tracking import Archive, CellRecord
from dcs_tracking.results.cells import method_title
from dcs_workflows.config.sweep import SweepConfig
from dcs_workflows.plan import plan_sweep

BALANCE: Final = "DCS, prefer balance"
UNCORRECTED: Final = "uncorrected"
METRICS: Final = {
    "accuracy": "accuracy",
    "cobias": "COBias",
    "score": "accuracy − COBias",
    "weakest_class": "weakest class",
    "apart": "accuracy − COBias, apart",
}
_DECIMALS: Final = 4


def read_cells(runs: Path, sweep: str) -> pd.DataFrame:
    """Return a row per cell with test rows: its table, split, method and figures in points."""
    archive = Archive(runs)
    rows = []
    known: set[str] = set()
    for each in archive.sweeps():
        if each.experiment != sweep:
            continue
        plan = plan_sweep(SweepConfig.model_validate(each.sweep_params), runs)
        records = archive.finished(archive.keys(each.sweep_key))
        for key, cells in plan.cells.items():
            own = [records[cell.key] for cell in cells if cell.key in records]
            own = [record for record in own if record.key not in known]
            known |= {record.key for record in own}
            if own:
                rows += list(_describe(own, plan.tables[key].read()))
    return pd.DataFrame(rows)


def _describe(records: list[CellRecord], tables: Any) -> Iterator[dict[str, Any]]:
    fitted, test = tables["optimization"], tables["test"]
    apart = are_apart(fitted, test)
    before = test.probs.argmax(axis=1)
    for record in records:
        after = CorrectionScheme.from_dict(record.scheme).predict(test.probs)
        found = ClassificationMetrics.from_predictions(test.labels, after, test.n_classes)
        others = ClassificationMetrics.from_predictions(
            test.labels[apart], after[apart], test.n_classes
        )
        prefer = (record.identity["tuner"] or {}).get("prefer", "no-harm")
        title = method_title(record.identity["method"])
        paired = compare_predictions(test.labels, before, after, test.n_classes)["accuracy"]
        yield {
            "table": f"{record.identity['model']}, {record.identity['task']}",
            "texts": record.identity["task"].partition("_")[0].rstrip("0123456789"),
            "seed": record.identity["seed"],
            "method": title if prefer == "no-harm" else f"{title}, prefer {prefer}",
            "ratio": test.n_rows / fitted.n_rows,
            "share_apart": apart.mean(),
            "p": paired.p,
            "lost": paired.estimate < 0.0 and paired.p < 0.05,
            "unchanged": bool((before == after).all()),
            "accuracy": 100.0 * found.accuracy,
            "cobias": 100.0 * found.cobias,
            "score": 100.0 * (found.accuracy - found.cobias),
            "weakest_class": 100.0 * found.weakest_class,
            "apart": 100.0 * (others.accuracy - others.cobias),
        }


def are_apart(fitted: ProbabilityTable, test: ProbabilityTable) -> NDArray[np.bool_]:
    """Return which test rows have the probabilities of no fitted row."""
    known = {row.tobytes() for row in np.round(fitted.probs, _DECIMALS)}
    return np.array([row.tobytes() not in known for row in np.round(test.probs, _DECIMALS)])


def differences(cells: pd.DataFrame, figure: str, method: str, other: str) -> pd.DataFrame:
    """Return the difference of two methods on each table: mean, interval, p and texts."""
    rows = []
    for table, own in cells.groupby("table", sort=False):
        wide = own.pivot(index="seed", columns="method", values=figure)
        if {method, other} <= set(wide.columns):
            change = (wide[method] - wide[other]).dropna()
            found = compare_over_splits(change, test_ratio=float(own["ratio"].mean()))
            p = found.p
            if len(change) == 1 and figure == "accuracy" and other == UNCORRECTED:
                p = float(own.loc[own["method"] == method, "p"].iloc[0])
            about = {"table": table, "texts": own["texts"].iloc[0], "splits": len(change)}
            rows.append(
                about | {"mean": found.estimate, "low": found.low, "high": found.high, "p": p}
            )
    return pd.DataFrame(rows)


def clustered_error(values: pd.Series, texts: pd.Series) -> float:
    """Return the standard error of a mean over tables, of which some have the same texts."""
    sums = (values - values.mean()).groupby(texts).sum()
    number = len(sums)
    if number < 2:
        return math.nan
    return float(np.sqrt(number / (number - 1) * (sums**2).sum()) / len(values))


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def methods_table(cells: pd.DataFrame) -> str:
    """Return the means over tables of each method, and on how many it is less accurate."""
    rows = []
    for method, own in cells.groupby("method", sort=False):
        means = own.groupby("table")[list(METRICS)].mean()
        row = [str(method), str(len(means)), *(f"{means[name].mean():.1f}" for name in METRICS)]
        change = differences(cells, "accuracy", str(method), UNCORRECTED)
        lost = (change["mean"] < 0.0) & (change["p"] < 0.05)
        row += [str((change["mean"] < -0.5).sum()), str(lost.sum())]
        row += [f"{own['lost'].sum()} of {len(own)}", f"{own['unchanged'].mean():.0%}"]
        rows.append(row)
    ends = ["tables with a loss > 0.5", "with p < 0.05", "cells with p < 0.05", "unchanged"]
    return markdown_table(["method", "tables", *METRICS.values(), *ends], rows)


def peers_table(cells: pd.DataFrame) -> str:
    """Return the difference of `BALANCE` to each method, with ties."""
    rows = []
    for method in cells["method"].unique():
        if method == BALANCE:
            continue
        row = [method]
        for figure in ("score", "apart"):
            change = differences(cells, figure, BALANCE, method)
            error = clustered_error(change["mean"], change["texts"])
            row.append(f"{change['mean'].mean():+.1f} ± {error:.1f}")
            by_text = change.groupby("texts")["mean"].mean()
            row.append(f"{by_text.mean():+.1f} ± {by_text.sem():.1f}")
        change = differences(cells, "score", BALANCE, method)
        wins, losses = (change["mean"] > 0.5).sum(), (change["mean"] < -0.5).sum()
        rows.append([*row, f"{wins} / {len(change) - wins - losses} / {losses}"])
    head = ["balance minus", "mean over tables", "over texts", "apart, tables", "apart, texts"]
    return markdown_table([*head, "ahead / within 0.5 / behind"], rows)


def tables_table(cells: pd.DataFrame) -> str:
    """Return accuracy / COBias of every method on every table."""
    methods = list(cells["method"].unique())
    means = cells.groupby(["table", "method"])[["accuracy", "cobias"]].mean()
    rows = []
    for table in cells["table"].unique():
        row = [table]
        for method in methods:
            found = (table, method) in means.index
            row.append("{:.1f} / {:.1f}".format(*means.loc[(table, method)]) if found else "")
        rows.append(row)
    return markdown_table(["table", *methods], rows)


def losses_table(cells: pd.DataFrame) -> str:
    """Return the changes of the default from uncorrected on every table."""
    rows = []
    for method in ("DCS", BALANCE):
        changes = differences(cells, "accuracy", method, UNCORRECTED)
        biases = differences(cells, "cobias", method, UNCORRECTED).set_index("table")["mean"]
        for row in changes[changes["mean"] < 0.0].sort_values("mean").to_dict("records"):
            change = f"{row['mean']:+.2f}"
            if row["splits"] > 1:
                change += f" [{row['low']:+.2f}, {row['high']:+.2f}]"
            p = f"{row['p']:.3f}"
            rows.append([method, row["table"], change, p, f"{biases[row['table']]:+.1f}"])
    return markdown_table(["method", "table", "change of accuracy", "p", "change of COBias"], rows)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep")
    parser.add_argument("--runs", type=Path, default=Path("dcs-runs"))
    options = parser.parse_args()
    cells = read_cells(options.runs, options.sweep)
    splits = cells.groupby(["table", "method"])["seed"].nunique()
    apart = cells.drop_duplicates(["table", "seed"])["share_apart"].mean()
    print(
        f"{cells['table'].nunique()} tables of {cells['texts'].nunique()} sets of texts, "
        f"at least {splits.min()} splits; {apart:.0%} of the test rows are apart.\n"
    )
    for build in (methods_table, peers_table, losses_table, tables_table):
        print(build(cells), end="\n\n")


if __name__ == "__main__":
    main()
