"""Logs of Inspect: samples with choices, a target letter, and answers with log-probabilities."""

from __future__ import annotations

from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from dcs.data.columns import Reading, cells_of
from dcs.data.forms.base import Form, Rows, parsed, with_scores, with_votes
from dcs.data.forms.chat import class_masses, likely_tokens, plain_of
from dcs.data.labels import as_text
from dcs.errors import TableError

if TYPE_CHECKING:
    import pandas as pd


def _answer(scores: Any) -> str:
    """Return the answer that a scorer parsed."""
    found = [*scores.values()] if isinstance(scores, dict) else []
    return next((as_text(s["answer"]) for s in found if isinstance(s, dict) and "answer" in s), "")


def _rows(frame: pd.DataFrame, given: Reading) -> Rows:
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
        "columns": None,
        "classes": tuple(spelled.values()) or None,
    }
    plain = plain_of(letters)
    places = [likely_tokens(output, plain) for output in frame["output"]]
    known = {*map(plain, letters)}
    # The answer is at the end: "ANSWER: B".
    masses = [next((m for t, m in reversed(each) if t in known), {}) for each in places]
    if rows["id"].is_unique and any(masses):
        scores = [class_masses(each, letters) for each in masses]
        kept = [row for row, each in enumerate(scores) if each]
        named = [{spelled[k]: mass for k, mass in scores[row].items()} for row in kept]
        lost = len(scores) - len(kept)
        remark = f"{lost:,} samples without a likely answer are left out" if lost else ""
        rest = rows.iloc[kept].reset_index(drop=True)
        return Rows(with_scores(rest, named), {**told, "values": "scores"}, remark)
    answers = [spelled.get(text, text) for text in map(_answer, frame["scores"])]
    groups = rows.assign(answer=answers).groupby("id", sort=False)
    if (groups["label"].nunique() > 1).any():
        raise TableError("epochs of a sample have different targets")
    first = groups.first().reset_index()[["id", "label"]]
    hint = given.model_copy(update={"classes": told["classes"]})
    found = with_votes(first, [[*each] for _, each in groups["answer"]], "label", hint)
    return Rows(found.frame, {**told, **found.told}, found.remark)


FORM = Form(
    "samples of an Inspect log",
    lambda frame, given: {"target", "output", "scores", "epoch"} <= {*frame.columns},
    _rows,
)
