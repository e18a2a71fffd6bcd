"""Quality on simulated rows as models of today give them: overconfident, rounded, stated, votes.

    python -m benchmarks.worlds OUTPUT.csv [--seeds 4]

Scores of the classes are drawn around means that differ by the true class, with a bias of each
class, and turned into probabilities in several ways. Each method is fitted to 100, 300 and 900
rows of 3 and 10 classes, and judged on 6,000 others, by accuracy minus COBias in points.
"""

from __future__ import annotations

import argparse
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import dcs
from benchmarks.results import markdown_table
from benchmarks.rows import PEERS
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.schemes.apply import softmax
from dcs.selection.methods import get_method

KINDS: Final = ("overconfident", "rounded", "confidence", "tenths", "votes")
CLASSES: Final = (3, 10)
ROWS: Final = (100, 300, 900)
TESTED: Final = 6000


def simulate(
    kind: str, n_classes: int, n_rows: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the probabilities [M, N] and labels [M] of a world."""
    shares = rng.dirichlet(np.full(n_classes, 3.0))
    labels = rng.choice(n_classes, size=n_rows, p=shares)
    means = 0.6 * rng.normal(size=(n_classes, n_classes)) + 1.6 * np.eye(n_classes)
    scores = means[labels] + rng.normal(size=(n_rows, n_classes)) + rng.normal(size=n_classes)
    if kind == "overconfident":
        # Single precision; smaller values are zero.
        probs = softmax(8.0 * scores)
        probs[probs < 1e-7] = 0.0
    elif kind == "rounded":
        probs = softmax(4.0 * scores).round(4)
    elif kind == "tenths":
        probs = softmax(scores).round(1)
    elif kind == "confidence":
        # The predicted label and a stated confidence, the rest is shared equally.
        top, stated = scores.argmax(axis=1), (0.6 + 0.4 * softmax(scores).max(axis=1)).round(1)
        probs = np.tile(((1.0 - stated) / (n_classes - 1))[:, None], n_classes)
        probs[np.arange(n_rows), top] = stated
    else:
        probs = (rng.multinomial(5, softmax(2.0 * scores)) + 1.0 / n_classes) / 6.0
    sums = probs.sum(axis=1, keepdims=True)
    return np.where(sums > 0.0, probs / np.maximum(sums, 1e-300), 1.0 / n_classes), labels


def compute(item: tuple[str, int, int, int]) -> list[dict[str, Any]]:
    """Fit all methods to a world."""
    kind, n_classes, number, seed = item
    rng = np.random.default_rng([KINDS.index(kind), n_classes, number, seed])
    probs, labels = simulate(kind, n_classes, number + TESTED, rng)
    fitted, tested = slice(number), slice(number, None)
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # Classes without rows, and regressions that do not converge.
        warnings.simplefilter("ignore")
        front = dcs.fit_scheme(probs[fitted], labels[fitted])
        schemes = {"default": front.scheme, "uncorrected": front.plain.scheme}
        schemes["balance"] = front.pick(dcs.Preference("balance")).scheme
        schemes |= {name: get_method(name).fit(probs[fitted], labels[fitted]) for name in PEERS}
    about = {"kind": kind, "classes": n_classes, "rows": number, "seed": seed}
    found = []
    for name, scheme in schemes.items():
        predicted = scheme.predict(probs[tested])
        metrics = ClassificationMetrics.from_predictions(labels[tested], predicted, n_classes)
        score = 100.0 * (metrics.accuracy - metrics.cobias)
        found.append(about | {"method": name, "score": score})
    return found


def main() -> None:
    """Print the mean scores by kind and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path, help="CSV file of all figures")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    items = list(product(KINDS, CLASSES, ROWS, range(options.seeds)))
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        frame = pd.DataFrame([row for found in pool.map(compute, items) for row in found])
    frame.to_csv(options.output, index=False)
    names = ["default", "balance", *PEERS, "uncorrected"]
    for keys in (["kind", "rows"], ["classes"]):
        means = frame.pivot_table(index=keys, columns="method", values="score", sort=False)
        rows = [
            [*map(str, np.atleast_1d(key)), *(f"{own[name]:.1f}" for name in names)]
            for key, own in means.iterrows()
        ]
        print(markdown_table([*keys, *names], rows), end="\n\n")


if __name__ == "__main__":
    main()
