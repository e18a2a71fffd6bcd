"""Log-likelihoods of the choices of a question, as harnesses log them.

A softmax over the choices converts their log-likelihoods given the prompt to class probabilities.
Classes are the texts of the choices if all questions share them, otherwise their positions; a
position that a question does not have (ARC, MMLU-Pro) has probability 0 there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcs.data.columns import PREFIX, Reading
from dcs.data.forms.base import Rows
from dcs.data.labels import as_text
from dcs.errors import TableError, quoted, show


@dataclass(frozen=True, slots=True)
class Question:
    """Choices of a question: their texts, if known, and log-likelihoods; and the right one."""

    id: str
    choices: Sequence[str]
    scores: Sequence[float]
    target: Any

    def place(self, counting: str, classes: Sequence[str]) -> int | None:
        """Return the place of the target under one reading, None if it is no choice."""
        text = as_text(self.target)
        if text in ("", "-1"):
            return -1  # Test splits on the Hugging Face Hub without answers have such targets.
        numbers = {str(k): k for k in range(len(self.scores))}
        if isinstance(self.target, int) or counting == "from-0":
            # An integer, as opposed to a string, is a position under both readings.
            return numbers.get(text)
        known = [[*names] for names in (self.choices, classes)]
        return next((names.index(text) for names in known if names.count(text) == 1), None)


def rows_of(questions: Sequence[Question], given: Reading) -> Rows:
    """Return rows with a column of logits per class.

    Raises
    ------
    TableError
        If a question has no two finite log-likelihoods, or targets are unclear.
    """
    import pandas as pd

    size = max(len(each.scores) for each in questions)
    for each in questions:
        if size < 2 or not all(s < math.inf for s in each.scores) or max(each.scores) == -math.inf:
            raise TableError(
                f"id {show(each.id, 40)}: log-likelihoods are {show([*each.scores])}; must "
                "be two or more, finite or -inf, with a finite one"
            )
    texts = [*questions[0].choices]
    shared = len({*texts}) == size and all([*each.choices] == texts for each in questions)
    classes = given.classes or tuple(texts if shared else (f"choice_{k}" for k in range(size)))
    if len(classes) != size:
        raise TableError(f"{size} choices, but the classes are {quoted(classes)}")
    rows = pd.DataFrame({"id": [each.id for each in questions]})
    rows["label"] = _targets(questions, classes, given.labels)
    for k, name in enumerate(classes):
        rows[PREFIX + name] = [[*each.scores, *[-math.inf] * size][k] for each in questions]
    told = {"label": "label", "labels": "from-0", "id": "id", "values": "logits"}
    return Rows(rows, told | {"classes": classes, "columns": None})


def _targets(
    questions: Sequence[Question], classes: Sequence[str], labels: str | None
) -> list[int]:
    """Return the place of the target of every question.

    Logs store the index of a choice as a string, so ``"1"`` can be choice 1 or the choice with the
    text "1". Unless it is specified, only one reading must fit every question.
    """
    ways = ("names", "from-0") if labels is None else (labels,)
    places = [[each.place(way, classes) for each in questions] for way in ways]
    fitting = [[k for k in found if k is not None] for found in places if None not in found]
    if not fitting:
        # Report the last failure: the rows before it fit one of the readings.
        wrong = questions[max(found.index(None) for found in places)]
        raise TableError(
            f"id {show(wrong.id, 40)}: target is {show(wrong.target, 60)}; targets must all "
            f"be in 0..{len(wrong.scores) - 1} or all one of {quoted(wrong.choices or classes)}"
        )
    if len(fitting) == 2 and fitting[0] != fitting[1]:
        raise TableError(
            f"targets such as {show(questions[0].target)} can be positions of choices or their "
            "texts; specify --read labels=from-0 or labels=names"
        )
    return fitting[0]
