"""Details of lighteval: the log-likelihood of each choice, and the index of the right one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcs.data.columns import Reading
from dcs.data.forms.base import Form, Rows, parsed_cells
from dcs.data.forms.choices import Question, rows_of
from dcs.data.labels import as_text
from dcs.errors import TableError

if TYPE_CHECKING:
    import pandas as pd


def _rows(frame: pd.DataFrame, given: Reading) -> Rows:
    questions = []
    pairs = zip(parsed_cells(frame, "doc"), parsed_cells(frame, "model_response"), strict=True)
    for row, (doc, response) in enumerate(pairs):
        try:
            gold, choices = doc["gold_index"], [*map(as_text, doc["choices"])]
            (target,) = gold if isinstance(gold, list) else [gold]
            scores = [*map(float, response["logprobs"])]
            if len(scores) != len(choices):
                raise ValueError
        except (LookupError, TypeError, ValueError):
            raise TableError(
                f"row {row}: must have a logprob per choice, and one gold_index; give the details "
                "of a multiple-choice task"
            ) from None
        questions.append(Question(as_text(doc.get("id", row)), choices, scores, target))
    return rows_of(questions, given)


FORM = Form(
    "details of lighteval",
    lambda frame, given: {"doc", "model_response"} <= {*frame.columns},
    _rows,
)
