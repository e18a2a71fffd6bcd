from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dcs.evaluation.metrics import Objective, confusion_matrix
from dcs.schemes.corrections import CorrectionSet, Membership, Weight
from dcs.search.annealing import Problem
from dcs.search.kernels import (
    State,
    Table,
    apply_move,
    descend,
    eval_class,
    eval_move,
    make_state,
    make_table,
    set_choice,
)
from tests.dcs.solutions import SETS, coarse_problem, judge

_OBJECTIVE = Objective(pseudo_count=5.0)
_CLOSE_WEIGHTS = CorrectionSet(
    (Membership(0, 1, 1), Weight(0.5), Weight(np.nextafter(0.5, 1)), Weight(0.9))
)
_UNEVEN_WEIGHTS = CorrectionSet(
    (Weight(0.9), Weight(1.0), Weight(0.123), Membership(0.1, 0.3, 1.0), Weight(3.7))
)


def _take(table: Table, state: State, j: int, k: int) -> None:
    """Take the move that was evaluated last."""
    state.correct[:], state.predicted[:] = state.next_correct, state.next_predicted
    apply_move(table, state, j, k)


@pytest.mark.parametrize(
    "corrections",
    [*SETS.values(), _CLOSE_WEIGHTS, _UNEVEN_WEIGHTS],
    ids=[*SETS, "close weights", "uneven weights"],
)
@pytest.mark.parametrize(("n_rows", "n_classes"), [(9, 2), (301, 6), (4083, 3)])
def test_kernels_agree_with_numpy_move_by_move(
    corrections: CorrectionSet, n_rows: int, n_classes: int
) -> None:
    probs, labels = coarse_problem(n_rows, n_classes, seed=n_rows)
    rng = np.random.default_rng(n_classes)
    table = make_table(probs, labels, corrections, _OBJECTIVE)
    state = make_state(table)
    set_choice(table, state, rng.integers(0, len(corrections), n_classes))
    for step in range(60):
        j, k = int(rng.integers(n_classes)), int(rng.integers(len(corrections)))
        changed = state.choice.copy()
        changed[j] = k
        expected = judge(probs, labels, corrections, _OBJECTIVE, changed)
        assert eval_move(table, state, j, k) == pytest.approx(expected, rel=0, abs=1e-12)
        eval_class(table, state, j)
        values = state.values.copy()
        if step % 10 == 0:
            for other in range(len(corrections)):
                changed[j] = other
                expected = judge(probs, labels, corrections, _OBJECTIVE, changed)
                assert values[other] == pytest.approx(expected, rel=0, abs=1e-12)
        assert eval_move(table, state, j, k) == pytest.approx(values[k], rel=0, abs=1e-12)
        _take(table, state, j, k)
        afresh = make_state(table)
        set_choice(table, afresh, state.choice)
        kept = ("first", "second", "first_class", "second_class")
        for name in ("choice", *kept, "correct", "predicted"):
            assert np.array_equal(getattr(state, name), getattr(afresh, name)), name
    choice = state.choice.copy()
    descend(table, state, choice)
    # Nothing improves it: each class is evaluated once.
    assert descend(table, state, choice)[1] == n_classes * len(corrections)


@pytest.mark.parametrize("name", ["dcs", "dnip"])
@pytest.mark.parametrize("n_labels", [2, 5])
def test_a_row_with_several_labels_counts_as_so_many_rows(name: str, n_labels: int) -> None:
    probs, _ = coarse_problem(4083, 4, decimals=2)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, (n_labels, len(probs)))
    corrections = SETS[name]
    tables = [
        make_table(probs, labels, corrections, _OBJECTIVE),
        make_table(np.tile(probs, (n_labels, 1)), labels.ravel(), corrections, _OBJECTIVE),
    ]
    states = [*map(make_state, tables)]
    for step in range(40):
        j, k = int(rng.integers(4)), int(rng.integers(len(corrections)))
        found = []
        for table, state in zip(tables, states, strict=True):
            if step == 0:
                set_choice(table, state, np.full(4, corrections.identity))
            eval_class(table, state, j)
            z = eval_move(table, state, j, k)
            _take(table, state, j, k)
            counts = (state.correct.tolist(), state.predicted.tolist())
            found.append((z, state.values.tolist(), counts))
        assert found[0] == found[1]
    problem = Problem(probs, labels, tuple("abcd"), corrections, _OBJECTIVE)
    assert problem.z_of(problem.scheme(states[0].choice)) == pytest.approx(z, rel=0, abs=1e-12)


def test_weights_by_histogram_win_the_rows_that_they_win_one_by_one() -> None:
    # Weights at edges of bins, and rivals as close as numbers can be.
    values = np.array([1, 999, 1365, 1365.5, 1370, 2048, 3001, 4090, 4096]) / 4096
    own = np.random.default_rng(0).uniform(0.01, 1.0, (300, 1))
    ties = own * values
    rivals = np.concatenate([np.nextafter(ties, 0.0), ties, np.nextafter(ties, 9.0)]).ravel()
    p = np.tile(np.repeat(own.ravel(), values.size), 3)
    probs, labels = np.stack([p, 1.0 - p], axis=1), np.arange(p.size) % 2
    by_bins = CorrectionSet((Membership(0, 1, 1), *map(Weight, values)))
    table = make_table(probs, labels, by_bins, _OBJECTIVE)
    state = make_state(table)._replace(first=rivals, first_class=np.ones(p.size, np.int16))
    eval_class(table, state, 0)
    # Class 0 wins ties.
    won = [np.where(each(p) >= rivals, 0, 1) for each in by_bins]
    expected = [_OBJECTIVE.value(confusion_matrix(labels, each, 2)) for each in won]
    assert state.values.tolist() == pytest.approx(expected, rel=0, abs=1e-12)


def test_a_descent_ends_where_rounding_makes_two_corrections_better_than_each_other() -> None:
    # Rows of a real table that tie but for the last digit; the descent exchanged corrections of
    # two classes for ever.
    rows = np.loadtxt(Path(__file__).with_name("tied_rows.csv"), delimiter=",", skiprows=1)
    probs, labels = rows[:, 1:], rows[:, 0].astype(np.int64)
    weights = [0.5815984557844189, 0.610971752406103, 0.7082960047659367]
    weights += [0.821123445382999, 0.9519236421225575, 1.0505044267733954]
    corrections = CorrectionSet((Membership(0.0, 1.0, 1.0), *map(Weight, weights)))
    objective = Objective(beta=0.15, tau=0.0)
    problem = Problem.from_arguments(probs, labels, corrections, objective, None)
    choice = np.array([1, 4, 5, 0])
    before = problem.result(choice, evaluations=0, seconds=0.0).z
    _, judged = descend(problem.table, make_state(problem.table), choice)
    assert judged < 1000
    assert problem.result(choice, evaluations=0, seconds=0.0).z <= before
