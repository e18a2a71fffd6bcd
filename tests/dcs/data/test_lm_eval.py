"""Sample logs of lm-evaluation-harness and what varies between them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcs.data.reader import read_table
from dcs.errors import TableError
from tests.dcs.refusals import refuses

NAME = "samples_my_task_2024-05-01T10-20-30.123456.jsonl"


def sample(doc_id: Any, target: Any, scores: list[Any], **extra: Any) -> dict[str, Any]:
    """Return one line of a log, in the texts that the harness writes."""
    return {
        "doc_id": doc_id,
        "doc": {"question": "?"},
        "target": target,
        "resps": [[[str(score), "False"]] for score in scores],
        "filtered_resps": [[str(score), "False"] for score in scores],
        "filter": "none",
        **extra,
    }


def asked(*texts: str, form: str = "dict") -> dict[str, Any]:
    pairs: Any = [("Q: ?", f" {text}") for text in texts]
    if form == "dict":
        pairs = {f"gen_args_{k}": {"arg_0": a, "arg_1": b} for k, (a, b) in enumerate(pairs)}
    return {"arguments": pairs}


def log(folder: Path, *samples: Any, name: str = NAME) -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(item) + "\n" for item in samples), encoding="utf-8")
    return path


HALF = math.log(0.5)
QUARTERS = [math.log(0.75), math.log(0.25)]


@pytest.mark.parametrize("form", ["dict", "list"])
def test_shared_choices_are_the_classes(form: str, tmp_path: Path) -> None:
    lines = [sample(k, "0", [-3.0, "-inf"], **asked("no", "yes", form=form)) for k in range(2)]
    table = read_table(log(tmp_path, *lines))
    assert (table.classes, table.probs.tolist()) == (("no", "yes"), [[1, 0]] * 2)
    assert read_table(log(tmp_path, *lines), classes=("yes", "no")).classes == table.classes


def test_choices_that_differ_are_positions(tmp_path: Path) -> None:
    both = [("blue", asked("red", "blue")), ("one", asked("one", "two"))]
    lines = [sample(k, target, QUARTERS, **told) for k, (target, told) in enumerate(both)]
    table = read_table(log(tmp_path, *lines))
    assert (table.classes, table.labels.tolist()) == (("choice_0", "choice_1"), [1, 0])
    lines = [sample(k, "1", QUARTERS, **asked("rest", "rest")) for k in range(2)]
    assert read_table(log(tmp_path, *lines)).classes == ("choice_0", "choice_1")


@pytest.mark.parametrize("content", ["[1]", "{", '{"n-shot": 3}', '{"model_name": [1]}'])
def test_the_results_file_beside_a_log_names_its_model(content: str, tmp_path: Path) -> None:
    date = "2024-05-02T10-20-30.123456"
    line = sample(0, "1", QUARTERS, **asked("yes, sure", "no"))
    path = log(tmp_path, line, name=f"samples_news_{date}.jsonl")
    told = {"model_name": "me/b", "n-shot": {"news": 5}}
    (results := tmp_path / f"results_{date}.json").write_text(json.dumps(told))
    found = read_table(path).provenance
    assert (found.model, found.task, found.shots) == ("me/b", "news", 5)
    results.write_text(content)
    assert read_table(path).provenance.model is None


def test_one_of_several_filters_is_chosen(tmp_path: Path) -> None:
    scores = {"strict": QUARTERS, "loose": [HALF, HALF]}
    path = log(tmp_path, *(sample(0, "1", scores[name], filter=name) for name in scores))
    assert read_table(path, filter="loose").probs.tolist() == [[0.5, 0.5]]
    for wrong in (None, "x"):
        refuses(TableError, read_table, path, filter=wrong, names=["filter=", "'strict', 'loose'"])


def test_choices_that_vary_in_number(tmp_path: Path) -> None:
    """Documents of ARC and MMLU-Pro have three to ten choices."""
    lines = [sample(k, 1, [HALF] * n, **asked(*"abcd"[:n])) for k, n in enumerate((3, 4, 2))]
    table = read_table(log(tmp_path, *lines))
    assert table.classes == tuple(f"choice_{k}" for k in range(4))
    expected = [[1 / 3] * 3 + [0], [1 / 4] * 4, [1 / 2] * 2 + [0, 0]]
    np.testing.assert_allclose(table.probs, expected)
    assert table.labels.tolist() == [1, 1, 1]


NO_YES = ("no", "yes")
AS_NUMBERS = ("1", "0")
"""Choices that a target may mean by number or by text: "1" is the second, or reads "1"."""


@pytest.mark.parametrize(
    ("targets", "choices", "told", "labels"),
    [
        ([1, "1", " 1"], NO_YES, {}, [1, 1, 1]),
        ([1, 1], AS_NUMBERS, {}, [1, 1]),
        (["yes", " yes", "no"], NO_YES, {}, [1, 1, 0]),
        (["ja"], (), {"classes": ["nein", "ja"]}, [1]),
        ([1, -1, "-1", "", None, 1], NO_YES, {}, [1, -1, -1, -1, -1, 1]),
        # One reading must fit every document.
        (["1", "2"], ("1", "2"), {}, [0, 1]),
        (["1", "0"], ("1", "2"), {}, [1, 0]),
        # Where both fit, a person tells which.
        (["1", "1"], AS_NUMBERS, {"labels": "names"}, [0, 0]),
        (["1", "1"], AS_NUMBERS, {"labels": "from-0"}, [1, 1]),
        (["1", "1"], AS_NUMBERS, {}, "labels=from-0"),
        *((["1", odd], NO_YES, {}, "id '1': ") for odd in (2, -2, "yes", "maybe", True, [0, 1])),
    ],
)
def test_targets(targets: Any, choices: Any, told: Any, labels: Any, tmp_path: Path) -> None:
    lines = [sample(k, target, QUARTERS, **asked(*choices)) for k, target in enumerate(targets)]
    path = log(tmp_path, *lines)
    if isinstance(labels, str):
        refuses(TableError, read_table, path, **told, names=[labels])
    else:
        assert read_table(path, **told).labels.tolist() == labels


@pytest.mark.parametrize(
    "lines",
    [
        [sample(0, "0", [-1, -2]), sample(5, "2", [-1, -2]), sample(6, "2", [-1, -2, -3])],
        [sample(3, "0", [-1, -2]), sample(3, "0", [-1, -2])],
        [sample(7, "0", [-1, -2, -3, -4], acc_mutual_info=1.0)],
        [sample(0, "0", ["low", -1])],
        [sample(0, "0", [], filtered_resps=["some answer"])],
        [{"doc_id": 0, "target": "0"}],
    ],
)
def test_refused(lines: list[Any], tmp_path: Path) -> None:
    path = log(tmp_path, *lines)
    refuses(TableError, read_table, path, names=[f"{path}: "])
