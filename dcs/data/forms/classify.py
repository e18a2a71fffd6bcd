"""Rows of the ``/classify`` endpoint of vLLM and SGLang: ``label`` is the prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dcs.data.columns import Reading
from dcs.data.forms.base import Form, Rows, parsed_cells, with_scores
from dcs.data.labels import as_text
from dcs.errors import TableError, quoted

if TYPE_CHECKING:
    import pandas as pd


def _rows(frame: pd.DataFrame, given: Reading, source: str) -> Rows:
    values = [
        [*cell] if isinstance(cell, list | tuple) else [] for cell in parsed_cells(frame, "probs")
    ]
    size = len(values[0])
    wrong = [k for k, row in enumerate(values) if len(row) != size or not row]
    if wrong:
        raise TableError(
            f"{source}: row {wrong[0]}: probs are a list of {len(values[wrong[0]])} numbers, "
            f"expected {size}; drop or score it again"
        )
    top = np.array(values, dtype=np.float64).argmax(axis=1).tolist()
    labels = [as_text(cell) for cell in frame["label"]]
    pairs = {*zip(top, labels, strict=True)}
    if len(pairs) > len({*top}) or len(pairs) > len({*labels}):
        raise TableError(
            f"{source}: rows of /classify whose label is not the most probable class; rename the "
            "column of the labels to gold, and name the classes with --read classes=A,B,..."
        )
    predicted = dict(pairs)
    classes = given.classes or tuple(predicted.get(k, "") for k in range(size))
    if "" in classes or len(classes) != size:
        raise TableError(
            f"{source}: rows of /classify with {size} classes, of which only "
            f"{quoted([*predicted.values()])} are predicted; specify all in the order of the "
            "model with --read classes=A,B,..."
        )
    scores = [dict(zip(classes, row, strict=True)) for row in values]
    table, _ = with_scores(frame, scores, ["probs"], classes)
    return Rows(table.rename(columns={"label": "predicted"}), {}, "label is the prediction")


FORM = Form(
    "rows of /classify of vLLM or SGLang",
    lambda frame, given: {"label", "probs", "num_classes"} <= {*frame.columns},
    _rows,
)
