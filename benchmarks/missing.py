"""Simulate servers that return only some class probabilities, or votes.

The most probable k classes of each row are kept and the others filled; votes are
drawn from the probabilities of a row. A scheme is fitted on half of the rows and evaluated on the
others. Run::

    python -m benchmarks.missing TABLE... --splits 3
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import dcs
from dcs.data.forms.logs import fill_missing
from dcs.data.reader import open_sources

_TOPS = (2, 5)
_VOTES = 20
_STRENGTHS = (0.3, 1.0, 3.0)

Probs = NDArray[np.float64]


def keep_top(probs: Probs, top: int) -> Probs:
    """Return the probabilities [M, N] as read from the `top` most probable classes of each row."""
    rows = []
    for row in probs:
        kept = np.argsort(-row, kind="stable")[:top]
        masses = np.zeros(row.size)
        masses[kept] = row[kept]
        rows.append(fill_missing(masses, row[kept]))
    return np.array(rows)


def draw_votes(probs: Probs, strength: float, rng: np.random.Generator) -> Probs:
    """Return the smoothed frequencies [M, N] of votes drawn from each row."""
    counts = rng.multinomial(_VOTES, probs)
    return dcs.ProbabilityTable.from_counts(counts, None, smoothing=strength).probs


def accesses(n_classes: int, seed: int) -> dict[str, Callable[[Probs], Probs]]:
    """Return what each kind of access makes of full probabilities, by name."""
    found: dict[str, Callable[[Probs], Probs]] = {"full": lambda probs: probs}
    for top in _TOPS:
        if top < n_classes:
            found[f"top {top}"] = lambda p, k=top: keep_top(p, k)
    for strength in _STRENGTHS:
        found[f"{_VOTES} votes, {strength:g}"] = lambda p, s=strength: draw_votes(
            p, s, np.random.default_rng(seed)
        )
    return found


def simulate(path: Path, seed: int, n_rows: int) -> list[dict[str, object]]:
    """Fit and evaluate each kind of access to one table on one split."""
    table = open_sources(path)["optimization"].table.only_labelled()
    order = np.random.default_rng(seed).permutation(table.n_rows)[:n_rows]
    first, second = np.array_split(order, 2)
    lines = []
    for name, access in accesses(table.n_classes, seed).items():
        probs = access(table.probs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Classes without rows.
            found = dcs.fit_scheme(probs[first], table.labels[first])
        scheme = found.pick(dcs.Preference("balance")).scheme
        for state, predicted in (
            ("uncorrected", probs[second].argmax(axis=1)),
            ("corrected", scheme.predict(probs[second])),
        ):
            metrics = dcs.ClassificationMetrics.from_predictions(
                table.labels[second], predicted, table.n_classes
            )
            lines.append(
                {
                    "table": f"{path.stem} ({table.n_classes})",
                    "access": name,
                    "state": state,
                    "accuracy": 100 * metrics.accuracy,
                    "cobias": 100 * metrics.cobias,
                    "difference": 100 * (metrics.accuracy - metrics.cobias),
                }
            )
    return lines


def main() -> None:
    """Simulate and print the mean over the splits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--rows", type=int, default=3000, help="fitted and evaluated, per split")
    options = parser.parse_args()
    lines = [
        line
        for path in options.tables
        for seed in range(options.splits)
        for line in simulate(path, seed, options.rows)
    ]
    frame = pd.DataFrame(lines)
    columns = ["accuracy", "cobias", "difference"]
    means = frame.groupby(["table", "access", "state"], sort=False)[columns].mean().round(1)
    print(means.unstack("state").to_string())


if __name__ == "__main__":
    main()
