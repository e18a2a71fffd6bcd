"""Class shares of unlabelled rows: exact where predictions are, and against an optimiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import beta

from dcs.errors import InvalidInputError
from dcs.evaluation.quantification import class_shares

CONFUSION = np.array([[80, 15, 5], [10, 60, 30], [2, 8, 90]])
CLASSES = ("a", "b", "c")


def test_shares_of_rows_with_the_same_errors_are_found() -> None:
    shares = np.array([0.5, 0.1, 0.4])
    counts = 10_000 * shares @ CONFUSION / 100
    found = class_shares(CONFUSION, counts.round(), classes=CLASSES)
    assert [each.estimate for each in found] == pytest.approx(shares, abs=1e-3)
    assert all(each.low < share < each.high for each, share in zip(found, shares, strict=True))
    # The rows held out limit what many rows can show.
    more = class_shares(CONFUSION * 100, counts.round(), classes=CLASSES)
    assert all(b.high - b.low < a.high - a.low for a, b in zip(found, more, strict=True))


def test_a_sample_of_the_rows_gives_narrower_intervals_that_cover() -> None:
    rng = np.random.default_rng(0)
    shares = np.array([0.6, 0.1, 0.3])
    joint = (shares[:, None] * CONFUSION / CONFUSION.sum(axis=1, keepdims=True)).ravel()
    covered, widths = [], []
    for _ in range(200):
        held = rng.multinomial(300, joint).reshape(3, 3)
        counts = rng.multinomial(5000, joint).reshape(3, 3).sum(axis=0)
        options = {"classes": CLASSES, "resamples": 200}
        found = class_shares(held, counts, method="sample", **options)
        covered += [each.low <= s <= each.high for each, s in zip(found, shares, strict=True)]
        other = class_shares(held, counts, **options)
        widths.append([[each.high - each.low for each in those] for those in (found, other)])
    assert 0.92 < np.mean(covered) < 0.98
    sample, shifted = np.mean(widths, axis=0)
    assert (sample < shifted).all()
    assert (sample < 2 * 1.96 * np.sqrt(shares * (1 - shares) / 300)).all()


def test_what_no_held_out_row_shows_is_uncertain_rather_than_zero() -> None:
    sparse = np.array([[80, 0, 0], [10, 60, 0], [0, 0, 0]])  # of the last: no label, no prediction
    found = class_shares(sparse, [900, 900, 30], classes=CLASSES, method="sample")
    assert sum(each.estimate for each in found) == pytest.approx(1.0)
    assert found[2].high > 0.005
    # The other predictions are estimated from their own rows.
    only = class_shares(sparse, [900, 0, 0], classes=CLASSES, method="sample")
    assert [each.estimate for each in only] == pytest.approx([8 / 9, 1 / 9, 0.0])


@pytest.mark.parametrize(
    ("method", "held", "rows", "added"),
    # The errors of many held-out rows are known, and shares of many new ones.
    [("adjusted", np.eye(2) * 1e9, [3, 7], 0.5), ("sample", [[3, 0], [7, 1]], [1e9, 0], 0.25)],
)
def test_intervals_are_those_of_few_rows(method: str, held: Any, rows: Any, added: float) -> None:
    found = class_shares(held, rows, classes=CLASSES[:2], method=method, resamples=5000)
    ends = beta(3 + added, 7 + added).ppf([0.025, 0.975])
    assert [found[0].low, found[0].high] == pytest.approx(ends, abs=0.015)


def test_a_class_without_held_out_rows_is_named() -> None:
    with pytest.raises(InvalidInputError, match="'b'"):
        class_shares(CONFUSION * [[1], [0], [1]], [1, 1, 1], classes=CLASSES)
