"""Sample logs of lm-evaluation-harness and what varies between them."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcs.data.reader import as_reading, read_table, read_tables
from dcs.data.table import ProbabilityTable
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


def _import(path: Path, **options: Any) -> ProbabilityTable:
    (table,) = read_tables(path, as_reading(options)).values()
    return table


HALF = math.log(0.5)
QUARTERS = [math.log(0.75), math.log(0.25)]


class TestProbabilities:
    def test_an_impossible_choice_is_zero(self, tmp_path: Path) -> None:
        table = _import(log(tmp_path, sample(0, 0, [-3.0, "-inf"])))
        assert table.probs.tolist() == [[1, 0]]

    @pytest.mark.parametrize("form", ["dict", "list"])
    def test_shared_choices_are_the_classes(self, form: str, tmp_path: Path) -> None:
        lines = [sample(k, "0", QUARTERS, **asked("no", "yes", form=form)) for k in range(2)]
        assert _import(log(tmp_path, *lines)).classes == ("no", "yes")

    def test_choices_that_differ_are_positions(self, tmp_path: Path) -> None:
        path = log(
            tmp_path,
            sample(0, "blue", QUARTERS, **asked("red", "blue")),
            sample(1, "one", QUARTERS, **asked("one", "two")),
        )
        table = _import(path)
        assert table.classes == ("choice_0", "choice_1")
        assert table.labels.tolist() == [1, 0]
        lines = [sample(k, "1", QUARTERS, **asked("rest", "rest")) for k in range(2)]
        assert _import(log(tmp_path, *lines)).classes == ("choice_0", "choice_1")


class TestFolder:
    """What the harness writes for two models: newest logs, results, other kinds of tasks."""

    DATE = "2024-05-02T10-20-30.123456"

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for model, wins in (("me__a-7b", 0), ("me__b", 1)):
            (tmp_path / model).mkdir()
            for task, date in (("news", self.DATE), ("mood", self.DATE), ("news", "2024-05-01T1")):
                target = str(wins if date == self.DATE else 1 - wins)
                line = sample(0, target, QUARTERS, **asked("yes, sure", "no"))
                log(tmp_path / model, line, name=f"samples_{task}_{date}.jsonl")
            told = {"model_name": model.replace("__", "/"), "n-shot": {"news": 5}}
            (tmp_path / model / f"results_{self.DATE}.json").write_text(json.dumps(told))
        return tmp_path

    def test_every_task_of_every_model(self, folder: Path) -> None:
        tables = read_tables(folder)
        assert list(tables) == ["mood_me__a-7b", "mood_me__b", "news_me__a-7b", "news_me__b"]
        assert [table.labels.tolist() for table in tables.values()] == [[0], [1], [0], [1]]
        told = tables["news_me__a-7b"].provenance
        assert (told.model, told.task, told.shots) == ("me/a-7b", "news", 5)
        assert tables["mood_me__b"].classes == ("yes, sure", "no")
        assert list(read_tables(folder / "me__b")) == ["mood", "news"]
        assert read_tables(folder)["mood_me__b"].provenance.model == "me/b"

    def test_what_is_not_multiple_choice_is_left_out(self, folder: Path) -> None:
        answer = sample(0, "a", [], filtered_resps=["an answer"])
        log(folder, answer, name=f"samples_open_{self.DATE}.jsonl")
        with pytest.warns(UserWarning, match="samples_open_"):
            assert len(read_tables(folder)) == 4
        for model in folder.glob("me__*"):
            shutil.rmtree(model)
        with pytest.raises(TableError, match="samples_open_"):
            read_tables(folder)

    @pytest.mark.parametrize("content", ["[1]", "{", '{"n-shot": 3}', '{"model_name": [1]}'])
    def test_a_results_file_of_another_kind(self, folder: Path, content: str) -> None:
        (folder / "me__b" / f"results_{self.DATE}.json").write_text(content)
        assert read_tables(folder)["news_me__b"].provenance.model is None


def test_one_of_several_filters_is_chosen(tmp_path: Path) -> None:
    scores = {"strict": QUARTERS, "loose": [HALF, HALF]}
    path = log(tmp_path, *(sample(0, "1", scores[name], filter=name) for name in scores))
    assert _import(path, filter="loose").probs.tolist() == [[0.5, 0.5]]
    for wrong in (None, "x"):
        names = ["filter=", "'strict', 'loose'"]
        refuses(TableError, read_table, path, filter=wrong, names=names)


def test_choices_that_vary_in_number(tmp_path: Path) -> None:
    """Documents of ARC and MMLU-Pro have three to ten choices."""
    lines = [sample(k, 1, [HALF] * n, **asked(*"abcd"[:n])) for k, n in enumerate((3, 4, 2))]
    table = _import(log(tmp_path, *lines))
    assert table.classes == tuple(f"choice_{k}" for k in range(4))
    expected = [[1 / 3] * 3 + [0], [1 / 4] * 4, [1 / 2] * 2 + [0, 0]]
    np.testing.assert_allclose(table.probs, expected)
    assert table.labels.tolist() == [1, 1, 1]


NO_YES = ("no", "yes")
AS_NUMBERS = ("1", "0")
"""Choices that a target may mean by number or by text: "1" is the second, or reads "1"."""


def labels_of(
    folder: Path, targets: list[Any], choices: tuple[str, ...], /, **told: Any
) -> list[int]:
    """Return the labels of a log of such targets; `told` are options."""
    lines = [sample(k, target, QUARTERS, **asked(*choices)) for k, target in enumerate(targets)]
    labels: list[int] = _import(log(folder, *lines), **told).labels.tolist()
    return labels


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
    ],
)
def test_targets(targets, choices, told, labels, tmp_path):  # type: ignore[no-untyped-def]
    assert labels_of(tmp_path, targets, choices, **told) == labels


@pytest.mark.parametrize("target", [2, -2, "yes", "maybe", True, [0, 1]])
def test_targets_must_fit_as_the_others_do(target: Any, tmp_path: Path) -> None:
    with pytest.raises(TableError, match="id '1': "):
        labels_of(tmp_path, ["1", target], NO_YES)


def test_targets_of_two_readings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="labels=from-0"):
        labels_of(tmp_path, ["1", "1"], AS_NUMBERS)


@pytest.mark.parametrize(
    "lines",
    [
        [sample(0, "0", [-1, -2]), sample(5, "2", [-1, -2]), sample(6, "2", [-1, -2, -3])],
        [sample(3, "0", [-1, -2]), sample(3, "0", [-1, -2])],
        [sample(0, "0", [-1])],
        [sample(7, "0", [-1, -2, -3, -4], acc_mutual_info=1.0)],
        [sample(7, "0", [-1, -2, -3, -4], metrics=["acc_mutual_info"])],
        [sample(0, "0", ["low", -1])],
        [sample(0, "0", ["-inf", "-inf"])],
        [sample(0, "0", [], filtered_resps=["some answer"])],
        [{"doc_id": 0, "target": "0"}],
    ],
)
def test_refused(lines: list[Any], tmp_path: Path) -> None:
    path = log(tmp_path, *lines)
    refuses(TableError, read_table, path, names=[f"{path}: "])
