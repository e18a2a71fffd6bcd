"""Whatever a file holds: it is read, or refused on one line that names it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcs.data.table import ProbabilityTable
from dcs.errors import DCSError
from dcs.schemes.scheme import CorrectionScheme
from tests.hardening.corpus import KINDS, Kind, damaged, spoiled, thorough

by_name = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
structured = pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.content is not None], ids=lambda kind: kind.name
)


def read(kind: Kind, data: bytes) -> Any:
    """Read a file; returns the error if it is refused as it should be."""
    with tempfile.TemporaryDirectory() as folder:
        path = kind.written(Path(folder), data)
        try:
            found = kind.read(path)
        except kind.error as error:
            line = str(error)
            assert line and "\n" not in line, line
            assert len(line) < 3000, line
            assert path.name in line or (kind.name == "task" and "mood" in line), line
            return error
    use(found)
    return found


def use(found: Any) -> None:
    """Compute with what was accepted: nothing that is not a number may come out."""
    if isinstance(found, ProbabilityTable):
        assert np.isfinite(found.probs).all()
        assert np.abs(found.probs.sum(axis=1) - 1).max() < 1e-9
        assert len(found.digest) == 64
    elif isinstance(found, CorrectionScheme):
        n_classes = len(found.classes)
        rows = np.vstack([np.full(n_classes, 1 / n_classes), np.eye(n_classes)])
        applied = found.apply(rows)
        assert np.isfinite(applied).all()
        assert np.abs(applied.sum(axis=1) - 1).max() < 1e-9
        assert len(found.explain()) >= n_classes
        assert CorrectionScheme.from_json(found.to_json()) == found


@by_name
def test_a_good_file_is_read(kind: Kind) -> None:
    assert not isinstance(read(kind, kind.good), Exception)


@by_name
@thorough
@given(data=st.data())
def test_a_damaged_file(kind: Kind, data: st.DataObject) -> None:
    read(kind, data.draw(damaged(kind.good)))


@structured
@thorough
@given(data=st.data())
def test_a_file_with_other_values(kind: Kind, data: st.DataObject) -> None:
    read(kind, kind.dump(data.draw(spoiled(kind.content))).encode())


@pytest.mark.parametrize("kind", KINDS[:4], ids=lambda kind: kind.name)
def test_every_cut_of_a_binary_file_is_refused(kind: Kind) -> None:
    # Up to the last byte: a table that lost its last rows must not look like a smaller one.
    step = max(1, len(kind.good) // 400)
    for end in [*range(0, len(kind.good), step), len(kind.good) - 1]:
        if kind.name == "csv":
            continue
        assert isinstance(read(kind, kind.good[:end]), DCSError), end
