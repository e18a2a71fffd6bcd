"""Rows that one class takes from another, for every pair of their corrections."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dcs.search.kernels.table import Table, compiled, corrected

#: A smaller share of a row is not counted: what is left out makes a lower bound no less true.
_LEAST = 1e-3


@compiled
def _wins(v: float, rival: float, j: int, other: int) -> bool:
    """Whether the value `v` of class j takes a row from another class, as `predict` decides."""
    return v > rival or (v == rival and v > 0.0 and j < other)


@compiled
def count_lost(table: Table, shares: NDArray[np.float64], lost: NDArray[np.float64]) -> None:
    """Fill `lost` [N, N, D, D]: rows of class i lost to class j, by the corrections of both.

    Row m counts `shares[m, j]` for rival j. Where its own class is corrected to 0 it is lost,
    unless its uncorrected prediction is right.
    """
    n_functions = table.functions.shape[0]
    lost[:] = 0.0
    own, others = np.zeros(n_functions), np.zeros(n_functions)
    for m in range(table.labels.size):
        i = int(table.labels[m])
        for k in range(n_functions):
            left, rise, right, fall = table.functions[k]
            own[k] = max(0.0, corrected(table.columns[i, m], left, rise, right, fall))
        for j in range(shares.shape[1]):
            share = shares[m, j]
            if j == i or share < _LEAST:
                continue
            for k in range(n_functions):
                left, rise, right, fall = table.functions[k]
                others[k] = max(0.0, corrected(table.columns[j, m], left, rise, right, fall))
            for a in range(n_functions):
                line = lost[i, j, a]
                gone = own[a] == 0.0 and table.fallback[m] != i
                # The value that the rival must exceed: of equal ones the lower class has the row.
                least = np.nextafter(own[a], 0.0) if j < i and own[a] > 0.0 else own[a]
                for b in range(n_functions):
                    line[b] += share if gone or others[b] > least else 0.0


@compiled
def share_by_rivals(
    table: Table, choice: NDArray[np.int64], step: float, weights: NDArray[np.float64]
) -> None:
    """Multiply the weights [M, N] of the rivals that take a row under a choice by exp(`step`)."""
    n_classes, factor = choice.size, np.exp(step)
    for m in range(table.labels.size):
        i = int(table.labels[m])
        left, rise, right, fall = table.functions[choice[i]]
        own = max(0.0, corrected(table.columns[i, m], left, rise, right, fall))
        gone = own == 0.0 and table.fallback[m] != i
        total = 0.0
        for j in range(n_classes):
            if j != i:
                left, rise, right, fall = table.functions[choice[j]]
                v = max(0.0, corrected(table.columns[j, m], left, rise, right, fall))
                if gone or _wins(v, own, j, i):
                    weights[m, j] *= factor
                total += weights[m, j]
        for j in range(n_classes):
            weights[m, j] /= total


@compiled
def tighten(costs: NDArray[np.float64], dual: NDArray[np.float64], sweeps: int) -> float:
    """Return a lower bound, over choices, of the sum of `costs` [N, N, D, D] over pairs i > j.

    `dual` [N, N, D] holds the part of the cost of a pair that is charged to one of its classes;
    every sweep moves it so that no pair holds back what its classes could bear (max-sum
    diffusion). Any `dual` makes a lower bound.
    """
    n_classes, n_functions = dual.shape[0], dual.shape[2]
    charged = np.zeros((n_classes, n_functions))
    for i in range(n_classes):
        for j in range(n_classes):
            charged[i] += dual[i, j]
    low_i, low_j = np.zeros(n_functions), np.zeros(n_functions)
    bound = 0.0
    for sweep in range(sweeps + 1):
        bound = 0.0
        for i in range(n_classes):
            for j in range(i):
                pair = costs[i, j]
                charged[i] -= dual[i, j]
                charged[j] -= dual[j, i]
                if sweep == sweeps:
                    rest = np.inf
                    for a in range(n_functions):
                        for b in range(n_functions):
                            rest = min(rest, pair[a, b] - dual[i, j, a] - dual[j, i, b])
                    bound += rest
                else:
                    low_i[:] = np.inf
                    low_j[:] = np.inf
                    for a in range(n_functions):
                        for b in range(n_functions):
                            low_i[a] = min(low_i[a], pair[a, b] + charged[j, b])
                            low_j[b] = min(low_j[b], pair[a, b] + charged[i, a])
                    for a in range(n_functions):
                        dual[i, j, a] = 0.5 * (low_i[a] - charged[i, a])
                        dual[j, i, a] = 0.5 * (low_j[a] - charged[j, a])
                charged[i] += dual[i, j]
                charged[j] += dual[j, i]
    for i in range(n_classes):
        bound += charged[i].min()
    return bound
