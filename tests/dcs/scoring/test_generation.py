from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

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
from dcs.scoring import Progress
from dcs.scoring.generation import count_queries, generate_tables

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


class Clerk:
    """A scorer without a model: reads the number in the query, and notes what it was asked."""

    name, version, model, revision = "clerk", "1", "abacus", "r7"

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []

    def score(
        self,
        prefix: str,
        queries: Sequence[str],
        label_words: Sequence[str],
        *,
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        self.asked.append((prefix, tuple(queries), tuple(label_words)))
        if progress is not None:
            progress(len(queries))
        odd = np.array([int(query.split()[1]) % 2 for query in queries])
        return np.stack([0.75 - 0.5 * odd, 0.25 + 0.5 * odd], axis=1)

    def close(self) -> None:
        pass


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
    assert {prefix for prefix, _, _ in clerk.asked} == {render_prefix(TASK, shown)}
    assert sum(steps) == count_queries(TASK, shots=shots, seed=seed)
    for split, (_, queries, words) in zip(tables, clerk.asked, strict=True):
        table = tables[split]
        assert table.classes == TASK.classes
        assert words == TASK.label_words
        np.testing.assert_array_equal(table.probs.argmax(axis=1), table.labels)
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
