"""Test rows that are among the fitted ones."""

from __future__ import annotations

import pandas as pd
import pytest

from dcs.data.overlap import refuse_shared_rows, refuse_shared_texts
from dcs.data.reader import Source, open_source
from dcs.errors import TableError
from tests.dcs.refusals import refuses


def _source(ids: list[str], share: float) -> Source:
    frame = pd.DataFrame({"p:a": share, "p:b": 1.0 - share, "label": ["a", "b", "a"], "id": ids})
    return open_source(frame)


@pytest.mark.parametrize("shared", [["x", "y", "z"], ["1", "2", "90"], ["7", "8", "9"]])
def test_shared_ids_are_refused_unless_they_number_the_rows(shared: list[str]) -> None:
    fitted, test = _source(shared, 0.2), _source(["u", "v", shared[2]], 0.7)
    refuses(TableError, refuse_shared_rows, fitted, test, "t", names=["1 of 3 ids"])
    numbered = [_source(["1", "2", "3"], share) for share in (0.2, 0.7)]
    assert refuse_shared_rows(*numbered, "t") == ""


def test_one_shared_text_in_a_hundred_is_chance() -> None:
    test = [f"text {k}" for k in range(100)]
    assert refuse_shared_texts(test[:1], test, "t") != ""
    assert refuse_shared_texts(["another"], test, "t") == ""
    refuses(TableError, refuse_shared_texts, test[:2], test, "t", names=["2 of 100 texts"])
