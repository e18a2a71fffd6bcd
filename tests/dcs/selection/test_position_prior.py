"""The prior of positions, planted and found."""

from __future__ import annotations

import numpy as np

from dcs.data.table import ProbabilityTable
from dcs.selection.position_prior import without_position_prior

PRIOR = np.array([0.6, 0.25, 0.15])
RNG = np.random.default_rng(0)
TRUE = RNG.dirichlet(np.ones(3), 400)


def order(number: int, rows: slice) -> dict[str, ProbabilityTable]:
    """Return tables of a model that multiplies what it knows by a prior of the positions."""
    # Order k lists class (p + k) % N at position p.
    seen = TRUE * np.roll(PRIOR, number)
    probs = (seen / seen.sum(axis=1, keepdims=True))[rows]
    ids = [str(row) for row in range(400)][rows]
    table = ProbabilityTable.from_arrays(
        probs, probs.argmax(axis=1), classes=("a", "b", "c"), ids=ids
    )
    return {"optimization": table, "test": table}


def test_a_planted_prior_is_removed() -> None:
    tables = [order(0, slice(400)), order(1, slice(50)), order(2, slice(10, 60))]
    found = without_position_prior(tables)
    assert found["test"].ids == tables[0]["test"].ids
    for table in found.values():
        np.testing.assert_allclose(table.probs, TRUE, atol=1e-9)
