"""What a sweep is made of: table requests, and the cells that are tuned on them.

Both are named by the hash of their canonical JSON, so that finished work is recognised on any
machine and never done twice.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dcs.methods import get_method
from dcs.prompting import Shots
from workflows.config import SweepConfig, TunerSettings
from workflows.scoring import ScoringSettings

__all__ = ["Cell", "TableRequest", "cells_of", "content_key", "table_requests"]


def content_key(content: Mapping[str, Any]) -> str:
    """Return the hash of the canonical JSON of `content`: 32 hexadecimal digits."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class TableRequest:
    """The class probabilities of one model on one task, prompted in one way.

    Attributes
    ----------
    model, task : str
        Names as in the configuration.
    shots : int or "N"
        Demonstrations per prompt.
    seed : int
        Root seed; the demonstrations derive theirs from it.
    limit : int or None
        At most so many texts of each split.
    data : str or None
        Folder with the texts of a task that comes without them.
    scoring : ScoringSettings
        The engine and its options.
    """

    model: str
    task: str
    shots: Shots
    seed: int
    limit: int | None
    data: str | None = None
    scoring: ScoringSettings = ScoringSettings()

    @property
    def label(self) -> str:
        """A short name for people."""
        return f"{self.model} {self.task} {self.shots}-shot seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Cell:
    """The unit of work, of retry, of resume, and of an MLflow run.

    Attributes
    ----------
    model, task : str
        Where the probabilities come from.
    shots : int, "N" or None
        Demonstrations per prompt; None where the source does not say.
    seed : int
        Root seed of split, annealing and sampler.
    method : str
        Correction method.
    tuner : TunerSettings or None
        None for a method that has nothing to tune.
    optimization_digest, test_digest : str
        Content hashes of the two tables.
    """

    model: str
    task: str
    shots: Shots | None
    seed: int
    method: str
    tuner: TunerSettings | None
    optimization_digest: str
    test_digest: str

    @property
    def identity(self) -> dict[str, Any]:
        """All that decides the result, as plain JSON values."""
        values: dict[str, Any] = {
            name: getattr(self, name) for name in self.__slots__ if name != "tuner"
        }
        return values | {"tuner": self.tuner.model_dump() if self.tuner else None}

    @property
    def key(self) -> str:
        """Hash of :attr:`identity`."""
        return content_key(self.identity)

    @property
    def label(self) -> str:
        """A short name for people."""
        shots = "" if self.shots is None else f" {self.shots}-shot"
        return f"{self.method} {self.task}{shots} seed {self.seed} {self.model}"


def table_requests(config: SweepConfig) -> list[TableRequest]:
    """Return every table that a sweep needs, in the order of the configuration."""
    return [
        TableRequest(
            model=model,
            task=task,
            shots=shots,
            seed=seed,
            limit=config.limit,
            data=config.data,
            scoring=config.scoring,
        )
        for model, task, shots, seed in itertools.product(
            config.models, config.tasks, config.shots, config.seeds
        )
    ]


def cells_of(request: TableRequest, config: SweepConfig, digests: Mapping[str, str]) -> list[Cell]:
    """Return the cells of a sweep that are tuned on one table.

    Parameters
    ----------
    request : TableRequest
        How the table came about.
    config : SweepConfig
        The sweep.
    digests : mapping of str to str
        Content hashes of the ``optimization`` and ``test`` tables.
    """
    return [
        Cell(
            model=request.model,
            task=request.task,
            shots=request.shots,
            seed=request.seed,
            method=method,
            tuner=config.tuner if get_method(method).searches else None,
            optimization_digest=digests["optimization"],
            test_digest=digests["test"],
        )
        for method in config.methods
    ]
