"""Sample logs of lm-evaluation-harness: one JSON object per document and filter.

Only multiple-choice tasks hold probabilities: each choice's log-likelihood given the prompt, which
a softmax over the choices turns into class probabilities. What varies between logs is decided
here: one filter at a time; the same number of choices in every document; the unconditional half
that ``acc_mutual_info`` adds is dropped; classes are the choices' texts if all documents share
them, else the positions.

A folder that the harness wrote is read whole, with all models and tasks in it: the newest log of
each. Its results file tells model and shots.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from dcs.data.importers import ImportOptions, TargetKind, build_table, text_of
from dcs.data.table import ProbabilityTable, Provenance
from dcs.errors import TableError, escaped, listing, show
from dcs.io import first_fault, read_json

_NAME = re.compile(r"samples_(?P<task>.+)_(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9.:-]+)")
_MUTUAL = "acc_mutual_info"


class Sample(BaseModel, extra="allow"):
    """One line of a log; numbers may be texts, so that rows of all tasks fit one data set."""

    doc_id: int | str
    target: Any
    filtered_resps: list[tuple[float, Any]]
    filter: str = "none"
    arguments: Any = None
    metrics: Any = None
    acc: Any = None

    @property
    def half(self) -> int:
        """The number of responses that were made with the prompt."""
        mutual = _MUTUAL in (self.model_extra or {}) or (
            isinstance(self.metrics, list) and _MUTUAL in self.metrics
        )
        return len(self.filtered_resps) // (2 if mutual else 1)

    @property
    def scores(self) -> list[float]:
        """For each choice its log-likelihood given the prompt."""
        return [score for score, _ in self.filtered_resps[: self.half]]

    @property
    def choices(self) -> list[str] | None:
        """The text of each choice, the second argument of its request; None if not recorded."""
        pairs = self.arguments
        if isinstance(pairs, dict):
            pairs = [list(pair.values()) for pair in pairs.values() if isinstance(pair, dict)]
        if not isinstance(pairs, list) or len(pairs) != len(self.filtered_resps):
            return None
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            return None
        return [str(pair[1]).strip() for pair in pairs[: self.half]]

    def read(self, kind: TargetKind, classes: Sequence[str]) -> int | None:
        """Return the number of the target under one reading, None if it fits no choice."""
        if self.target in (None, "", -1, "-1"):
            return -1  # As the hub has it where a test split comes without answers.
        numbers = {str(k): k for k in range(len(self.scores))}
        if isinstance(self.target, int) or kind == "index":
            # A number in the log itself is a number under either reading.
            return numbers.get(str(self.target).strip())
        for names in (self.choices or [], list(classes)):
            if names.count(str(self.target).strip()) == 1:
                return names.index(str(self.target).strip())
        return None

    def agrees(self, number: int) -> bool | None:
        """Whether the logged accuracy fits a target; None if it does not tell."""
        best = [k for k, score in enumerate(self.scores) if score == max(self.scores)]
        if number < 0 or self.acc not in (0, 1) or len(best) != 1:
            return None
        return bool(self.acc) == (best[0] == number)


def read(path: Path, options: ImportOptions) -> dict[str, ProbabilityTable]:
    """Read the one table of a log, or those of a folder, by task and the folder of the model."""
    if not path.is_dir():
        return {"all": _read_log(path, options)}
    logs = {}
    for log in sorted(path.rglob("samples_*.jsonl"), key=lambda log: log.name):
        if match := _NAME.fullmatch(log.stem):
            place = (match["task"], *log.parent.relative_to(path).parts)
            logs[re.sub(r"[^\w.-]+", "-", "_".join(place))] = log  # the newest stays
    tables, refused = {}, []
    for name, log in sorted(logs.items()):
        try:
            tables[name] = _read_log(log, options)
        except TableError as error:
            refused.append(error)
    if not tables:
        none = TableError(f"{escaped(path)}: holds no samples_<task>_<date>.jsonl")
        raise refused[0] if refused else none
    for left in refused:
        warnings.warn(f"left out: {left}", UserWarning, stacklevel=4)
    return tables


def _read_log(path: Path, options: ImportOptions) -> ProbabilityTable:
    source = escaped(path)
    samples = _of_one_filter(_samples(path, source), options.filter, source)
    n_choices = len(samples[0].scores)
    for sample in samples:
        if len(sample.scores) != n_choices:
            raise TableError(
                f"{source}: doc_id {show(sample.doc_id, 40)} has {len(sample.scores)} choices, "
                f"the first has {n_choices}; classes need the same number in every document"
            )
    names = samples[0].choices
    if names is None or len(set(names)) < n_choices or any(s.choices != names for s in samples):
        names = [f"choice_{k}" for k in range(n_choices)]
    return build_table(
        np.array([sample.scores for sample in samples]),
        _targets(samples, options.classes or names, options.targets, source),
        classes=names,
        ids=[sample.doc_id for sample in samples],
        provenance=_provenance(path),
        options=options,
        source=source,
        logits=True,
    )


def _provenance(path: Path) -> Provenance:
    """Return what the name of a log tells, and the results file of its run."""
    task = model = shots = None
    if match := _NAME.fullmatch(path.stem):
        task = match["task"]
        try:
            told = read_json(path.with_name(f"results_{match['date']}.json"), error=TableError)
            model, shots = told.get("model_name"), told.get("n-shot", {}).get(task)
        except (TableError, AttributeError):
            pass  # A log may be alone, or another program's file beside it.
    return Provenance(
        model=model if isinstance(model, str) else None,
        task=task,
        shots=shots if isinstance(shots, int) else None,
        scorer="lm-evaluation-harness",
        source=path.name,
    )


def _samples(path: Path, source: str) -> list[Sample]:
    samples = []
    for number, line in enumerate(text_of(path).split("\n"), start=1):
        if line.strip():
            try:
                samples.append(Sample.model_validate_json(line))
            except ValidationError as error:
                raise TableError(
                    f"{source}: line {number}: {first_fault(error)}; a sample log of a "
                    "multiple-choice task, made with --log_samples, is needed"
                ) from None
    return samples


def _of_one_filter(samples: Sequence[Sample], wanted: str | None, source: str) -> list[Sample]:
    if not samples:
        raise TableError(f"{source}: holds no samples; one JSON object per line is needed")
    filters = list(dict.fromkeys(sample.filter for sample in samples))
    if wanted is None and len(filters) == 1:
        wanted = filters[0]
    chosen = [sample for sample in samples if sample.filter == wanted]
    if not chosen:
        raise TableError(
            f"{source}: filter is {show(wanted)}; choose one with --filter (filters here: "
            f"{listing(filters)})"
        )
    return chosen


def _targets(
    samples: Sequence[Sample], classes: Sequence[str], kind: TargetKind, source: str
) -> list[int]:
    """Return the class number of every sample's target.

    Logs write the number of a choice as a text, so ``"1"`` may be choice 1 or the choice that
    reads "1". Under ``auto`` the reading must fit every document; where both do and differ, the
    logged accuracy tells which one the harness meant.
    """
    kinds: tuple[TargetKind, ...] = ("text", "index") if kind == "auto" else (kind,)
    found = [[sample.read(kind, classes) for sample in samples] for kind in kinds]
    fitting = [[n for n in numbers if n is not None] for numbers in found if None not in numbers]
    if not fitting:
        # The last to fail: the rows before it fit one of the readings.
        sample = samples[max(numbers.index(None) for numbers in found)]
        raise TableError(
            f"{source}: doc_id {show(sample.doc_id, 40)}: target is {show(sample.target, 60)}; "
            f"the targets must all be numbers 0..{len(sample.scores) - 1} or all one of "
            f"{listing(sample.choices or classes)}"
        )
    if len(fitting) == 2 and fitting[0] != fitting[1]:
        agreeing = []
        for numbers in fitting:
            answers = {sample.agrees(n) for sample, n in zip(samples, numbers, strict=True)}
            if True in answers and False not in answers:
                agreeing.append(numbers)
        if len(agreeing) != 1:
            raise TableError(
                f"{source}: targets such as {show(samples[0].target)} may be the choices' numbers "
                "or their texts; say which with --targets index or --targets text"
            )
        fitting = agreeing
    return fitting[0]
