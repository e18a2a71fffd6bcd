"""Annealing: Metropolis and heat-bath chains with cooling, and the descent that ends them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dcs._kernels._candidates import counts_of, judge_class
from dcs._kernels._compile import compiled
from dcs._kernels._moves import apply_choice, judge_move, keep_counts
from dcs._kernels._random import below, uniform
from dcs._kernels._table import Scratch, State, Table, z_of

__all__ = ["HEAT_BATH", "METROPOLIS", "TOLERANCE", "chain", "descend", "randomise"]

METROPOLIS = 0
HEAT_BATH = 1

#: Differences of Z below this are rounding, not improvement.
TOLERANCE = 1e-12


@compiled
def randomise(stream: NDArray[np.uint64], choice: NDArray[np.int64], n_functions: int) -> None:
    """Fill `choice` with random corrections."""
    for j in range(choice.size):
        choice[j] = below(stream, n_functions)


@compiled
def _metropolis(
    table: Table, state: State, scratch: Scratch, stream: NDArray[np.uint64], t: float, z: float
) -> tuple[float, bool]:
    """Perturb one class to another correction and judge it by the Metropolis criterion."""
    n_classes, n_functions = state.choice.size, table.functions.shape[0]
    j = below(stream, n_classes)
    k = below(stream, n_functions - 1)
    if k >= state.choice[j]:
        k += 1
    new = judge_move(table, state, scratch, j, k)
    accept = new < z
    if not accept:
        accept = uniform(stream) < math.exp((z - new) / t)
    if accept:
        keep_counts(state, scratch)
        apply_choice(table, state, scratch, j, k)
        return new, True
    return z, False


@compiled
def _take(table: Table, state: State, scratch: Scratch, j: int, k: int) -> None:
    """Take correction k of class j right after `judge_class`."""
    lane = 0
    while lane < table.direct.size and table.direct[lane] != k:
        lane += 1
    if lane == table.direct.size:
        w = 0
        while table.weighed[w] != k:
            w += 1
        lane += w
    counts_of(table, scratch, j, lane)
    keep_counts(state, scratch)
    apply_choice(table, state, scratch, j, k)


@compiled
def _heat_bath(
    table: Table, state: State, scratch: Scratch, stream: NDArray[np.uint64], t: float, z: float
) -> tuple[float, bool]:
    """Draw the correction of one class from its Boltzmann distribution given the others."""
    j = below(stream, state.choice.size)
    judge_class(table, state, scratch, j)
    values = scratch.values
    low = values[0]
    for k in range(values.size):
        low = min(low, values[k])
    total = 0.0
    for k in range(values.size):
        total += math.exp((low - values[k]) / t)
    left = uniform(stream) * total
    chosen = -1
    for k in range(values.size):
        share = math.exp((low - values[k]) / t)
        if share > 0.0:
            chosen = k
            left -= share
            if left < 0.0:
                break
    if chosen == state.choice[j]:
        return z, False
    z = values[chosen]
    _take(table, state, scratch, j, chosen)
    return z, True


@compiled
def descend(table: Table, state: State, scratch: Scratch, z: float) -> tuple[float, int]:
    """Take the best correction class by class until none improves Z; returns Z and passes."""
    n_classes = state.choice.size
    passes = 0
    since = 0
    j = 0
    while since < n_classes:
        judge_class(table, state, scratch, j)
        passes += 1
        values = scratch.values
        best = state.choice[j]
        for k in range(values.size):
            if values[k] < values[best] - TOLERANCE:
                best = k
        since += 1
        if best != state.choice[j]:
            z = values[best]
            _take(table, state, scratch, j, best)
            since = 1
        j = (j + 1) % n_classes
    return z, passes


@compiled
def chain(
    table: Table,
    state: State,
    scratch: Scratch,
    stream: NDArray[np.uint64],
    temperatures: NDArray[np.float64],
    limits: NDArray[np.int64],
    moves: int,
    best_choice: NDArray[np.int64],
    trace: NDArray[np.float64],
) -> tuple[float, int]:
    """Cool one chain from the state as it is.

    `limits` holds how many accepted and how many generated moves end a temperature. The best
    choice seen is left in `best_choice`, and current Z, best Z and the share of accepted moves of
    every temperature in `trace` [temperatures, 3]. Returns the best Z and the candidates judged.
    """
    n_functions = table.functions.shape[0]
    z = z_of(table, scratch, state.correct, state.predicted)
    best = z
    best_choice[:] = state.choice
    judged = 0
    for i in range(temperatures.size):
        t = temperatures[i]
        accepted = 0
        generated = 0
        while accepted < limits[0] and generated < limits[1]:
            if moves == METROPOLIS:
                z, moved = _metropolis(table, state, scratch, stream, t, z)
                judged += 1
            else:
                z, moved = _heat_bath(table, state, scratch, stream, t, z)
                judged += n_functions
            generated += 1
            accepted += moved
            if z < best - TOLERANCE:
                best = z
                best_choice[:] = state.choice
        trace[i, 0] = z
        trace[i, 1] = best
        trace[i, 2] = accepted / generated
    return best, judged
