"""Complete searches: annealing chains and coordinate descent."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dcs.search.kernels.candidates import eval_class
from dcs.search.kernels.moves import (
    State,
    apply_move,
    eval_move,
    find_rivals,
    set_choice,
    take_counts,
)
from dcs.search.kernels.table import Room, Table, compiled, copy, z_of

# The constants of SplitMix64.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_DROP = np.uint64(11)
_UNIT = 2.0**-53


@compiled
def uniform(stream: NDArray[np.uint64]) -> float:
    """Draw a number in [0, 1) and advance the stream."""
    stream[0] += _STEP
    z = stream[0]
    z = (z ^ (z >> _SHIFT_1)) * _MIX_1
    z = (z ^ (z >> _SHIFT_2)) * _MIX_2
    z = z ^ (z >> _SHIFT_3)
    return float(z >> _DROP) * _UNIT


@compiled
def random_index(stream: NDArray[np.uint64], n: int) -> int:
    """Draw an integer in 0 .. n - 1."""
    return int(uniform(stream) * n)


#: Smaller differences of Z are rounding errors, not improvements.
TOLERANCE = 1e-12

#: A heat-bath chain is frozen after this many consecutive moves per class without a change of Z.
FROZEN = 2


@compiled
def randomise(stream: NDArray[np.uint64], choice: NDArray[np.int64], n_functions: int) -> None:
    """Fill `choice` with random corrections."""
    for j in range(choice.size):
        choice[j] = random_index(stream, n_functions)


@compiled
def cool(
    table: Table,
    room: Room,
    state: State,
    stream: NDArray[np.uint64],
    temperatures: NDArray[np.float64],
    limits: NDArray[np.int64],
    count_worse: bool,
    heat_bath: bool,
    choice: NDArray[np.int64],
    best_choice: NDArray[np.int64],
) -> tuple[float, int]:
    """Cool one chain from `choice`.

    A move of the paper changes the correction of one class at random, and is accepted or rejected
    by the Metropolis criterion. With `heat_bath`, a move draws the correction of one class from
    its Boltzmann distribution given the other classes, which are visited in sweeps of random
    order; it is accepted if it changes Z, and cooling ends if the chain is frozen.

    `limits` holds the numbers of accepted and generated moves that end a temperature;
    `count_worse` is whether accepted moves to a worse solution count. The best of all evaluated
    solutions is written to `best_choice`. Returns its Z and the number of evaluated candidates.
    """
    n_classes, n_functions = choice.size, table.functions.shape[0]
    set_choice(table, state, choice)
    z = z_of(table, room, state.correct, state.predicted)
    # The first move of a heat bath evaluates the current solution too.
    best = math.inf if heat_bath else z
    copy(state.choice, best_choice)
    order = np.arange(n_classes)
    # Lower bounds of Z of all moves, valid while the values of the rows do not change.
    bounds = np.full((n_classes, n_functions), -math.inf)
    moves, idle, frozen = 0, 0, FROZEN * n_classes
    for i in range(temperatures.size):
        accepted, generated, at = 0, 0, n_classes
        while accepted < limits[0] and generated < limits[1] and idle < frozen:
            generated += 1
            if heat_bath:
                if at == n_classes:
                    _shuffle(stream, order)
                    at = 0
                j = order[at]
                at += 1
                find_rivals(state, room, j)
                eval_class(table, room, j, room.rival_value, room.rival_class)
                k = _draw(stream, room.values, temperatures[i])
                low = _lowest(room.values)
                if room.values[low] < best - TOLERANCE:
                    best = room.values[low]
                    copy(state.choice, best_choice)
                    best_choice[j] = low
                rise = room.values[k] - room.values[state.choice[j]]
                changed = abs(rise) > TOLERANCE
                accepted += changed and (count_worse or rise < 0.0)
                idle = 0 if changed else idle + 1
                if k != state.choice[j]:
                    apply_move(table, state, j, k)
                continue
            j = random_index(stream, n_classes)
            k = random_index(stream, n_functions - 1)
            if k >= state.choice[j]:
                k += 1
            # The random number determines which Z is accepted: moves bounded above it are skipped.
            ceiling = z - temperatures[i] * math.log(uniform(stream))
            if bounds[j, k] < ceiling:
                bounds[j, k] = eval_move(table, state, room, j, k, ceiling)
            new = bounds[j, k]
            if new < ceiling:
                own = bounds[j].copy()
                take_counts(state, room)
                if apply_move(table, state, j, k):
                    bounds[:] = -math.inf
                    copy(own, bounds[j])
                accepted += count_worse or new <= z
                z = new
                if z < best - TOLERANCE:
                    best = z
                    copy(state.choice, best_choice)
        moves += generated
    return best, moves * n_functions if heat_bath else moves + 1


@compiled
def descend(
    table: Table, room: Room, state: State, choice: NDArray[np.int64]
) -> tuple[float, int]:
    """Take the best correction class by class until none improves Z.

    Updates `choice` in place; returns its Z and the number of evaluated candidates.
    """
    n_classes = choice.size
    set_choice(table, state, choice)
    z = math.inf
    settled, moves = 0, 0
    while settled < n_classes:
        before = z
        for j in range(n_classes):
            if settled == n_classes:
                break
            find_rivals(state, room, j)
            eval_class(table, room, j, room.rival_value, room.rival_class)
            moves += 1
            values = room.values
            best = choice[j]
            for k in range(values.size):
                if values[k] < values[best] - TOLERANCE:
                    best = k
            settled = settled + 1 if best == choice[j] else 1
            z = values[best]
            if best != choice[j]:
                apply_move(table, state, j, best)
                choice[j] = best
        if z >= before - TOLERANCE:
            # Rows that tie up to rounding may count for different classes, depending on the class
            # being evaluated: two corrections that each seem to improve on the other would
            # alternate forever.
            break
    return z, moves * table.functions.shape[0]


@compiled
def _shuffle(stream: NDArray[np.uint64], order: NDArray[np.int64]) -> None:
    for i in range(order.size - 1, 0, -1):
        at = random_index(stream, i + 1)
        order[i], order[at] = order[at], order[i]


@compiled
def _lowest(values: NDArray[np.float64]) -> int:
    """Return the first index of the lowest value."""
    low = 0
    for k in range(1, values.size):
        if values[k] < values[low]:
            low = k
    return low


@compiled
def _draw(stream: NDArray[np.uint64], values: NDArray[np.float64], t: float) -> int:
    """Draw an index with probability proportional to exp(-value / t)."""
    low = values[_lowest(values)]
    total = 0.0
    for k in range(values.size):
        total += math.exp((low - values[k]) / t)
    rest = uniform(stream) * total
    drawn = 0
    for k in range(values.size):
        share = math.exp((low - values[k]) / t)
        if share > 0.0:
            drawn = k
            rest -= share
            if rest < 0.0:
                break
    return drawn
