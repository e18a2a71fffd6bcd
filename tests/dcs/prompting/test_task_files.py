"""The described tasks, read from tiny files of the same forms as the real ones."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

from dcs.errors import ConfigError
from dcs.prompting import (
    Demonstrations,
    described_task_names,
    get_task,
    prompt_hash,
    render_prefix,
    render_query,
    select_demonstrations,
)

SIZES = {
    "agnews": (10_000, 5_000),
    "dbpedia": (10_000, 5_000),
    "sst5": (8_544, 2_210),
    "trec": (5_452, 500),
    "rte": (2_490, 277),
    "ddi": (10_000, 5_716),
    "pubmedqa": (1_000, 500),
}
INSTRUCTIONS = {
    "agnews": "Please classify the news articles into the categories of World, Sports, Business, "
    "and Technology.\n\n",
    "dbpedia": "Please classify the documents based on whether they are about a Company, School, "
    "Artist, Athlete, Politician, Transportation, Building, Nature, Village, Animal, Plant, "
    "Album, Film, or Book.\n\n",
    "sst5": "",
    "trec": "Please classify the questions based on whether their answer type is a Number, "
    "Location, Person, Description, Entity, or Abbreviation.\n\n",
    "rte": "",
    "ddi": "Please choose a most suitable answer from Negative, Effect, Mechanism, Advice, or "
    "Interaction, for the drug-drug interaction relation between the @drug$ pair in the "
    "following description.\n\n",
    "pubmedqa": "Please choose a most suitable answer from yes, no, or maybe, for the following "
    "question given a context.\n\n",
}
QUERIES = {
    "agnews": "Article: Rain again. It rained a b.\nAnswer:",
    "dbpedia": "Article: A thing.\nAnswer:",
    "sst5": "Review: not bad .\nSentiment:",
    "trec": 'Question: What is John\'s "big" plan, then?\nAnswer Type:',
    "rte": "It rains.\nquestion:\nIt is wet.\nTrue or False?\nanswer:",
    "ddi": "Description: @DRUG$ helps @DRUG$.\nAnswer:",
    "pubmedqa": "Context: One. Two.\nQuestion: Does it? yes, no, or maybe?\nAnswer:",
}


def lines(path: Path, rows: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One row of each class and split, in the forms of the original files."""
    root = tmp_path_factory.mktemp("data")
    for split in ("train", "test"):
        lines(
            root / f"agnews/{split}.jsonl",
            [{"text": "Rain again. It rained a\\b.", "label": k} for k in range(4)],
        )
        lines(
            root / f"dbpedia/{split}.jsonl", [{"text": "A thing.", "label": k} for k in range(14)]
        )
        lines(root / f"sst5/{split}.jsonl", [{"TEXT": "not bad .", "LBL": k} for k in range(5)])
        lines(
            root / f"ddi/{split}.jsonl",
            [
                {"ID": f"x.{k}", "TEXT1": "@DRUG$ helps @DRUG$.", "LBL": k}
                for k in ("0", "DDI-effect", "DDI-mechanism", "DDI-advise", "DDI-int")
            ],
        )
        trec = root / f"trec/{split}.txt"
        trec.parent.mkdir(exist_ok=True)
        kinds = ("NUM:date", "LOC:city", "HUM:ind", "DESC:def", "ENTY:food", "ABBR:exp")
        rows = "".join(f"{k} What is John 's `` big '' plan , then ?\n" for k in kinds)
        trec.write_bytes(rows.replace("big", "big").encode() + b"ENTY:food Caf\xe9 ?\r\n")
    for split in ("train", "val"):
        lines(
            root / f"rte/{split}.jsonl",
            [
                {"premise": "It rains.", "hypothesis": "It is wet.", "label": k, "idx": 0}
                for k in ("entailment", "not_entailment")
            ],
        )
    (root / "pubmedqa").mkdir()
    answers = {
        str(k): {"QUESTION": "Does it?", "CONTEXTS": ["One.", "Two."], "final_decision": word}
        for k, word in enumerate(("yes", "no", "maybe"))
    }
    for name in ("ori_pqal", "test_set"):
        (root / f"pubmedqa/{name}.json").write_text(json.dumps(answers))
    return root


@pytest.mark.parametrize("name", described_task_names())
class TestPaperTasks:
    def test_as_in_the_appendix(self, name: str, data: Path) -> None:
        task = get_task(name, data)
        assert (dict(task.sizes)["optimization"], dict(task.sizes)["test"]) == SIZES[name]
        bare = Demonstrations(examples=(), shots=0, seed=0)
        assert render_prefix(task, bare) == INSTRUCTIONS[name]
        assert render_query(task, task.examples("test")[0].text) == QUERIES[name]

    def test_every_class_is_read(self, name: str, data: Path) -> None:
        task = get_task(name, data)
        for split in ("optimization", "test"):
            labels = [example.label for example in task.examples(split)]  # type: ignore[arg-type]
            assert labels[: task.n_classes] == list(range(task.n_classes))

    def test_a_demonstration_answers_with_its_label_word(self, name: str, data: Path) -> None:
        task = get_task(name, data)
        shown = select_demonstrations(task, 1, seed=0)
        word = task.label_words[shown.examples[0].label]
        assert render_prefix(task, shown).endswith(f" {word}\n\n")

    def test_without_texts_the_way_to_them_is_told(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="comes without its texts: there are no") as caught:
            get_task(name, tmp_path).examples("test")
        assert "\n" not in str(caught.value)
        assert str(tmp_path / name) in str(caught.value)

    def test_files_may_lie_in_the_folder_itself(self, name: str, data: Path) -> None:
        inside = get_task(name, data / name).examples("test")
        assert inside == get_task(name, data).examples("test")


def test_without_data_and_hub_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcs.prompting.texts._has_datasets", lambda: False)
    with pytest.raises(ConfigError, match="give --data DIR with .* or pip install datasets"):
        get_task("trec").examples("test")
    with pytest.raises(ConfigError, match=r"give --data DIR with [^;]*$"):
        get_task("ddi").examples("test")


def test_letters_of_latin_1(data: Path) -> None:
    assert get_task("trec", data).examples("test")[-1].text == "Café?"


OWN: dict[str, Any] = {
    "name": "moods",
    "classes": ["Happy", "Sad"],
    "label_words": ["happy", "sad"],
    "instruction": "Tell the mood.",
    "template": "Text: {text}\nMood:",
    "files": {
        "optimization": "a.jsonl",
        "test": "b.jsonl",
        "fields": {"text": "text"},
        "label": "mood",
    },
}


def write_own(folder: Path, **changes: Any) -> str:
    path = folder / "moods.yaml"
    path.write_text(yaml.safe_dump(OWN | changes))
    rows = [{"text": f"text {k}", "mood": "Sad" if k % 2 else "Happy"} for k in range(20)]
    lines(folder / "a.jsonl", rows)
    lines(folder / "b.jsonl", [{"text": "new", "mood": 1}, *rows[:4]])
    return str(path)


class TestOwnTask:
    def test_files_lie_beside_it(self, tmp_path: Path) -> None:
        task = get_task(write_own(tmp_path))
        assert [e.label for e in task.examples("test")] == [1, 0, 1, 0, 1]
        assert task.examples("test")[0].id == "moods-test-00000"
        assert render_query(task, "x") == "Text: x\nMood:"

    def test_travels_to_other_processes(self, tmp_path: Path) -> None:
        task = get_task(write_own(tmp_path))
        there = pickle.loads(pickle.dumps(task))
        assert there.examples("test") == task.examples("test")

    def test_changed_texts_are_read_again(self, tmp_path: Path) -> None:
        task = get_task(write_own(tmp_path))
        assert len(task.examples("test")) == 5
        lines(tmp_path / "b.jsonl", [{"text": "only one left", "mood": 1}])
        assert [e.text for e in task.examples("test")] == ["only one left"]

    def test_disjoint(self, tmp_path: Path) -> None:
        assert len(get_task(write_own(tmp_path)).examples("optimization")) == 20
        kept = get_task(write_own(tmp_path, disjoint=True)).examples("optimization")
        assert [e.text for e in kept] == [f"text {k}" for k in range(4, 20)]

    def test_sizes_are_drawn_by_seed(self, tmp_path: Path) -> None:
        sizes = {"optimization": 7}
        first = get_task(write_own(tmp_path, sizes=sizes)).examples("optimization")
        again = get_task(write_own(tmp_path, sizes=sizes)).examples("optimization")
        other = get_task(write_own(tmp_path, sizes=sizes, seed=1)).examples("optimization")
        assert first == again
        assert len(first) == len(other) == 7
        assert first != other
        assert [e.id for e in first] == sorted(e.id for e in first)

    def test_csv(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text('mood,text\nSad,"tears, many"\nHappy,a smile\n')
        place = OWN["files"] | {"format": "csv", "optimization": "a.csv", "test": "a.csv"}
        task = get_task(write_own(tmp_path, files=place))
        assert [(e.label, e.text) for e in task.examples("test")] == [
            (1, "tears, many"),
            (0, "a smile"),
        ]

    def test_the_template_is_part_of_the_prompt_hash(self, tmp_path: Path) -> None:
        place = OWN["files"] | {"fields": {"a": "text", "b": "text"}}
        bare = Demonstrations(examples=(), shots=0, seed=0)
        hashes = {
            prompt_hash(
                get_task(write_own(tmp_path, files=place, template=f"{{a}}{mark}{{b}}\nMood:")),
                bare,
            )
            for mark in ("\n", " and ")
        }
        assert len(hashes) == 2

    @pytest.mark.parametrize(
        ("changes", "parts"),
        [
            ({"clases": ["A"]}, ["unknown key 'clases'", "did you mean 'classes'"]),
            ({"classes": "Happy"}, ["'classes'", "list"]),
            ({"classes": [True, False]}, ["'classes'", "True", "quotation marks"]),
            ({"template": "Text: text"}, ["'template'", "{field}"]),
            ({"template": "Text: {text} Mood:"}, ["'template'", "last line"]),
            ({"template": "Text: {text\nMood:"}, ["'template'"]),
            ({"labels": [1]}, ["'labels'", "2 classes"]),
            ({"label_words": ["a"]}, ["1 label words", "2 classes"]),
            ({"sizes": {"tset": 3}}, ["'sizes.tset'", "did you mean 'test'"]),
            ({"sizes": {"test": 0}}, ["'sizes.test'", "0"]),
            ({"replace": [["a"]]}, ["'replace'", "[old, new]"]),
            ({"disjoint": "no"}, ["'disjoint'", "true, false"]),
            ({"files": None}, ["'files' or 'hub'"]),
            ({"files": {"optimization": "a"}}, ["'files.test'", "missing"]),
            ({"files": OWN["files"] | {"fields": {"txt": "text"}}}, ["'files.fields'", "text"]),
            (
                {"files": OWN["files"] | {"format": "jsonlines"}},
                ["'files.format'", "jsonl, json, csv"],
            ),
            ({"files": OWN["files"] | {"lable": "x"}}, ["'files.lable'", "'label'"]),
        ],
    )
    def test_errors_name_file_and_key(
        self, tmp_path: Path, changes: dict[str, Any], parts: list[str]
    ) -> None:
        path = write_own(tmp_path, **changes)
        with pytest.raises(ConfigError) as caught:
            get_task(path)
        message = str(caught.value)
        assert "\n" not in message
        for part in parts if "label_words" in changes else [path, *parts]:
            assert part in message

    @pytest.mark.parametrize("content", ["[1, 2]", "a: [", ""])
    def test_not_a_mapping(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "moods.yaml"
        path.write_text(content)
        with pytest.raises(ConfigError, match=r"moods\.yaml: "):
            get_task(str(path))

    @pytest.mark.parametrize(
        ("row", "parts"),
        [
            ({"text": "x"}, ["row 1", "no key 'mood'"]),
            ({"text": "x", "mood": "Glad"}, ["row 1", "'Glad'", "Happy, Sad"]),
            ({"text": "x", "mood": 2}, ["row 1", "2", "Happy, Sad"]),
            ({"text": "x", "mood": True}, ["row 1", "True"]),
            ({"text": " ", "mood": 1}, ["row 1", "'text'"]),
            (["x"], ["row 1", "not an object"]),
        ],
    )
    def test_bad_rows(self, tmp_path: Path, row: Any, parts: list[str]) -> None:
        task = get_task(write_own(tmp_path))
        lines(tmp_path / "b.jsonl", [{"text": "fine", "mood": 0}, row])
        with pytest.raises(ConfigError) as caught:
            task.examples("test")
        for part in [str(tmp_path / "b.jsonl"), *parts]:
            assert part in str(caught.value)

    def test_bad_json_names_the_line(self, tmp_path: Path) -> None:
        task = get_task(write_own(tmp_path))
        (tmp_path / "b.jsonl").write_text('{"text": "a", "mood": 1}\n\n{"text": \n')
        with pytest.raises(ConfigError, match="line 3: not JSON"):
            task.examples("test")

    def test_repeated_ids(self, tmp_path: Path) -> None:
        task = get_task(write_own(tmp_path, files=OWN["files"] | {"id": "text"}))
        lines(tmp_path / "b.jsonl", [{"text": "a", "mood": 1}] * 2)
        with pytest.raises(ConfigError, match="'moods-test-a' occurs more than once"):
            task.examples("test")

    def test_missing_file(self) -> None:
        with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such task file"):
            get_task("nowhere.yaml")


def test_a_dataset_as_of_the_hub(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    place = {
        "dataset": str(tmp_path / "hub"),
        "optimization": "train",
        "test": "test",
        "fields": {"text": "inner.words"},
        "label": "mood",
        "labels": [[1, 2], [0]],
    }
    for split in ("train", "test"):
        rows = [{"inner": {"words": ["one", "two"]}, "mood": k} for k in range(3)]
        lines(tmp_path / f"hub/{split}.jsonl", rows)
    task = get_task(write_own(tmp_path, files=None, hub=place))
    assert [(e.text, e.label) for e in task.examples("test")] == [
        ("one two", 1),
        ("one two", 0),
        ("one two", 0),
    ]
