"""Logs of evaluation harnesses: lm-evaluation-harness, lighteval and Inspect.

The first two log the log-likelihoods of the choices of a question given the prompt, which a
softmax converts to class probabilities. Classes are the texts of the choices if all questions
share them, otherwise their positions; a position that a question does not have (ARC, MMLU-Pro)
has probability 0 there. Inspect logs the tokens of an answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from dcs.data.columns import PREFIX, Reading, cells_of
from dcs.data.forms.base import Form, Rows, parsed, parsed_cells, with_found, with_votes
from dcs.data.forms.engines import class_masses, likely_tokens, plain_of
from dcs.data.labels import as_text
from dcs.errors import TableError, quoted, show

if TYPE_CHECKING:
    import pandas as pd


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


def question_rows(questions: Sequence[Question], given: Reading) -> Rows:
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
    labels = _targets(questions, classes, given.labels)
    rows = pd.DataFrame({"id": [each.id for each in questions], "label": labels})
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


_MUTUAL = "acc_mutual_info"


def _question(row: dict[Any, Any]) -> Question:
    """Return the question of a line; data sets that combine tasks store numbers as strings."""
    scores = [float(score) for score, _ in row["filtered_resps"]]
    pairs: Any = row.get("arguments")
    if isinstance(pairs, dict):
        pairs = [[*pair.values()] for pair in pairs.values()]
    told = isinstance(pairs, list) and len(pairs) == len(scores)
    texts = [as_text(text) for _, text in pairs] if told else []
    if row.get(_MUTUAL) is not None or _MUTUAL in (row.get("metrics") or ()):
        raise ValueError  # Half of the responses are those without the prompt.
    return Question(as_text(row["doc_id"]), texts, scores, row["target"])


def _questions(
    records: Iterable[Any], rows: Iterable[int], read: Callable[[Any], Question], needs: str
) -> list[Question]:
    """Return the questions of records, given their row numbers."""
    found = []
    for row, record in zip(rows, records, strict=True):
        try:
            found.append(read(record))
        except (LookupError, TypeError, ValueError, AttributeError):
            raise TableError(f"row {row}: {show(record)}; must have {needs}") from None
    return found


def _lm_eval_rows(frame: pd.DataFrame, given: Reading) -> Rows:
    filters = cells_of(frame["filter"]) if "filter" in frame else ["none"] * len(frame)
    names = [*dict.fromkeys(filters)]
    name = names[0] if given.filter is None and len(names) == 1 else given.filter
    if name not in names:
        raise TableError(
            f"filter is {show(name)}; choose one of {quoted(names)} with --read filter=NAME"
        )
    own = frame[[each == name for each in filters]]
    cells = zip(*(cells_of(own[key]) for key in own.columns), strict=True)
    records = [dict(zip(own.columns, row, strict=True)) for row in cells]
    needs = "filtered_resps of a multiple-choice task, written with --log_samples"
    return question_rows(_questions(records, own.index, _question, needs), given)


LM_EVAL = Form(
    "samples of lm-evaluation-harness",
    lambda frame, given: {"doc_id", "target", "filtered_resps"} <= {*frame.columns},
    _lm_eval_rows,
)


def _detail(record: tuple[Any, Any, Any]) -> Question:
    """Return the question of a row of details."""
    row, doc, response = record
    gold, choices = doc["gold_index"], [*map(as_text, doc["choices"])]
    (target,) = gold if isinstance(gold, list) else [gold]
    scores = [*map(float, response["logprobs"])]
    if len(scores) != len(choices):
        raise ValueError
    return Question(as_text(doc.get("id", row)), choices, scores, target)


def _lighteval_rows(frame: pd.DataFrame, given: Reading) -> Rows:
    both = (parsed_cells(frame, name) for name in ("doc", "model_response"))
    records = zip(frame.index, *both, strict=True)
    needs = "a logprob per choice and one gold_index, as in details of a multiple-choice task"
    return question_rows(_questions(records, frame.index, _detail, needs), given)


LIGHTEVAL = Form(
    "details of lighteval",
    lambda frame, given: {"doc", "model_response"} <= {*frame.columns},
    _lighteval_rows,
)


def _answer(scores: Any) -> str:
    """Return the answer that a scorer parsed."""
    found = [*scores.values()] if isinstance(scores, dict) else []
    return next((as_text(s["answer"]) for s in found if isinstance(s, dict) and "answer" in s), "")


def _inspect_rows(frame: pd.DataFrame, given: Reading) -> Rows:
    import pandas as pd

    choices = [parsed(c) for c in cells_of(frame["choices"])] if "choices" in frame else [None]
    targets = [t[0] if isinstance(t, list) and len(t) == 1 else t for t in frame["target"]]
    if any(each != choices[0] for each in choices) or any(isinstance(t, list) for t in targets):
        raise TableError("samples have different choices, or several targets; one of each is read")
    names = [*map(as_text, choices[0] or given.classes or ())]
    if len(names) > len(ascii_uppercase):
        raise TableError(f"{len(names)} choices; at most {len(ascii_uppercase)} have letters")
    letters = [*ascii_uppercase[: len(names)]] if choices[0] else names
    spelled = dict(zip(letters, given.classes or names, strict=False))
    rows = pd.DataFrame({"id": [*map(as_text, frame["id"])]})
    rows["label"] = [spelled.get(text, text) for text in map(as_text, targets)]
    told = {
        "label": "label",
        "id": "id",
        "classes": tuple(spelled.values()) or None,
    }
    plain = plain_of(letters)
    places = [likely_tokens(output, letters) for output in frame["output"]]
    known = {*map(plain, letters)}
    # The answer is at the end: "ANSWER: B".
    masses = [next((m for t, m in reversed(each) if t in known), {}) for each in places]
    if rows["id"].is_unique and any(masses):
        scores = [class_masses(each, letters) for each in masses]
        named = [{spelled[k]: mass for k, mass in row.items()} for row in scores]
        return with_found(rows, named, told)
    answers = [spelled.get(text, text) for text in map(_answer, frame["scores"])]
    groups = rows.assign(answer=answers).groupby("id", sort=False)
    if (groups["label"].nunique() > 1).any():
        raise TableError("epochs of a sample have different targets")
    first = groups.first().reset_index()[["id", "label"]]
    hint = given.model_copy(update={"classes": told["classes"]})
    found = with_votes(first, [[*each] for _, each in groups["answer"]], "label", hint)
    return replace(found, told={**told, **found.told})


INSPECT = Form(
    "samples of an Inspect log",
    lambda frame, given: {"target", "output", "scores", "epoch"} <= {*frame.columns},
    _inspect_rows,
)
