"""The test of a change since the fit: its level, its power, and what it is blind to."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from dcs.evaluation.drift import compare_rows, describe_rows


def rows(
    n: int, shares: list[float], *, seed: int, temperature: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return class probabilities and predictions of a model with about 85 % accuracy."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(shares), n, p=shares)
    logits = rng.normal(size=(n, len(shares)))
    logits[np.arange(n), labels] += 2.5
    probs = np.exp(logits / temperature)
    return probs / probs.sum(axis=1, keepdims=True), logits.argmax(axis=1)


BASE = [0.4, 0.3, 0.2, 0.1]


def share_found(count: int, shares: list[float], **options: float) -> float:
    found = []
    for seed in range(count):
        reference = describe_rows(*rows(600, BASE, seed=seed))
        found.append(compare_rows(reference, *rows(500, shares, seed=10_000 + seed, **options)).p)
    return float(np.mean(np.array(found) <= 0.05))


def test_false_alarms_are_rare_and_changes_are_found() -> None:
    assert share_found(100, BASE) <= 0.1
    assert share_found(20, BASE, temperature=1.5) == 1.0
    third = np.array(BASE) * [4 / 3, 2 / 3, 4 / 3, 2 / 3]
    assert share_found(20, (third / third.sum()).tolist()) >= 0.8


def test_the_kind_of_change_is_named() -> None:
    reference = describe_rows(*rows(2000, BASE, seed=0))
    kinds = compare_rows(reference, *rows(2000, BASE, seed=1, temperature=1.2)).kinds
    assert kinds["confidence"] < 0.01 < kinds["predicted shares"]


def test_the_p_value_of_two_shares_is_that_of_their_difference() -> None:
    reference = describe_rows(np.full((300, 2), 0.5), np.arange(300) % 2)
    ps = [1.0]
    for more in range(45):
        found = compare_rows(reference, np.full((200, 2), 0.5), np.arange(200) // (100 + more))
        share = (250 + more) / 500
        error = np.sqrt(share * (1 - share) * (1 / 300 + 1 / 200))
        assert found.p == pytest.approx(2 * norm.sf(more / 200 / error), abs=0.02)
        assert found.kinds == {"predicted shares": found.p}
        assert 0.0 < found.p <= ps[-1], "fewer draws are as far away"
        ps.append(found.p)


def test_copies_count_once() -> None:
    reference = describe_rows(*rows(2000, BASE, seed=0))
    probs, predictions = rows(100, BASE, seed=1)
    thrice = [each.repeat(3, axis=0) for each in (probs, predictions, np.arange(100))]
    assert compare_rows(reference, *thrice) == compare_rows(reference, probs, predictions)
    assert describe_rows(*thrice)["rows"] == 100


def test_constant_rows_and_rare_classes_are_no_alarm() -> None:
    reference = describe_rows(np.tile([0.5, 0.5], (50, 1)), np.zeros(50, int))
    assert compare_rows(reference, np.tile([0.5, 0.5], (9, 1)), np.zeros(9, int)).p == 1.0
    reference = describe_rows(rows(200, [0.5, 0.5], seed=0)[0], np.zeros(200, int))
    kinds = compare_rows(reference, rows(100, [0.5, 0.5], seed=1)[0], np.arange(100) // 97).kinds
    assert "predicted shares" not in kinds
