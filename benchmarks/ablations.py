"""Ablations of the default: accuracy minus COBias on held-out rows, in points.

One change at a time, first relative to the paper's corrections, then relative to the default, on
seeded 70/30 splits of tables of class probabilities:

    python benchmarks/ablations.py TABLE ... [--splits 4] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from dcs.data.reader import open_sources
from dcs.data.splits import stratified_split
from dcs.data.table import ProbabilityTable
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.methods.calibrations import CALIBRATIONS
from dcs.methods.parameters import Hyperparameters
from dcs.selection.compare import SelectionSettings, fit_scheme
from dcs.selection.preference import Preference

_PAPER = Hyperparameters(
    calibration="none",
    corrections="both",
    spacing="linear",
    weight_scale=30,
    prior_rows=0.0,
)
_CALIBRATIONS = tuple(
    Hyperparameters(calibration=kind, corrections="none") for kind in CALIBRATIONS
)
_CHOICE = SelectionSettings(preference=Preference("balance"))


def _only(*candidates: Hyperparameters) -> SelectionSettings:
    return replace(_CHOICE, candidates=candidates)


ABLATIONS: Final[Mapping[str, SelectionSettings]] = {
    "default, balance": _CHOICE,
    "paper's 49": _only(_PAPER),
    "+ tau 0.2": _only(replace(_PAPER, tau=0.2)),
    "+ D_W 120": _only(replace(_PAPER, weight_scale=120)),
    "+ 5 memberships": _only(replace(_PAPER, memberships=5)),
    "+ log weights to 2": _only(replace(_PAPER, spacing="logarithmic", weight_scale=80)),
    "log weights, guards": _only(Hyperparameters(calibration="none")),
    "batch + weights": _only(Hyperparameters(calibration="batch")),
    "linear + weights": _only(Hyperparameters(calibration="linear")),
    "products + weights": _only(Hyperparameters(calibration="products")),
    "mixture + weights": _only(Hyperparameters()),
    "mixture + both": _only(Hyperparameters(corrections="both")),
    "mixture, no shrinkage": _only(Hyperparameters(prior_rows=0.0)),
    "mixture, no search": _only(Hyperparameters(corrections="none")),
    "baselines, no search": _only(*_CALIBRATIONS),
    "10 folds": replace(_CHOICE, folds=10),
}


def score(table: ProbabilityTable, settings: SelectionSettings, seed: int) -> float:
    """Return the held-out accuracy minus COBias of one split, in points."""
    parts = stratified_split(table.labels, {"fit": 0.7, "judge": 0.3}, seed=seed)
    fit, judge = table.subset(parts["fit"]), table.subset(parts["judge"])
    scheme = fit_scheme(fit.probs, fit.labels, settings=settings, seed=seed).scheme
    judged = ClassificationMetrics.from_predictions(
        judge.labels, scheme.predict(judge.probs), judge.n_classes
    )
    return 100.0 * (judged.accuracy - judged.cobias)


def main() -> None:
    """Print a Markdown table with one row per ablation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--splits", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=ABLATIONS, default=list(ABLATIONS))
    options = parser.parse_args()
    tables = {path.stem: open_sources(path)["optimization"].table for path in options.tables}
    # Every fit would warn about absent classes.
    warnings.simplefilter("ignore", UserWarning)
    print("| settings | " + " | ".join(tables) + " | mean |")
    print("|---" * (len(tables) + 2) + "|")
    for name in options.only:
        scores = np.array(
            [
                [score(table, ABLATIONS[name], seed) for seed in range(options.splits)]
                for table in tables.values()
            ]
        )
        errors = scores.std(axis=1, ddof=1) / np.sqrt(options.splits)
        row = [f"{m:.1f} ± {e:.1f}" for m, e in zip(scores.mean(axis=1), errors, strict=True)]
        print(f"| {name} | " + " | ".join(row) + f" | {scores.mean():.1f} |", flush=True)


if __name__ == "__main__":
    main()
