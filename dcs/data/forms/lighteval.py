"""Details of lighteval: the log-likelihood of each choice, and the index of the right one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dcs.data.columns import Reading
from dcs.data.forms.base import Form, Rows, is_number, parsed_cells
from dcs.data.forms.lm_eval import choice_classes
from dcs.data.labels import as_text
from dcs.errors import TableError

if TYPE_CHECKING:
    import pandas as pd


def _row(doc: Any, response: Any) -> tuple[list[str], list[float], int] | None:
    """Return choices, log-likelihoods and the right choice of a sample."""
    if not isinstance(doc, Mapping) or not isinstance(response, Mapping):
        return None
    choices: Any = doc.get("choices")
    gold: Any = doc.get("gold_index")
    scores: Any = response.get("logprobs")
    gold = [gold] if is_number(gold) else gold
    lists = all(isinstance(each, list | tuple) for each in (choices, gold, scores))
    if not lists or len(gold) != 1 or not 1 < len(choices) == len(scores):
        return None
    if not all(map(is_number, scores)) or not 0 <= gold[0] < len(choices):
        return None
    return [as_text(each) for each in choices], [float(each) for each in scores], int(gold[0])


def _rows(frame: pd.DataFrame, given: Reading, source: str) -> Rows:
    import pandas as pd

    docs = parsed_cells(frame, "doc")
    found = []
    for row, pair in enumerate(zip(docs, parsed_cells(frame, "model_response"), strict=True)):
        sample = _row(*pair)
        if sample is None:
            raise TableError(
                f"{source}: row {row}: must have two or more choices, one logprob for each, and "
                "one gold_index; give the details of a multiple-choice task"
            )
        found.append(sample)
    choices, scores, gold = zip(*found, strict=True)
    classes = given.classes or choice_classes(choices)
    rows = pd.DataFrame({"id": [as_text(doc.get("id", k)) for k, doc in enumerate(docs)]})
    rows["label"] = gold
    columns = {
        f"p:{name}": [row[k] if k < len(row) else -float("inf") for row in scores]
        for k, name in enumerate(classes)
    }
    table = pd.concat([rows, pd.DataFrame(columns)], axis=1)
    return Rows(
        table,
        {
            "label": "label",
            "labels": "from-0",
            "values": "logits",
            "classes": classes,
            "columns": None,
        },
    )


FORM = Form(
    "details of lighteval",
    lambda frame, given: {"doc", "model_response"} <= {*frame.columns},
    _rows,
)
