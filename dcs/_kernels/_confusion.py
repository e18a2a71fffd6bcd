"""The confusion matrix of a solution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dcs._kernels._candidates import add_class, clear
from dcs._kernels._compile import compiled
from dcs._kernels._table import Room, Table

__all__ = ["count_confusion"]


@compiled
def count_confusion(
    table: Table, room: Room, choice: NDArray[np.int64], confusion: NDArray[np.int64]
) -> None:
    """Fill `confusion` [N, N] (row = true class) for one correction per class."""
    clear(table, room.head_value[0], room.head_class[0])
    turn = 0
    for j in range(choice.size):
        add_class(
            table,
            j,
            choice[j],
            room.head_value[turn],
            room.head_class[turn],
            room.head_value[1 - turn],
            room.head_class[1 - turn],
        )
        turn = 1 - turn
    holders, labels = room.head_class[turn], table.labels
    confusion[:] = 0
    for m in range(labels.size):
        confusion[labels[m], holders[m]] += 1
