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
from pathlib import Path
from typing import Any

import numpy as np

from dcs._messages import escaped, show
from dcs._table_checks import listing
from dcs.errors import TableError
from dcs.importers._common import ImportOptions, build_table, text_lines
from dcs.importers._lm_eval_targets import Sample, resolve_targets
from dcs.probabilities import ProbabilityTable
from dcs.provenance import Provenance

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
