"""Logs of Inspect: samples with choices, a target letter, and answers with log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

import pandas as pd

from dcs.data.columns import Reading, cells_of
from dcs.data.forms.base import Form, Rows, as_votes, parsed, with_scores
from dcs.data.forms.chat import class_masses, likely_tokens
from dcs.data.labels import as_text, fold
from dcs.errors import TableError, show

if TYPE_CHECKING:
    from collections.abc import Sequence


def _sniff(frame: pd.DataFrame, given: Reading) -> bool:
    return {"target", "output", "scores", "epoch"} <= {*frame.columns}


def _masses(output: Any, letters: Sequence[str]) -> dict[str, float]:
    """Return the probabilities of letters at the last place where one was answered."""
    places = likely_tokens(output.get("choices") if isinstance(output, Mapping) else None)
    folded = {fold(letter) for letter in letters}
    found = [masses for token, masses in places if token in folded]
    return class_masses(found[-1], letters) if found else {}


def _answer(scores: Any) -> str:
    """Return the answer that a scorer parsed."""
    for score in scores.values() if isinstance(scores, Mapping) else ():
        if isinstance(score, Mapping) and score.get("answer") is not None:
            return as_text(score["answer"])
    return ""


def _rows(frame: pd.DataFrame, given: Reading, source: str) -> Rows:
    choices = [parsed(cell) for cell in cells_of(frame["choices"])] if "choices" in frame else []
    names: list[str] = [as_text(each) for each in choices[0] or ()] if choices else []
    if any(each != choices[0] for each in choices):
        raise TableError(
            f"{source}: {FORM.name}: samples have different choices; give the log of a task whose "
            "choices are its classes, in the same order"
        )
    letters = [*ascii_uppercase[: len(names)]] or [*(given.classes or ())]
    targets = [
        cell[0] if isinstance(cell, list) and len(cell) == 1 else cell
        for cell in cells_of(frame["target"])
    ]
    if odd := [k for k, cell in enumerate(targets) if isinstance(cell, list | dict)]:
        raise TableError(
            f"{source}: row {odd[0]}: target is {show(targets[odd[0]])}; must be one answer"
        )
    spelled = dict(zip(letters, given.classes or names, strict=False)) if names else {}
    rows = pd.DataFrame({"id": [as_text(each) for each in cells_of(frame["id"])]})
    rows["label"] = [spelled.get(as_text(each), as_text(each)) for each in targets]
    masses = [_masses(output, letters) for output in cells_of(frame["output"])]
    once = rows["id"].is_unique
    if once and any(masses):
        kept = [k for k, each in enumerate(masses) if each and max(each.values()) > 0.0]
        scores = [
            dict.fromkeys(spelled.values() or letters, 0.0)
            | {spelled.get(letter, letter): mass for letter, mass in masses[k].items()}
            for k in kept
        ]
        lost = len(masses) - len(kept)
        remark = f"{lost:,} samples without a likely answer are left out" if lost else ""
        table, classes = with_scores(
            rows.iloc[kept].reset_index(drop=True), scores, (), [*scores[0]]
        )
        return Rows(
            table,
            {
                "label": "label",
                "id": "id",
                "classes": classes,
                "columns": None,
                "values": "scores",
            },
            remark,
        )
    answers = [_answer(cell) for cell in cells_of(frame["scores"])]
    rows["answer"] = [spelled.get(each, each) for each in answers]
    if (rows.groupby("id")["label"].nunique() > 1).any():
        raise TableError(f"{source}: {FORM.name}: epochs of a sample have different targets")
    groups = rows.groupby("id", sort=False)
    first = groups.first().reset_index()[["id", "label"]]
    given_classes = given.classes or tuple(spelled.values()) or None
    counts, classes, remark = as_votes(
        [[*each] for _, each in groups["answer"]],
        first["label"].tolist(),
        given_classes,
        source,
        FORM.name,
    )
    table, _ = with_scores(first, counts, (), classes)
    told = {"label": "label", "id": "id", "values": "votes", "classes": classes, "columns": None}
    return Rows(table, told, remark)


FORM = Form("samples of an Inspect log", _sniff, _rows)
