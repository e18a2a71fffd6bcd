"""Every solution of a small problem, with the last class judged all at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dcs.search.kernels.candidates import add_class, clear, judge_class
from dcs.search.kernels.chains import TOLERANCE
from dcs.search.kernels.table import Room, Table, compiled

__all__ = ["exhaust"]


@compiled
def exhaust(
    table: Table,
    room: Room,
    first: int,
    best_choice: NDArray[np.int64],
    best: float,
) -> float:
    """Judge every solution that gives class 0 the correction `first`.

    Improves `best_choice` in place where Z is below `best`, and returns the best Z.
    """
    n_classes, n_functions = best_choice.size, table.functions.shape[0]
    last = n_classes - 1
    values, holders = room.tail_value, room.tail_class
    clear(table, values[0], holders[0])
    choice = np.zeros(n_classes, np.int64)
    choice[0] = first
    changed = 0
    while True:
        for j in range(changed, last):
            add_class(table, j, choice[j], values[j], holders[j], values[j + 1], holders[j + 1])
        judge_class(table, room, last, values[last], holders[last])
        for k in range(n_functions):
            if room.values[k] < best - TOLERANCE:
                best = room.values[k]
                best_choice[:] = choice
                best_choice[last] = k
        changed = last - 1
        while changed > 0 and choice[changed] == n_functions - 1:
            choice[changed] = 0
            changed -= 1
        if changed <= 0:
            return best
        choice[changed] += 1
