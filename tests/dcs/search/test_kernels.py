from __future__ import annotations

import itertools

import numpy as np
import pytest

from dcs.evaluation.metrics import Objective
from dcs.schemes.corrections import CorrectionSet, Membership, Weight
from dcs.search.kernels.candidates import eval_class
from dcs.search.kernels.chains import descend
from dcs.search.kernels.moves import (
    apply_move,
    eval_move,
    find_rivals,
    make_state,
    set_choice,
    take_counts,
)
from dcs.search.kernels.table import BLOCK, make_room, make_table
from dcs.search.problem import Problem
from tests.dcs.solutions import SETS, coarse_problem, judge

_OBJECTIVE = Objective(pseudo_count=5.0)
_CLOSE_WEIGHTS = CorrectionSet(
    (Membership(0, 1, 1), Weight(0.5), Weight(np.nextafter(0.5, 1)), Weight(0.9))
)
_UNEVEN_WEIGHTS = CorrectionSet(
    (Weight(0.9), Weight(1.0), Weight(0.123), Membership(0.1, 0.3, 1.0), Weight(3.7))
)


@pytest.mark.parametrize(
    "corrections",
    [*SETS.values(), _CLOSE_WEIGHTS, _UNEVEN_WEIGHTS],
    ids=[*SETS, "close weights", "uneven weights"],
)
@pytest.mark.parametrize(("n_rows", "n_classes"), [(9, 2), (301, 6), (2 * BLOCK + 3, 3)])
def test_kernels_agree_with_numpy_move_by_move(
    corrections: CorrectionSet, n_rows: int, n_classes: int
) -> None:
    probs, labels = coarse_problem(n_rows, n_classes, seed=n_rows)
    rng = np.random.default_rng(n_classes)
    objective = _OBJECTIVE
    table = make_table(probs, labels, corrections, objective)
    state, room = make_state(table), make_room(table)
    set_choice(table, state, rng.integers(0, len(corrections), n_classes))
    for step in range(60):
        j, k = int(rng.integers(n_classes)), int(rng.integers(len(corrections)))
        changed = state.choice.copy()
        changed[j] = k
        expected = judge(probs, labels, corrections, objective, changed)
        assert eval_move(table, state, room, j, k, np.inf) == pytest.approx(
            expected, rel=0, abs=1e-12
        )
        find_rivals(state, room, j)
        eval_class(table, room, j, room.rival_value, room.rival_class)
        values = room.values.copy()
        if step % 10 == 0:
            for other in range(len(corrections)):
                changed[j] = other
                expected = judge(probs, labels, corrections, objective, changed)
                assert values[other] == pytest.approx(expected, rel=0, abs=1e-12)
        assert values[k] == pytest.approx(
            eval_move(table, state, room, j, k, np.inf), rel=0, abs=1e-12
        )
        take_counts(state, room)
        apply_move(table, state, j, k)
        afresh = make_state(table)
        set_choice(table, afresh, state.choice)
        kept = ("first", "second", "first_key", "second_key")
        for name in ("choice", *kept, "correct", "predicted"):
            assert np.array_equal(getattr(state, name), getattr(afresh, name)), name


def test_weights_by_histogram_win_the_rows_that_they_win_one_by_one() -> None:
    # Weights at edges of bins, and rivals as close as numbers can be.
    values = np.array([1, 999, 1365, 1370, 2048, 3001, 4090, 4096]) / 4096
    own = np.random.default_rng(0).uniform(0.01, 1.0, (300, 1))
    ties = own * values
    rivals = np.concatenate([np.nextafter(ties, 0.0), ties, np.nextafter(ties, 9.0)]).ravel()
    p = np.tile(np.repeat(own.ravel(), values.size), 3)
    probs, labels = np.stack([p, 1.0 - p], axis=1), np.arange(p.size) % 2
    by_bins = CorrectionSet((Membership(0, 1, 1), *map(Weight, values)))
    one_by_one = CorrectionSet((*by_bins, Weight(np.nextafter(values[0], 0.0))))
    found = []
    for corrections in (by_bins, one_by_one):
        table = make_table(probs, labels, corrections, _OBJECTIVE)
        room = make_room(table)
        eval_class(table, room, 0, rivals, np.ones(p.size, np.int16))
        found.append((table.weights.size, room.values[: len(by_bins)].tolist()))
    assert found == [(values.size, found[1][1]), (0, found[1][1])]


def test_what_is_known_to_be_too_high_is_not_judged_but_bounded() -> None:
    probs, labels = coarse_problem(300, 8, decimals=2)
    corrections, objective = SETS["dcs"], Objective(beta=0.1, tau=0.0)
    table = make_table(probs, labels, corrections, objective)
    state, room = make_state(table), make_room(table)
    set_choice(table, state, np.full(8, corrections.identity))
    bounded = 0
    for j, k in itertools.product(range(8), range(len(corrections))):
        exact = eval_move(table, state, room, j, k, np.inf)
        for ceiling in (exact - 0.4, exact, exact + 0.01):
            bound = eval_move(table, state, room, j, k, ceiling)
            assert bound == exact or ceiling <= bound < exact
            bounded += bound != exact
    assert bounded > 0


def test_a_descent_ends_where_rounding_makes_two_corrections_better_than_each_other() -> None:
    # Rows of a real table that tie but for the last digit; the descent exchanged corrections of
    # two classes for ever.
    rows = """
        0.32886892067091283 0.20261026616975267 0.24249273177247146 0.22602808138686295
        0.41476255655288696 0.2828435003757477 0.12949518859386444 0.17289875447750092
        0.27340131590662425 0.21292514781765418 0.25683676813786077 0.25683676813786077
        0.39303889870643616 0.21037855744361877 0.16004757583141327 0.2365349680185318
        0.30202731490135193 0.2523532509803772 0.21584917604923248 0.2297702580690384
        0.4481300711631775 0.126400887966156 0.15366441011428833 0.2718046307563782
        0.48182618618011475 0.19316039979457855 0.13484768569469452 0.19016572833061218
        0.3639943247438323 0.22077372341195162 0.17464638986220377 0.2405855619820124
        0.7767361796008302 0.11726961724129573 0.040211911195951036 0.06578229196192308
        0.4032858550058923 0.21926271588708884 0.13092773957658205 0.24652368953043688
        0.42295683060522127 0.19213679719175097 0.17223032075509906 0.21267605144792873
        0.356592262438055 0.2412823998736978 0.18071216075551272 0.2214131769327346
        0.49128955602645874 0.29107943177223206 0.08947047591209412 0.1281605362892151
        0.26591104665266047 0.24980031326115598 0.245927516310327 0.23836112377585655
    """
    probs = np.array([line.split() for line in rows.strip().splitlines()], dtype=np.float64)
    labels = np.array([2, 0, 3, 3, 1, 3, 2, 0, 0, 0, 3, 1, 0, 2])
    weights = (
        0.5815984557844189,
        0.610971752406103,
        0.7082960047659367,
        0.821123445382999,
        0.9519236421225575,
        1.0505044267733954,
    )
    corrections = CorrectionSet((Membership(0.0, 1.0, 1.0), *map(Weight, weights)))
    objective = Objective(beta=0.15, tau=0.0)
    problem = Problem.from_arguments(probs, labels, corrections, objective, None)
    choice = np.array([1, 4, 5, 0])
    before = problem.result(choice, evaluations=0, seconds=0.0).z
    _, judged = descend(problem.table, make_room(problem.table), make_state(problem.table), choice)
    assert judged < 1000
    assert problem.result(choice, evaluations=0, seconds=0.0).z <= before
