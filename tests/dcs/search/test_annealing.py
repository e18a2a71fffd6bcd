from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dcs.evaluation.metrics import Objective
from dcs.schemes.corrections import CorrectionSet
from dcs.search.annealing import AnnealingResult, anneal
from dcs.search.schedule import Schedule
from tests.dcs.solutions import SETS, coarse_problem, judge, least

_OBJECTIVE = Objective(pseudo_count=20.0)
_SHORT = Schedule(cooling_rate=0.5, restarts=4)
_PLAIN = Schedule(
    initial_temperature=0.3,
    final_temperature=0.01,
    cooling_rate=0.7,
    lambda1=5,
    lambda2=20,
    restarts=2,
    moves="metropolis",
    descend=False,
    reheat=False,
)


def _same(a: AnnealingResult, b: AnnealingResult) -> bool:
    return (a.z, a.indices, a.evaluations) == (b.z, b.indices, b.evaluations)


class _Stream:
    """The random stream of the searches, in plain Python."""

    def __init__(self, word: int) -> None:
        self.word = word

    def uniform(self) -> float:
        mask = 2**64 - 1
        self.word = (self.word + 0x9E3779B97F4A7C15) & mask
        z = self.word
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return float((z ^ (z >> 31)) >> 11) * 2.0**-53

    def below(self, n: int) -> int:
        return int(self.uniform() * n)


def _plain_annealing(
    probs: NDArray[np.float64],
    labels: NDArray[np.int64],
    corrections: CorrectionSet,
    seed: int,
    *,
    temperatures: NDArray[np.float64],
    limits: tuple[float, float],
    starts: Sequence[int | None],
    heat_bath: bool = False,
    count_worse: bool = True,
) -> tuple[list[int], int]:
    """Anneal as the paper says, every candidate judged from its predictions.

    There is one cooling per start: from that correction for every class, or a random solution.
    """
    n = probs.shape[1]

    def value(choice: list[int]) -> float:
        return judge(probs, labels, corrections, _OBJECTIVE, choice)

    best_choice, best = [corrections.identity] * n, math.inf
    moves = 0
    words = np.random.SeedSequence(seed).generate_state(len(starts), np.uint64)
    for start, word in zip(starts, words, strict=True):
        stream = _Stream(int(word))
        choice = [stream.below(len(corrections)) if start is None else start for _ in range(n)]
        z = value(choice)
        if not heat_bath and z < best - 1e-12:
            best, best_choice = z, choice
        order = list(range(n))
        idle, frozen = 0, 2 * n if heat_bath else math.inf
        for t in temperatures:
            accepted = generated = 0
            while accepted < limits[0] and generated < limits[1] and idle < frozen:
                if heat_bath:
                    if generated % n == 0:
                        for i in range(n - 1, 0, -1):
                            at = stream.below(i + 1)
                            order[i], order[at] = order[at], order[i]
                    j = order[generated % n]
                else:
                    j = stream.below(n)
                solutions = [[*choice[:j], k, *choice[j + 1 :]] for k in range(len(corrections))]
                if heat_bath:
                    row = np.array([value(solution) for solution in solutions])
                    shares = np.exp((row.min() - row) / t).cumsum()
                    k = int(np.searchsorted(shares, stream.uniform() * shares[-1], "right"))
                    new, z = float(row[k]), float(row[choice[j]])
                    moved = abs(new - z) > 1e-12
                    low = int(row.argmin())
                    if row[low] < best - 1e-12:
                        best, best_choice = float(row[low]), solutions[low]
                else:
                    k = stream.below(len(corrections) - 1)
                    k += k >= choice[j]
                    new = value(solutions[k])
                    moved = new < z - t * math.log(stream.uniform())
                accepted += moved and (count_worse or new <= z)
                idle = 0 if moved else idle + 1
                generated += 1
                if moved or heat_bath:
                    choice, z = solutions[k], new
                if z < best - 1e-12:
                    best, best_choice = z, choice
            moves += generated
            if idle >= frozen:
                break
    return best_choice, moves * len(corrections) if heat_bath else moves + len(starts)


def _equals_a_plain_one(
    probs: NDArray[np.float64],
    labels: NDArray[np.int64],
    corrections: CorrectionSet,
    schedule: Schedule,
    seed: int,
    **plain: Any,
) -> None:
    options = {"corrections": corrections, "objective": _OBJECTIVE, "schedule": schedule}
    result = anneal(probs, labels, seed=seed, **options)
    choice, evaluations = _plain_annealing(probs, labels, corrections, seed, **plain)
    assert (result.indices, result.evaluations) == (tuple(choice), evaluations)


@pytest.mark.parametrize(
    "schedule",
    [_PLAIN, replace(_PLAIN, cooling_rate=0.3, lambda1=3, lambda2=5, moves="heat-bath")],
    ids=["paper", "heat-bath"],
)
@pytest.mark.parametrize(("name", "n_classes"), [("dcs", 5), ("dnip", 2), ("furud", 4)])
def test_search_equals_a_plain_numpy_one(schedule: Schedule, name: str, n_classes: int) -> None:
    problem = coarse_problem(80, n_classes, seed=n_classes, decimals=2)
    _equals_a_plain_one(
        *(*problem, SETS[name], schedule, 11),
        # Down to 0.01, or as near above as they come.
        temperatures=0.3 * schedule.cooling_rate ** np.arange(10 if schedule is _PLAIN else 3),
        limits=(schedule.lambda1 * n_classes, schedule.lambda2 * n_classes),
        starts=[SETS[name].identity, None][: schedule.restarts],
        heat_bath=schedule.moves == "heat-bath",
    )


@pytest.mark.parametrize("limits", [(3, 6), (8, 16)])
def test_published_schedule_equals_a_plain_one_move_by_move(limits: tuple[int, int]) -> None:
    # Few rows on this scale: the chain is hot at first, and cold enough to reject at the end.
    problem = coarse_problem(600, 4, seed=4, decimals=2)
    # The published code minimises M * Z, at temperatures from 200,000 to 200.
    schedule, temperatures = Schedule.published(600, *limits), 200_000 * 0.95 ** np.arange(135)
    np.testing.assert_allclose(schedule.temperatures(), temperatures / 600)
    _equals_a_plain_one(
        # From another start than that of this seed these chains would go another way.
        *(*problem, SETS["dcs"], schedule, 6),
        temperatures=temperatures / 600,
        limits=limits,
        starts=[len(SETS["dcs"]) - 1],
        count_worse=False,
    )


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_default_reaches_the_proven_optimum(name: str, n_classes: int) -> None:
    problem = coarse_problem(150, n_classes, seed=5, decimals=3)
    corrections = SETS[name] if n_classes == 2 else CorrectionSet(SETS[name].corrections[-9:])
    found = anneal(*problem, corrections=corrections, objective=_OBJECTIVE, seed=1)
    assert found.z == pytest.approx(least(*problem, corrections, _OBJECTIVE), rel=0, abs=1e-9)
    unchanged = [corrections.identity] * n_classes
    assert found.initial_z == judge(*problem, corrections, _OBJECTIVE, unchanged)


def test_budget_ends_the_search_between_coolings() -> None:
    probs, labels = coarse_problem(60, 3)
    arguments = {"corrections": SETS["dcs"], "seed": 3}
    first = anneal(probs, labels, schedule=Schedule(restarts=1), **arguments)
    cut = anneal(probs, labels, schedule=Schedule(budget=1), **arguments)
    longer = anneal(probs, labels, schedule=Schedule(budget=20_000), **arguments)
    assert _same(first, cut)
    assert longer.evaluations >= 20_000
    assert longer.z <= first.z


def test_same_seed_same_result_whatever_the_threads() -> None:
    probs, labels = coarse_problem(300, 4, decimals=3)
    probs.setflags(write=False)
    labels.setflags(write=False)

    def search(seed: int) -> AnnealingResult:
        return anneal(probs, labels, corrections=SETS["dcs"], schedule=_SHORT, seed=seed)

    alone = [search(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert all(_same(a, b) for a, b in zip(alone, pool.map(search, range(4)), strict=True))
    assert len({r.evaluations for r in alone}) > 1


def test_row_order_and_memory_layout_do_not_matter() -> None:
    probs, labels = coarse_problem(120, 3, decimals=3)
    options = {"corrections": SETS["dcs"], "schedule": _SHORT}
    first = anneal(probs, labels, **options)
    turned = anneal(np.asfortranarray(probs)[::-1], labels[::-1].astype(np.int16), **options)
    assert first.indices == turned.indices


def test_one_row_is_enough() -> None:
    with pytest.warns(UserWarning, match="class_1"):
        result = anneal([[0.25, 0.75]], [0], schedule=_SHORT)
    assert result.scheme.predict([[0.25, 0.75]]).tolist() == [0]
    assert math.isfinite(result.z)
