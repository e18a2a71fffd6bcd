"""Test rows that are among the fitted ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dcs.data.overlap import refuse_shared_rows, refuse_shared_texts
from dcs.data.reader import Source, open_source
from dcs.errors import TableError
from tests.dcs.refusals import refuses


def _source(ids: list[str], seed: int) -> Source:
    probs = np.random.default_rng(seed).dirichlet(np.ones(2), len(ids))
    frame = pd.DataFrame(probs, columns=["p:a", "p:b"])
    return open_source(frame.assign(id=ids, label=["a", "b", "a"]))


@pytest.mark.parametrize("shared", [["x", "y", "z"], ["1", "2", "90"], ["7", "8", "9"]])
def test_shared_ids_are_refused_unless_they_number_the_rows(shared: list[str]) -> None:
    fitted, test = _source(shared, 0), _source(["u", "v", shared[2]], 1)
    refuses(TableError, refuse_shared_rows, fitted, test, "t", names=["1 of 3 ids"])
    assert refuse_shared_rows(_source(["1", "2", "3"], 0), _source(["1", "2", "3"], 1), "t") == ""


def test_one_shared_text_in_a_hundred_is_chance() -> None:
    test = [f"text {k}" for k in range(100)]
    assert refuse_shared_texts(test[:1], test, "t") != ""
    assert refuse_shared_texts(["another"], test, "t") == ""
    refuses(TableError, refuse_shared_texts, test[:2], test, "t", names=["2 of 100 texts"])
