"""Streams are the same everywhere and independent of one another."""

from __future__ import annotations

import pytest

from dcs.errors import InvalidInputError
from dcs.seeds import derive_seed


def test_seeds_do_not_depend_on_machine_or_version():
    # Literals: were they to change, nobody could repeat a result that was published.
    assert derive_seed(0, "split") == 6263384776816582899
    assert derive_seed(7, "anneal", 3) == 33330663653758331


def test_names_are_kept_apart():
    paths = [(0,), (1,), (0, "a"), (0, "a", "bc"), (0, "ab", "c"), (0, "1"), (0, 1)]
    assert len({derive_seed(*path) for path in paths}) == len(paths)


@pytest.mark.parametrize("root", [-1, 1.5, None, True])
def test_a_seed_is_a_whole_number(root):
    with pytest.raises(InvalidInputError):
        derive_seed(root, "split")
