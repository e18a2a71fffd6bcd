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


def _rows(frame: pd.DataFrame, given: Reading) -> Rows:
    values = [cell if isinstance(cell, list) else [] for cell in parsed_cells(frame, "probs")]
    size = max(map(len, values))
    if wrong := [k for k, row in enumerate(values) if len(row) != size or None in row]:
        raise TableError(f"row {wrong[0]}: {len(values[wrong[0]])} probs, others have {size}")
    top = np.array(values, dtype=np.float64).argmax(axis=1).tolist()
    labels = [*map(as_text, frame["label"])]
    predicted = dict(zip(top, labels, strict=True))
    if len({*zip(top, labels, strict=True)}) > len({*predicted.values()}):
        raise TableError(
            "label is not the most probable class of every row; rename the column to gold if it "
            "holds the labels, and name the classes with --read classes=A,B,..."
        )
    classes = given.classes or tuple(predicted.get(k, "") for k in range(size))
    if "" in classes or len(classes) != size:
        raise TableError(
            f"only {quoted([*predicted.values()])} of {size} classes are predicted; name all in "
            "the order of the model with --read classes=A,B,..."
        )
    scores = [dict(zip(classes, row, strict=True)) for row in values]
    rest = frame.drop(columns="probs").rename(columns={"label": "predicted"})
    return Rows(with_scores(rest, scores, classes), {}, "label is the prediction")


FORM = Form(
    "rows of /classify of vLLM or SGLang",
    lambda frame, given: {"label", "probs", "num_classes"} <= {*frame.columns},
    _rows,
)
