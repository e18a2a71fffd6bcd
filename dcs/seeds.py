"""Independent random streams derived from one root seed: demonstrations, split, annealing, ..."""

from __future__ import annotations

import hashlib

import numpy as np

from dcs.errors import InvalidInputError


def derive_seed(root: int, *names: str | int) -> int:
    """Derive the seed of a named stream from a root seed.

    Parameters
    ----------
    root : int
        User-specified seed, any non-negative integer.
    *names : str or int
        Name of the stream, e.g. ``"anneal", 3``. Order matters.

    Returns
    -------
    int
        Seed in ``0 .. 2**63 - 1``, identical on every platform.

    Raises
    ------
    InvalidInputError
        If the root seed is not an integer, or negative.
    """
    if isinstance(root, bool) or not isinstance(root, int | np.integer) or root < 0:
        raise InvalidInputError(f"seed {root}: must be an integer, 0 or more")
    # Hashing keeps ("a", "bc") and ("ab", "c") apart, and 1 apart from "1".
    digest = hashlib.sha256(repr(names).encode("utf-8")).digest()
    words = np.frombuffer(digest[:16], dtype="<u4").tolist()
    sequence = np.random.SeedSequence(entropy=root, spawn_key=tuple(words))
    return int(sequence.generate_state(1, dtype=np.uint64)[0] >> np.uint64(1))


def derive_generator(root: int, *names: str | int) -> np.random.Generator:
    """Return a generator seeded with :func:`derive_seed`."""
    return np.random.default_rng(derive_seed(root, *names))
