"""Answers of chat models with log-probabilities: outputs of the OpenAI Batch API and its kin."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dcs.data.columns import Reading, cells_of
from dcs.data.forms.base import Form, Rows, natural, parsed, with_scores
from dcs.data.labels import fold
from dcs.errors import TableError, quoted

if TYPE_CHECKING:
    import pandas as pd

_KEYS = ("response", "body", "choices")


def likely_tokens(choices: Any) -> list[tuple[str, dict[str, float]]]:
    """Return each token of an answer with the probabilities of those that were likely there.

    Probabilities of tokens that differ in blanks or case are summed.
    """
    try:
        content = choices[0]["logprobs"]["content"]
        found = []
        for place in content:
            masses: dict[str, float] = {}
            for each in place["top_logprobs"]:
                text, mass = fold(each["token"]), math.exp(float(each["logprob"]))
                masses[text] = masses.get(text, 0.0) + mass
            found.append((fold(place["token"]), masses))
    except (LookupError, TypeError, ValueError, OverflowError):
        return []
    return found


def class_masses(masses: Mapping[str, float], classes: Sequence[str]) -> dict[str, float]:
    """Return the probability of each class that is a token."""
    found = {name: masses[fold(name)] for name in classes if fold(name) in masses}
    return {name: mass for name, mass in found.items() if mass == mass}


def _choices(row: Any) -> Any:
    """Return the choices of a response, wherever it is nested; None if it has none."""
    for key in _KEYS:
        if isinstance(row, Mapping) and key in row:
            row = row[key]
    return row if isinstance(row, list) and row and isinstance(row[0], Mapping) else None


def _responses(frame: pd.DataFrame) -> list[Any]:
    name = next(key for key in _KEYS if key in frame)
    return [_choices({name: parsed(cell)}) for cell in cells_of(frame[name])]


def _sniff(frame: pd.DataFrame, given: Reading) -> bool:
    has = any(key in frame for key in _KEYS)
    return has and any(
        choices and ("message" in choices[0] or "logprobs" in choices[0])
        for choices in _responses(frame)
    )


def _rows(frame: pd.DataFrame, given: Reading, source: str) -> Rows:
    answers = [likely_tokens(choices) for choices in _responses(frame)]
    # Some servers answer with a blank first.
    first = [next((m for token, m in answer if token), {}) for answer in answers]
    if not any(first):
        raise TableError(
            f"{source}: {FORM.name}: without log-probabilities; request them with logprobs=true "
            "and top_logprobs=20"
        )
    if given.classes is None:
        answered = Counter(max(each, key=lambda token: each[token]) for each in first if each)
        likely = sorted((text for text, _ in answered.most_common(12)), key=natural)
        raise TableError(
            f"{source}: {FORM.name}: the most likely tokens are {quoted(likely, 12)}; specify "
            f"those that are classes with --read classes={','.join(likely)}"
        )
    scores = [class_masses(masses, given.classes) for masses in first]
    kept = [row for row, each in enumerate(scores) if each and max(each.values()) > 0.0]
    if not kept:
        raise TableError(
            f"{source}: {FORM.name}: no answer begins with one of {quoted(given.classes)}; "
            "specify --read classes=A,B,... as the tokens are written"
        )
    lost = [row for row in range(len(frame)) if row not in {*kept}]
    remark = f"{len(lost):,} rows failed and are left out, first row {lost[0]}" if lost else ""
    drop = [n for n in ("id", "response", "error", "choices", "body") if n in frame]
    if "custom_id" not in frame and "id" in drop:
        drop.remove("id")
    rest = frame.iloc[kept].reset_index(drop=True)
    filled = [dict.fromkeys(given.classes, 0.0) | scores[row] for row in kept]
    table, _ = with_scores(rest, filled, drop, given.classes)
    told = {"values": "scores", "columns": None}
    if "custom_id" in frame and given.id is None:
        told["id"] = "custom_id"
    return Rows(table, told, remark)


FORM = Form("answers of a chat model", _sniff, _rows)
