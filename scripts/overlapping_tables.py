"""Write tables of class probabilities whose classes overlap non-monotonically.

    python scripts/overlapping_tables.py FOLDER [--rows 3000]

Rows of class `over` resemble class `under`: if the model predicts `under` with medium
probability, the label is `under`, with higher probability it is `over`. A weight, which is
monotone, cannot separate them; a membership function with a falling edge can. The name of each
table contains the share of the rows of `over` for which this holds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from dcs import ProbabilityTable, Provenance

SHARES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7)
CLASSES = ("under", "over", "other")


def overlapping(n_rows: int, share: float, *, seed: int = 0) -> ProbabilityTable:
    """Return a table with three classes of equal size."""
    rng = np.random.default_rng([seed, round(100 * share)])
    labels = np.arange(n_rows) % 3
    turned = (labels == 1) & (rng.random(n_rows) < share)
    leading = np.where(turned, 0, labels)
    low, high = (
        np.select([turned, labels == 0], ends, other)
        for ends, other in (([0.65, 0.35], 0.4), ([0.95, 0.6], 0.9))
    )
    top = rng.uniform(low, high)
    rest = rng.dirichlet([2.0, 2.0], n_rows) * (1.0 - top)[:, None]
    probs = np.empty((n_rows, 3))
    rows = np.arange(n_rows)
    probs[rows, leading] = top
    probs[rows, (leading + 1) % 3], probs[rows, (leading + 2) % 3] = rest.T
    about = Provenance(model="overlapping", task=f"share_{share:.1f}")
    return ProbabilityTable.from_arrays(probs, labels, classes=CLASSES, provenance=about)


def main() -> None:
    """Write the tables of all shares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=3000)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for share in SHARES:
        overlapping(options.rows, share).write(options.folder / f"share_{share:.1f}.parquet")


if __name__ == "__main__":
    main()
