from __future__ import annotations

import hashlib

import numpy as np
import pytest

from dcs.errors import ConfigError
from dcs.prompting import SPLITS, Example, Task, get_task, register_task, task_names
from dcs.prompting.generated import write_split

BUILT_IN = ("helpdesk", "reviews")


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


OLD_COINS = make_task(name="old-coins", title="Other coins")


@pytest.mark.parametrize("name", BUILT_IN)
class TestBuiltIn:
    def test_sizes(self, name: str) -> None:
        task = get_task(name)
        assert len(task.examples("optimization")) >= 2000
        assert len(task.examples("test")) >= 1000

    def test_texts_are_short_and_occur_once(self, name: str) -> None:
        examples = [e for split in SPLITS for e in get_task(name).examples(split)]
        assert len({e.text for e in examples}) == len({e.id for e in examples}) == len(examples)
        for example in examples:
            assert 12 <= len(example.text.split()) <= 25
            assert not {"\n", "{"} & set(example.text)

    def test_every_class_occurs_and_none_rules(self, name: str) -> None:
        task = get_task(name)
        for split in SPLITS:
            labels = [e.label for e in task.examples(split)]
            shares = np.bincount(labels, minlength=task.n_classes) / len(labels)
            assert shares.min() > 0.05
            assert shares.max() < 0.4


def test_texts_stay_as_published() -> None:
    # Every figure in the documentation rests on these texts; change them knowingly.
    digest = hashlib.sha256()
    for name in BUILT_IN:
        for split in SPLITS:
            for example in get_task(name).examples(split):
                digest.update(f"{example.id}\t{example.label}\t{example.text}\n".encode())
    assert digest.hexdigest()[:16] == "801cf55737b4e086"


def test_test_split_avoids_the_optimization_texts() -> None:
    words = ("one two three four five six seven eight nine ten eleven twelve", "thirteen" * 2)

    def write(rng: np.random.Generator, label: int) -> str:
        # Forty texts in all, so that any carelessness shows.
        return f"{words[0]} {label} {int(rng.random() * 20)}"

    sizes = {"optimization": 20, "test": 15}
    parts = {
        split: {
            e.text
            for e in write_split("few", split, sizes=sizes, weights=(1.0, 1.0), write=write)  # type: ignore[arg-type]
        }
        for split in SPLITS
    }
    assert [len(parts[split]) for split in SPLITS] == [20, 15]
    assert not parts["optimization"] & parts["test"]


class TestRegistry:
    """Names of tasks; each test registers another, since they stay until the process ends."""

    def test_unknown_names(self) -> None:
        with pytest.raises(ConfigError, match="'helpdeks'.*'helpdesk'"):
            get_task("helpdeks")
        with pytest.raises(ConfigError, match="'dev'"):
            get_task("reviews").examples("dev")  # type: ignore[arg-type]

    def test_a_new_task_is_found_by_name(self) -> None:
        task = make_task(name="new-coins")
        register_task(task)
        register_task(task)  # the same again is no conflict
        assert get_task("new-coins") is task
        assert task_names()[:2] == BUILT_IN
        assert "new-coins" in task_names()

    @pytest.mark.parametrize("name", ["reviews", "trec", "old-coins"])
    def test_a_taken_name_is_refused(self, name: str) -> None:
        register_task(OLD_COINS)
        with pytest.raises(ConfigError, match=name):
            register_task(make_task(name=name))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../coins"},
        {"classes": ("Heads",), "label_words": ("heads",)},
        {"classes": ("Heads", "Heads")},
        {"label_words": ("heads",)},
        {"label_words": ("heads", " ")},
    ],
)
def test_malformed_tasks_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="coins"):
        make_task(**changes)
