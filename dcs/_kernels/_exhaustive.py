"""Every solution of a small problem, with the last class judged all at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dcs._kernels._candidates import judge_class
from dcs._kernels._compile import compiled
from dcs._kernels._search import TOLERANCE
from dcs._kernels._table import Scratch, State, Table

__all__ = ["exhaust"]


@compiled
def _extend(
    table: Table,
    values: NDArray[np.float64],
    holders: NDArray[np.int16],
    depth: int,
    k: int,
) -> None:
    """Add class `depth` with correction k to the best of the classes before it."""
    column = table.columns[depth]
    f0, f1, f2, f3, f4, f5 = table.functions[k]
    before, after = values[depth], values[depth + 1]
    held, holds = holders[depth], holders[depth + 1]
    jj = np.int16(depth)
    # Classes come in rising order, so a tie stays with the one that was there before.
    for m in range(column.size):
        p = column[m]
        left = (p - f0) * f1 + f2
        right = (f3 - p) * f4 + f5
        v = left if left < right else right
        wins = v > before[m]
        after[m] = v if wins else before[m]
        holds[m] = jj if wins else held[m]


@compiled
def exhaust(
    table: Table,
    state: State,
    scratch: Scratch,
    values: NDArray[np.float64],
    holders: NDArray[np.int16],
    choice: NDArray[np.int64],
    first: int,
    best_choice: NDArray[np.int64],
    best: float,
) -> float:
    """Judge every solution that gives class 0 the correction `first`.

    `values` and `holders` are [N, M] rooms for the best of the first classes; row 0 holds zeros
    and the uncorrected predictions. Improves `best_choice` in place and returns the best Z.
    """
    n_classes = table.columns.shape[0]
    n_functions = table.functions.shape[0]
    last = n_classes - 1
    choice[:] = 0
    choice[0] = first
    depth = 0
    while True:
        for d in range(depth, last):
            _extend(table, values, holders, d, choice[d])
        state.first[:] = values[last]
        state.first_class[:] = holders[last]
        judge_class(table, state, scratch, last)
        for k in range(n_functions):
            if scratch.values[k] < best - TOLERANCE:
                best = scratch.values[k]
                best_choice[:] = choice
                best_choice[last] = k
        depth = last - 1
        while depth > 0 and choice[depth] == n_functions - 1:
            choice[depth] = 0
            depth -= 1
        if depth <= 0:
            return best
        choice[depth] += 1
