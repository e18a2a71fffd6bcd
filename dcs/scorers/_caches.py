"""What prompts share, and the keys and values of it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Run",
    "bears_padding",
    "is_out_of_memory",
    "is_plain_layer",
    "repeat_cache",
    "shared_length",
]


@dataclass(frozen=True, slots=True)
class Run:
    """Prompts, how many tokens they share, and the keys and values of those."""

    prompts: list[list[int]]
    shared: int
    cache: Any


def is_out_of_memory(torch: Any, error: RuntimeError) -> bool:
    """Return whether torch failed for want of memory."""
    # On a CPU torch raises a plain RuntimeError, and so do the libraries below it on a GPU.
    return isinstance(error, torch.OutOfMemoryError) or any(
        sign in str(error) for sign in ("allocate memory", "ALLOC_FAILED")
    )


def shared_length(prompts: list[list[int]]) -> int:
    """Return how many tokens all prompts begin with; at least one of each is left to run."""
    # The lexicographic extremes differ wherever any two prompts do.
    first, last = min(prompts), max(prompts)
    most = min(len(ids) for ids in prompts) - 1
    for position in range(most):
        if first[position] != last[position]:
            return position
    return most


def is_plain_layer(layer: Any) -> bool:
    """Return whether a layer of a cache holds all keys and values, and nothing else."""
    return type(layer).__name__ == "DynamicLayer"


def bears_padding(cache: Any) -> bool:
    """Return whether padding may stand between the cached tokens and the rest.

    Layers of a sliding window count it as tokens, and would look less far back.
    """
    return cache is None or all(is_plain_layer(layer) for layer in cache.layers)


def repeat_cache(cache: Any, times: int) -> Any:
    """Return a copy of the cache of one row for `times` rows; the model writes to it."""
    repeated = copy.deepcopy(cache)
    for layer in repeated.layers:
        if is_plain_layer(layer):
            # A view will do: this layer joins new keys to old ones in a new tensor.
            layer.keys = layer.keys.expand(times, -1, -1, -1)
            layer.values = layer.values.expand(times, -1, -1, -1)
        else:
            layer.batch_repeat_interleave(times)
    return repeated
