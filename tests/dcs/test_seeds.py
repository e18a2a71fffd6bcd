"""Streams are the same everywhere and independent of one another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dcs.seeds import derive_seed

names = st.lists(st.one_of(st.text(max_size=5), st.integers()), max_size=3)


def test_seeds_do_not_depend_on_machine_or_version():
    # Literals: were they to change, nobody could repeat a result that was published.
    assert derive_seed(0, "split") == 6263384776816582899
    assert derive_seed(7, "anneal", 3) == 33330663653758331


@given(st.integers(0, 2**70), names)
def test_a_seed_fits_in_63_bits_and_is_repeatable(root, path):
    seed = derive_seed(root, *path)
    assert 0 <= seed < 2**63
    assert seed == derive_seed(root, *path)


def test_names_are_kept_apart():
    paths = [(0,), (1,), (0, "a"), (0, "a", "bc"), (0, "ab", "c"), (0, "1"), (0, 1)]
    assert len({derive_seed(*path) for path in paths}) == len(paths)
