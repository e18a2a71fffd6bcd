"""What `dcs generate` does for one table pair, and how it tells that it was done earlier."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dcs._files import atomic_write_text
from dcs.errors import TableError
from dcs.generation import generate_tables
from dcs.probabilities import ProbabilityTable
from dcs.prompting import SPLITS, Shots, Task, prompt_hash, select_demonstrations
from dcs.scorers import Progress, Scorer, resolve_model
from workflows.cells import content_key

__all__ = ["TablePair", "engine_identity"]

_NOTE = "generation.json"
_PACKAGES = {"transformers": ("transformers", "torch"), "vllm": ("vllm", "torch"), "openai": ()}


def engine_identity(model: str, engine: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return what decides a model's numbers, as far as it shows without loading it."""
    versions = {}
    for package in _PACKAGES.get(engine, ()):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    named = model
    if engine != "openai":
        reference = resolve_model(model)
        named = reference.revision or reference.location
    return {"model": named, "engine": engine, "versions": versions, "options": options}


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
        note = {
            "key": self.key,
            "digests": {split: table.digest for split, table in tables.items()},
            "provenance": asdict(tables["test"].provenance),
        }
        text = json.dumps(note, indent=1, sort_keys=True)
        atomic_write_text(self.folder / _NOTE, f"{text}\n")
