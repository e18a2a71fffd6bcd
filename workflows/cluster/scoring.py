"""The Ray actors that hold a language model and turn table requests into probability tables."""

from __future__ import annotations

import platform
import time
from pathlib import Path

from dcs.data.table import ProbabilityTable
from dcs.errors import DCSError, ScoringError
from dcs.prompting import get_task, select_demonstrations
from dcs.scoring import Progress, StoredScorer
from dcs.scoring.generation import generate_tables
from workflows.config.scoring import ScoringSettings
from workflows.parallel import Heartbeat, one_thread
from workflows.tables import ProbabilityStore, Scoring, TableRequest, texts_key


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
    heartbeat : Heartbeat, optional
        Of its process, from before the model is loaded.
    """

    def __init__(
        self,
        model: str,
        store: Path,
        gpus: float,
        scoring: ScoringSettings = ScoringSettings(),  # noqa: B008 - frozen
        heartbeat: Heartbeat | None = None,
    ) -> None:
        if heartbeat is not None:
            heartbeat.keep()
        # By default beside the tables: what an actor that died has scored, the next one finds.
        kept = scoring.store or store.parent / "shards"
        try:
            self._loaded: StoredScorer | DCSError = StoredScorer(scoring.load(model), kept)
        except DCSError as error:
            # Not raised here: Ray would show the traceback on the terminal.
            self._loaded = error
        self._gpus = gpus
        self._store = ProbabilityStore(store)

    @property
    def scorer(self) -> StoredScorer:
        """What scores; raises the DCSError for which the model could not be loaded."""
        if isinstance(self._loaded, DCSError):
            raise self._loaded
        return self._loaded

    @one_thread()
    def generate(
        self,
        request: TableRequest,
        key: str,
        texts: str | None = None,
        progress: Progress | None = None,
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
        progress : callable, optional
            Called with the number of texts just scored.

        Returns
        -------
        tables : dict of str to ProbabilityTable
            By split.
        scoring : Scoring
            The note kept beside them. An object of its own, so that a driver which shares the
            file system reads no more than that.

        Raises
        ------
        DCSError
            The model cannot be loaded, or the texts on this machine are not those of the driver.
        """
        if texts is not None and texts != texts_key(request):
            # Kept under the key, the table would be taken for that of the driver's texts.
            raise ScoringError(
                f"task {request.task} has other texts on {platform.node()} now than the sweep "
                f"began with{'' if request.data is None else f' ({request.data})'}; give every "
                "node the same files and run the same command again"
            )
        clock, scorer = time.perf_counter(), self.scorer
        scored, tokens = scorer.scored, scorer.tokens_read
        tables = generate_tables(scorer, **request.prompted, progress=progress)
        task = get_task(request.task, request.data)
        shown = select_demonstrations(task, request.shots, seed=request.seed)
        scoring = self._store.write(
            key,
            tables,
            model=request.model,
            seconds=time.perf_counter() - clock,
            gpus=self._gpus,
            scorer={
                "scorer": scorer.name,
                "version": scorer.version,
                "revision": scorer.revision,
                **scorer.settings,
            },
            demonstrations=[example.id for example in shown.examples],
            remarks=scorer.report(),
            scored=scorer.scored - scored,
            tokens=scorer.tokens_read - tokens,
        )
        return dict(tables), scoring

    def close(self) -> None:
        """Free the model's memory, GPUs included, before the process ends."""
        if isinstance(self._loaded, StoredScorer):
            self._loaded.close()

    def __ray_shutdown__(self) -> None:
        """Close, when the driver lets go of the actor and Ray calls this."""
        self.close()
