"""Files written by earlier commits, which must stay readable.

If the format of a file changes on purpose, write it again: `dcs tune table.parquet --method dnip
--output runs` makes scheme.json, and cell.json among runs/cells.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dcs import CorrectionScheme, ProbabilityTable
from dcs_tracking.records import RECORD_VERSION, CellRecord

FOLDER = Path(__file__).parent
CLASSES = ("Calm", "Tense", "Joyful")


def test_a_table_has_its_rows_and_provenance() -> None:
    table = ProbabilityTable.read(FOLDER / "table.parquet")
    assert table.classes == CLASSES
    assert (table.n_rows, table.ids[0], table.provenance.task) == (60, "row-0", "moods")
    assert table.probs[0] == pytest.approx([0.93122168, 0.02172932, 0.04704901], abs=1e-8)


def test_a_scheme_corrects_as_it_did() -> None:
    scheme = CorrectionScheme.load(FOLDER / "scheme.json")
    assert scheme.classes == CLASSES
    table = ProbabilityTable.read(FOLDER / "table.parquet")
    weights = np.array([3 / 30, 11 / 30, 11 / 30])
    wanted = (table.probs * weights).argmax(axis=1)
    np.testing.assert_array_equal(scheme.apply(table.probs).argmax(axis=1), wanted)


def test_a_cell_record_is_read_and_written_again() -> None:
    text = (FOLDER / "cell.json").read_text(encoding="utf-8")
    record = CellRecord.from_json(text)
    assert record.finished
    assert record.scheme is not None
    assert CellRecord.from_json(record.to_json()) == record
    assert json.loads(text)["version"] == RECORD_VERSION
