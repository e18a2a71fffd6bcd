"""Ray actors that hold a language model and score table requests."""

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
from workflows.parallel import one_thread
from workflows.tables import ProbabilityStore, Scoring, TableRequest, texts_key


class ScoringActor:
    """Hold one model; the driver starts it as a Ray actor with the GPUs that its engine needs.

    Parameters
    ----------
    model : str
        Local folder, hub id, or ``tiny_lm``.
    store : pathlib.Path
        Folder for tables, on a file system that all nodes share.
    gpus : float
        Number of GPUs of the actor.
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
        # By default next to the tables, so that a new actor reuses the scores of one that died.
        shards = scoring.store or store.parent / "shards"
        try:
            self._loaded: StoredScorer | DCSError = StoredScorer(scoring.load(model), shards)
        except DCSError as error:
            # Raised at first use instead: here Ray would print the traceback on the terminal.
            self._loaded = error
        self._gpus = gpus
        self._store = ProbabilityStore(store)

    @property
    def scorer(self) -> StoredScorer:
        """The loaded scorer; raises the DCSError that occurred while loading the model."""
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
        """Score and store both splits of a request.

        Parameters
        ----------
        request : TableRequest
            Request to score.
        key : str
            Its :func:`request_key`, under which the tables are stored.
        texts : str, optional
            Its :func:`texts_key` on the driver.
        progress : callable, optional
            Called with the number of texts just scored.

        Returns
        -------
        tables : dict of str to ProbabilityTable
            Tables by split.
        scoring : Scoring
            Note stored with the tables. A separate object, so that a driver which shares the file
            system fetches nothing else.

        Raises
        ------
        DCSError
            If the model cannot be loaded, or the texts on this machine differ from the driver's.
        """
        if texts is not None and texts != texts_key(request):
            # Stored under this key, the table would be mistaken for that of the driver's texts.
            raise ScoringError(
                f"task {request.task}: the texts on {platform.node()} differ from the planned ones"
                f"{'' if request.data is None else f' ({request.data})'}; put the same "
                "files on every node and run the same command again"
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
        """Free the memory of the model, including GPU memory, before the process ends."""
        if isinstance(self._loaded, StoredScorer):
            self._loaded.close()

    def __ray_shutdown__(self) -> None:
        """Close the model; called by Ray when the driver has released the actor."""
        self.close()
