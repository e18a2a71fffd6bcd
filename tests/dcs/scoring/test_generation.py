from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dcs.errors import ConfigError, SchemeError, ScoringError
from dcs.prompting.tasks import (
    SPLITS,
    Example,
    Shots,
    prompt_hash,
    render_prefix,
    render_query,
    select_demonstrations,
)
from dcs.schemes.scheme import CorrectionScheme
from dcs.scoring.generation import PromptSet, ScoredBy, generate_tables
from tests.dcs.prompting.test_tasks import COINS
from tests.dcs.refusals import refuses
from tests.dcs.scoring.clerk import Clerk


def _both(split: str) -> tuple[Example, ...]:
    count = 12 if split == "optimization" else 7
    return tuple(Example(f"{split}-{i}", f"{i} of {split}", i % 2) for i in range(count))


TASK = dataclasses.replace(COINS, examples=_both)


@pytest.mark.parametrize("shots", [0, 1, 5, "N"])
@pytest.mark.parametrize("seed", [0, 1])
def test_tables(shots: Shots, seed: int) -> None:
    clerk, steps = Clerk(), list[int]()
    tables = generate_tables(clerk, TASK, shots=shots, seed=seed, progress=steps.append)
    shown = select_demonstrations(TASK, shots, seed=seed)
    assert tuple(tables) == SPLITS
    ((prefix, queries, words),) = clerk.calls
    assert sum(steps) == len(queries) == len({*queries})
    assert prefix == render_prefix(TASK, shown)
    for split in SPLITS:
        table = tables[split]
        asked = [e for e in TASK.examples(split) if e not in shown.examples]
        assert (words, table.classes) == (TASK.label_words, TASK.classes)
        assert table.ids == tuple(e.id for e in asked)
        assert table.labels.tolist() == [e.label for e in asked]
        queries = [render_query(TASK, e.text) for e in asked]
        np.testing.assert_array_equal(table.probs, Clerk.probs(prefix, queries, 2))
        about = {"model": "abacus", "revision": "r7", "scorer": "clerk", "scorer_version": "1"}
        about |= {"task": "coins", "prompt_hash": prompt_hash(TASK, shown)}
        drawn = {"shots": shots, "demonstration_seed": seed, "split": split}
        found = table.provenance.to_dict()
        assert found.pop("prompt")["task"] == TASK.file.described
        assert found == about | drawn


def test_a_scheme_has_the_classes_of_its_prompt() -> None:
    tables = generate_tables(Clerk(), TASK, shots=1, seed=0)
    about = {"table": tables["test"].provenance.to_dict()}
    for classes in (("x", "y"), (*TASK.classes, "edge")):
        changed = CorrectionScheme.identity(classes, provenance=about)
        refuses(SchemeError, ScoredBy.of, changed, names=["classes"])


class Votes(Clerk):
    settings = {"votes": "3"}  # noqa: RUF012

    @staticmethod
    def probs(prefix: object, queries: Sequence[str], n_classes: int) -> NDArray[np.float64]:
        return np.tile([2.0, 1.0], (len(queries), 1))


def test_votes_are_smoothed() -> None:
    for table in generate_tables(Votes(), TASK, shots=2, seed=0).values():
        np.testing.assert_allclose(table.probs, [[0.625, 0.375]] * table.n_rows)


def test_limit_and_too_many_shots() -> None:
    tables = generate_tables(Clerk(), TASK, shots=2, seed=0, limit=3)
    whole = generate_tables(Clerk(), TASK, shots=2, seed=0)
    for split, table in tables.items():
        assert table.ids == whole[split].ids[:3]
    refuses(ConfigError, PromptSet.select, TASK, shots=2, seed=0, limit=0, names=["limit 0"])
    refuses(ConfigError, PromptSet.select, TASK, shots=12, seed=0, names=["coins"])


@pytest.mark.parametrize("wrong", [np.transpose, np.ndarray.tolist, lambda probs: probs[:1]])
def test_an_engine_returns_a_row_per_prompt(wrong: Callable[[NDArray[np.float64]], Any]) -> None:
    class Careless(Clerk):
        def score(self, *prompts: Any, **options: Any) -> Any:
            return wrong(super().score(*prompts, **options))

    refuses(ScoringError, generate_tables, Careless(), TASK, shots=2, seed=0, names=["clerk"])
