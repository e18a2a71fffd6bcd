from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest

from dcs.errors import ConfigError
from dcs.prompting import SPLITS, Example, Task, get_task, register_task, task_names
from dcs.prompting import tasks as tasks_module
from dcs.prompting._helpdesk import write_ticket
from dcs.prompting._reviews import write_review
from dcs.prompting._texts import make_split
from dcs.prompting._texts import pick as draw

BUILT_IN = ("helpdesk", "reviews")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    task_names()
    monkeypatch.setattr(tasks_module, "_REGISTRY", dict(tasks_module._REGISTRY))


def make_task(**changes: object) -> Task:
    fields: dict[str, object] = {
        "name": "coins",
        "title": "Heads or tails",
        "classes": ("Heads", "Tails"),
        "label_words": ("heads", "tails"),
        "instruction": "",
        "input_prefix": "Coin:",
        "answer_prefix": "Side:",
        "source": lambda split: (Example(id=f"{split}-0", text=f"a coin of {split}", label=0),),
    }
    return Task(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BUILT_IN)
class TestBuiltIn:
    def test_sizes(self, name: str) -> None:
        task = get_task(name)
        assert len(task.examples("optimization")) >= 2000
        assert len(task.examples("test")) >= 1000

    def test_no_text_or_id_occurs_twice(self, name: str) -> None:
        examples = [e for split in SPLITS for e in get_task(name).examples(split)]
        assert len({e.text for e in examples}) == len(examples)
        assert len({e.id for e in examples}) == len(examples)

    def test_texts_are_short_and_of_one_line(self, name: str) -> None:
        for split in SPLITS:
            for example in get_task(name).examples(split):
                assert 12 <= len(example.text.split()) <= 25
                assert "\n" not in example.text
                assert "{" not in example.text

    def test_every_class_occurs_and_none_rules(self, name: str) -> None:
        task = get_task(name)
        for split in SPLITS:
            labels = [e.label for e in task.examples(split)]
            shares = np.bincount(labels, minlength=task.n_classes) / len(labels)
            assert shares.min() > 0.05
            assert shares.max() < 0.4

    def test_generators_are_deterministic(self, name: str) -> None:
        module = __import__(f"dcs.prompting._{name}", fromlist=["examples"])
        for split in SPLITS:
            assert module.examples(split) == get_task(name).examples(split)


def test_texts_stay_as_published() -> None:
    # Every figure in the documentation rests on these texts; change them knowingly.
    digest = hashlib.sha256()
    for name in BUILT_IN:
        for split in SPLITS:
            for example in get_task(name).examples(split):
                digest.update(f"{example.id}\t{example.label}\t{example.text}\n".encode())
    assert digest.hexdigest()[:16] == "801cf55737b4e086"


@pytest.mark.parametrize(("write", "n_classes"), [(write_ticket, 6), (write_review, 5)])
def test_same_seed_same_text(write: object, n_classes: int) -> None:
    for label in range(n_classes):
        first, second = (write(np.random.default_rng(3), label) for _ in range(2))  # type: ignore[operator]
        assert first == second


def test_test_split_avoids_the_optimization_texts() -> None:
    words = ("one two three four five six seven eight nine ten eleven twelve", "thirteen" * 2)

    def write(rng: np.random.Generator, label: int) -> str:
        # Forty texts in all, so that any carelessness shows.
        return f"{words[0]} {label} {int(rng.random() * 20)}"

    sizes = {"optimization": 20, "test": 15}
    parts = {
        split: {
            e.text
            for e in make_split("few", split, sizes=sizes, weights=(1.0, 1.0), write=write)  # type: ignore[arg-type]
        }
        for split in SPLITS
    }
    assert [len(parts[split]) for split in SPLITS] == [20, 15]
    assert not parts["optimization"] & parts["test"]


def test_draw_covers_all_options() -> None:
    rng = np.random.default_rng(0)
    assert {draw(rng, "abc") for _ in range(100)} == set("abc")


class TestRegistry:
    def test_built_in_tasks_come_first(self) -> None:
        assert task_names()[:2] == BUILT_IN

    def test_unknown_task(self) -> None:
        with pytest.raises(ConfigError) as caught:
            get_task("helpdeks")
        message = str(caught.value)
        assert "\n" not in message
        for part in ("'helpdeks'", "'helpdesk'", "reviews"):
            assert part in message

    def test_a_new_task_is_found_by_name(self, registry: None) -> None:
        task = make_task()
        register_task(task)
        register_task(task)  # the same again is no conflict
        assert get_task("coins") is task
        assert task_names() == (*BUILT_IN, "coins")

    def test_a_taken_name_is_refused(self, registry: None) -> None:
        with pytest.raises(ConfigError, match="'reviews' exists already"):
            register_task(make_task(name="reviews"))

    def test_unknown_split(self) -> None:
        with pytest.raises(ConfigError, match="split 'dev'.*optimization, test"):
            get_task("reviews").examples("dev")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ("Heads",), "label_words": ("heads",)}, "needs 2 or more"),
        ({"classes": ("Heads", "Heads")}, "repeat a name"),
        ({"label_words": ("heads",)}, "1 label words for 2 classes"),
        ({"label_words": ("heads", " ")}, "class 'Tails' has an empty label word"),
    ],
)
def test_malformed_tasks_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_task(**changes)


def test_a_task_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        get_task("reviews").name = "other"  # type: ignore[misc]
