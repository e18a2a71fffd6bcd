"""The arrays that the kernels work on, and how they are built.

`Table` is what a search reads: it never changes and may be shared between threads. `State` is what
one search writes. Rows keep their best and runner-up corrected value; a value of 0 is stored with
the row's uncorrected prediction as its class, because a row that corrects to all zeros keeps that
prediction whatever the class it ties with.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcs._kernels._compile import compiled
from dcs.corrections import CorrectionSet, Weight
from dcs.objective import Objective

__all__ = [
    "Scratch",
    "State",
    "Table",
    "make_scratch",
    "make_state",
    "make_table",
    "set_choice",
    "z_of",
]

#: Rows handled at a time where a kernel makes several passes: they stay in the first-level cache.
BLOCK = 2048

_NARROWEST_BIN = 2.0**-12

#: Class indices are kept in 16 bits.
MOST_CLASSES = 2**15 - 1


class Table(NamedTuple):
    """What a search reads."""

    columns: NDArray[np.float64]  # [N, M] probabilities, class by class
    rows: NDArray[np.float64]  # [M, N] the same, row by row
    labels: NDArray[np.int16]  # [M]
    fallback: NDArray[np.int16]  # [M] uncorrected prediction
    functions: NDArray[np.float64]  # [D, 6] coefficients of every correction
    direct: NDArray[np.int64]  # [D1] corrections judged one by one
    lanes: NDArray[np.float64]  # [6, L >= D1 + 1] their coefficients, then one that always wins
    weighed: NDArray[np.int64]  # [D2] corrections judged by threshold, rising weight
    weights: NDArray[np.float64]  # [D2 + 4] their weights, then infinities
    bins: NDArray[np.int32]  # [B + 1] where to look for a threshold
    class_rows: NDArray[np.float64]  # [N] rows per true class
    present: NDArray[np.int64]  # classes with rows
    logs: NDArray[np.float64]  # [M + 1] log(count + pseudo-count)
    factors: NDArray[np.float64]  # error weight / M, beta / pairs, tau, constant part of Z


class State(NamedTuple):
    """What a search writes."""

    choice: NDArray[np.int64]  # [N] correction of every class
    first: NDArray[np.float64]  # [M] best corrected value
    second: NDArray[np.float64]  # [M] runner-up
    first_class: NDArray[np.int16]  # [M]
    second_class: NDArray[np.int16]  # [M]
    correct: NDArray[np.int64]  # [N] correct predictions
    predicted: NDArray[np.int64]  # [N] predictions


class Scratch(NamedTuple):
    """Room that the kernels use between two lines; nothing in it outlives a call."""

    flags: NDArray[np.uint8]  # [M + 7] rows that may change
    flag_words: NDArray[np.uint64]  # the same bytes, eight at a time
    touched: NDArray[np.int64]  # [M + 8] their indices
    threshold: NDArray[np.float64]  # [BLOCK] what a corrected value must exceed
    threshold_bits: NDArray[np.int64]  # the same bytes
    key: NDArray[np.int32]  # [BLOCK] who has the row otherwise, and is that correct
    slot: NDArray[np.int32]  # [BLOCK]
    wins: NDArray[np.int32]  # [3 N, L] rows won by each direct correction, per key
    reached: NDArray[np.int32]  # [3 N, D2 + 1] rows by the first weight that wins them, per key
    correct: NDArray[np.int64]  # [N]
    predicted: NDArray[np.int64]  # [N]
    base_correct: NDArray[np.int64]  # [N]
    base_predicted: NDArray[np.int64]  # [N]
    order: NDArray[np.int64]  # present classes by accuracy
    accuracy: NDArray[np.float64]  # [N]
    values: NDArray[np.float64]  # [D] Z of every candidate


def make_table(
    probs: NDArray[np.float64],
    labels: NDArray[np.int64],
    corrections: CorrectionSet,
    objective: Objective,
) -> Table:
    """Lay out checked arrays ([M, N] and [M]) for the kernels."""
    n_rows, n_classes = probs.shape
    rows = np.ascontiguousarray(probs)
    class_rows = np.bincount(labels, minlength=n_classes).astype(np.float64)
    present = np.flatnonzero(class_rows)
    direct, weighed, bins = _plan(corrections)
    functions = corrections.coefficients
    # The lane after the last correction always wins: it counts the rows of each key.
    always = np.array([0.0, 0.0, np.inf, 1.0, 0.0, np.inf])
    n_lanes = -(-(direct.size + 1) // 8) * 8
    lanes = np.tile(always[:, None], (1, n_lanes))
    lanes[:, : direct.size] = functions[direct].T
    weights = np.concatenate([functions[weighed, 1], np.full(4, np.inf)])
    k = objective.pseudo_count
    constants = (
        2 * np.log(n_rows + k * n_classes) - np.log(n_rows + k * n_classes**2)
    ) * present.size - np.log(class_rows[present] + k).sum()
    pairs = max(1.0, present.size * (present.size - 1) / 2)
    table = Table(
        columns=np.ascontiguousarray(probs.T),
        rows=rows,
        labels=labels.astype(np.int16),
        fallback=rows.argmax(axis=1).astype(np.int16),
        functions=functions,
        direct=direct,
        lanes=lanes,
        weighed=weighed,
        weights=weights,
        bins=bins,
        class_rows=class_rows,
        present=present,
        logs=np.log(np.arange(n_rows + 1) + k),
        factors=np.array(
            [
                objective.error_weight / n_rows,
                objective.beta / pairs,
                objective.tau,
                objective.error_weight - objective.tau * constants,
            ]
        ),
    )
    # Read-only views: one type for the compiler whatever the caller's arrays allow.
    return Table(*(_read_only(array) for array in table))


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def _plan(
    corrections: CorrectionSet,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Divide the corrections into those judged one by one and the weights in a histogram.

    The histogram finds the first winning weight from a table of bins; a bin must hold at most one
    weight, so weights closer together than the narrowest bin are judged one by one as well.
    """
    is_weight = np.array([isinstance(c, Weight) for c in corrections])
    values = corrections.coefficients[:, 1]
    weighed = np.flatnonzero(is_weight)
    weighed = weighed[np.argsort(values[weighed])]
    gap = np.diff(values[weighed]).min() if weighed.size > 1 else 1.0
    if gap < 2 * _NARROWEST_BIN:
        weighed = weighed[:0]
    n_bins = 256
    while gap < 2 / n_bins and weighed.size:
        n_bins *= 2
    direct = np.setdiff1d(np.arange(len(corrections)), weighed)
    edges = np.arange(n_bins + 1) / n_bins
    # One weight early, so that rounding at the edge of a bin cannot skip a weight.
    bins = np.maximum(np.searchsorted(values[weighed], edges) - 1, 0).astype(np.int32)
    return direct.astype(np.int64), weighed.astype(np.int64), bins


def make_state(table: Table) -> State:
    """Make room for a state; `set_choice` fills it."""
    n_classes, n_rows = table.columns.shape
    return State(
        choice=np.zeros(n_classes, np.int64),
        first=np.zeros(n_rows),
        second=np.zeros(n_rows),
        first_class=np.zeros(n_rows, np.int16),
        second_class=np.zeros(n_rows, np.int16),
        correct=np.zeros(n_classes, np.int64),
        predicted=np.zeros(n_classes, np.int64),
    )


def make_scratch(table: Table) -> Scratch:
    """Make the room that the kernels need."""
    n_classes, n_rows = table.columns.shape
    words = np.zeros((n_rows + 7) // 8, np.uint64)
    threshold = np.zeros(BLOCK)
    return Scratch(
        flags=words.view(np.uint8),
        flag_words=words,
        touched=np.zeros(words.size * 8 + 1, np.int64),
        threshold=threshold,
        threshold_bits=threshold.view(np.int64),
        key=np.zeros(BLOCK, np.int32),
        slot=np.zeros(BLOCK, np.int32),
        wins=np.zeros((3 * n_classes, table.lanes.shape[1]), np.int32),
        reached=np.zeros((3 * n_classes, table.weights.size), np.int32),
        correct=np.zeros(n_classes, np.int64),
        predicted=np.zeros(n_classes, np.int64),
        base_correct=np.zeros(n_classes, np.int64),
        base_predicted=np.zeros(n_classes, np.int64),
        order=table.present.copy(),
        accuracy=np.zeros(n_classes),
        values=np.zeros(table.functions.shape[0]),
    )


@compiled
def corrected(p: np.float64, f: NDArray[np.float64]) -> np.float64:
    """Correct one probability with the coefficients `f` (without the bound at 0)."""
    left: np.float64 = (p - f[0]) * f[1] + f[2]
    right: np.float64 = (f[3] - p) * f[4] + f[5]
    return left if left < right else right


@compiled
def rank_row(table: Table, state: State, m: int) -> None:
    """Find best and runner-up of row m from scratch."""
    first, second = 0.0, 0.0
    first_class = second_class = table.fallback[m]
    for j in range(table.rows.shape[1]):
        v = corrected(table.rows[m, j], table.functions[state.choice[j]])
        if v > first:
            second, second_class = first, first_class
            first, first_class = v, np.int16(j)
        elif v > second:
            second, second_class = v, np.int16(j)
    state.first[m] = first
    state.second[m] = second
    state.first_class[m] = first_class
    state.second_class[m] = second_class


@compiled
def set_choice(table: Table, state: State, choice: NDArray[np.int64]) -> None:
    """Fill the state for a choice of corrections."""
    state.choice[:] = choice
    state.correct[:] = 0
    state.predicted[:] = 0
    for m in range(table.labels.size):
        rank_row(table, state, m)
        j = state.first_class[m]
        state.predicted[j] += 1
        state.correct[j] += j == table.labels[m]


@compiled
def z_of(
    table: Table, scratch: Scratch, correct: NDArray[np.int64], predicted: NDArray[np.int64]
) -> float:
    """Return the objective for counts of correct and of all predictions, in O(N).

    COBias is the sum over sorted accuracies; the order is kept from call to call, and sorting an
    almost sorted list by insertion is linear.
    """
    order, accuracy = scratch.order, scratch.accuracy
    hits = 0
    logs = 0.0
    for i in range(table.present.size):
        j = table.present[i]
        hits += correct[j]
        logs += table.logs[correct[j]] - table.logs[predicted[j]]
        accuracy[j] = correct[j] / table.class_rows[j]
    distance = 0.0
    n_present = order.size
    for i in range(1, n_present):
        j = order[i]
        a = accuracy[j]
        at = i - 1
        while at >= 0 and accuracy[order[at]] > a:
            order[at + 1] = order[at]
            at -= 1
        order[at + 1] = j
    for i in range(n_present):
        distance += (2 * i - (n_present - 1)) * accuracy[order[i]]
    f = table.factors
    z: float = f[3] - f[0] * hits + f[1] * distance - f[2] * logs
    return z
