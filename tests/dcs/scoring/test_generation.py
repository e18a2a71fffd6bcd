from __future__ import annotations

import numpy as np
import pytest

from dcs.errors import ConfigError
from dcs.prompting import (
    Example,
    Shots,
    Task,
    prompt_hash,
    render_prefix,
    render_query,
    select_demonstrations,
)
from dcs.scoring.generation import count_queries, generate_tables
from tests.dcs.scoring.clerk import Clerk

TASK = Task(
    name="parity",
    title="Even or odd",
    classes=("Even", "Odd"),
    label_words=("even", "odd"),
    instruction="",
    input_prefix="Number:",
    answer_prefix="Parity:",
    source=lambda split: tuple(
        Example(id=f"{split}-{i}", text=f"{i} of {split}", label=i % 2)
        for i in range(12 if split == "optimization" else 7)
    ),
)


@pytest.mark.parametrize("shots", [0, 1, 5, "N"])
@pytest.mark.parametrize("seed", [0, 1])
def test_tables(shots: Shots, seed: int) -> None:
    clerk, steps = Clerk(), list[int]()
    tables = generate_tables(clerk, TASK, shots=shots, seed=seed, progress=steps.append)
    shown = select_demonstrations(TASK, shots, seed=seed)
    assert list(tables) == ["optimization", "test"]
    assert tables["optimization"].n_rows == 12 - len(shown.examples)
    assert tables["test"].n_rows == 7
    assert not {e.id for e in shown.examples} & set(tables["optimization"].ids)
    assert {prefix for prefix, _, _ in clerk.calls} == {render_prefix(TASK, shown)}
    assert sum(steps) == count_queries(TASK, shots=shots, seed=seed)
    for split, (prefix, queries, words) in zip(tables, clerk.calls, strict=True):
        table = tables[split]
        assert table.classes == TASK.classes
        assert words == TASK.label_words
        np.testing.assert_array_equal(table.probs, Clerk.probs(prefix, queries, 2))
        by_id = {e.id: e for e in TASK.examples(split)}  # type: ignore[arg-type]
        assert queries == tuple(render_query(TASK, by_id[i].text) for i in table.ids)
        assert [by_id[i].label for i in table.ids] == table.labels.tolist()
        assert table.provenance.to_dict() == {
            "model": "abacus",
            "revision": "r7",
            "task": "parity",
            "shots": shots,
            "demonstration_seed": seed,
            "split": split,
            "prompt_hash": prompt_hash(TASK, shown),
            "scorer": "clerk",
            "scorer_version": "1",
        }


def test_limit() -> None:
    tables = generate_tables(Clerk(), TASK, shots=2, seed=0, limit=3)
    whole = generate_tables(Clerk(), TASK, shots=2, seed=0)
    for split, table in tables.items():
        assert table.ids == whole[split].ids[:3]
    assert count_queries(TASK, shots=2, seed=0, limit=3) == 6
    with pytest.raises(ConfigError, match="limit 0"):
        generate_tables(Clerk(), TASK, shots=2, seed=0, limit=0)
