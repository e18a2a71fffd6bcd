from __future__ import annotations

import pytest

from dcs.errors import ConfigError
from dcs.prompting import (
    Demonstrations,
    Example,
    Shots,
    Task,
    get_task,
    parse_shots,
    prompt_hash,
    render_prefix,
    render_query,
    select_demonstrations,
)

TASK = Task(
    name="coins",
    title="Heads or tails",
    classes=("Heads", "Tails"),
    label_words=("heads", "tails"),
    instruction="Say which side is up.",
    input_prefix="Coin:",
    answer_prefix="Side:",
    source=lambda split: tuple(
        Example(id=f"{split}-{i}", text=f"coin {i} of {split}", label=0) for i in range(4)
    ),
)
SHOWN = Demonstrations(
    examples=(Example("a", "a bright coin", 1), Example("b", "a dull coin", 0)), shots=2, seed=0
)


@pytest.mark.parametrize(
    ("value", "shots"), [("1", 1), ("5", 5), ("N", "N"), ("n", "N"), (0, 0), (" 12 ", 12)]
)
def test_shots(value: str | int, shots: Shots) -> None:
    assert parse_shots(value) == shots


@pytest.mark.parametrize("value", ["-1", "", "1.5", "all", True])
def test_other_shots_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="shots") as caught:
        parse_shots(value)
    assert repr(value) in str(caught.value)


class TestSelection:
    @pytest.mark.parametrize("name", ["helpdesk", "reviews"])
    @pytest.mark.parametrize("shots", [0, 1, 5, "N"])
    def test_seeded(self, name: str, shots: Shots) -> None:
        task = get_task(name)
        chosen = [select_demonstrations(task, shots, seed=seed) for seed in range(8)]
        assert chosen[3] == select_demonstrations(task, shots, seed=3)
        expected = task.n_classes if shots == "N" else shots
        assert all(len(c.examples) == expected for c in chosen)
        if shots:
            assert len({c.texts for c in chosen}) == 8

    @pytest.mark.parametrize("name", ["helpdesk", "reviews"])
    def test_n_shot_shows_each_class_once_in_changing_order(self, name: str) -> None:
        task = get_task(name)
        orders = set()
        for seed in range(8):
            labels = [e.label for e in select_demonstrations(task, "N", seed=seed).examples]
            assert sorted(labels) == list(range(task.n_classes))
            orders.add(tuple(labels))
        assert len(orders) > 1

    def test_one_shot_does_not_always_show_the_same_class(self) -> None:
        task = get_task("helpdesk")
        labels = {select_demonstrations(task, 1, seed=s).examples[0].label for s in range(30)}
        assert len(labels) == 6

    def test_demonstrations_are_different_optimization_texts(self) -> None:
        task = get_task("reviews")
        shown = select_demonstrations(task, 40, seed=1)
        assert len(shown.texts) == 40
        assert shown.texts <= {e.text for e in task.examples("optimization")}

    @pytest.mark.parametrize(("shots", "named"), [(5, "shots 5"), ("N", "Tails")])
    def test_too_few_texts(self, shots: Shots, named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            select_demonstrations(TASK, shots, seed=0)


class TestPrompt:
    def test_form(self) -> None:
        assert render_prefix(TASK, SHOWN) + render_query(TASK, "a new coin") == (
            "Say which side is up.\n\n"
            "Coin: a bright coin\nSide: tails\n\n"
            "Coin: a dull coin\nSide: heads\n\n"
            "Coin: a new coin\nSide:"
        )

    def test_zero_shot_is_the_instruction_alone(self) -> None:
        nothing = Demonstrations(examples=(), shots=0, seed=0)
        assert render_prefix(TASK, nothing) == "Say which side is up.\n\n"

    def test_hash_knows_all_but_the_query(self) -> None:
        task = get_task("reviews")
        hashes = {
            prompt_hash(t, select_demonstrations(t, shots, seed=seed))
            for t in (task, get_task("helpdesk"))
            for shots in (1, "N")
            for seed in (0, 1)
        }
        assert len(hashes) == 8
        swapped = Demonstrations(examples=SHOWN.examples[::-1], shots=2, seed=0)
        assert prompt_hash(TASK, swapped) != prompt_hash(TASK, SHOWN)
