"""Probability tables: those that are given, those asked of a model, and the store of these.

A request is named by the hash of all that decides its numbers, so that what was scored is
recognised on any machine.
"""

from __future__ import annotations

import glob
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from filelock import FileLock
from pydantic import TypeAdapter

from dcs.data.importers import read_tables, table_sources
from dcs.data.splits import stratified_split
from dcs.data.table import ProbabilityTable
from dcs.errors import ConfigError, TableError, one_line
from dcs.io import atomic_write_text, content_key, read_json
from dcs.prompting import (
    SPLITS,
    Shots,
    get_task,
    parse_shots,
    prompt_hash,
    select_demonstrations,
)
from dcs.seeds import derive_seed
from dcs.selection.ensemble import TableEnsemble
from workflows.config.scoring import ScoringSettings
from workflows.config.sweep import Grouping, PromptsConfig, SweepConfig, TableChoice

#: A table, or several of the same rows.
Rows: TypeAlias = ProbabilityTable | TableEnsemble


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Whose class probabilities cells are tuned on.

    Attributes
    ----------
    model, task : str
        Where the probabilities come from.
    shots : int, "N" or None
        Demonstrations per prompt; None where nothing says, or where they differ.
    seed : int
        Root seed of the cells; the demonstrations of a request derive theirs from it.
    """

    model: str
    task: str
    shots: Shots | None
    seed: int


S = TypeVar("S", bound=Source)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequest(Source):
    """The class probabilities of one model on one task, prompted in one way.

    Attributes
    ----------
    limit : int or None
        At most so many texts of each split.
    data : str or None
        Folder with the texts of a task that comes without them.
    scoring : ScoringSettings
        The engine and its options.
    """

    shots: Shots
    limit: int | None
    data: str | None = None
    scoring: ScoringSettings = ScoringSettings()

    @property
    def label(self) -> str:
        """A short name for people."""
        return f"{self.model} {self.task} {self.shots}-shot seed {self.seed}"

    @property
    def prompted(self) -> dict[str, Any]:
        """The task and how it is prompted, as :mod:`dcs.scoring.generation` takes them."""
        task = get_task(self.task, self.data)
        return {"task": task, "shots": self.shots, "seed": self.seed, "limit": self.limit}


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenTable(Source):
    """A table that somebody has made, and what becomes of its rows.

    Attributes
    ----------
    members : mapping of str to tuple of pathlib.Path
        By name, a source of tables, or those of the optimization and of the test rows; several
        are of the same rows.
    held_out : float
        Share of the rows that become test rows where the source does not tell them apart.
    digests : dict of str to str
        Content hash of the rows of each split.
    own_seed : bool
        Whether the seed is that of its demonstrations, and not one of the sweep's.
    """

    members: Mapping[str, tuple[Path, ...]]
    held_out: float
    digests: dict[str, str]
    own_seed: bool = False

    def read(self) -> dict[str, Rows]:
        """Return the optimization and the test rows.

        Raises
        ------
        TableError
            The source cannot be read, or is another one than was planned with.
        """
        tables = split_rows(self.members, seed=self.seed, held_out=self.held_out)
        if {split: table.digest for split, table in tables.items()} != self.digests:
            raise TableError(
                f"{', '.join(self.members)}: changed since the sweep began; run the same command "
                "again"
            )
        return tables


def split_rows(
    members: Mapping[str, Sequence[Path]], *, seed: int, held_out: float
) -> dict[str, Rows]:
    """Return the rows to tune on and those for the final figures.

    Parameters
    ----------
    members : mapping of str to sequence of path
        By name, a source of tables, or those of the optimization and of the test rows.
    seed : int
        Root seed of the rows held out.
    held_out : float
        Their share, where the source does not tell them apart.

    Returns
    -------
    dict of str to ProbabilityTable or TableEnsemble
        By split: ``optimization`` and ``test``; ensembles of several members.

    Raises
    ------
    TableError
        A source cannot be read, or two have different classes or rows.
    """
    tables = {name: _read(paths) for name, paths in members.items()}
    return _held_out(matched_tables(tables), seed=seed, share=held_out)


def matched_tables(members: Mapping[str, Mapping[str, ProbabilityTable]]) -> dict[str, Rows]:
    """Return the tables of several members by split, rows matched; those of one as they are.

    Raises
    ------
    TableError
        They are not of the same rows.
    """
    (first, *others) = members.values()
    if not others:
        return dict(first)
    for name, tables in members.items():
        if tables.keys() != first.keys():
            raise TableError(
                f"{name}: has {' and '.join(tables)} rows; the others have {' and '.join(first)}"
            )
    return {
        split: TableEnsemble.matched({name: tables[split] for name, tables in members.items()})
        for split in first
    }


def _read(paths: Sequence[Path]) -> dict[str, ProbabilityTable]:
    tables = read_tables(paths[0])
    if len(paths) == 1:
        return tables
    table, others = tables["optimization"], read_tables(paths[1])
    test = others.get("test", others["optimization"])
    if test.classes != table.classes:
        raise TableError(
            f"{paths[1]}: classes are {', '.join(test.classes)}; those of the table to tune are "
            f"{', '.join(table.classes)}, and both must be the same in the same order"
        )
    return {"optimization": table, "test": test}


def _held_out(tables: dict[str, Rows], *, seed: int, share: float) -> dict[str, Rows]:
    """Return tables of both splits, the test rows drawn from the labelled ones if there are none.

    Where no row has a label none can be held out: all rows are in both, and nothing is judged.
    """
    if "test" in tables:
        return tables
    table = tables["optimization"]
    labelled, others = np.flatnonzero(table.labelled), np.flatnonzero(~table.labelled)
    if labelled.size == 0:
        return {split: table.subset(others, split=split) for split in ("optimization", "test")}
    parts = stratified_split(
        table.labels[labelled],
        {"optimization": 1.0 - share, "test": share},
        seed=derive_seed(seed, "held-out"),
    )
    rows = {split: labelled[part] for split, part in parts.items()}
    rows["optimization"] = np.sort(np.concatenate([rows["optimization"], others]))
    return {split: table.subset(part, split=split) for split, part in rows.items()}


def given_tables(config: SweepConfig) -> list[GivenTable]:
    """Return every table that a sweep is given, once for each seed.

    A folder with both optimization and test rows that says the seed of its demonstrations is the
    table of that seed alone; all others are there for each seed of the sweep.

    Parameters
    ----------
    config : SweepConfig
        The sweep.

    Raises
    ------
    ConfigError
        A pattern matches nothing.
    TableError
        A source cannot be read.
    """
    found: list[GivenTable] = []
    for members in _sources(config.tables):
        paths = next(iter(members.values()))
        tables = matched_tables({name: _read(each) for name, each in members.items()})
        origin, name = tables["optimization"].provenance, " + ".join(members)
        own = origin.demonstration_seed if len(paths) == 1 and "test" in tables else None
        for seed in config.seeds if own is None else (own,):
            split = _held_out(tables, seed=seed, share=config.held_out)
            found.append(
                GivenTable(
                    members=members,
                    model=origin.model or name,
                    task=origin.task or name,
                    shots=None if origin.shots is None else parse_shots(str(origin.shots)),
                    seed=seed,
                    held_out=config.held_out,
                    digests={part: table.digest for part, table in split.items()},
                    own_seed=own is not None,
                )
            )
    found += [_joined(group, over) for over in config.ensemble for group in alike(found, over)]
    origin_of = attrgetter("model", "task", "shots", "seed")
    # Tables with the same origin are named after their files, then after their paths.
    for by_path in (False, True):
        counts = Counter(map(origin_of, found))
        for index, given in enumerate(found):
            if counts[origin_of(given)] > 1:
                paths = (str(first) for first, *_ in given.members.values())
                task = " + ".join(paths if by_path else given.members)
                found[index] = replace(given, task=task)
    return found


def join_unlabelled(
    choice: str | tuple[str, str], more: Path, joined: Path
) -> str | tuple[str, str]:
    """Write the optimization rows of a source with unlabelled rows below, as a table.

    Parameters
    ----------
    choice : str or pair of str
        A source of tables, or those of the optimization and of the test rows.
    more : pathlib.Path
        The source of rows that are added; what labels they have is not looked at.
    joined : pathlib.Path
        The Parquet file to write.

    Returns
    -------
    str or pair of str
        The source with the file in the place of its optimization rows.

    Raises
    ------
    TableError
        A source cannot be read, or the classes differ.
    """
    paths = _paths(choice)
    tables = _read(paths)
    try:
        table = tables["optimization"].with_unlabelled(read_tables(more)["optimization"])
    except TableError as error:
        raise TableError(f"{more}: {error}") from None
    table.write(joined)
    return (str(joined), str(paths[-1])) if "test" in tables else str(joined)


def alike(sources: Sequence[S], over: Grouping) -> list[list[S]]:
    """Return the groups of two or more sources that differ in nothing but this."""
    groups: dict[tuple[Any, ...], list[S]] = {}
    for source in sources:
        same: dict[str, tuple[Any, ...]] = {
            "prompts": (source.model, source.task),
            "seeds": (source.model, source.task, source.shots),
            "models": (source.task, source.shots, source.seed),
        }
        # Of tables that hold out rows by the seed of the sweep, all hold out the same.
        drawn = source.seed if isinstance(source, GivenTable) and not source.own_seed else None
        groups.setdefault((*same[over], drawn), []).append(source)
    return [group for group in groups.values() if len(group) > 1]


def joint_names(group: Sequence[Source], over: Grouping) -> dict[str, Any]:
    """Return model and shots of an ensemble: a name, and None where the shots differ."""
    model = f"{group[0].model} ({len(group)} {over})"
    if over == "models":
        model = " + ".join(dict.fromkeys(source.model for source in group))
    shots = {source.shots for source in group}
    return {"model": model, "shots": group[0].shots if len(shots) == 1 else None}


def _joined(group: Sequence[GivenTable], over: Grouping) -> GivenTable:
    first = group[0]
    members = [item for given in group for item in given.members.items()]
    if len({name for name, _ in members}) < len(members):
        members = [(str(paths[0]), paths) for _, paths in members]
    tables = split_rows(dict(members), seed=first.seed, held_out=first.held_out)
    return replace(
        first,
        members=dict(members),
        **joint_names(group, over),
        digests={split: table.digest for split, table in tables.items()},
    )


def source_name(path: Path) -> str:
    """Return the name of a folder, also of ``.``, or of a file without its suffix."""
    return Path(os.path.abspath(path)).name if path.is_dir() else path.stem


def _sources(choices: Sequence[TableChoice]) -> Iterator[dict[str, tuple[Path, ...]]]:
    """Yield what patterns and folders stand for; pairs and named tables as they are."""
    seen: list[dict[str, tuple[Path, ...]]] = []
    for choice in choices:
        if isinstance(choice, dict):
            found = [{name: _paths(each) for name, each in choice.items()}]
        elif not isinstance(choice, str):
            found = [{source_name(Path(choice[0])): _paths(choice)}]
        else:
            path = str(Path(choice).expanduser())
            exact = Path(path).exists() or not glob.has_magic(path)
            matching = [path] if exact else sorted(glob.glob(path))
            if not matching:
                raise ConfigError(f"tables: {choice} matches no file or folder")
            found = [
                {source_name(one): (one,)} for each in matching for one in table_sources(each)
            ]
        for members in found:
            if members not in seen:
                seen.append(members)
                yield members


def _paths(choice: str | tuple[str, str]) -> tuple[Path, ...]:
    return tuple(
        Path(each).expanduser() for each in ([choice] if isinstance(choice, str) else choice)
    )


def table_requests(config: PromptsConfig) -> list[TableRequest]:
    """Return every table that is asked for, in the order of the configuration.

    Parameters
    ----------
    config : PromptsConfig
        A sweep, or the part of one that says what is scored.

    Returns
    -------
    list of TableRequest
        Models, then tasks, shots and seeds.
    """
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
    asked = (request.task, request.data, request.shots, request.seed)
    task = get_task(request.task, request.data)
    if asked not in known:
        demonstrations = select_demonstrations(task, request.shots, seed=request.seed)
        known[asked] = prompt_hash(task, demonstrations)
    texts = (request.task, request.data)
    if texts not in known:
        known[texts] = {
            split: content_key({"rows": [[e.id, e.text, e.label] for e in task.examples(split)]})
            for split in SPLITS
        }
    return {"prompt": known[asked], "limit": request.limit, "examples": known[texts]}


@dataclass(frozen=True, slots=True)
class Scoring:
    """How long a pair of tables took.

    Attributes
    ----------
    model : str
        The model, as it was named.
    seconds : float
        Wall-clock time.
    rows : int
        Prompts.
    scored : int
        Those of them that the model was asked; the others were kept from earlier.
    tokens : int
        Tokens of the prompts that it was asked; 0 where the engine does not say.
    finished_ms : int
        When it was done, milliseconds since the epoch.
    gpus : float
        GPUs held for that time.
    digests : dict of str to str
        Content hash of each table, by split.
    scorer : dict of str to str
        Engine, its version, the model's revision, precision and label rule, as they turned out.
    demonstrations : list of str
        Ids of the texts shown in the prompts.
    remarks : list of str
        What the engine has to say, e.g. labels missing from a server's answers.
    """

    model: str
    seconds: float
    rows: int
    gpus: float
    digests: dict[str, str]
    finished_ms: int
    scorer: dict[str, str] = field(default_factory=dict)
    demonstrations: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    scored: int = 0
    tokens: int = 0

    @property
    def metrics(self) -> dict[str, float]:
        """What MLflow shows of it."""
        found = {
            "seconds": self.seconds,
            "prompts": self.rows,
            "gpus": self.gpus,
            "prompts_per_second": self.rows / max(self.seconds, 1e-9),
            "cache_hits": self.rows - self.scored,
            "tokens": self.tokens,
        }
        return {f"scoring/{name}": float(value) for name, value in found.items()}


_SCORING = TypeAdapter(Scoring)


@dataclass(frozen=True, slots=True)
class ProbabilityStore:
    """A folder of Parquet files, two for each key, and a note of how they came about.

    Attributes
    ----------
    root : pathlib.Path
        The folder; made at the first write.
    """

    root: Path

    @classmethod
    def under(cls, output: Path) -> ProbabilityStore:
        """Return the store of an output folder."""
        return cls(output / "probabilities")

    def path(self, key: str, split: str) -> Path:
        """Return where a table lies."""
        return self.root / key / f"{split}.parquet"

    def _note(self, key: str) -> Path:
        return self.root / key / "scoring.json"

    def scoring(self, key: str) -> Scoring | None:
        """Return how a pair of tables came about, or None if it is not there.

        The note is written last: where it is, the tables are whole.

        Raises
        ------
        TableError
            The note is damaged; names the file.
        """
        path = self._note(key)
        if not path.is_file() or not all(self.path(key, split).is_file() for split in SPLITS):
            return None
        try:
            note = _SCORING.validate_python(read_json(path, error=TableError))
            if set(note.digests) != set(SPLITS):
                raise ValueError("digests of other tables")
        except ValueError as error:
            raise TableError(
                f"{path}: damaged ({one_line(error)}); remove the folder {key} to have its "
                "tables scored again"
            ) from None
        return note

    def digests(self, key: str) -> dict[str, str] | None:
        """Return the content hashes of both tables, or None unless both are there."""
        scoring = self.scoring(key)
        return None if scoring is None else scoring.digests

    def read(self, key: str) -> dict[str, ProbabilityTable]:
        """Return both tables of a key.

        Raises
        ------
        TableError
            A file is missing, damaged or another one than was scored; names it.
        """
        tables = {str(split): ProbabilityTable.read(self.path(key, split)) for split in SPLITS}
        for split, digest in (self.digests(key) or {}).items():
            if tables[split].digest != digest:
                # Cells are named by the note: they would be kept under the name of other numbers.
                raise TableError(
                    f"{self.path(key, split)}: changed since it was scored; put the file back, "
                    f"or remove the folder {key} to have its tables scored again"
                )
        return tables

    def write(self, key: str, tables: Mapping[str, ProbabilityTable], **about: Any) -> Scoring:
        """Write both tables of a key, and `about` their scoring, which is returned."""
        scoring = Scoring(
            rows=sum(table.n_rows for table in tables.values()),
            digests={split: table.digest for split, table in tables.items()},
            finished_ms=time.time_ns() // 1_000_000,
            **about,
        )
        self.keep(key, tables, scoring)
        return scoring

    def keep(self, key: str, tables: Mapping[str, ProbabilityTable], scoring: Scoring) -> None:
        """Write both tables of a key, each all or nothing, and the note of them last."""
        folder = self.root / key
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            for split in SPLITS:
                tables[split].write(self.path(key, split))
            atomic_write_text(self._note(key), json.dumps(asdict(scoring), indent=1))
