"""Simulate the guarantee of the default rule: loss of accuracy on 40,000 fresh rows.

Half of the worlds are calibrated: the probabilities are Bayes-optimal posteriors, so that no
correction can gain accuracy. In the other half the log-probabilities are shifted by class. Run::

    python -m benchmarks.calibration --worlds 200 --output worlds.csv
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import dcs
from dcs.evaluation.metrics import ClassificationMetrics

FRESH_ROWS = 40_000


def world(number: int) -> tuple[int, int, bool, Iterator[tuple[NDArray[np.float64], ...]]]:
    """Return rows, classes, whether shifted, and an iterator over fitted and fresh rows."""
    rng = np.random.default_rng([29, number])
    shifted = bool(number % 2)
    n_classes = int(rng.choice([2, 3, 4, 5, 8, 14, 20, 30]))
    n_rows = round(float(np.exp(rng.uniform(np.log(60), np.log(5000)))))
    prior = rng.dirichlet(np.full(n_classes, float(rng.choice([2.0, 50.0]))))
    means = rng.normal(0.0, rng.uniform(0.6, 1.6), (n_classes, min(n_classes, 8)))
    shift = rng.normal(0.0, 1.5, n_classes) * shifted

    def draw() -> Iterator[tuple[NDArray[np.float64], ...]]:
        for size in (n_rows, FRESH_ROWS):
            labels = rng.choice(n_classes, size, p=prior)
            x = means[labels] + rng.normal(size=(size, means.shape[1]))
            logs = x @ means.T - 0.5 * (means**2).sum(axis=1) + np.log(prior) + shift
            weights = np.exp(logs - logs.max(axis=1, keepdims=True))
            yield weights / weights.sum(axis=1, keepdims=True), labels

    return n_rows, n_classes, shifted, draw()


def simulate(number: int) -> dict[str, float]:
    """Fit the default on one world, and return its changes on fresh rows, in points."""
    n_rows, n_classes, shifted, draw = world(number)
    (probs, labels), (fresh, truth) = draw
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Classes without rows.
        found = dcs.fit_scheme(probs, labels)
    before, after = (
        ClassificationMetrics.from_predictions(truth, predictions, n_classes)
        for predictions in (fresh.argmax(axis=1), found.scheme.predict(fresh))
    )
    return {
        "world": number,
        "rows": n_rows,
        "classes": n_classes,
        "shifted": shifted,
        "unchanged": found.chosen is found.points[-1],
        "accuracy": 100 * (after.accuracy - before.accuracy),
        "cobias": 100 * (after.cobias - before.cobias),
    }


def main() -> None:
    """Simulate and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--output", required=True)
    options = parser.parse_args()
    frame = pd.DataFrame([simulate(number) for number in range(options.worlds)])
    frame.to_csv(options.output, index=False)
    frame["above_margin"] = frame["accuracy"] < -0.5
    columns = ["accuracy", "cobias", "above_margin", "unchanged"]
    print(frame.groupby("shifted")[columns].mean().round(3).to_string())
    print(
        f"worst accuracy {frame['accuracy'].min():.2f}, above margin "
        f"{int(frame['above_margin'].sum())} of {len(frame)}"
    )


if __name__ == "__main__":
    main()
