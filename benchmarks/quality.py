"""Every method on every table: accuracy, COBias and their difference on held-out rows.

For each table (``*.npz`` with ``probs`` [M, N] and ``labels`` [M], or ``*.parquet``) of a folder,
seeded 70/30 splits: fitted on the larger part, judged on the smaller. For every method that is not
ours, also the COBias of our front at that method's mean accuracy.

    python benchmarks/quality.py FOLDER [--splits 10] [--methods icl,batch,...] [--json FILE]
    python benchmarks/quality.py FOLDER --ablations
    python benchmarks/quality.py FOLDER --rows 10,50,100,500
    python benchmarks/quality.py RESULTS --read [--markdown [tables|scores|methods]]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from quality_report import FRONT, OURS, print_overall, print_saved, print_table

from dcs.data.splits import stratified_split
from dcs.data.table import ProbabilityTable
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.cross_validation import SelectionSettings, fit_scheme
from dcs.selection.methods import get_method, method_names
from dcs.selection.preference import Preference
from dcs.selection.settings import Hyperparameters

_PAPER = Hyperparameters(
    calibration="none",
    corrections="both",
    spacing="linear",
    weight_scale=30,
    prior_rows=0.0,
    averages=0,
)
_BALANCED = Hyperparameters(calibration="balanced")
_AS_THEY_ARE = tuple(
    Hyperparameters(calibration=kind, corrections="none")
    for kind in ("batch", "prior", "vector", "logistic", "balanced")
)


def _only(*candidates: Hyperparameters) -> SelectionSettings:
    return SelectionSettings(candidates=candidates)


#: One change at a time: from the paper's corrections on, then away from the default.
ABLATIONS: Mapping[str, SelectionSettings] = {
    "paper's 49": _only(_PAPER),
    "+ tau 0.2": _only(replace(_PAPER, tau=0.2)),
    "+ D_W 120": _only(replace(_PAPER, weight_scale=120)),
    "+ 5 memberships": _only(replace(_PAPER, memberships=5)),
    "+ log weights to 2": _only(replace(_PAPER, spacing="logarithmic", weight_scale=80)),
    "log weights, guards": _only(Hyperparameters(calibration="none")),
    "batch + weights": _only(Hyperparameters(calibration="batch")),
    "vector + weights": _only(Hyperparameters(calibration="vector")),
    "logistic + weights": _only(Hyperparameters(calibration="logistic")),
    "balanced + weights": _only(_BALANCED),
    "balanced + both": _only(replace(_BALANCED, corrections="both")),
    "balanced, no shrinkage": _only(replace(_BALANCED, prior_rows=0.0)),
    "balanced, no averages": _only(replace(_BALANCED, averages=0)),
    "baselines, no search": _only(*_AS_THEY_ARE),
    "10 folds": SelectionSettings(folds=10),
    "no way back": SelectionSettings(keep_uncorrected=False),
    "prefer knee": SelectionSettings(preference=Preference(prefer="knee")),
    "prefer accuracy": SelectionSettings(preference=Preference(prefer="accuracy")),
    "accuracy loss 0.5": SelectionSettings(preference=Preference(max_accuracy_loss=0.5)),
    "COBias 5": SelectionSettings(preference=Preference(max_cobias=5.0)),
}
#: Settings that Optuna's study with two objectives tries, beside the default.
STUDY, TRIALS = "30 trials", 30


def read_tables(folder: Path) -> Iterator[ProbabilityTable]:
    for path in sorted(folder.iterdir()):
        if path.suffix == ".parquet":
            yield replace_name(ProbabilityTable.read(path), path.stem)
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as data:
                probs, labels = data["probs"].astype(float), data["labels"].astype(int)
            table = ProbabilityTable.from_arrays(probs, labels, normalise=True, source=str(path))
            yield replace_name(table, path.stem)


def replace_name(table: ProbabilityTable, name: str) -> ProbabilityTable:
    return replace(table, provenance=replace(table.provenance, task=name))


def judge(predictions: Any, table: ProbabilityTable) -> ClassificationMetrics:
    return ClassificationMetrics.from_predictions(table.labels, predictions, table.n_classes)


def split(table: ProbabilityTable, seed: int, rows: int | None) -> tuple[ProbabilityTable, ...]:
    parts = stratified_split(table.labels, {"fit": 0.7, "judge": 0.3}, seed=seed)
    fit = parts["fit"]
    if rows is not None:
        fit = np.sort(np.random.default_rng(seed).permutation(fit)[:rows])
    return table.subset(fit), table.subset(parts["judge"])


def run_table(
    table: ProbabilityTable,
    *,
    methods: Sequence[str],
    ablations: Mapping[str, SelectionSettings],
    splits: Sequence[int],
    rows: int | None,
) -> list[dict[str, Any]]:
    """Return one record per split and method; a front has one per point."""
    records: list[dict[str, Any]] = []
    for seed in splits:
        fit, held_out = split(table, seed, rows)

        def add(
            method: str,
            scheme: Any,
            started: float,
            point: int = -1,
            *,
            seed: int = seed,
            held_out: ProbabilityTable = held_out,
            n_fit: int = fit.n_rows,
        ) -> None:
            metrics = judge(scheme.predict(held_out.probs), held_out)
            records.append(
                {
                    "table": table.provenance.task,
                    "method": method,
                    "split": seed,
                    "point": point,
                    "rows": n_fit,
                    "accuracy": 100 * metrics.accuracy,
                    "cobias": 100 * metrics.cobias,
                    "seconds": time.perf_counter() - started,
                }
            )

        for method in methods:
            started = time.perf_counter()
            if method == OURS:
                fitted = fit_scheme(fit.probs, fit.labels, seed=seed)
                add(OURS, fitted.scheme, started)
                for k, point in enumerate(fitted.points):
                    add(FRONT, point.scheme, started, k)
            else:
                add(method, get_method(method).fit(fit.probs, fit.labels, seed=seed), started)
        for name, settings in ablations.items():
            started = time.perf_counter()
            fitted = fit_scheme(fit.probs, fit.labels, settings=settings, seed=seed)
            add(name, fitted.scheme, started)
        if ablations:
            started = time.perf_counter()
            add(STUDY, study(fit, seed), started)
    return records


def study(table: ProbabilityTable, seed: int) -> CorrectionScheme:
    """Fit the default with settings that Optuna finds taking part."""
    from workflows.config.sweep import TunerSettings
    from workflows.tuning.cross_validation import cross_validated_scheme
    from workflows.tuning.trials import Tuning

    settings = TunerSettings(trials=TRIALS)
    tuning = Tuning(table=table, method=get_method(OURS), settings=settings, seed=seed)
    return cross_validated_scheme(tuning).scheme


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="number of the first split")
    parser.add_argument("--methods", default=None, help="comma-separated; default: all")
    parser.add_argument("--tables", default="", help="only tables whose name matches this")
    parser.add_argument("--rows", default=None, help="comma-separated numbers of rows to fit on")
    parser.add_argument("--ablations", action="store_true", help="compare settings of ours")
    parser.add_argument("--json", type=Path, default=None, help="write one line per result")
    parser.add_argument(
        "--read", action="store_true", help="print the results in the *.jsonl files of the folder"
    )
    parser.add_argument(
        "--markdown",
        choices=("tables", "scores", "methods"),
        nargs="?",
        const="tables",
        help="with --read: one Markdown table; accuracy / COBias by table, or accuracy minus "
        "COBias by table (scores) or by method",
    )
    options = parser.parse_args(arguments)
    if options.read:
        print_saved(options.folder, form=options.markdown)
        return 0
    if options.methods:
        methods = tuple(options.methods.split(","))
    elif options.ablations:
        methods = (OURS,)
    else:
        # The long variants take minutes a fit, and must be asked for.
        methods = tuple(
            name
            for name in method_names(baselines=True)
            if name != "contextual" and not name.endswith("-long")
        )
    sizes = [int(size) for size in options.rows.split(",")] if options.rows else [None]
    lines = options.json.open("w", encoding="utf-8") if options.json else None
    # Small samples leave classes out, which each fit would report.
    warnings.simplefilter("ignore", UserWarning)
    for rows in sizes:
        if rows is not None:
            print(f"\n--- fitted on {rows} rows", file=sys.stdout)
        overall: dict[str, dict[str, tuple[float, ...]]] = {}
        for table in read_tables(options.folder):
            name = str(table.provenance.task)
            if not re.search(options.tables, name):
                continue
            records = run_table(
                table,
                methods=methods,
                ablations=ABLATIONS if options.ablations else {},
                splits=range(options.first, options.first + options.splits),
                rows=rows,
            )
            overall[name] = print_table(records, sys.stdout)
            sys.stdout.flush()
            if lines:
                lines.writelines(json.dumps(record) + "\n" for record in records)
                lines.flush()
        if overall:
            print_overall(overall, sys.stdout)
    if lines:
        lines.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
