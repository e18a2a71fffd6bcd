"""What `dcs generate` does for a pair of tables, and what is said of costs before it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dcs.data.table import ProbabilityTable
from dcs.errors import TableError
from dcs.io import atomic_write_text, content_key
from dcs.prompting import (
    SPLITS,
    Shots,
    Task,
    get_task,
    prompt_hash,
    render_prefix,
    render_query,
    select_demonstrations,
)
from dcs.scoring import Progress, Scorer, is_served
from dcs.scoring.generation import generate_tables, queries_of
from workflows.cli._console import console
from workflows.cluster.workers import scorer_facts

if TYPE_CHECKING:
    from workflows.plan import SweepPlan

__all__ = ["TablePair", "announce", "announce_sweep"]

Prompts = tuple[Task, Shots, int, int | None]

_NOTE = "generation.json"


def announce(
    scorer: Scorer, prompts: Iterable[Prompts], *, price: float | None, yes: bool
) -> None:
    """Say what a served model will be asked, and what that costs, before the first prompt.

    Parameters
    ----------
    scorer : Scorer
        The engine; nothing is said of one that runs here.
    prompts : iterable of (Task, shots, seed, limit)
        What is to be scored.
    price : float or None
        Of a million prompt tokens.
    yes : bool
        Whether to go on without asking. Nobody is asked where there is no terminal.

    Raises
    ------
    click.exceptions.Abort
        The person at the terminal said no.
    """
    estimate = getattr(scorer, "estimate", None)
    if estimate is None:
        return
    requests = tokens = 0
    bases = set()
    for task, shots, seed, limit in prompts:
        shown = select_demonstrations(task, shots, seed=seed)
        for split in SPLITS:
            queries = [render_query(task, e.text) for e in queries_of(task, shown, split, limit)]
            part = estimate(render_prefix(task, shown), queries, task.label_words)
            requests += part.requests
            tokens += part.tokens
            bases.add(part.basis)
    cost = "" if price is None else f", about {tokens / 1e6 * price:.2f} at {price} a million"
    console.print(
        f"{scorer.model} at {getattr(scorer, 'base_url', scorer.name)}: at most {requests} "
        f"requests, about {tokens:,} prompt tokens ({'; '.join(sorted(bases))}){cost}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if price and not yes and sys.stdin.isatty():
        typer.confirm("Send them?", abort=True)


def announce_sweep(plan: SweepPlan, *, yes: bool) -> None:
    """Say what a server will be asked for the tables that a sweep lacks; see :func:`announce`."""
    scoring = plan.config.scoring
    if not is_served(scoring.engine):
        return
    by_model: dict[str, list[Prompts]] = {}
    for request in plan.missing_tables.values():
        task = get_task(request.task, request.data)
        prompts = (task, request.shots, request.seed, request.limit)
        by_model.setdefault(request.model, []).append(prompts)
    for model, prompts_of in by_model.items():
        announce(scoring.load(model), prompts_of, price=scoring.price, yes=yes)


@dataclass(frozen=True, slots=True)
class TablePair:
    """The optimization and test tables of one prompt, in a folder of their own.

    Attributes
    ----------
    folder : pathlib.Path
        Where they go: ``tables/<task>_<model>_shot<k>_seed<s>``.
    task : Task
        The task.
    shots : int or "N"
        Demonstrations.
    seed : int
        Their seed.
    limit : int or None
        At most so many texts of each split.
    key : str
        Hash of all that decides the numbers.
    """

    folder: Path
    task: Task
    shots: Shots
    seed: int
    limit: int | None
    key: str

    @classmethod
    def plan(
        cls,
        output: Path,
        task: Task,
        *,
        model: str,
        identity: dict[str, Any],
        shots: Shots,
        seed: int,
        limit: int | None,
    ) -> TablePair:
        """Say where the tables go and what they depend on."""
        name = re.sub(r"[^\w.-]+", "-", Path(model).name if Path(model).exists() else model)
        texts = {
            split: [[e.id, e.text, e.label] for e in task.examples(split)] for split in SPLITS
        }
        key = content_key(
            identity
            | {
                "prompt": prompt_hash(task, select_demonstrations(task, shots, seed=seed)),
                "texts": content_key({"rows": texts}),
                "limit": limit,
            }
        )
        folder = output / "tables" / f"{task.name}_{name}_shot{shots}_seed{seed}"
        return cls(folder, task, shots, seed, limit, key)

    def path(self, split: str) -> Path:
        """Return the file of a table."""
        return self.folder / f"{split}.parquet"

    def is_done(self) -> bool:
        """Return whether both tables are there, whole, and of this very request."""
        try:
            note = json.loads((self.folder / _NOTE).read_text(encoding="utf-8"))
            return note["key"] == self.key and all(
                ProbabilityTable.read(self.path(split)).digest == note["digests"][split]
                for split in SPLITS
            )
        except (OSError, ValueError, KeyError, TypeError, TableError):
            return False

    def generate(self, scorer: Scorer, progress: Progress) -> None:
        """Score what is not in the store and write both tables, the note of them last."""
        tables = generate_tables(
            scorer,
            self.task,
            shots=self.shots,
            seed=self.seed,
            limit=self.limit,
            progress=progress,
        )
        for split in SPLITS:
            tables[split].write(self.path(split))
        shown = select_demonstrations(self.task, self.shots, seed=self.seed)
        note = {
            "key": self.key,
            "digests": {split: table.digest for split, table in tables.items()},
            "scorer": scorer_facts(scorer),
            "demonstrations": [asdict(example) for example in shown.examples],
            "provenance": asdict(tables["test"].provenance),
        }
        text = json.dumps(note, indent=1, sort_keys=True)
        atomic_write_text(self.folder / _NOTE, f"{text}\n")
