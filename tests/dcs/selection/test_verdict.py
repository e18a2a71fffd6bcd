"""What held-out rows show, in words."""

from __future__ import annotations

import numpy as np

from dcs.selection.verdict import verdict, worse_classes


def _said(right: list[tuple[int, int]], rows: int = 40) -> str:
    """Return the verdict if these rows of each class are right before and after."""
    n = len(right)
    labels = np.repeat(np.arange(n), rows)
    before, after = (
        np.concatenate(
            [np.where(np.arange(rows) < pair[k], c, (c + 1) % n) for c, pair in enumerate(right)]
        )
        for k in (0, 1)
    )
    return verdict(labels, before, after, "abc"[:n])


def test_the_verdict_says_what_is_shown_and_what_is_not() -> None:
    assert "Nothing is proven on 80 held-out rows" in _said([(20, 21), (22, 22)])
    fairer = _said([(36, 30), (16, 24)])
    assert "COBias improves from 50.0 to 15.0" in fairer and "accuracy from 65.0" in fairer
    assert "may be chance" in fairer and "COBias worsens" in _said([(30, 36), (24, 16)])


def test_the_verdict_names_the_classes_that_lose() -> None:
    labels, before = np.repeat([0, 1, 2], 40), np.repeat([0, 1, 1], 40)
    after = np.concatenate([np.repeat([0, 2], [10, 30]), np.repeat([1, 2], [38, 42])])
    worse = worse_classes(labels, before, after, ["a", "b", "c"])
    assert worse == ["a (100.0 to 25.0)"]  # Two rows of b prove nothing, and c gains.
    assert worse_classes(labels, before, before, ["a", "b", "c"]) == []
    assert "a (100.0 to 25.0)" in verdict(labels, before, after, ["a", "b", "c"])
