"""Tables requested from a model, and their store.

The key of a request is the hash of everything that determines its numbers, so that scored tables
are recognised on any machine.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from filelock import FileLock

from dcs.data.table import ProbabilityTable
from dcs.errors import TableError, origin
from dcs.io import Strict, atomic_write, content_key, parse_json, read_text, validated
from dcs.prompting.files import get_task
from dcs.prompting.tasks import SPLITS, Shots, prompt_hash, select_demonstrations
from dcs.scoring import engine_trait
from dcs.scoring.generation import PromptSet
from dcs.selection.ensemble import joint_digest
from dcs_tracking.records import now_ms
from dcs_workflows.config.scoring import ScoringSettings
from dcs_workflows.config.sweep import PromptsConfig
from dcs_workflows.sources.joint import Origin, Rows, matched_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequest(Origin):
    """A request for the class probabilities of a model on a task with one prompt.

    Attributes
    ----------
    limit : int or None
        Maximum number of texts per split.
    data : str or None
        Folder with the texts of a task that is packaged without texts.
    scoring : ScoringSettings
        The scoring engine and its options.
    """

    shots: Shots
    limit: int | None
    data: str | None = None
    scoring: ScoringSettings = ScoringSettings()

    @property
    def label(self) -> str:
        """A short display name."""
        return f"{self.model} {self.task} {self.shots}-shot seed {self.seed}"

    @property
    def prompts(self) -> PromptSet:
        """The prompts of its tables."""
        task = get_task(self.task, self.data)
        return PromptSet.select(task, shots=self.shots, seed=self.seed, limit=self.limit)

    def stored(self, output: Path, known: dict[Any, Any]) -> StoredTables:
        """Return its tables in an output folder, which are complete if they still hold.

        The key tells no commit of a hub model, which is unknown before it is downloaded, nor how
        other texts are read. `known` is that of :func:`request_key`.
        """
        key, commit = request_key(self, known=known), ("commit", self.model, self.scoring)
        if commit not in known:
            known[commit] = self.scoring.commit(self.model)
        task, _ = known[self.task, self.data]
        now = {"reading": task.file.reading, "revision": known[commit]}
        return StoredTables(output, key, {name: own for name, own in now.items() if own})


def table_requests(config: PromptsConfig) -> list[TableRequest]:
    """Return the table requests of a configuration, in its order.

    Parameters
    ----------
    config : PromptsConfig
        A sweep, or the part of one that configures scoring.

    Returns
    -------
    list of TableRequest
        Ordered by models, then tasks, shots and seeds.
    """
    common: dict[str, Any] = {name: getattr(config, name) for name in ("limit", "data", "scoring")}
    axes = itertools.product(config.models, config.tasks, config.shots, config.seeds)
    return [
        TableRequest(model=model, task=task, shots=shots, seed=seed, **common)
        for model, task, shots, seed in axes
    ]


def expected_requests(requests: Iterable[TableRequest], *, local: bool = False) -> list[str]:
    """Return lines with the approximate number of requests to each server.

    Some servers return several samples per request, others take several for many label tokens.

    Parameters
    ----------
    requests : iterable of TableRequest
        Tables to score.
    local : bool
        Whether those to engines that run locally are counted, too.
    """
    counts: Counter[str] = Counter()
    for request in requests:
        scoring = request.scoring
        if local or engine_trait(scoring.engine, "served"):
            address = origin(scoring.base_url) if scoring.base_url else scoring.engine
            number = (scoring.votes or 1) * len(request.prompts.texts)
            counts[f"{request.model} at {address}"] += number
    return [f"{place}: about {number:,} requests" for place, number in counts.items()]


def request_key(request: TableRequest, *, known: dict[Any, Any] | None = None) -> str:
    """Return the hash of everything that determines the numbers of a table.

    Computed without loading the model, so that a finished sweep is recognised quickly.

    Parameters
    ----------
    request : TableRequest
        The request.
    known : dict, optional
        Cache shared by several calls, initially empty, so that common parts such as the texts of
        a task are hashed once.

    Raises
    ------
    DCSError
        If the task or model does not exist.
    """
    known = {} if known is None else known
    engine = (request.model, request.scoring)
    if engine not in known:
        known[engine] = request.scoring.identity(request.model)
    return content_key({**known[engine], **_hash_texts(request, known)})


def _hash_texts(request: TableRequest, known: dict[Any, Any]) -> dict[str, Any]:
    prompt = (request.task, request.data, request.shots, request.seed)
    texts = prompt[:2]
    if texts not in known:
        # Read once: looking for changes of the files takes longer than the rest.
        task = get_task(*texts)
        task = replace(task, examples=cache(task.examples))
        rows = {each: [[e.id, e.text, e.label] for e in task.examples(each)] for each in SPLITS}
        known[texts] = task, {split: content_key({"rows": own}) for split, own in rows.items()}
    task, examples = known[texts]
    if prompt not in known:
        demonstrations = select_demonstrations(task, request.shots, seed=request.seed)
        known[prompt] = prompt_hash(task, demonstrations)
    return {"prompt": known[prompt], "limit": request.limit, "examples": examples}


class Scoring(Strict):
    """Statistics and provenance of the scoring of a pair of tables.

    Attributes
    ----------
    seconds : float
        Wall-clock time.
    rows : int
        Number of prompts.
    scored : int
        Number of prompts scored by the model; the others were cached.
    tokens : int
        Number of tokens of the scored prompts; 0 if the engine does not count them.
    finished_ms : int
        End time in milliseconds since the epoch.
    gpus : float
        Number of GPUs reserved for that time.
    digests : dict of str to str
        Content hash of each table, by split.
    scorer : dict of str to str
        Engine, its version, the model's revision, and the precision and label rule used.
    remarks : list of str
        Report of the engine, e.g. on labels missing from server responses.
    missing : dict of str to str
        Why rows are missing that could not be scored, by id.
    """

    seconds: float
    rows: int
    gpus: float
    digests: dict[str, str]
    finished_ms: int
    scorer: dict[str, str] = {}
    remarks: list[str] = []
    missing: dict[str, str] = {}
    scored: int = 0
    tokens: int = 0

    @property
    def shortfall(self) -> list[str]:
        """What is missing from the tables, in lines for the user; empty if nothing is."""
        if not self.missing:
            return []
        name, why = next(iter(self.missing.items()))
        return [
            f"{len(self.missing)} of {self.rows + len(self.missing)} rows are missing, which the "
            f"same command tries again; {_RECORD} lists them: {name}: {why}"
        ]

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics to log to MLflow."""
        found = {
            "seconds": self.seconds,
            "prompts": self.rows,
            "gpus": self.gpus,
            "prompts_per_second": self.rows / max(self.seconds, 1e-9),
            "cache_hits": self.rows - self.scored,
            "tokens": self.tokens,
            "missing_rows": len(self.missing),
        }
        return {f"scoring/{name}": float(value) for name, value in found.items()}


#: File of the record of a scoring, in the folder of the tables.
_RECORD: Final = "scoring.json"


@dataclass(frozen=True, slots=True)
class StoredTables:
    """The pair of tables of a request, which may not exist yet, with a record of their scoring.

    Attributes
    ----------
    output : pathlib.Path
        The output folder.
    key : str
        The :func:`request_key` of the request.
    now : mapping of str to str
        What the record of a scoring would say now, where it says so.
    """

    output: Path
    key: str
    now: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Folder of their Parquet files; created by the first write."""
        return self.output / "probabilities" / self.key

    @property
    def files(self) -> Mapping[str, Path]:
        """File of the rows of each split."""
        return {str(split): self.folder / f"{split}.parquet" for split in SPLITS}

    @property
    def scoring(self) -> Scoring | None:
        """The record of the scoring, or None if it does not exist.

        The record is written last: if it exists, the tables are complete.

        Raises
        ------
        TableError
            If the record is damaged; names the file.
        """
        path = self.folder / _RECORD
        if not path.is_file() or not all(file.is_file() for file in self.files.values()):
            return None
        source = f"{path} (to score again, remove the folder {self.key})"
        content = parse_json(read_text(path, error=TableError), source=source, error=TableError)
        return validated(Scoring, content, source=source, error=TableError)

    @property
    def complete(self) -> bool:
        """Whether the tables exist, lack no row, and would be scored alike now."""
        if (scoring := self.scoring) is None or scoring.missing:
            return False
        return all(scoring.scorer.get(name, own) == own for name, own in self.now.items())

    @property
    def digests(self) -> Mapping[str, str]:
        """Content hash of the rows of each split; none until the tables exist."""
        return {} if (scoring := self.scoring) is None else scoring.digests

    def read(self) -> dict[str, ProbabilityTable]:
        """Return the optimization and the test rows.

        Raises
        ------
        TableError
            If a file does not exist, is damaged or has changed since it was scored; names it.
        """
        tables = {split: ProbabilityTable.read(file) for split, file in self.files.items()}
        for split, digest in self.digests.items():
            if tables[split].digest != digest:
                # Cells are keyed by the record, so their keys would not match the changed numbers.
                raise TableError(
                    f"{self.files[split]}: changed since it was scored; put the file back, "
                    f"or remove the folder {self.key} to have its tables scored again"
                )
        return tables

    def write(self, tables: Mapping[str, ProbabilityTable], **about: Any) -> Scoring:
        """Write both tables, each atomically; their record is written last, and returned."""
        scoring = Scoring(
            rows=sum(table.n_rows for table in tables.values()),
            digests={split: table.digest for split, table in tables.items()},
            finished_ms=now_ms(),
            **about,
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".lock"):
            for split, file in self.files.items():
                tables[split].write(file)
            atomic_write(self.folder / _RECORD, scoring.model_dump_json(indent=1))
        return scoring


@dataclass(frozen=True, slots=True)
class JointTables:
    """Stored tables of the same rows by name, which are tuned jointly and have no own file."""

    members: Mapping[str, StoredTables]
    files: Mapping[str, Path] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all tables exist and lack no row."""
        return all(each.complete for each in self.members.values())

    @property
    def digests(self) -> Mapping[str, str]:
        """Content hash of the rows of each split, of tables that all exist."""
        parts = [each.digests for each in self.members.values()]
        return {str(split): joint_digest(part[split] for part in parts) for split in SPLITS}

    def read(self) -> dict[str, Rows]:
        """Return the optimization and the test rows, with rows matched."""
        return matched_tables({name: each.read() for name, each in self.members.items()})
