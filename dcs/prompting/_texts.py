"""What the two procedurally generated tasks share: drawing phrases and whole splits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dcs.prompting.tasks import Example, Split
from dcs.seeds import derive_generator

__all__ = ["chance", "draw_index", "fill", "finish", "make_split", "pick"]

# Changing it changes every generated text, and with them every result.
TEXT_SEED = 20240607

_SLOT = re.compile(r"\{(\w+)\}")


def pick(rng: np.random.Generator, options: Sequence[str]) -> str:
    """Draw one of `options`, each equally likely."""
    # Only rng.random() is used here: its stream is the same in every NumPy release, which is
    # not promised of choice() and shuffle().
    return options[int(rng.random() * len(options))]


def chance(rng: np.random.Generator, probability: float) -> bool:
    """Return True with the given probability."""
    return bool(rng.random() < probability)


def draw_index(rng: np.random.Generator, weights: Sequence[float]) -> int:
    """Draw an index with probability proportional to its weight."""
    edges = np.cumsum(weights)
    index = int(np.searchsorted(edges, rng.random() * edges[-1], side="right"))
    return min(index, len(edges) - 1)


def fill(rng: np.random.Generator, phrase: str, slots: Mapping[str, Sequence[str]]) -> str:
    """Replace every ``{name}`` in `phrase` by one of the words of that slot."""
    return _SLOT.sub(lambda match: pick(rng, slots[match.group(1)]), phrase)


def finish(text: str) -> str:
    """Capitalise sentences."""
    return re.sub(
        r"(^|[.!?] )([a-z])", lambda match: match.group(1) + match.group(2).upper(), text
    )


def make_split(
    name: str,
    split: Split,
    *,
    sizes: Mapping[Split, int],
    weights: Sequence[float],
    write: Callable[[np.random.Generator, int], str],
) -> tuple[Example, ...]:
    """Generate one split of a task.

    Parameters
    ----------
    name : str
        The task, part of the ids and of the random stream.
    split : {"optimization", "test"}
        Which split. The test split avoids every text of the optimization split.
    sizes : mapping
        Number of texts of each split.
    weights : sequence of float
        Class frequencies.
    write : callable
        Writes a text of a class: ``write(rng, label)``.

    Returns
    -------
    tuple of Example
        Distinct texts of 12 to 25 words, the same on every call.
    """
    taken: set[str] = set()
    if split == "test":
        others = make_split(name, "optimization", sizes=sizes, weights=weights, write=write)
        taken.update(example.text for example in others)
    rng = derive_generator(TEXT_SEED, name, split)
    examples: list[Example] = []
    while len(examples) < sizes[split]:
        label = draw_index(rng, weights)
        text = write(rng, label)
        if text not in taken and 12 <= len(text.split()) <= 25:
            taken.add(text)
            examples.append(
                Example(id=f"{name}-{split}-{len(examples):04d}", text=text, label=label)
            )
    return tuple(examples)
