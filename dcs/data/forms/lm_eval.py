"""Sample logs of lm-evaluation-harness: one JSON object per document and filter.

Only multiple-choice tasks provide probabilities. One filter is read at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dcs.data.columns import Reading, cells_of
from dcs.data.forms.base import Form, Rows
from dcs.data.forms.choices import Question, rows_of
from dcs.data.labels import as_text
from dcs.errors import TableError, quoted, show

if TYPE_CHECKING:
    import pandas as pd

_MUTUAL = "acc_mutual_info"


def _question(row: dict[Any, Any]) -> Question:
    """Return the question of a line; data sets that combine tasks store numbers as strings."""
    scores = [float(score) for score, _ in row["filtered_resps"]]
    pairs: Any = row.get("arguments")
    if isinstance(pairs, dict):
        pairs = [[*pair.values()] for pair in pairs.values()]
    told = isinstance(pairs, list) and len(pairs) == len(scores)
    texts = [as_text(text) for _, text in pairs] if told else []
    metrics = row.get("metrics")
    if row.get(_MUTUAL) is not None or (isinstance(metrics, list) and _MUTUAL in metrics):
        # The second half are the responses without the prompt.
        scores, texts = scores[: len(scores) // 2], texts[: len(texts) // 2]
    return Question(as_text(row["doc_id"]), texts, scores, row["target"])


def _rows(frame: pd.DataFrame, given: Reading) -> Rows:
    filters = cells_of(frame["filter"]) if "filter" in frame else ["none"] * len(frame)
    names = [*dict.fromkeys(filters)]
    name = names[0] if given.filter is None and len(names) == 1 else given.filter
    if name not in names:
        raise TableError(
            f"filter is {show(name)}; choose one of {quoted(names)} with --read filter=NAME"
        )
    questions = []
    columns = {key: cells_of(frame[key]) for key in frame.columns}
    for row in (k for k, each in enumerate(filters) if each == name):
        try:
            questions.append(_question({key: cells[row] for key, cells in columns.items()}))
        except (LookupError, TypeError, ValueError, AttributeError):
            raise TableError(
                f"row {row}: filtered_resps are {show(columns['filtered_resps'][row])}; must be a "
                "log of a multiple-choice task, written with --log_samples"
            ) from None
    return rows_of(questions, given)


FORM = Form(
    "samples of lm-evaluation-harness",
    lambda frame, given: {"doc_id", "target", "filtered_resps"} <= {*frame.columns},
    _rows,
)
