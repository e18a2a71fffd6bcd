"""Ray actors that hold a language model and turn table requests into probability tables."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Any

from dcs.data.table import ProbabilityTable
from dcs.errors import ScoringError
from dcs.io import content_key
from dcs.prompting import SPLITS, get_task, prompt_hash, select_demonstrations
from dcs.scoring import Scorer, StoredScorer
from dcs.scoring.cache import ShardStore
from dcs.scoring.generation import generate_tables
from workflows.cells import TableRequest
from workflows.cluster.parallel import one_thread
from workflows.config.scoring import ScoringSettings
from workflows.tables import ProbabilityStore, Scoring

__all__ = ["ScoringActor", "request_key", "scorer_facts", "texts_key"]


def request_key(request: TableRequest, *, known: dict[Any, Any] | None = None) -> str:
    """Return the hash of all that decides the numbers of a table.

    Computed without loading the model, so that a finished sweep is recognised at once.

    Parameters
    ----------
    request : TableRequest
        What is asked for.
    known : dict, optional
        Give the same one, empty at first, for many requests: what they have in common, such as
        the texts of a task, is then looked at once.

    Raises
    ------
    DCSError
        The task or model is not known.
    """
    known = {} if known is None else known
    engine = (request.model, request.scoring)
    if engine not in known:
        known[engine] = request.scoring.identity(request.model)
    return content_key({**known[engine], **_texts_of(request, known)})


def texts_key(request: TableRequest, *, known: dict[Any, Any] | None = None) -> str:
    """Return the hash of what a model is asked, whichever it is: the part that files decide.

    Parameters
    ----------
    request : TableRequest
        What is asked for.
    known : dict, optional
        As in :func:`request_key`.

    Raises
    ------
    DCSError
        The task is not known.
    """
    return content_key(_texts_of(request, {} if known is None else known))


def _texts_of(request: TableRequest, known: dict[Any, Any]) -> dict[str, Any]:
    task = get_task(request.task, request.data)
    demonstrations = select_demonstrations(task, request.shots, seed=request.seed)
    texts = (request.task, request.data)
    if texts not in known:
        known[texts] = {
            split: content_key({"rows": [[e.id, e.text, e.label] for e in task.examples(split)]})
            for split in SPLITS
        }
    return {
        "prompt": prompt_hash(task, demonstrations),
        "limit": request.limit,
        "examples": known[texts],
    }


def scorer_facts(scorer: Scorer) -> dict[str, str]:
    """Return which numbers a loaded model gives, as it turned out when it was loaded."""
    return {
        "scorer": scorer.name,
        "version": scorer.version,
        "revision": scorer.revision,
        **scorer.settings,
    }


class ScoringActor:
    """Holds one model; made a Ray actor where it is started, with the GPUs its engine needs.

    Parameters
    ----------
    model : str
        A local folder, a hub id, or ``tiny_lm``.
    store : pathlib.Path
        Where tables are kept, on a file system that all nodes share.
    gpus : float
        GPUs that the actor holds.
    scoring : ScoringSettings
        The engine and its options.
    """

    def __init__(
        self,
        model: str,
        store: Path,
        gpus: float,
        scoring: ScoringSettings = ScoringSettings(),  # noqa: B008 - frozen
    ) -> None:
        # By default beside the tables: what an actor that died has scored, the next one finds.
        shards = ShardStore(scoring.store or store.parent / "shards")
        self._scorer = StoredScorer(scoring.load(model), shards)
        self._gpus = gpus
        self._store = ProbabilityStore(store)

    @one_thread()
    def generate(
        self, request: TableRequest, key: str, texts: str | None = None
    ) -> tuple[dict[str, ProbabilityTable], Scoring]:
        """Score both splits of a request and keep them.

        Parameters
        ----------
        request : TableRequest
            What is asked for.
        key : str
            Its :func:`request_key`, under which the tables are kept.
        texts : str, optional
            Its :func:`texts_key`, as the driver has it.

        Returns
        -------
        tables : dict of str to ProbabilityTable
            By split.
        scoring : Scoring
            The note kept beside them. An object of its own, so that a driver which shares the
            file system reads no more than that.

        Raises
        ------
        ScoringError
            The texts on this machine are not those of the driver.
        """
        if texts is not None and texts != texts_key(request):
            # Kept under the key, the table would be taken for that of the driver's texts.
            raise ScoringError(
                f"task {request.task} has other texts on {platform.node()} now than the sweep "
                f"began with{'' if request.data is None else f' ({request.data})'}; give every "
                "node the same files and run the same command again"
            )
        clock = time.perf_counter()
        task = get_task(request.task, request.data)
        tables = generate_tables(
            self._scorer,
            task,
            shots=request.shots,
            seed=request.seed,
            limit=request.limit,
        )
        shown = select_demonstrations(task, request.shots, seed=request.seed)
        scoring = self._store.write(
            key,
            tables,
            model=request.model,
            seconds=time.perf_counter() - clock,
            gpus=self._gpus,
            scorer=scorer_facts(self._scorer),
            demonstrations=[example.id for example in shown.examples],
            remarks=self._scorer.report(),
        )
        return dict(tables), scoring

    def close(self) -> None:
        """Free the model's memory, GPUs included, before the process ends."""
        self._scorer.close()

    def __ray_shutdown__(self) -> None:
        """Close, when the driver lets go of the actor and Ray calls this."""
        self.close()
