"""Sample logs of lm-evaluation-harness: one JSON object per document and filter.

Only multiple-choice tasks provide probabilities: a softmax over the choices converts their
log-likelihoods given the prompt to class probabilities. One filter is read at a time. Classes are
the texts of the choices if all documents share them, otherwise their positions; a position that a
document does not have (ARC, MMLU-Pro) has probability 0 there.

From an output folder of the harness, the newest log of each model and task is read. The results
file specifies model and shots.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, ValidationError

from dcs.data.checks import Named
from dcs.data.columns import to_shares
from dcs.data.table import ProbabilityTable, Provenance
from dcs.errors import TableError, escaped, quoted, show
from dcs.io import Strict, first_fault, read_json, read_text

TargetKind: TypeAlias = Literal["auto", "index", "text"]

#: Log-likelihood of a choice: the sum over its tokens, divided by the number of characters (as
#: ``acc_norm``), or minus that without the prompt (as ``acc_mutual_info``).
ChoiceScore: TypeAlias = Literal["sum", "mean", "unconditional"]

_NAME = re.compile(r"samples_(?P<task>.+)_(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9.:-]+)")
_MUTUAL = "acc_mutual_info"
_NEEDED = {"mean": "the texts of the choices", "unconditional": f"the responses of {_MUTUAL}"}


class LogOptions(Strict):
    """How logs are read.

    Parameters
    ----------
    classes : tuple of str, optional
        Class names in the order of the choices.
    filter : str, optional
        Filter whose responses are used if the log contains several.
    targets : {"auto", "index", "text"}
        Whether a target such as ``"1"`` is the index of a choice or its text. ``"auto"`` decides
        if only one interpretation fits the log.
    choice_score : {"sum", "mean", "unconditional"}
        How choices are scored: by the sum of the log-likelihoods of their tokens, by their mean
        per character, or by the sum minus that without the prompt.
    """

    classes: tuple[str, ...] | None = None
    filter: str | None = None
    targets: TargetKind = "auto"
    choice_score: ChoiceScore = "sum"


class Sample(BaseModel, extra="allow"):
    """One line of a log; data sets that combine tasks store numbers as strings."""

    doc_id: int | str
    target: Any
    filtered_resps: list[tuple[float, Any]]
    filter: str = "none"
    arguments: Any = None
    metrics: Any = None

    @property
    def n_choices(self) -> int:
        """Number of responses given the prompt, without the unconditional ones."""
        mutual = _MUTUAL in (self.model_extra or {}) or (
            isinstance(self.metrics, list) and _MUTUAL in self.metrics
        )
        return len(self.filtered_resps) // (2 if mutual else 1)

    @property
    def scores(self) -> list[float]:
        """Log-likelihood of each choice given the prompt."""
        return [score for score, _ in self.filtered_resps[: self.n_choices]]

    def scored(self, rule: ChoiceScore) -> list[float] | None:
        """Score of each choice under a rule; None if the log lacks what the rule needs."""
        if rule == "sum":
            return self.scores
        others = [score for score, _ in self.filtered_resps[self.n_choices :]]
        if rule == "mean":
            others = [len(text) for text in self.choices or []]
        if len(others) != self.n_choices or (rule == "mean" and 0 in others):
            return None
        if rule == "mean":
            return [score / length for score, length in zip(self.scores, others, strict=True)]
        # A choice that is impossible in both ways stays so: the difference would be undefined.
        pairs = zip(self.scores, others, strict=True)
        return [score - other if score > -math.inf else score for score, other in pairs]

    @property
    def choices(self) -> list[str] | None:
        """Text of each choice, the second argument of its request; None if not recorded."""
        pairs = self.arguments
        if isinstance(pairs, dict):
            pairs = [list(pair.values()) for pair in pairs.values() if isinstance(pair, dict)]
        if not isinstance(pairs, list) or len(pairs) != len(self.filtered_resps):
            return None
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            return None
        return [str(pair[1]).strip() for pair in pairs[: self.n_choices]]

    def read(self, kind: TargetKind, classes: Sequence[str]) -> int | None:
        """Return the index of the target under one reading, None if it matches no choice."""
        if self.target in (None, "", -1, "-1"):
            return -1  # Test splits on the Hugging Face Hub without answers have such targets.
        numbers = {str(k): k for k in range(len(self.scores))}
        if isinstance(self.target, int) or kind == "index":
            # An integer, as opposed to a string, is an index under both readings.
            return numbers.get(str(self.target).strip())
        for names in (self.choices or [], list(classes)):
            if names.count(str(self.target).strip()) == 1:
                return names.index(str(self.target).strip())
        return None


def read_logs(path: Path, options: LogOptions) -> dict[str, ProbabilityTable]:
    """Read the table of a log, or those of a folder by task and folder of the model."""
    if not path.is_dir():
        return {"all": _read_log(path, options)}
    logs = {}
    for log in sorted(path.rglob("samples_*.jsonl"), key=lambda log: log.name):
        if match := _NAME.fullmatch(log.stem):
            place = (match["task"], *log.parent.relative_to(path).parts)
            logs[re.sub(r"[^\w.-]+", "-", "_".join(place))] = log  # The newest one is last.
    tables, errors = {}, []
    for name, log in sorted(logs.items()):
        try:
            tables[name] = _read_log(log, options)
        except TableError as error:
            errors.append(error)
    if not tables:
        empty = TableError(f"{escaped(path)}: contains no samples_<task>_<date>.jsonl")
        raise errors[0] if errors else empty
    for fault in errors:
        warnings.warn(f"skipped: {fault}", UserWarning, stacklevel=4)
    return tables


def _read_log(path: Path, options: LogOptions) -> ProbabilityTable:
    source = escaped(path)
    samples = _filter_samples(_read_samples(path, source), options.filter, source)
    n_choices = max(sample.n_choices for sample in samples)
    values = np.full((len(samples), n_choices), -np.inf)
    for row, sample in enumerate(samples):
        if (scores := sample.scored(options.choice_score)) is None:
            raise TableError(
                f"{source}: doc_id {show(sample.doc_id, 40)}: choice score {options.choice_score} "
                f"needs {_NEEDED[options.choice_score]}; use --read choice_score=sum"
            )
        values[row, : len(scores)] = scores
    names = samples[0].choices
    if names is None or len({*names}) < n_choices or any(s.choices != names for s in samples):
        names = [f"choice_{k}" for k in range(n_choices)]
    classes = options.classes or names
    ids = [sample.doc_id for sample in samples]
    # A score of -inf is an impossible choice.
    wrong = ~(values < np.inf) | np.isneginf(values.max(axis=1, keepdims=True))
    rule = "must be finite or -inf, with a finite value in every row"
    Named(source, names, [*map(str, ids)]).refuse(wrong, values, rule)
    return ProbabilityTable.from_arrays(
        to_shares(values, "logits"),
        _target_indices(samples, classes, options.targets, source),
        classes=classes,
        ids=ids,
        provenance=_read_provenance(path),
        source=source,
    )


def _read_provenance(path: Path) -> Provenance:
    """Return the provenance from the name of a log and the results file of its run."""
    task = model = shots = None
    if match := _NAME.fullmatch(path.stem):
        task = match["task"]
        try:
            results = read_json(path.with_name(f"results_{match['date']}.json"), error=TableError)
            model, shots = results.get("model_name"), results.get("n-shot", {}).get(task)
        except (TableError, AttributeError):
            pass  # The results file is optional, and can be of another program.
    return Provenance(
        model=model if isinstance(model, str) else None,
        task=task,
        shots=shots if isinstance(shots, int) else None,
        scorer="lm-evaluation-harness",
        source=path.name,
    )


def _read_samples(path: Path, source: str) -> list[Sample]:
    samples = []
    for number, line in enumerate(
        read_text(path, error=TableError, limit=2**32).split("\n"), start=1
    ):
        if line.strip():
            try:
                samples.append(Sample.model_validate_json(line))
            except ValidationError as error:
                raise TableError(
                    f"{source}: line {number}: {first_fault(error)}; must be a sample log "
                    "of a multiple-choice task, written with --log_samples"
                ) from None
    return samples


def _filter_samples(samples: Sequence[Sample], name: str | None, source: str) -> list[Sample]:
    filters = list(dict.fromkeys(sample.filter for sample in samples))
    if name is None and len(filters) == 1:
        name = filters[0]
    selected = [sample for sample in samples if sample.filter == name]
    if not selected:
        raise TableError(
            f"{source}: filter is {show(name)}; choose one with --read filter=NAME (filters of "
            f"this log: {quoted(filters)})"
        )
    return selected


def _target_indices(
    samples: Sequence[Sample], classes: Sequence[str], kind: TargetKind, source: str
) -> list[int]:
    """Return the class index of the target of every sample.

    Logs store the index of a choice as a string, so ``"1"`` can be choice 1 or the choice with the
    text "1". With ``auto`` only one reading must fit every document.
    """
    kinds: tuple[TargetKind, ...] = ("text", "index") if kind == "auto" else (kind,)
    indices = [[sample.read(kind, classes) for sample in samples] for kind in kinds]
    fitting = [[n for n in numbers if n is not None] for numbers in indices if None not in numbers]
    if not fitting:
        # Report the last failure: the rows before it fit one of the readings.
        sample = samples[max(numbers.index(None) for numbers in indices)]
        raise TableError(
            f"{source}: doc_id {show(sample.doc_id, 40)}: target is {show(sample.target, 60)}; "
            f"targets must all be in 0..{len(sample.scores) - 1} or all one of "
            f"{quoted(sample.choices or classes)}"
        )
    if len(fitting) == 2 and fitting[0] != fitting[1]:
        raise TableError(
            f"{source}: targets such as {show(samples[0].target)} can be indices of choices or "
            "their texts; specify --read targets=index or targets=text"
        )
    return fitting[0]
