from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from dcs.evaluation.metrics import Objective
from dcs.schemes.corrections import CorrectionSet
from dcs.search.annealing import anneal
from dcs.search.optimum import exact_search
from dcs.search.problem import AnnealingResult
from dcs.search.schedule import Schedule
from tests.dcs.solutions import SETS, coarse_problem, judge

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
    return (a.z, a.indices, a.evaluations, a.trace) == (b.z, b.indices, b.evaluations, b.trace)


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
    schedule: Schedule,
    seed: int,
) -> tuple[list[int], list[tuple[float, float, float]]]:
    """Anneal as the paper says, every candidate judged from its predictions."""
    n = probs.shape[1]

    def value(choice: list[int]) -> float:
        return judge(probs, labels, corrections, _OBJECTIVE, choice)

    best_choice, best = [corrections.identity] * n, math.inf
    trace = []
    for r, word in enumerate(
        np.random.SeedSequence(seed).generate_state(schedule.restarts, np.uint64)
    ):
        stream = _Stream(int(word))
        choice = [corrections.identity] * n
        if r > 0 or schedule.start == "random":
            choice = [stream.below(len(corrections)) for _ in range(n)]
        z = value(choice)
        if schedule.moves == "metropolis" and z < best - 1e-12:
            best, best_choice = z, choice
        order = list(range(n))
        idle, frozen = 0, 2 * n if schedule.moves == "heat-bath" else math.inf
        for t in schedule.temperatures():
            accepted = generated = 0
            while (
                accepted < schedule.lambda1 * n
                and generated < schedule.lambda2 * n
                and idle < frozen
            ):
                if schedule.moves == "metropolis":
                    j = stream.below(n)
                    k = stream.below(len(corrections) - 1)
                    k += k >= choice[j]
                    new = value([*choice[:j], k, *choice[j + 1 :]])
                    moved = new < z - t * math.log(stream.uniform())
                else:
                    if generated % n == 0:
                        for i in range(n - 1, 0, -1):
                            at = stream.below(i + 1)
                            order[i], order[at] = order[at], order[i]
                    j = order[generated % n]
                    row = np.array(
                        [
                            value([*choice[:j], k, *choice[j + 1 :]])
                            for k in range(len(corrections))
                        ]
                    )
                    shares = np.exp((row.min() - row) / t).cumsum()
                    k = int(np.searchsorted(shares, stream.uniform() * shares[-1], "right"))
                    new = float(row[k])
                    moved = abs(new - row[choice[j]]) > 1e-12
                    low = int(row.argmin())
                    if row[low] < best - 1e-12:
                        best, best_choice = float(row[low]), [*choice[:j], low, *choice[j + 1 :]]
                if moved or schedule.moves == "heat-bath":
                    choice, z = [*choice[:j], k, *choice[j + 1 :]], new
                accepted += moved
                idle = 0 if moved else idle + 1
                generated += 1
                if z < best - 1e-12:
                    best, best_choice = z, choice
            trace.append((z, best, accepted / generated))
            if idle >= frozen:
                break
    return best_choice, trace


@pytest.mark.parametrize(
    "schedule",
    [
        _PLAIN,
        replace(_PLAIN, start="random", restarts=1),
        replace(_PLAIN, cooling_rate=0.3, lambda1=3, lambda2=5, moves="heat-bath"),
    ],
    ids=["paper", "random start", "heat-bath"],
)
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("n_classes", [2, 5])
def test_search_equals_a_plain_numpy_one(schedule: Schedule, name: str, n_classes: int) -> None:
    probs, labels = coarse_problem(80, n_classes, seed=n_classes, decimals=2)
    result = anneal(
        probs, labels, corrections=SETS[name], objective=_OBJECTIVE, schedule=schedule, seed=11
    )
    choice, trace = _plain_annealing(probs, labels, SETS[name], schedule, 11)
    assert result.indices == tuple(choice)
    assert len(result.trace) == len(trace)
    for point, (current, best, acceptance) in zip(result.trace, trace, strict=True):
        assert point.current == pytest.approx(current, rel=0, abs=1e-12)
        assert point.best == pytest.approx(best, rel=0, abs=1e-12)
        assert point.acceptance == acceptance


def _published_annealing(
    probs: NDArray[np.float64], labels: NDArray[np.int64], accepted_most: int, most: int, seed: int
) -> tuple[list[int], list[tuple[float, float, float]]]:
    """Anneal as the published code does, on its own scale: M * Z, temperatures 200,000 to 200."""
    n_rows, n = probs.shape
    corrections = SETS["dcs"]

    def value(choice: list[int]) -> float:
        return n_rows * judge(probs, labels, corrections, _OBJECTIVE, choice)

    (word,) = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    stream = _Stream(int(word))
    choice = [len(corrections) - 1] * n
    z = value(choice)
    best, best_choice = z, choice
    trace = []
    temperature = 200_000.0
    while temperature >= 200.0 and len(trace) < 400:
        counted = taken = generated = 0
        while counted < accepted_most and generated < most:
            j = stream.below(n)
            k = stream.below(len(corrections) - 1)
            k += k >= choice[j]
            changed = [*choice[:j], k, *choice[j + 1 :]]
            new = value(changed)
            generated += 1
            if new < z - temperature * math.log(stream.uniform()):
                counted += new <= z
                taken += 1
                choice, z = changed, new
                if z < best - 1e-9:
                    best, best_choice = z, choice
        trace.append((z / n_rows, best / n_rows, taken / generated))
        temperature *= 0.95
    return best_choice, trace


@pytest.mark.parametrize(("accepted", "generated"), [(3, 6), (15, 30)])
def test_published_schedule_equals_a_plain_one_move_by_move(accepted: int, generated: int) -> None:
    # Few rows on this scale: the chain is hot at first, and cold enough to reject at the end.
    probs, labels = coarse_problem(600, 4, seed=4, decimals=2)
    result = anneal(
        probs,
        labels,
        corrections=SETS["dcs"],
        objective=_OBJECTIVE,
        schedule=Schedule.published(600, accepted, generated),
        seed=6,  # From another start these chains would go another way.
    )
    choice, trace = _published_annealing(probs, labels, accepted, generated, 6)
    assert result.indices == tuple(choice)
    assert len(result.trace) == len(trace) == 135
    for point, (current, best, taken) in zip(result.trace, trace, strict=True):
        assert (point.current, point.best) == pytest.approx((current, best), rel=0, abs=1e-12)
        assert point.acceptance == taken


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_default_reaches_the_proven_optimum(name: str, n_classes: int) -> None:
    probs, labels = coarse_problem(150, n_classes, seed=5, decimals=3)
    arguments = {"corrections": SETS[name], "objective": _OBJECTIVE}
    proven = exact_search(probs, labels, **arguments)
    found = anneal(probs, labels, seed=1, **arguments)
    assert found.z == pytest.approx(proven.z, rel=0, abs=1e-9)
    assert found.initial_z == proven.initial_z


@pytest.mark.parametrize("schedule", [_SHORT, _PLAIN, Schedule.published(200)])
def test_result_is_what_its_scheme_does(schedule: Schedule) -> None:
    probs, labels = coarse_problem(200, 4, decimals=3)
    corrections = SETS["dcs"]
    result = anneal(probs, labels, corrections=corrections, schedule=schedule, seed=2)
    assert result.z == judge(probs, labels, corrections, Objective(), result.indices)
    assert tuple(corrections[k] for k in result.indices) == result.scheme.corrections
    assert result.trace[-1].best == pytest.approx(result.z, rel=0, abs=1e-9)


def test_budget_ends_the_search_between_coolings() -> None:
    probs, labels = coarse_problem(60, 3)
    arguments = {"corrections": SETS["dcs"], "seed": 3}
    first = anneal(probs, labels, schedule=Schedule(restarts=1), **arguments)
    cut = anneal(probs, labels, schedule=Schedule(budget=1), **arguments)
    longer = anneal(probs, labels, schedule=Schedule(budget=20_000), **arguments)
    assert _same(first, cut)
    assert longer.evaluations >= 20_000
    assert longer.z <= first.z
    assert longer.trace[: len(first.trace) - 1] == first.trace[:-1]


def test_same_seed_same_result_whatever_the_threads() -> None:
    probs, labels = coarse_problem(300, 4, decimals=3)
    probs.setflags(write=False)
    labels.setflags(write=False)

    def search(seed: int) -> AnnealingResult:
        return anneal(probs, labels, corrections=SETS["dcs"], schedule=_SHORT, seed=seed)

    alone = [search(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(search, range(4)))
    assert all(_same(a, b) for a, b in zip(alone, together, strict=True))
    assert len({r.trace for r in alone}) == 4


def test_row_order_and_memory_layout_do_not_matter() -> None:
    probs, labels = coarse_problem(120, 3, decimals=3)
    first = anneal(probs, labels, corrections=SETS["dcs"], schedule=_SHORT)
    turned = anneal(
        np.asfortranarray(probs)[::-1],
        labels[::-1].astype(np.int16),
        corrections=SETS["dcs"],
        schedule=_SHORT,
    )
    assert first.indices == turned.indices


def test_temperatures_fall_geometrically_to_the_last() -> None:
    schedule = Schedule(initial_temperature=8, final_temperature=1, cooling_rate=0.5)
    assert schedule.temperatures().tolist() == [8, 4, 2, 1]
    level = Schedule(initial_temperature=0.1, final_temperature=0.1)
    assert level.temperatures().tolist() == [0.1]


def test_class_without_rows_is_left_out_with_a_warning() -> None:
    probs, labels = coarse_problem(60, 3)
    labels[labels == 1] = 0
    with pytest.warns(UserWarning, match="'b'"):
        result = anneal(probs, labels, classes=["a", "b", "c"], schedule=_SHORT)
    assert math.isfinite(result.z)
    with pytest.warns(UserWarning, match="no rows are labelled 'class_1'"):
        exact = exact_search(probs, labels, corrections=SETS["dnip"])
    assert exact.z == judge(probs, labels, SETS["dnip"], Objective(), exact.indices)


def test_one_row_is_enough() -> None:
    with pytest.warns(UserWarning, match="class_1"):
        result = anneal([[0.25, 0.75]], [0], schedule=_SHORT)
    assert result.scheme.predict([[0.25, 0.75]]).tolist() == [0]
