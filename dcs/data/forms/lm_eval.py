"""Sample logs of lm-evaluation-harness: one JSON object per document and filter.

Only multiple-choice tasks provide probabilities: a softmax over the choices converts their
log-likelihoods given the prompt to class probabilities. One filter is read at a time. Classes are
the texts of the choices if all documents share them, otherwise their positions; a position that a
document does not have (ARC, MMLU-Pro) has probability 0 there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from dcs.data.columns import PREFIX, Reading
from dcs.data.forms.base import Form, Rows
from dcs.errors import TableError, quoted, show
from dcs.io import first_fault

if TYPE_CHECKING:
    import pandas as pd

_MUTUAL = "acc_mutual_info"


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

    @property
    def choices(self) -> list[str]:
        """Text of each choice, the second argument of its request; empty if not recorded."""
        pairs = self.arguments
        if isinstance(pairs, dict):
            pairs = [list(pair.values()) for pair in pairs.values() if isinstance(pair, dict)]
        if not isinstance(pairs, list) or len(pairs) != len(self.filtered_resps):
            return []
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            return []
        return [str(pair[1]).strip() for pair in pairs[: self.n_choices]]

    def read(self, kind: str, classes: Sequence[str]) -> int | None:
        """Return the index of the target under one reading, None if it matches no choice."""
        if self.target in (None, "", -1, "-1"):
            return -1  # Test splits on the Hugging Face Hub without answers have such targets.
        numbers = {str(k): k for k in range(len(self.scores))}
        if isinstance(self.target, int) or kind == "from-0":
            # An integer, as opposed to a string, is an index under both readings.
            return numbers.get(str(self.target).strip())
        for names in (self.choices, list(classes)):
            if names.count(str(self.target).strip()) == 1:
                return names.index(str(self.target).strip())
        return None


def choice_classes(choices: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the texts of the choices if all rows share them, otherwise names of positions."""
    first, most = choices[0], max(map(len, choices))
    shared = len({*first}) == most and all([*each] == [*first] for each in choices)
    return tuple(first) if shared else tuple(f"choice_{k}" for k in range(most))


def _rows(frame: pd.DataFrame, given: Reading, source: str) -> Rows:
    import pandas as pd

    samples = _selected(_samples(frame, source), given.filter, source)
    n_choices = max(sample.n_choices for sample in samples)
    choices = [sample.choices or [""] * sample.n_choices for sample in samples]
    classes = given.classes or choice_classes(choices)
    if n_choices < 2 or len(classes) != n_choices:
        raise TableError(
            f"{source}: {FORM.name} with {n_choices} choices; must have two or more, got the "
            f"classes {quoted(classes)}"
        )
    for sample in samples:
        finite = [score for score in sample.scores if score > -math.inf]
        if not finite or not all(score < math.inf for score in finite):
            raise TableError(
                f"{source}: doc_id {show(sample.doc_id, 40)}: log-likelihoods are "
                f"{show(sample.scores)}; must be finite or -inf, with a finite one"
            )
    rows = pd.DataFrame({"id": [str(sample.doc_id) for sample in samples]})
    rows["label"] = _targets(samples, classes, given.labels, source)
    for k, name in enumerate(classes):
        rows[PREFIX + name] = [[*s.scores, *[-math.inf] * n_choices][k] for s in samples]
    told = {"label": "label", "labels": "from-0", "id": "id", "values": "logits"}
    return Rows(rows, told | {"classes": classes, "columns": None})


def _samples(frame: pd.DataFrame, source: str) -> list[Sample]:
    samples = []
    for number, row in enumerate(frame.to_dict("records")):
        plain: Mapping[Any, Any] = {k: None if v != v else v for k, v in row.items()}
        try:
            samples.append(
                Sample.model_validate(
                    {k: v for k, v in plain.items() if v is not None} | {"target": plain["target"]}
                )
            )
        except ValidationError as error:
            raise TableError(
                f"{source}: row {number}: {first_fault(error)}; must be a sample log "
                "of a multiple-choice task, written with --log_samples"
            ) from None
    return samples


def _selected(samples: Sequence[Sample], name: str | None, source: str) -> list[Sample]:
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


def _targets(
    samples: Sequence[Sample], classes: Sequence[str], labels: str | None, source: str
) -> list[int]:
    """Return the class index of the target of every sample.

    Logs store the index of a choice as a string, so ``"1"`` can be choice 1 or the choice with the
    text "1". Unless it is specified, only one reading must fit every document.
    """
    kinds = ("names", "from-0") if labels is None else (labels,)
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
            f"{source}: targets such as {show(samples[0].target)} can be positions of choices or "
            "their texts; specify --read labels=from-0 or labels=names"
        )
    return fitting[0]


FORM = Form(
    "samples of lm-evaluation-harness",
    lambda frame, given: {"doc_id", "target", "filtered_resps"} <= {*frame.columns},
    _rows,
)
