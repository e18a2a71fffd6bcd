"""Splits: every row once, every class in its share, the same for the same seed."""

from __future__ import annotations

import itertools
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dcs.data.splits import (
    are_common,
    copied_rows,
    joined,
    stratified_choice,
    stratified_folds,
    stratified_split,
)
from dcs.errors import InvalidInputError

NAMES = ["optimization", "development", "test", "spare"]
weights = st.lists(st.integers(1, 20), min_size=1, max_size=4)
# One class has a row for every part.
labellings = st.lists(st.integers(0, 5), max_size=120).map(lambda rows: [*rows, 6, 6, 6, 6])


def shares(parts: list[int]) -> dict[str, float]:
    return {name: part / sum(parts) for name, part in zip(NAMES, parts, strict=False)}


@given(labels=labellings, parts=weights, seed=st.integers(0, 2**70))
def test_classes_are_divided_by_shares(labels: list[int], parts: list[int], seed: int) -> None:
    fractions = shares(parts)
    split = stratified_split(labels, fractions, seed=seed)
    assert list(split) == NAMES[: len(parts)]
    assert sorted(np.concatenate(list(split.values()))) == list(range(len(labels)))
    assert all((np.diff(part) > 0).all() for part in split.values())
    for label in {*labels}:
        size = labels.count(label)
        own = np.array(labels) == label
        counts = {name: int(own[rows].sum()) for name, rows in split.items()}
        if size >= len(parts):
            assert min(counts.values()) >= 1
        else:
            largest = sorted(fractions, key=lambda name: -fractions[name])[:size]
            assert counts == {name: int(name in largest) for name in fractions}
        if min(fractions.values()) * size >= 1:
            for name, count in counts.items():
                assert abs(count - fractions[name] * size) < 1 - 1e-6


@given(size=st.integers(4, 14), parts=weights)
def test_parts_of_one_class_are_the_nearest_to_their_shares(size: int, parts: list[int]) -> None:
    shares = np.array(parts) / sum(parts)
    found = stratified_split([0] * size, dict(enumerate(shares)), seed=0)
    ways = itertools.product(range(1, size + 1), repeat=len(parts))
    best = min(sum((way - shares * size) ** 2) for way in ways if sum(way) == size)
    assert sum(([*map(len, found.values())] - shares * size) ** 2) == pytest.approx(best)


@given(sizes=st.lists(st.integers(20, 60), min_size=1, max_size=30), parts=weights)
def test_totals_do_not_drift_with_many_classes(sizes: list[int], parts: list[int]) -> None:
    fractions = shares(parts)
    assume(min(fractions.values()) * 20 >= 1)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    split = stratified_split(labels, fractions, seed=1)
    for name, share in fractions.items():
        assert abs(len(split[name]) - share * len(labels)) < len(parts)


def test_is_stable_over_versions() -> None:
    a, b = (stratified_split([0, 1] * 6, {"a": 0.5, "b": 0.5}, seed=s)["a"] for s in (7, 8))
    assert a.tolist() == [0, 3, 4, 7, 9, 10] != b.tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": []},
        {"labels": [0.5]},
        {"seed": -1},
        {"fractions": {"a": 1.0, "b": 0.0}},
        {"labels": [0], "fractions": {"a": 0.7, "b": 0.3}},
        {"labels": [0, 1] * 9, "fractions": {"a": 0.7, "b": 0.3}, "groups": [0] * 18},
    ],
)
def test_refused(changes: dict[str, Any]) -> None:
    arguments = {"labels": [0, 1], "fractions": {"a": 1.0}, "seed": 0} | changes
    with pytest.raises(InvalidInputError):
        stratified_split(**arguments)


@given(labels=labellings, seed=st.integers(0, 2**70), data=st.data())
def test_choices_are_nested_and_hold_the_mix(labels: list[int], seed: int, data: Any) -> None:
    small, large = sorted(data.draw(st.tuples(*[st.integers(1, len(labels))] * 2)))
    sizes = (small, large, len(labels))
    few, many, every = (stratified_choice(labels, size, seed=seed).tolist() for size in sizes)
    assert few == sorted({*few} & {*many}) and len(few) == small
    assert every == [*range(len(labels))]
    chosen, there = (np.bincount(rows, minlength=7) for rows in (np.array(labels)[few], labels))
    if small >= (there > 0).sum():
        assert (chosen[there > 0] >= 1).all()
    # Beyond the one row that each class gets at least, the last one was not taken too early.
    for a in np.flatnonzero(chosen > 1):
        for b in np.flatnonzero(chosen < there):
            assert (chosen[a] - 0.5) / there[a] <= (chosen[b] + 0.5) / there[b] + 1e-12


_RNG = np.random.default_rng(0)


def _n_copies(probs: np.ndarray) -> int:
    return len(probs) - np.unique(copied_rows(probs)).size


def _normalised(probs: np.ndarray) -> np.ndarray:
    return probs / probs.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("n_classes", [2, 3, 14])
@pytest.mark.parametrize("number", [20, 60, 400])
def test_equal_rows_of_a_model_are_copies(number: int, n_classes: int) -> None:
    # A decimal more than those of rounded ones.
    probs = _RNG.dirichlet(np.full(n_classes, 0.5), number).round(6 + (n_classes == 2))
    probs[0] = np.eye(n_classes)[0]
    counted = probs.max(axis=1) <= 1 - 1e-5  # Certain rows coincide.
    assert _n_copies(probs) == 0
    assert _n_copies(np.vstack([probs, probs])) == counted.sum()
    some = number // 4
    assert _n_copies(np.vstack([probs, probs[:some]])) == counted[:some].sum()
    assert _n_copies(np.repeat(probs, 4, axis=0)) == 3 * counted.sum()
    times = 2 + np.arange(number) % 2 * 2  # Three on average, but not all equally often.
    assert _n_copies(np.repeat(probs, times, axis=0)) == (times - 1)[counted].sum()
    assert _n_copies(np.repeat(probs, times + (np.arange(number) == 1), axis=0)) == 0


@pytest.mark.parametrize("n_classes", [2, 3, 6])
@pytest.mark.parametrize("number", [60, 2000])
def test_rows_that_coincide_are_no_copies(number: int, n_classes: int) -> None:
    probs = _RNG.dirichlet(np.ones(n_classes), number)
    leaves = _RNG.dirichlet(np.ones(n_classes), 12)
    for coarse in (
        _normalised(probs.round(2) + 1e-3),
        probs.round(3) / probs.round(3).sum(axis=1, keepdims=True),
        probs.round(5 + (n_classes == 2)),
        _normalised(_RNG.multinomial(5, probs) + 1.0 / n_classes),
        _RNG.multinomial(20, probs) / 20,
        leaves[_RNG.integers(12, size=number)],
        np.eye(n_classes)[_RNG.integers(n_classes, size=number)],
    ):
        assert _n_copies(coarse) == 0


@pytest.mark.parametrize(("n_rows", "most"), [(100, 10), (2000, 10), (4000, 20)])
def test_very_large_groups_are_common_unless_all_are(n_rows: int, most: int) -> None:
    assert are_common(np.array([1, most, most + 1]), n_rows).tolist() == [False, False, True]
    assert not are_common(np.array([most + 1] * 2), n_rows).any()


@given(st.lists(st.integers(0, 8), min_size=1, max_size=20), st.randoms())
def test_groupings_are_joined(first: list[int], random: Random) -> None:
    second = random.sample(first, len(first))
    found = joined(np.array(first), np.array(second))
    # The closure of "equal in one of them", by repetition.
    expected = list(range(len(first)))
    for _ in first:
        for own in (first, second):
            for i, j in itertools.combinations(range(len(first)), 2):
                if own[i] == own[j]:
                    expected[i] = expected[j] = min(expected[i], expected[j])
    assert found.tolist() == expected


@given(st.integers(0, 1000), st.integers(2, 6))
def test_groups_stay_together_and_keep_the_shares(seed: int, n_classes: int) -> None:
    rng = np.random.default_rng(seed)
    sizes, kinds = rng.choice([1, 1, 1, 1, 2, 3, 6], 400), rng.integers(n_classes, size=400)
    groups = np.repeat(np.arange(400), sizes)
    parts = stratified_split(kinds[groups], {"a": 0.9, "b": 0.1}, seed=seed, groups=groups)
    assert not {*groups[parts["a"]]} & {*groups[parts["b"]]}
    place = stratified_folds(kinds[groups], 5, seed=seed, groups=groups)
    assert all(np.ptp(place[groups == group]) == 0 for group in range(0, 400, 7))
    held, fold = np.isin(np.arange(400), groups[parts["b"]]), place[sizes.cumsum() - 1]
    for kind in range(n_classes):
        assert abs(sizes[held & (kinds == kind)].sum() - 0.1 * sizes[kinds == kind].sum()) < 1
        for size in (2, 3, 6):
            alike = (kinds == kind) & (sizes == size)
            assert abs(held[alike].sum() - 0.1 * alike.sum()) < 2.5
            assert np.ptp(np.bincount(fold[alike], minlength=5)) <= 1


@given(st.integers(0, 1000), st.integers(20, 60), st.integers(0, 200), st.sampled_from((1, 9)))
def test_rows_stay_where_they_are_placed(seed: int, old: int, added: int, spread: int) -> None:
    shares, split = {"fitted": 0.7, "test": 0.3}, partial(stratified_split, seed=seed)
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(old + added) % 3)
    groups = 3 * rng.integers(0, spread * labels.size, labels.size) + labels
    before = split(labels[:old], shares, groups=groups[:old])
    placed = np.full(labels.size, -1)
    for part, rows in enumerate(before.values()):
        placed[rows] = part
    after = split(labels, shares, groups=groups, placed=placed)
    for name, rows in before.items():
        assert {*rows} <= {*after[name]}
    assert not {*groups[after["fitted"]]} & {*groups[after["test"]]}
    counts = np.bincount(labels[after["test"]], minlength=3) - 0.3 * np.bincount(labels)
    assert np.abs(counts).max() < 2
