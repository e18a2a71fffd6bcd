"""Ray actors that hold a language model and turn table requests into probability tables."""

from __future__ import annotations

import time
from importlib.metadata import version
from pathlib import Path

from dcs.generation import generate_tables
from dcs.probabilities import ProbabilityTable
from dcs.prompting import SPLITS, get_task, prompt_hash, select_demonstrations
from dcs.scorers import StoredScorer, load_scorer, resolve_model
from dcs.store import ShardStore
from workflows.cells import TableRequest, content_key
from workflows.stores import ProbabilityStore, Scoring

__all__ = ["ScoringActor", "request_key"]


def request_key(request: TableRequest) -> str:
    """Return the hash of all that decides the numbers of a table.

    Computed without loading the model, so that a finished sweep is recognised at once.

    Raises
    ------
    DCSError
        The task or model is not known.
    """
    task = get_task(request.task, request.data)
    model = resolve_model(request.model)
    demonstrations = select_demonstrations(task, request.shots, seed=request.seed)
    return content_key(
        {
            "model": model.revision or model.location,
            "engine": {name: version(name) for name in ("transformers", "torch")},
            "prompt": prompt_hash(task, demonstrations),
            "limit": request.limit,
            "examples": {
                split: content_key(
                    {"rows": [[e.id, e.text, e.label] for e in task.examples(split)]}
                )
                for split in SPLITS
            },
        }
    )


class ScoringActor:
    """Holds one model; made a Ray actor where it is started, with a GPU if there is one.

    Parameters
    ----------
    model : str
        A local folder, a hub id, or ``tiny_lm``.
    store : pathlib.Path
        Where tables are kept, on a file system that all nodes share.
    gpus : float
        GPUs that the actor holds.
    """

    def __init__(self, model: str, store: Path, gpus: float) -> None:
        # Beside the tables: what an actor that died has scored, the next one finds there.
        shards = ShardStore(store.parent / "shards")
        self._scorer = StoredScorer(load_scorer(model), shards)
        self._gpus = gpus
        self._store = ProbabilityStore(store)

    def generate(
        self, request: TableRequest, key: str
    ) -> tuple[dict[str, ProbabilityTable], Scoring]:
        """Score both splits of a request and keep them.

        Returns
        -------
        tables : dict of str to ProbabilityTable
            By split.
        scoring : Scoring
            The note kept beside them. An object of its own, so that a driver which shares the
            file system reads no more than that.
        """
        clock = time.perf_counter()
        tables = generate_tables(
            self._scorer,
            get_task(request.task, request.data),
            shots=request.shots,
            seed=request.seed,
            limit=request.limit,
        )
        scoring = self._store.write(
            key,
            tables,
            model=request.model,
            seconds=time.perf_counter() - clock,
            gpus=self._gpus,
        )
        return dict(tables), scoring
