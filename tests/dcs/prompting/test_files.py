"""The described tasks, read from tiny files of the same forms as the real ones."""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pydantic import ValidationError

from dcs.errors import ConfigError, TableError
from dcs.prompting.files import DESCRIBED, get_task, read_examples, read_task_file, read_texts
from dcs.prompting.tasks import SPLITS, Demonstrations, HubLocation, render_prefix, render_query
from tests.dcs.refusals import refuses


@dataclass(frozen=True)
class Paper:
    """A task of the paper: texts in the form of the original files, and how they are shown.

    `published` is what NAME@published shows of the row of the class whose word it ends with.
    """

    sizes: tuple[int, int]
    rows: list[dict[str, Any]]
    printed: str
    published: str


PAPER = {
    "agnews": Paper(
        (10_000, 5_000),
        [
            {"text": "Rain quot; again. It #39;ll rain John #39;s a\\b.", "label": k}
            for k in range(4)
        ],
        "Article: Rain quot; again. It #39;ll rain John #39;s a b.\nAnswer:",
        "Article: Rain\" again. It'll rain John's a b.\nAnswer: Technology",
    ),
    "dbpedia": Paper(
        (10_000, 5_000),
        [{"text": "A thing.", "label": k} for k in range(14)],
        "Article: A thing.\nAnswer:",
        "Article: A thing.\nAnswer: Polit",
    ),
    "sst5": Paper(
        (8_544, 2_210),
        [{"TEXT": "not bad .", "LBL": k} for k in range(5)],
        "Review: not bad .\nSentiment:",
        "Review: not bad .\nSentiment: great",
    ),
    "trec": Paper(
        (5_452, 500),
        [
            {"text": "What is John 's `` big '' plan , then ?", "label": k}
            for k in ("NUM:a", "LOC:b", "HUM:c", "DESC:d", "ENTY:e", "ABBR:f")
        ],
        'Question: What is John\'s "big" plan, then?\nAnswer Type:',
        'Question: What is John\'s "big" plan, then?\nAnswer Type: Ab',
    ),
    "rte": Paper(
        (2_490, 277),
        [
            {"premise": "It rains.", "hypothesis": "It is wet.", "label": k, "idx": 0}
            for k in ("entailment", "not_entailment")
        ],
        "It rains.\nquestion:\nIt is wet.\nTrue or False?\nanswer:",
        "It rains.\nquestion: It is wet. True or False?\nanswer: False",
    ),
    "ddi": Paper(
        (10_000, 5_716),
        [
            {"TEXT1": "@DRUG$ helps @DRUG$.", "LBL": k, "ID": f"x.{k}"}
            for k in ("0", "DDI-effect", "DDI-mechanism", "DDI-advise", "DDI-int")
        ],
        "Description: @DRUG$ helps @DRUG$.\nAnswer:",
        "Description: @drug$ helps @drug$ .\nAnswer: Interaction",
    ),
    "pubmedqa": Paper(
        (1_000, 500),
        [
            {"QUESTION": "Does it?", "CONTEXTS": ["One.", "Two."], "final_decision": word}
            for word in ("yes", "no", "maybe")
        ],
        "Context: One. Two.\nQuestion: Does it? yes, no, or maybe?\nAnswer:",
        "Context: One.===Two.\nQuestion: Does it?yes, no, or maybe?\nAnswer: maybe",
    ),
}

BARE = Demonstrations(examples=(), shots=0, seed=0)


def lines(path: Path, rows: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One row of each class and split, in the forms of the original files."""
    root = tmp_path_factory.mktemp("data")
    for name, paper in PAPER.items():
        files = read_task_file(DESCRIBED[name]).files
        for split, path in zip(SPLITS, (files.optimization, files.test), strict=True):
            rows, path = paper.rows, root / name / path
            if split == "optimization":
                text = next(iter(rows[0]))
                rows = [{**row, text: f"Other. {row[text]}"} for row in rows]
            lines(path, rows)
            if name == "trec":
                text_rows = "".join(f"{row['label']} {row['text']}\n" for row in rows)
                path.write_bytes(text_rows.encode() + b"ENTY:food Caf\xe9 ?\r\n")
            elif name == "pubmedqa":
                path.write_text(json.dumps(dict(enumerate(rows))))
    return root


@pytest.mark.parametrize("name", DESCRIBED)
class TestPaperTasks:
    def test_as_in_the_appendix(self, name: str, data: Path) -> None:
        task, paper = get_task(name, data), PAPER[name]
        assert tuple(task.file.sizes.values()) == paper.sizes
        assert render_query(task, task.examples("test")[0].text) == paper.printed
        for split in SPLITS:
            labels = [example.label for example in task.examples(split)]
            assert labels[: len(task.classes)] == list(range(len(task.classes)))
        # The files may also lie in the folder itself.
        assert get_task(name, data / name).examples("test") == task.examples("test")
        refused(name, data / "none", data / "none" / name)

    def test_as_the_published_code_renders_it(self, name: str, data: Path) -> None:
        task, paper = get_task(f"{name}@published", data), PAPER[name]
        query, _, word = paper.published.rpartition(" ")
        example = task.examples("test")[task.label_words.index(word)]
        shown = Demonstrations((example,), shots=1, seed=0)
        instruction = render_prefix(get_task(name), BARE)
        assert str(render_prefix(task, shown)) == f"{instruction}{paper.published}\n\n====\n\n"
        assert render_query(task, example.text) == query


def test_instructions_stay_as_printed() -> None:
    # Those of the appendix, read once; change them knowingly.
    texts = "".join(str(render_prefix(get_task(name), BARE)) for name in DESCRIBED)
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == "d5ba58189a955289"


def refused(name: str, data: Path | None = None, *parts: object) -> None:
    """Assert that neither a task nor its texts are there, naming all parts."""
    refuses(ConfigError, lambda: get_task(name, data).examples("test"), names=parts)


OWN: dict[str, Any] = {
    "name": "moods",
    "disjoint": False,
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
    lines(folder / "b.jsonl", [{"text": "new", "mood": "Sad"}, *rows[:4]])
    return str(path)


def labels_of(folder: Path, moods: list[Any], **own: Any) -> list[int]:
    """Return the labels that are read of a task with such moods."""
    task = get_task(write_own(folder, **own))
    lines(folder / "b.jsonl", [{"text": f"t{k}", "mood": mood} for k, mood in enumerate(moods)])
    return [example.label for example in task.examples("test")]


class TestOwnTask:
    def test_files_lie_beside_it(self, tmp_path: Path) -> None:
        task = get_task(write_own(tmp_path))
        assert [e.label for e in task.examples("test")] == [1, 0, 1, 0, 1]
        assert task.examples("test")[0].id == "moods-test-00000"
        assert render_query(task, "x") == "Text: x\nMood:"
        assert pickle.loads(pickle.dumps(task)).examples("test") == task.examples("test")
        # Texts that have changed are read again.
        lines(tmp_path / "b.jsonl", [{"text": "only one left", "mood": 1}])
        assert [e.text for e in task.examples("test")] == ["only one left"]
        lines(tmp_path / "moods/b.jsonl", [{"text": "another", "mood": 1}])
        both = [tmp_path / "moods/b.jsonl", f"{tmp_path / 'b.jsonl'}: both exist"]
        refuses(ConfigError, task.examples, "test", names=both)
        (tmp_path / "moods/b.jsonl").unlink()
        (tmp_path / "b.jsonl").unlink()
        refuses(ConfigError, task.examples, "test", names=[f"b.jsonl into {tmp_path} or"])

    def test_links_lead_nowhere_else(self, tmp_path: Path) -> None:
        folder = tmp_path / "task"
        folder.mkdir()
        name = write_own(folder)
        kept = get_task(name).examples("test")
        texts = folder / OWN["files"]["test"]
        texts.rename(folder / "kept")
        texts.symlink_to("kept")
        (tmp_path / "link").symlink_to(folder)
        for data in (None, tmp_path / "link"):
            assert get_task(name, data).examples("test") == kept
        (folder / "kept").rename(tmp_path / "secret")
        texts.unlink()
        texts.symlink_to("../secret")
        for data in (None, tmp_path / "link"):
            refused(name, data, texts.name)
        for secret in ("../secret", str(tmp_path / "secret")):
            refused(write_own(folder, files=OWN["files"] | {"test": secret}), None, "outside")

    def test_disjoint(self, tmp_path: Path) -> None:
        assert len(get_task(write_own(tmp_path)).examples("optimization")) == 20
        refuses(TableError, get_task(write_own(tmp_path, disjoint=None)).examples, "optimization")
        task = get_task(write_own(tmp_path, disjoint=True))
        lines(tmp_path / "b.jsonl", [{"text": f"Text {k}", "mood": "Sad"} for k in range(4)])
        kept = task.examples("optimization")
        assert [e.text for e in kept] == [f"text {k}" for k in range(4, 20)]

    def test_line_breaks_are_those_of_other_texts(self, tmp_path: Path) -> None:
        place = OWN["files"] | {"format": "csv", "test": "b.csv"}
        task = get_task(write_own(tmp_path, files=place))
        (tmp_path / "b.csv").write_bytes(b'text,mood\r\n"a\r\nb",Sad\r\n')
        (row,) = read_texts(tmp_path / "b.csv")
        assert task.examples("test")[0].text == row["text"] == "a\nb"
        for torn in ("mood,text\nSad,poor, truly so\n", "text,mood\npoor\ntruly so,Sad\n"):
            (tmp_path / "b.csv").write_text(torn)
            refuses(ConfigError, task.examples, "test", names=["b.csv", "line 2", "quotes"])

    def test_one_file_is_enough(self, tmp_path: Path) -> None:
        place = {k: v for k, v in OWN["files"].items() if k not in SPLITS} | {"train": "a.jsonl"}
        drawn = []
        for seed in (0, 0, 1):
            task = get_task(write_own(tmp_path, files=place | {"held_out": 0.2}, seed=seed))
            moods = [(f"text {k // 2}", "Sad" if k < 40 else "Happy") for k in range(160)]
            lines(tmp_path / "a.jsonl", [{"text": text, "mood": mood} for text, mood in moods])
            parts = [task.examples(split) for split in SPLITS]
            assert [len(part) for part in parts] == [128, 32]
            assert sum(e.label for e in parts[1]) == 8
            # Equal texts stay together.
            assert not {e.text for e in parts[0]} & {e.text for e in parts[1]}
            assert parts[1][0].id.startswith("moods-train-")
            drawn.append(parts[1])
        assert drawn[0] == drawn[1] != drawn[2]

    def test_sizes_are_drawn_by_seed(self, tmp_path: Path) -> None:
        paths = (write_own(tmp_path, sizes={"optimization": 7}, seed=seed) for seed in (0, 0, 1))
        first, again, other = (get_task(path).examples("optimization") for path in paths)
        assert first == again != other
        assert len(first) == 7 and [e.id for e in first] == sorted(e.id for e in first)

    def test_variants(self, tmp_path: Path) -> None:
        variants = {
            "terse": {"template": "{text}\n->", "instruction": ""},
            "loud": {"label_words": ["HAPPY", "SAD"], "clean": ["tokenized"]},
        }
        path = write_own(tmp_path, variants=variants)
        terse, loud = (get_task(f"{path}@{name}") for name in variants)
        assert (terse.name, terse.label_words) == ("moods@terse", ("happy", "sad"))
        assert f"{render_prefix(terse, BARE)}{render_query(terse, 'x')}" == "x\n->"
        assert str(render_prefix(loud, BARE)) == "Tell the mood.\n\n"
        assert [e.id for e in terse.examples("test")] == [e.id for e in loud.examples("test")]
        refused(f"{path}@quiet", None, "quiet", "loud, terse")
        refused("nowhere.yaml", None, "nowhere.yaml")

    @pytest.mark.parametrize(
        ("changes", "key"),
        [
            ({"clases": ["A"]}, "clases"),
            ({"classes": ["Happy", "Happy"]}, "classes"),
            ({"template": "Text: text"}, "template"),
            ({"template": "Text: {text} Mood:"}, "template"),
            ({"label_words": ["a"]}, "label_words"),
            ({"label_words": ["a", "a "]}, "label_words"),
            ({"labels": [[0], [0, 1]]}, "labels"),
            ({"variants": {"x": {"template": "{other}\n->"}}}, "variants.x"),
            ({"variants": {"x": {"classes": ["A", "B"]}}}, "variants.x"),
            ({"variants": {"a/b": {}}}, "variants"),
            ({"files": None}, "files"),
            ({"files": OWN["files"] | {"fields": {"txt": "text"}}}, "files.fields"),
            ({"files": OWN["files"] | {"train": "a.jsonl"}}, "files"),
        ],
    )
    def test_errors_name_file_and_key(
        self, tmp_path: Path, changes: dict[str, Any], key: str
    ) -> None:
        path = write_own(tmp_path, **changes)
        refuses(ConfigError, get_task, path, names=[path, key])

    @pytest.mark.parametrize(
        ("row", "names"),
        [
            ({"text": "x", "mood": "Glad"}, ["row 1", "Glad"]),
            ({"text": "x", "mood": 2}, ["row 1", "2"]),
            ({"text": "x", "mood": True}, ["row 1", "boolean"]),
            ({"text": " ", "mood": 1}, ["row 1", "text"]),
            (["x"], ["row 1", "x"]),
            ({"text": "fine", "mood": 1}, ["moods-test-fine"]),  # The id of both.
            ({"text": "b", "feeling": "Sad"}, ["feeling"]),
            ({"text": "b", "feeling": 1}, ["feeling"]),
        ],
    )
    def test_bad_rows(self, tmp_path: Path, row: Any, names: list[str]) -> None:
        task = get_task(write_own(tmp_path, files=OWN["files"] | {"id": "text"}))
        lines(tmp_path / "b.jsonl", [{"text": "fine", "mood": 0}, row])
        refuses(ConfigError, task.examples, "test", names=[tmp_path / "b.jsonl", *names])
        (tmp_path / "b.jsonl").write_text('{"text": "a", "mood": 1}\n\n{"text": \n')
        refuses(ConfigError, task.examples, "test", names=["b.jsonl", "line 3"])

    def test_class_names_go_before_numbers(self, tmp_path: Path) -> None:
        assert labels_of(tmp_path, [1, "0"], classes=["1", "0"]) == [0, 1]

    @pytest.mark.parametrize(
        ("classes", "labels"),
        [
            (["1", "2"], [0, 1]),
            (["a", "b", "c", "d"], [-1, 0, 2]),
            (["a", "b", "c"], [1, 2]),
            (["a", "b"], [-1, 1]),
            (["a", "b"], ["a", "b", 0, 1]),
            (["True", "False"], [0, 1]),
            (["positive", "negative"], ["0", "1"]),
            (["2 stars", "1 star", "0 stars"], [0, 1, 2]),
            (["1 star", "2 stars", "3 stars"], [1]),
            (["LABEL_2", "LABEL_1", "LABEL_0"], [0, 1, 2]),
        ],
    )
    def test_labels_in_doubt(self, tmp_path: Path, classes: list[str], labels: list[Any]) -> None:
        own = {"classes": classes, "label_words": [f"word {name}" for name in classes]}
        refuses(ConfigError, labels_of, tmp_path, labels, **own, names=["b.jsonl", labels[0]])
        # As the file of the task may say.
        values = [[label] for label in labels[: len(classes)]]
        if len(values) == len(classes) == len(labels):
            assert labels_of(tmp_path, labels, **own, labels=values) == [*range(len(classes))]

    @pytest.mark.parametrize("labels", [[-1, 0, 1], [-1, 1, 3], [0, 1, 2], [2, 3], [1], ["b", ""]])
    def test_labels_without_doubt(self, tmp_path: Path, labels: list[Any]) -> None:
        words = {"classes": [*"abcd"], "label_words": ["good", "bad", "fine", "poor"]}
        assert labels_of(tmp_path, labels, **words) == [{"b": 1, "": -1}.get(k, k) for k in labels]


TREC = read_task_file(DESCRIBED["trec"])

# What the hub's datasets call the columns, and a label of each class in the task's order.
COLUMNS: dict[str, tuple[tuple[str, ...], str, tuple[int, ...]]] = {
    "trec": (("text",), "coarse_label", (5, 4, 3, 2, 1, 0)),
    "rte": (("sentence1", "sentence2"), "label", (0, 1)),
}


def write_dataset(folder: Path, hub: HubLocation, name: str) -> None:
    columns, label, labels = COLUMNS[name]
    folder.mkdir()
    files = []
    for split in (hub.optimization, hub.test):
        rows = {column: [f"{column} {k} of {split}" for k in labels] for column in columns}
        pq.write_table(pa.table(rows | {label: list(labels)}), folder / f"{split}.parquet")
        files.append({"split": split, "path": f"{split}.parquet"})
    configs = [{"config_name": hub.config or "default", "data_files": files}]
    (folder / "README.md").write_text(f"---\n{json.dumps({'configs': configs})}\n---\n")


def fetch_from(folder: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Let a dataset of the hub be a folder, whose files are said to be somewhere."""
    datasets = pytest.importorskip("datasets")
    load = datasets.load_dataset_builder

    def load_dataset_builder(path: str, *args: Any, **options: Any) -> Any:
        builder = load(str(folder), *args, **options)
        files = {
            part: [str(file).replace(str(folder), where) for file in names]
            for part, names in builder.config.data_files.items()
        }
        return SimpleNamespace(
            config=SimpleNamespace(data_files=files),
            download_and_prepare=builder.download_and_prepare,
            as_dataset=builder.as_dataset,
        )

    monkeypatch.setattr(datasets, "load_dataset_builder", load_dataset_builder)


class TestHub:
    """Datasets of the hub, by folders of the same form, without a network."""

    @pytest.mark.parametrize("name", COLUMNS)
    def test_fields_and_labels_are_mapped(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        datasets = pytest.importorskip("datasets")
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        file = read_task_file(DESCRIBED[name])
        write_dataset(tmp_path / "hub", file.hub, name)
        hub = file.hub.model_copy(update={"dataset": f"owner/{name}", "revision": ""})
        fetch_from(tmp_path / "hub", monkeypatch, where=f"hf://datasets/owner/{name}@0")
        for split in SPLITS:
            examples = read_examples(file.model_copy(update={"hub": hub}), split)
            assert [e.label for e in examples] == list(range(len(file.classes)))
            shown = (getattr(hub, split), *COLUMNS[name][0])
            assert all(word in examples[0].text for word in shown)

    @pytest.mark.parametrize("name", ["/etc", "a/../../b", "~/texts", "a/b/c", "", "csv"])
    def test_a_local_path_is_refused(self, name: str) -> None:
        hub = TREC.hub.model_dump(mode="json", exclude_defaults=True)
        with pytest.raises(ValidationError):
            HubLocation(**hub | {"dataset": name})
        assert HubLocation(**hub | {"dataset": "owner/name"}).dataset == "owner/name"

    def test_a_folder_of_the_same_name_is_not_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("datasets")
        monkeypatch.chdir(tmp_path)
        for split in SPLITS:
            lines(tmp_path / TREC.hub.dataset / f"{split}.jsonl", [{"text": "a", "label": 0}])
        refuses(ConfigError, read_examples, TREC, "test", names=["local path"])

    @pytest.mark.parametrize(
        "where",
        ["", "hf://datasets/other/trec@0", "hf://datasets/CogComp/trec2@0", "https://host"],
    )
    def test_files_outside_of_the_dataset_are_not_read(
        self, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_dataset(tmp_path / "hub", TREC.hub, "trec")
        fetch_from(tmp_path / "hub", monkeypatch, where or str(tmp_path / "hub"))
        with pytest.raises(ConfigError, match="not one of its files on the hub"):
            read_examples(TREC.model_copy(update={"seed": len(where) + 1}), "test")

    def test_classes_in_another_order(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = SimpleNamespace(features={"mood": SimpleNamespace(names=["sad", "happy"])})
        builder = SimpleNamespace(
            config=SimpleNamespace(data_files=None),
            download_and_prepare=lambda: None,
            as_dataset=lambda split: rows,
        )
        datasets = SimpleNamespace(load_dataset_builder=lambda *_, **__: builder)
        monkeypatch.setitem(sys.modules, "datasets", datasets)
        columns = {name: OWN["files"][name] for name in ("fields", "label")}
        hub = {"dataset": "owner/own", "train": "train", **columns}
        path = write_own(tmp_path, files=None, hub=hub)
        refuses(ConfigError, get_task(path).examples, "test", names=["'sad', 'happy'", "order"])

    def test_out_of_reach_and_without_the_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def load_dataset(*args: Any, **kwargs: Any) -> None:
            raise ConnectionError("Couldn't reach it\n(OfflineModeIsEnabled)")

        datasets = SimpleNamespace(load_dataset_builder=load_dataset, config=SimpleNamespace())
        monkeypatch.setitem(sys.modules, "datasets", datasets)
        refused("agnews", None, "agnews", "--data")
        monkeypatch.setitem(sys.modules, "datasets", None)
        refused("trec", None, "trec", "--data", "pip install datasets")


def test_texts_are_the_same_in_every_format(tmp_path: Path) -> None:
    rows = pd.DataFrame({"text": ["a, b", "c\td"], "label": ["x", "y"]})
    rows.to_csv(tmp_path / "a.csv", index=False)
    rows.to_csv(tmp_path / "a.tsv", index=False, sep="\t")
    rows.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    rows.to_parquet(tmp_path / "a.parquet")
    for file in tmp_path.iterdir():
        assert read_texts(file) == rows.to_dict("records")
    twice = tmp_path / "twice.parquet"
    pq.write_table(pa.table([["a"], ["b"]], names=["text", "text"]), twice)
    refuses(ConfigError, read_texts, twice, names=["twice.parquet", "'text'"])


def test_quotes_in_texts_between_tabs(tmp_path: Path) -> None:
    file = tmp_path / "new.tsv"
    file.write_text('id\ttext\n1\t"Lovely", they said\n2\tonly 5"\n')
    assert [row["text"] for row in read_texts(file)] == ['"Lovely", they said', 'only 5"']
    file.write_text('id\ttext\n1\t"Lovely, they said\n2\tbad\n3\tonly 5"\n')
    refuses(ConfigError, read_texts, file, names=["new.tsv", "quotes are text"])
