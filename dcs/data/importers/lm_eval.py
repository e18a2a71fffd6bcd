"""Sample logs of lm-evaluation-harness: one JSON object per document and filter.

Only multiple-choice tasks hold probabilities: each choice's log-likelihood given the prompt, which
a softmax over the choices turns into class probabilities. What varies between logs is decided
here: one filter at a time; the same number of choices in every document; the unconditional half
that ``acc_mutual_info`` adds is dropped; classes are the choices' texts if all documents share
them, else the positions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from dcs.data.checks import listing
from dcs.data.importers.common import ImportOptions, TargetKind, build_table, text_lines
from dcs.data.table import ProbabilityTable, Provenance
from dcs.errors import TableError
from dcs.messages import escaped, show

_INTEGER = re.compile(r"[0-9]{1,18}")

_Reading: TypeAlias = Literal["index", "text"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One document of a log: for each choice its log-likelihood and, where recorded, its text."""

    line: int
    doc_id: str
    target: Any
    scores: tuple[float, ...]
    choices: tuple[str, ...] | None
    correct: bool | None


def resolve_targets(
    samples: Sequence[Sample], classes: Sequence[str], *, kind: TargetKind, source: str
) -> list[int]:
    """Return the class number of every sample's target.

    Logs write the number of a choice as a text, so ``"1"`` may be choice 1 or the choice that
    reads "1". Under ``auto`` the reading must fit every document; where both do and differ, the
    logged accuracy tells which one the harness meant.

    Raises
    ------
    TableError
        If a target fits no choice, or nothing tells which reading is meant.
    """
    readings: tuple[_Reading, ...] = ("text", "index") if kind == "auto" else (kind,)
    found = {reading: [_read(s, classes, reading) for s in samples] for reading in readings}
    fitting = {
        reading: [number for number in numbers if number is not None]
        for reading, numbers in found.items()
        if None not in numbers
    }
    if not fitting:
        _refuse(samples, list(found.values()), classes, source)
    if len(fitting) == 2 and fitting["text"] != fitting["index"]:
        agreeing = {
            reading: numbers for reading, numbers in fitting.items() if _agrees(samples, numbers)
        }
        if len(agreeing) != 1:
            raise TableError(
                f"{source}: targets such as {show(samples[0].target)} may be the choices' numbers "
                "or their texts; say which with --targets index or --targets text"
            )
        fitting = agreeing
    return next(iter(fitting.values()))


def _read(sample: Sample, classes: Sequence[str], reading: _Reading) -> int | None:
    target = sample.target
    if isinstance(target, bool) or not isinstance(target, (str, int)):
        return None
    if isinstance(target, int):
        # A number in the log itself is a number under either reading.
        return target if 0 <= target < len(sample.scores) else None
    text = target.strip()
    if reading == "index":
        number = int(text) if _INTEGER.fullmatch(text) else len(sample.scores)
        return number if number < len(sample.scores) else None
    for names in (sample.choices, classes):
        if names is not None and list(names).count(text) == 1:
            return list(names).index(text)
    return None


def _agrees(samples: Sequence[Sample], numbers: Sequence[int]) -> bool:
    """Whether the logged accuracy is 1 where the target scores best and 0 where it does not."""
    judged = 0
    for sample, number in zip(samples, numbers, strict=True):
        best = [k for k, score in enumerate(sample.scores) if score == max(sample.scores)]
        if sample.correct is None or len(best) != 1:
            continue
        judged += 1
        if sample.correct != (best[0] == number):
            return False
    return judged > 0


def _refuse(
    samples: Sequence[Sample],
    found: Sequence[Sequence[int | None]],
    classes: Sequence[str],
    source: str,
) -> None:
    # A target that no reading fits is the fault; if each fits one, the last to fail is shown.
    rows = range(len(samples))
    wrong = [row for row in rows if all(numbers[row] is None for numbers in found)]
    row = wrong[0] if wrong else max(list(numbers).index(None) for numbers in found)
    sample = samples[row]
    names: Any = list(sample.choices or classes)
    raise TableError(
        f"{source}: line {sample.line} (doc_id {show(sample.doc_id, 40)}): target "
        f"{show(sample.target, 60)} is neither a choice's number 0..{len(sample.scores) - 1} nor "
        f"one of {show(names, 120)}" + ("" if wrong else ", as the other targets are")
    )


_NAME = re.compile(r"samples_(?P<task>.+)_[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9.:-]+")

_MUTUAL = "acc_mutual_info"


def read(path: Path, options: ImportOptions) -> dict[str, ProbabilityTable]:
    """Read the one table of a log."""
    source = escaped(path)
    records = list(_records(path, source))
    samples = [
        _sample(line, record, source)
        for line, record in _of_one_filter(records, options.filter, source)
    ]
    first = samples[0]
    for sample in samples:
        if len(sample.scores) != len(first.scores):
            raise TableError(
                f"{source}: line {sample.line} (doc_id {show(sample.doc_id, 40)}) has "
                f"{len(sample.scores)} choices, line {first.line} has {len(first.scores)}; "
                "classes need the same number in every document"
            )
    names = _class_names(samples)
    match = _NAME.fullmatch(path.stem)
    table = build_table(
        np.array([sample.scores for sample in samples]),
        resolve_targets(samples, options.classes or names, kind=options.targets, source=source),
        classes=names,
        ids=[sample.doc_id for sample in samples],
        provenance=Provenance(
            task=match["task"] if match else None,
            scorer="lm-evaluation-harness",
            source=path.name,
        ),
        options=options,
        source=source,
        logits=True,
    )
    return {"all": table}


def _records(path: Path, source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in text_lines(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise TableError(
                f"{source}: line {number} is not JSON: {show(line.strip(), 40)}"
            ) from None
        if not isinstance(record, dict):
            raise TableError(f"{source}: line {number} is {show(record, 40)}; an object is needed")
        for key in ("doc_id", "target", "filtered_resps"):
            if key not in record:
                raise TableError(
                    f"{source}: line {number} has no key {show(key)}; a sample log has one "
                    "(run the harness with --log_samples)"
                )
        yield number, record


def _of_one_filter(
    records: Sequence[tuple[int, dict[str, Any]]], wanted: str | None, source: str
) -> list[tuple[int, dict[str, Any]]]:
    if not records:
        raise TableError(f"{source}: no samples; one JSON object per line is needed")
    filters = list(dict.fromkeys(str(record.get("filter", "none")) for _, record in records))
    held = f"filters here: {listing(filters)}"
    if wanted is None and len(filters) > 1:
        raise TableError(
            f"{source}: {len(filters)} filters repeat the documents; choose one with --filter "
            f"({held})"
        )
    name = filters[0] if wanted is None else wanted
    chosen = [item for item in records if str(item[1].get("filter", "none")) == name]
    if not chosen:
        raise TableError(f"{source}: no filter {show(wanted)}; {held}")
    return chosen


def _sample(line: int, record: dict[str, Any], source: str) -> Sample:
    where = f"{source}: line {line} (doc_id {show(record['doc_id'], 40)})"
    responses = record["filtered_resps"]
    if not isinstance(responses, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in responses
    ):
        raise TableError(
            f"{where}: filtered_resps is {show(responses, 60)}; pairs of a log-likelihood and "
            "true/false are needed, which only multiple-choice tasks have"
        )
    scores = tuple(_score(pair[0], where) for pair in responses)
    choices = _continuations(record.get("arguments"), len(scores))
    if _has_unconditional_half(record):
        half = len(scores) // 2
        if len(scores) % 2 or (choices is not None and choices[:half] != choices[half:]):
            raise TableError(
                f"{where}: {len(scores)} responses with {_MUTUAL}; two for each choice are "
                "needed, first all with the prompt, then all without it"
            )
        scores, choices = scores[:half], choices and choices[:half]
    if len(scores) < 2:
        raise TableError(f"{where}: {len(scores)} choice(s); at least 2 are needed")
    correct = record.get("acc")
    return Sample(
        line=line,
        doc_id=str(record["doc_id"]),
        target=record["target"],
        scores=scores,
        choices=choices,
        correct=bool(correct) if correct in (0, 1) else None,
    )


def _score(value: Any, where: str) -> float:
    # Logs write numbers as texts, so that rows of different tasks fit one data set.
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise TableError(f"{where}: log-likelihood is {show(value, 40)}; a number is needed")


def _has_unconditional_half(record: dict[str, Any]) -> bool:
    metrics = record.get("metrics")
    return _MUTUAL in record or (isinstance(metrics, list) and _MUTUAL in metrics)


def _continuations(arguments: Any, n_choices: int) -> tuple[str, ...] | None:
    """Return the text of each choice: the second argument of each request."""
    if isinstance(arguments, dict):
        pairs = [arguments.get(f"gen_args_{k}") for k in range(len(arguments))]
        texts = [pair.get("arg_1") if isinstance(pair, dict) else None for pair in pairs]
    elif isinstance(arguments, list):
        texts = [
            pair[1] if isinstance(pair, list) and len(pair) == 2 else None for pair in arguments
        ]
    else:
        return None
    if len(texts) != n_choices or not all(isinstance(text, str) for text in texts):
        return None
    return tuple(str(text).strip() for text in texts)


def _class_names(samples: Sequence[Sample]) -> tuple[str, ...]:
    first = samples[0].choices
    shared = first is not None and all(sample.choices == first for sample in samples)
    if first is not None and shared and len(set(first)) == len(first) and all(first):
        return first
    return tuple(f"choice_{k}" for k in range(len(samples[0].scores)))
