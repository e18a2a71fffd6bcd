"""What a task is, the generated ones, and the prompts made of a task and demonstrations."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from dcs.errors import ConfigError
from dcs.prompting.files import PACKAGED, described_task, get_task, row_text
from dcs.prompting.tasks import (
    SPLITS,
    Demonstrations,
    Example,
    Shots,
    Task,
    TaskFile,
    chat_messages,
    parse_shots,
    prompt_hash,
    render_prefix,
    render_query,
    select_demonstrations,
)
from tests.dcs.refusals import refuses

FILE = TaskFile(
    name="coins",
    classes=("Heads", "Tails"),
    label_words=("heads", "tails"),
    instruction="Say which side is up.",
    template="Coin: {text}\nSide:",
    files={"train": "coins.jsonl", "fields": {"text": "line"}, "label": "side"},
)


def _heads(split: str) -> tuple[Example, ...]:
    return tuple(Example(f"{split}-{i}", f"coin {i} of {split}", 0) for i in range(4))


COINS = Task(name="coins", file=FILE, examples=_heads)
SHOWN = Demonstrations(
    examples=(Example("a", "a bright coin", 1), Example("b", "a dull coin", 0)), shots=2, seed=0
)


def test_texts_stay_as_published() -> None:
    # Every figure in the documentation rests on these texts; change them knowingly.
    digest = hashlib.sha256()
    for name in ("helpdesk", "reviews"):
        for split in SPLITS:
            for example in get_task(name).examples(split):
                digest.update(f"{example.id}\t{example.label}\t{example.text}\n".encode())
    assert digest.hexdigest()[:16] == "801cf55737b4e086"


def test_shots() -> None:
    read = {"1": 1, "5": 5, "N": "N", "n": "N", 0: 0, " 12 ": 12}
    assert {value: parse_shots(value) for value in read} == read
    for value in ("-1", "", "1.5", "all", True):
        refuses(ConfigError, parse_shots, value)


class TestDemonstrations:
    @pytest.mark.parametrize("name", PACKAGED)
    @pytest.mark.parametrize("shots", [0, 1, 5, "N"])
    def test_each_seed_is_another_draw(self, name: str, shots: Shots) -> None:
        task = get_task(name)
        chosen = [select_demonstrations(task, shots, seed=seed) for seed in range(8)]
        assert chosen[3] == select_demonstrations(task, shots, seed=3)
        pool = {example.text for example in task.examples("optimization")}
        shown = [frozenset(example.text for example in each.examples) for each in chosen]
        assert {*map(len, shown)} == {len(task.classes) if shots == "N" else shots}
        assert frozenset.union(*shown) <= pool
        assert len({*shown}) == (8 if shots else 1)

    @pytest.mark.parametrize(("shots", "named"), [(5, "shots 5"), ("N", "Tails")])
    def test_too_few_texts(self, shots: Shots, named: str) -> None:
        refuses(ConfigError, select_demonstrations, COINS, shots, seed=0, names=[named])


class TestPrompt:
    def test_form(self) -> None:
        assert f"{render_prefix(COINS, SHOWN)}{render_query(COINS, 'a new coin')}" == (
            "Say which side is up.\n\n"
            "Coin: a bright coin\nSide: tails\n\n"
            "Coin: a dull coin\nSide: heads\n\n"
            "Coin: a new coin\nSide:"
        )
        nothing = Demonstrations(examples=(), shots=0, seed=0)
        assert str(render_prefix(COINS, nothing)) == "Say which side is up.\n\n"
        assert chat_messages(render_prefix(COINS, SHOWN), "a coin")[0]["role"] == "system"

    @pytest.mark.parametrize(
        ("template", "query"),
        [
            ("Coin }} {text}\nSide }}{{:", "Coin } x\nSide }{:"),
            ("Coin {text}}}\nSide:", "Coin x}\nSide:"),
            ("{{Coin}} {text}\nSide:", "{Coin} x\nSide:"),
        ],
    )
    def test_braces_are_written_twice(self, template: str, query: str) -> None:
        task = described_task(FILE.described | {"template": template}, source="coins")
        # Fields have their own names, or the keys of the files.
        for row in ("x", {"line": "x"}, {"text": "x"}, {"line": "x", "text": "y", "n": 1}):
            assert render_query(task, row_text(task.file, row)) == query

    def test_hash_knows_all_but_the_query(self) -> None:
        asked = [(COINS, SHOWN), (get_task("reviews"), SHOWN)]
        asked += [(COINS, dataclasses.replace(SHOWN, examples=SHOWN.examples[::-1]))]
        for change in ({"separator": "\n---\n"}, {"template": "{text}\nSide:"}):
            asked += [(dataclasses.replace(COINS, file=FILE.model_copy(update=change)), SHOWN)]
        assert len({prompt_hash(task, shown) for task, shown in asked}) == 5
        assert prompt_hash(COINS, SHOWN) == prompt_hash(dataclasses.replace(COINS), SHOWN)
