"""Input and scratch arrays of the kernels, and Z from counts.

A `Table` is immutable and may be shared between threads. A `Room` belongs to one
search; its content is not preserved between calls.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from dcs.evaluation.metrics import Objective
from dcs.schemes.corrections import CorrectionSet, Weight

_F = TypeVar("_F", bound=Callable[..., object])


def compiled(function: _F, *, inline: bool = False) -> _F:
    """Compile `function` without the GIL and cache the machine code on disk.

    ``error_model="numpy"`` omits the checks for division by zero, which would prevent
    vectorisation. Fast-math stays off: results must be bit-identical to NumPy. With `inline`, the
    function is compiled into its callers: a call passes each array of a table and of a room
    separately, which takes longer than a short function itself.
    """
    options = {"nogil": True, "cache": True, "error_model": "numpy", "forceinline": inline}
    try:
        return cast(_F, numba.njit(**options)(function))
    except RuntimeError:
        # Neither this package nor a home can be written to. Not in a folder of a known name: what
        # is read from it is executed.
        numba.config.CACHE_DIR = _private_folder().name
        return cast(_F, numba.njit(**options)(function))


@cache
def _private_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for the machine code of this process, and say so."""
    folder = tempfile.TemporaryDirectory(prefix="dcs-numba-")
    warnings.warn(
        f"machine code cannot be kept and is compiled by each process, in {folder.name}; set "
        "NUMBA_CACHE_DIR to a folder that only you can write to",
        UserWarning,
        stacklevel=2,
    )
    return folder


@compiled
def copy(source: NDArray[Any], target: NDArray[Any]) -> None:
    """Copy an array: Numba takes seconds to compile ``target[:] = source`` with its checks."""
    for i in range(target.size):
        target[i] = source[i]


#: Number of rows per block of kernels with several passes: a block fits in the L1 cache.
BLOCK = 2040

#: Number of corrections evaluated in parallel: their results are the bits of one byte.
LANES = 8

#: Class indices are stored in 16 bits.
MOST_CLASSES = 2**15 - 1

_BINS = 4096


class Table(NamedTuple):
    """Read-only arrays of a search."""

    columns: NDArray[np.float64]  # [N, M] probabilities, class by class
    labels: NDArray[np.int16]  # [C, M] one or several labels of every row
    fallback: NDArray[np.int16]  # [M] uncorrected prediction
    functions: NDArray[np.float64]  # [D, 4] coefficients of every correction
    direct: NDArray[np.int64]  # [D1] corrections evaluated one by one
    lanes: NDArray[np.float64]  # [4, L] their coefficients, padded by functions that always win
    weighed: NDArray[np.int64]  # [D2] weights evaluated by threshold, in ascending order
    weights: NDArray[np.float64]  # [D2] their weights
    bins: NDArray[np.int32]  # [B + 2] smallest winning weight, by the ratio to exceed
    class_rows: NDArray[np.float64]  # [N] labels per class
    present: NDArray[np.int64]  # classes with labels
    logs: NDArray[np.float64]  # [C * M + 1] log(count + pseudo-count)
    factors: NDArray[np.float64]  # error weight / labels, beta / pairs, tau, constant part of Z


class Room(NamedTuple):
    """Room of the kernels."""

    values: NDArray[np.float64]  # [D] Z of every correction of the class evaluated last
    correct: NDArray[np.int64]  # [N] correct predictions of the solution evaluated last
    predicted: NDArray[np.int64]  # [N] all its predictions
    order: NDArray[np.int64]  # present classes by accuracy
    accuracy: NDArray[np.float64]  # [N]
    threshold: NDArray[np.float64]  # [BLOCK] value that a corrected value must exceed
    threshold_bits: NDArray[np.int64]  # the same bytes
    key: NDArray[np.uint32]  # [C, BLOCK] rival class of the row, and whether the label is either
    slot: NDArray[np.int32]  # [BLOCK] smallest weight that wins the row
    wide: NDArray[np.int64]  # [BLOCK] the bits of a mask, before packing
    masks: NDArray[np.uint8]  # [L / 8, BLOCK] direct corrections that win the row, one bit each
    spread: NDArray[np.uint64]  # [256] the bits of a byte, expanded to eight bytes
    packed: NDArray[np.uint64]  # [3 N, L / 8] wins per key, eight counters to a word
    packed_bytes: NDArray[np.uint8]  # [3 N * L] the same bytes
    wins: NDArray[np.int32]  # [3 N, L] labels won by each direct correction, per key
    wins_line: NDArray[np.int32]  # [3 N * L] the same numbers
    reached: NDArray[np.int32]  # [3 N, D2 + 1] labels by smallest winning weight, per key
    base_correct: NDArray[np.int64]  # [N] counts if the class wins no row
    base_predicted: NDArray[np.int64]  # [N]
    rival_value: NDArray[np.float64]  # [M] maxima over all other classes
    rival_class: NDArray[np.int16]  # [M]


def make_table(
    probs: NDArray[np.float64],
    labels: NDArray[np.int64],
    corrections: CorrectionSet,
    objective: Objective,
) -> Table:
    """Prepare validated arrays ([M, N], and [M] or [C, M]) for the kernels."""
    n_classes = probs.shape[1]
    class_rows = np.bincount(labels.ravel(), minlength=n_classes).astype(np.float64)
    present = np.flatnonzero(class_rows)
    direct, weighed, bins = _split_corrections(corrections)
    functions = corrections.coefficients
    # At least one padding lane always wins: it counts the rows of each key.
    n_lanes = -(-(direct.size + 1) // LANES) * LANES
    lanes = np.tile(np.array([[-np.inf], [1.0], [np.inf], [1.0]]), (1, n_lanes))
    lanes[:, : direct.size] = functions[direct].T
    table = Table(
        columns=np.ascontiguousarray(probs.T),
        labels=np.atleast_2d(labels.astype(np.int16)),
        fallback=probs.argmax(axis=1).astype(np.int16),
        functions=functions,
        direct=direct,
        lanes=lanes,
        weighed=weighed,
        weights=functions[weighed, 1],
        bins=bins,
        class_rows=class_rows,
        present=present,
        logs=np.log(np.arange(labels.size + 1) + objective.pseudo_count),
        factors=_factors(objective, labels.size, n_classes, class_rows[present]),
    )
    # Read-only views, so that all tables have the same type for the compiler.
    return Table(*(_read_only(array) for array in table))


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def _factors(
    objective: Objective, n_rows: int, n_classes: int, class_rows: NDArray[np.float64]
) -> NDArray[np.float64]:
    k = objective.pseudo_count
    joint, marginal = np.log(n_rows + k * n_classes**2), np.log(n_rows + k * n_classes)
    constant = (2 * marginal - joint) * class_rows.size - np.log(class_rows + k).sum()
    pairs = max(1.0, class_rows.size * (class_rows.size - 1) / 2)
    return np.array(
        [
            objective.error_weight / n_rows,
            objective.beta / pairs,
            objective.tau,
            objective.error_weight - objective.tau * constant,
        ]
    )


def _split_corrections(
    corrections: CorrectionSet,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Split the corrections into those evaluated one by one and weights evaluated by histogram.

    Bin b holds the smallest weight that wins a row if the weight must exceed a ratio in
    ``[b, b + 1) / 4096``, times the largest weight if that is above 1. If the ratio is too close
    to a weight to be decided despite rounding, the bin holds ``-1 - g``, and a linear search
    starts at weight g. If weights are too close to each other, all are evaluated one by one.
    """
    is_weight = np.array([isinstance(c, Weight) for c in corrections])
    values = corrections.coefficients[:, 1]
    weighed = np.flatnonzero(is_weight)
    weighed = weighed[np.argsort(values[weighed])]
    bins_per_unit = _BINS / values[weighed].max(initial=1.0)
    if weighed.size > 1 and np.diff(values[weighed]).min() < 2 / bins_per_unit:
        weighed = weighed[:0]
    direct = np.setdiff1d(np.arange(len(corrections)), weighed)
    weights = values[weighed]
    edges = np.arange(_BINS + 2) / bins_per_unit
    low = np.searchsorted(weights, edges - 1e-9)
    high = np.searchsorted(weights, edges + (1 / bins_per_unit + 1e-9))
    # The last bin holds NaN and all ratios above the largest weight: no weight wins.
    low[-1] = high[-1] = weights.size
    bins = np.where(low == high, low, -1 - low).astype(np.int32)
    return direct.astype(np.int64), weighed.astype(np.int64), bins


def make_room(table: Table) -> Room:
    """Allocate the scratch arrays of one search."""
    n_classes, n_rows = table.columns.shape
    n_lanes = table.lanes.shape[1]
    n_keys = 3 * n_classes
    threshold = np.zeros(BLOCK)
    packed = np.zeros((n_keys, n_lanes // LANES), np.uint64)
    wins = np.zeros((n_keys, n_lanes), np.int32)
    bits = (np.arange(256)[:, None] >> np.arange(8)) & 1
    return Room(
        values=np.zeros(table.functions.shape[0]),
        correct=np.zeros(n_classes, np.int64),
        predicted=np.zeros(n_classes, np.int64),
        order=table.present.copy(),
        accuracy=np.zeros(n_classes),
        threshold=threshold,
        threshold_bits=threshold.view(np.int64),
        key=np.zeros((table.labels.shape[0], BLOCK), np.uint32),
        slot=np.zeros(BLOCK, np.int32),
        wide=np.zeros(BLOCK, np.int64),
        masks=np.zeros((n_lanes // LANES, BLOCK), np.uint8),
        spread=bits.astype(np.uint8).view(np.uint64)[:, 0].copy(),
        packed=packed,
        packed_bytes=packed.view(np.uint8).reshape(-1),
        wins=wins,
        wins_line=wins.reshape(-1),
        reached=np.zeros((n_keys, table.weights.size + 1), np.int32),
        base_correct=np.zeros(n_classes, np.int64),
        base_predicted=np.zeros(n_classes, np.int64),
        rival_value=np.zeros(n_rows),
        rival_class=np.zeros(n_rows, np.int16),
    )


@compiled
def corrected(p: float, left: float, rise: float, right: float, fall: float) -> float:
    """Return the corrected probability by the common formula of all corrections."""
    up = (p - left) * rise
    down = (right - p) * fall
    return up if up < down else down


@partial(compiled, inline=True)
def z_of(
    table: Table, room: Room, correct: NDArray[np.int64], predicted: NDArray[np.int64]
) -> float:
    """Return the objective from the counts of correct and of all predictions, in O(N).

    COBias is a sum over sorted accuracies. The order is preserved between calls, and insertion
    sort of an almost sorted list takes linear time.
    """
    order, accuracy = room.order, room.accuracy
    n_present = order.size
    hits = 0
    logs = 0.0
    for i in range(n_present):
        j = table.present[i]
        hits += correct[j]
        logs += table.logs[correct[j]] - table.logs[predicted[j]]
        accuracy[j] = correct[j] / table.class_rows[j]
    for i in range(1, n_present):
        j = order[i]
        at = i - 1
        while at >= 0 and accuracy[order[at]] > accuracy[j]:
            order[at + 1] = order[at]
            at -= 1
        order[at + 1] = j
    distance = 0.0
    for i in range(n_present):
        distance += (2 * i - (n_present - 1)) * accuracy[order[i]]
    f = table.factors
    z: float = f[3] - f[0] * hits + f[1] * distance - f[2] * logs
    return z
