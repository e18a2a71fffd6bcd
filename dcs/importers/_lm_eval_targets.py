"""What a target in a sample log means: a choice's number, or its text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from dcs._messages import show
from dcs.errors import TableError
from dcs.importers._common import TargetKind

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
