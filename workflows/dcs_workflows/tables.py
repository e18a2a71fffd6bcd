"""Probability tables: given tables, tables requested from a model, and the store of the latter.

The key of a request is the hash of everything that determines its numbers, so that scored tables
are recognised on any machine.
"""

from __future__ import annotations

import fnmatch
import glob
import itertools
import os
import re
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from dcs.data.columns import Reading
from dcs.data.files import STEMS, SUFFIXES
from dcs.data.reader import open_sources, refuse_other_texts, source_files, texts_by_id
from dcs.data.splits import stratified_split
from dcs.data.table import ProbabilityTable
from dcs.errors import ConfigError, TableError, show
from dcs.io import Strict, atomic_write_text, content_key, parse_json, read_text, validated
from dcs.prompting.files import get_task
from dcs.prompting.tasks import SPLITS, Shots, parse_shots, prompt_hash, select_demonstrations
from dcs.scoring.generation import PromptSet
from dcs.seeds import derive_generator, derive_seed
from dcs.selection.ensemble import TableEnsemble, joint_digest
from dcs_tracking.records import now_ms
from dcs_workflows.config.scoring import ScoringSettings
from dcs_workflows.config.sweep import Grouping, PromptsConfig, SweepConfig, TableChoice
from dcs_workflows.config.tuner import as_values

#: A table, or an ensemble of tables of the same rows.
Rows: TypeAlias = ProbabilityTable | TableEnsemble

#: Files beside a scheme of dcs tune: the rows that it was fitted on, and those held out.
FITTED: Final = "fitted.parquet"
HELD_OUT: Final = "held_out.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of the class probabilities that cells are tuned on.

    Attributes
    ----------
    model, task : str
        Where the probabilities come from.
    shots : int, "N" or None
        Number of demonstrations per prompt; None if unknown, or if they differ.
    seed : int
        Root seed of the cells, from which the demonstration seed of a request derives.
    """

    model: str
    task: str
    shots: Shots | None
    seed: int


S = TypeVar("S", bound=Origin)

#: Fields of a pattern of tables, by name: the form of their values.
_FIELDS: Final = {"model": "[^/]+?", "task": "[^/]+?", "shots": r"N|\d{1,6}", "seed": r"\d{1,18}"}
_FIELD: Final = re.compile(r"{(.*?)}")

#: Names of files and folders that specify an origin.
_ORIGIN: Final = "{task}_{model}_shot{shots}_seed{seed}"


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


#: Paths of a table: one source of tables, or a pair of the optimization and test rows.
Paths: TypeAlias = tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenTable(Origin):
    """A user-supplied table, and how its rows are split.

    Attributes
    ----------
    members : mapping of str to tuple of pathlib.Path
        Sources by name: one source of tables, or a pair of the optimization and test rows.
        Several members have the same rows.
    config : SweepConfig
        How the files are read, and which rows are held out if the source has no test rows.
    digests : dict of str to str
        Content hash of the rows of each split.
    own_seed : bool
        Whether the seed is that of the table instead of a seed of the sweep.
    remarks : tuple of str
        What was inferred about the files, in lines for the user.
    """

    members: Mapping[str, Paths]
    config: SweepConfig
    digests: dict[str, str] = field(default_factory=dict)
    own_seed: bool = False
    remarks: tuple[str, ...] = ()
    complete: ClassVar = True

    @property
    def files(self) -> Mapping[str, Path]:
        """File of the rows of each split; empty for rows that are joined from several."""
        first, *others = self.members.values()
        return {} if others else {"optimization": first[0], "test": first[-1]}

    def opened(self) -> tuple[dict[str, Rows], GivenTable]:
        """Return the rows as they are now, and the table with what is to be said of them."""
        tables, remarks = _read_members(self.members, self.config.reading)
        rows, said = _hold_out(tables, self.config, self.seed)
        digests = {split: table.digest for split, table in rows.items()}
        return rows, replace(self, digests=digests, remarks=(*remarks, *said))

    def read(self) -> dict[str, Rows]:
        """Return the optimization and the test rows.

        Raises
        ------
        TableError
            If the source cannot be read, or has changed since the sweep was planned.
        """
        rows, now = self.opened()
        if now.digests != self.digests:
            names = ", ".join(self.members)
            raise TableError(f"{names}: changed since the sweep began; run the command again")
        return rows


def matched_tables(members: Mapping[str, Mapping[str, ProbabilityTable]]) -> dict[str, Rows]:
    """Return the tables by split: ensembles with matched rows, or those of a single member.

    Raises
    ------
    TableError
        If the members do not have the same rows.
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


def _read_members(
    members: Mapping[str, Paths], reading: Reading
) -> tuple[dict[str, Rows], list[str]]:
    """Return tables of the same rows by split, and what is to be said about them."""
    read = {name: _read_member(each, reading) for name, each in members.items()}
    tables = matched_tables({name: own for name, (own, _, _) in read.items()})
    for part in tables:
        refuse_other_texts({name: texts[part] for name, (_, _, texts) in read.items()})
    remarks = [line for _, lines, _ in read.values() for line in lines]
    for name, (own, _, _) in read.items():
        total, kept = (sum(each.n_rows for each in rows.values()) for rows in (own, tables))
        if kept < total:
            remarks.append(f"{name}: {total - kept} of {total} rows left out: not in all tables")
    return tables, remarks


def _read_member(
    paths: Sequence[Path], reading: Reading
) -> tuple[dict[str, ProbabilityTable], tuple[str, ...], dict[str, Any]]:
    """Return the tables of a source by split, what is to be said about them, and their texts."""
    files = [each for path in paths for each in (path.iterdir() if path.is_dir() else [path])]
    stamps = [(file, file.stat()) for file in sorted(files) if file.is_file()]
    state = tuple((file, stat.st_mtime_ns, stat.st_size) for file, stat in stamps)
    return _read_once(tuple(paths), reading, state)


# Read for the plan, for the cells and for what is shown, but parsed once unless it changes.
@lru_cache(maxsize=4)
def _read_once(
    paths: Paths, reading: Reading, state: object
) -> tuple[dict[str, ProbabilityTable], tuple[str, ...], dict[str, Any]]:
    sources = open_sources(paths[0], reading, test=paths[1] if paths[1:] else None)
    tables = {part: source.table for part, source in sources.items()}
    for table in tables.values():
        refuse_corrected(table, paths[0])
    texts = {part: texts_by_id(source) for part, source in sources.items()}
    return tables, tuple(each.remark for each in sources.values() if each.remark), texts


def refuse_corrected(table: ProbabilityTable, file: Path) -> None:
    """Raise TableError if the probabilities of a file have been corrected already."""
    if by := table.provenance.corrected_by:
        raise TableError(f"{file}: already corrected by {by}; give the uncorrected probabilities")


def _hold_out(
    tables: dict[str, Rows], config: SweepConfig, seed: int
) -> tuple[dict[str, Rows], tuple[str, ...]]:
    """Return tables of both splits; hold out labelled rows as test rows if there are none.

    Copies of a row stay together. If no row has a label, both splits contain all rows, and nothing
    is evaluated. Also returns what is to be said about rows that were divided earlier.
    """
    if "test" in tables:
        if (given := config.earlier) is not None:
            raise ConfigError(f"earlier {given}: the table has test rows already; remove one")
        return tables, ()
    table = tables["optimization"]
    labelled, others = np.flatnonzero(table.labelled), np.flatnonzero(~table.labelled)
    if labelled.size == 0:
        return {str(split): table.subset(others, split=split) for split in SPLITS}, ()
    known = table.only_labelled()
    placed, said = _placed(known, config.earlier)
    parts = stratified_split(
        known.labels,
        {"optimization": 1.0 - config.held_out, "test": config.held_out},
        seed=derive_seed(seed, "held-out"),
        groups=known.copies,
        placed=placed,
    )
    rows = {split: labelled[part] for split, part in parts.items()}
    rows["optimization"] = np.sort(np.concatenate([rows["optimization"], others]))
    return {split: table.subset(part, split=split) for split, part in rows.items()}, said


#: Share of ids of other rows up to which it is chance, as probabilities can coincide.
_MOVED: Final = 0.05


def _matched(rows: Iterable[Hashable], earlier: Iterable[Hashable]) -> dict[int, int]:
    """Return the number of the row that equals an earlier one, by the number of that."""
    places: dict[Hashable, deque[int]] = {}
    for row, name in enumerate(rows):
        places.setdefault(name, deque()).append(row)
    found = ((k, places.get(name)) for k, name in enumerate(earlier))
    return {k: same.popleft() for k, same in found if same}


def _placed(table: Rows, earlier: Path | None) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Return the part of every row of which an earlier scheme knows one, -1 for others.

    Rows are the same if they have the same id; without ids, the same probabilities, of those with
    the same label first.

    Raises
    ------
    TableError
        If few rows are the same, or the ids have been given to other rows.
    """
    if earlier is None:
        return None, ()
    files = [earlier.with_name(name) for name in (FITTED, HELD_OUT)]
    if isinstance(table, TableEnsemble) or not all(file.exists() for file in files):
        raise ConfigError(
            f"earlier {earlier}: must be a scheme of dcs tune for one table, beside its {FITTED} "
            f"and {HELD_OUT}"
        )
    kept = [ProbabilityTable.read(file).only_labelled() for file in files]
    kept = [each.with_classes(table.classes, source=str(earlier)) for each in kept]
    numbered = all(name.isdecimal() for each in (table, *kept) for name in each.ids)
    rows = [table.probs, np.concatenate([each.probs for each in kept])]
    values = [[*map(tuple, each.round(9).tolist())] for each in rows]
    if numbered:
        labels = [table.labels, np.concatenate([each.labels for each in kept])]
        same = _matched(*(zip(*each, strict=True) for each in zip(labels, values, strict=True)))
        # Labels may have been changed since.
        taken = {*same.values()}
        others = [None if row in taken else own for row, own in enumerate(values[0])]
        same |= _matched(others, [() if k in same else own for k, own in enumerate(values[1])])
    else:
        same = _matched(table.ids, [name for each in kept for name in each.ids])
        now, then = values
        there = Counter(now)
        moved = [k for k in same if now[same[k]] != then[k] and there[then[k]] == 1]
        if len(moved) > _MOVED * len(same):
            raise TableError(
                f"earlier {earlier}: {len(moved)} of its ids, such as "
                f"{show(table.ids[same[moved[0]]], 40)}, are of other rows in the table; give the "
                "rows their earlier ids"
            )
    placed = np.full(table.n_rows, -1)
    parts = np.repeat(np.arange(len(kept)), [each.n_rows for each in kept])
    placed[[*same.values()]] = parts[[*same]]
    if not numbered:
        # Unlabelled rows were fitted as well, and may have a label now.
        fitted = {*ProbabilityTable.read(files[0]).ids}
        placed[[name in fitted for name in table.ids]] = 0
    number, found = len(parts), len(same)
    if 2 * found < number:
        raise TableError(
            f"earlier {earlier}: only {found} of its {number} labelled rows are among those "
            "of the table; give a table with these rows and further ones"
        )
    line = f"{found} of {number} rows of {earlier} stay fitted or held out"
    return placed, (f"{line}; {(placed < 0).sum()} others are divided",)


def given_tables(config: SweepConfig) -> list[GivenTable]:
    """Return the given tables of a sweep, one for each seed.

    A folder with optimization and test rows and a known demonstration seed, and a table whose
    seed is named by a pattern, are only used with that seed; all others are used with each seed
    of the sweep.

    Parameters
    ----------
    config : SweepConfig
        The sweep.

    Raises
    ------
    ConfigError
        If a pattern matches nothing or has an unknown field.
    TableError
        If a source cannot be read.
    """
    found: list[GivenTable] = []
    for members, named in _expand_sources(config.tables):
        tables, _ = _read_members(members, config.reading)
        origin = tables["optimization"].provenance
        noted = {"model": origin.model, "task": origin.task, "shots": origin.shots}
        if "test" in tables and len(next(iter(members.values()))) == 1:
            noted["seed"] = origin.demonstration_seed
        by_name = re.fullmatch(_form(_ORIGIN), named["name"])
        # A pattern comes before the provenance, and this before the name of the file.
        about: dict[str, Any] = {
            **dict.fromkeys(("model", "task"), named["name"]),
            **(by_name.groupdict() if by_name else {}),
            **{key: value for key, value in noted.items() if value not in (None, "")},
            **named,
        }
        shots, own = about.get("shots"), about.get("seed")
        for seed in config.seeds if own is None else (int(own),):
            given = GivenTable(
                members=members,
                model=about["model"],
                task=about["task"],
                shots=None if shots is None else parse_shots(str(shots)),
                seed=seed,
                config=config,
                own_seed=own is not None,
            )
            found.append(given.opened()[1])
    found += [
        _join(group, over, drawn)
        for over in config.ensemble
        for group, drawn in grouped_over(found, over)
    ]
    origin_of = attrgetter("model", "task", "shots", "seed")
    # Tables with the same origin are named after their files, then after their paths.
    for by_path in (False, True):
        counts = Counter(map(origin_of, found))
        for index, given in enumerate(found):
            if counts[origin_of(given)] > 1:
                seeds = {
                    each.seed for each in found if origin_of(each)[:3] == origin_of(given)[:3]
                }
                if given.own_seed and len(seeds) > 1:
                    raise ConfigError(
                        f"tables: {' + '.join(given.members)} of several files has one model, "
                        "task, shots and seed; name them apart, as by {task} in a pattern"
                    )
                first_paths = (str(first) for first, *_ in given.members.values())
                task = " + ".join(first_paths if by_path else given.members)
                found[index] = replace(given, task=task)
    return found


#: Numbers of tables that the ensemble over all tables tries, and number of random orders.
_TABLES: Final = (2, 3, 4, 6, 9, 13, 19, 28)
_DRAWS: Final = 3


def grouped_over(sources: Sequence[S], over: Grouping) -> list[tuple[list[S], str]]:
    """Return the groups of two or more sources that differ only in the given respect.

    Each is returned with its name. For all tables of a task there are several groups of each size,
    those of one order being nested.
    """
    groups: dict[tuple[Any, ...], list[S]] = {}
    for source in sources:
        same: dict[str, tuple[Any, ...]] = {
            "prompts": (source.model, source.task),
            "seeds": (source.model, source.task, source.shots),
            "models": (source.task, source.shots, source.seed),
            "all": (source.task,),
        }
        # Tables that hold out rows by the seed of the sweep must hold out the same rows.
        drawn = source.seed if isinstance(source, GivenTable) and not source.own_seed else None
        groups.setdefault((*same[over], drawn), []).append(source)
    several = [group for group in groups.values() if len(group) > 1]
    if over != "all":
        return [(group, f"{len(group)} {over}") for group in several]
    return [each for group in several for each in _nested(group)]


def _nested(group: list[S]) -> Iterator[tuple[list[S], str]]:
    """Yield the first few of a group in some random orders, and all of it."""
    for draw in range(_DRAWS):
        order = derive_generator(draw, "tables").permutation(len(group))
        for size in _TABLES:
            if size < len(group):
                chosen = [group[i] for i in sorted(order[:size])]
                yield chosen, f"{size} of {len(group)} tables, draw {draw + 1}"
    yield group, f"{len(group)} tables"


def joint_names(group: Sequence[Origin], over: Grouping, name: str) -> dict[str, Any]:
    """Return the model, task and shots of an ensemble; shots are None if they differ."""
    first = group[0]
    model = name if over == "all" else f"{first.model} ({name})"
    if over == "models":
        model = " + ".join(dict.fromkeys(source.model for source in group))
    same = over != "all" and all(source.shots == first.shots for source in group)
    return {"model": model, "task": first.task, "shots": first.shots if same else None}


def _join(group: Sequence[GivenTable], over: Grouping, name: str) -> GivenTable:
    members = [item for given in group for item in given.members.items()]
    if len({name for name, _ in members}) < len(members):
        members = [(str(paths[0]), paths) for _, paths in members]
    names = joint_names(group, over, name)
    return replace(group[0], members=dict(members), **names).opened()[1]


def source_name(path: Path) -> str:
    """Return the name of a folder (even if given as ``.``), or of a file without suffix."""
    plain = path.with_suffix("") if Path(path.stem).suffix in SUFFIXES else path
    return Path(os.path.abspath(path)).name if path.is_dir() else plain.stem


def _expand_sources(
    choices: Sequence[TableChoice],
) -> Iterator[tuple[dict[str, Paths], dict[str, str]]]:
    """Yield the members of each source, and what names it, without duplicates.

    That is ``name``, for what nothing else names, and the fields of its pattern.
    """
    seen: list[dict[str, Paths]] = []
    sources: list[tuple[dict[str, Paths], dict[str, str]]]
    for choice in choices:
        if isinstance(choice, str):
            sources = [
                ({source_name(one): (one,)}, {"name": source_name(one), **fields})
                for path, fields in _matching(choice).items()
                for one in source_files(path)
            ]
        else:
            named = choice if isinstance(choice, dict) else {source_name(Path(choice[0])): choice}
            members: dict[str, Paths] = {
                name: tuple(Path(path).expanduser() for path in as_values(pair))
                for name, pair in named.items()
            }
            sources = [(members, {"name": " + ".join(members)})]
        for members, about in sources:
            if members in seen:
                continue
            seen.append(members)
            files = [own for each in seen for own, *more in each.values() if not more]
            parts = [file for file in files if file.stem in STEMS]
            if len({part.parent for part in parts}) < len(parts):
                raise ConfigError(
                    f"tables: {parts[-1]} and another are the parts of one table; give their "
                    "folder, or both as [OPTIMIZATION, TEST]"
                )
            yield members, about


def _matching(choice: str) -> dict[str, dict[str, str]]:
    """Return the paths that match a pattern, each with the values of the fields of the pattern.

    If there are fields, ``name`` is the folder before the first of them, so that tables which
    differ in their fields alone have the same name.
    """
    pattern = os.path.expanduser(choice)
    fields = dict.fromkeys(_FIELD.findall(pattern))
    if Path(pattern).exists() or not (fields or glob.has_magic(pattern)):
        return {pattern: {}}
    form = _form(pattern.replace("**/", "*"))
    folder = os.path.dirname(re.split(r"[{*?[]", pattern)[0])
    common = {"name": source_name(Path(folder))} if fields else {}
    paths = sorted(glob.glob(_FIELD.sub("*", pattern), recursive=True))
    found = {path: re.match(form, path) for path in paths}
    matching = {path: common | each.groupdict() for path, each in found.items() if each}
    if not matching:
        raise ConfigError(
            f"tables: {choice} matches no file or folder; the fields of a pattern are "
            "{model}, {task}, {shots} (a number or N) and {seed} (a number)"
        )
    return matching


def _form(pattern: str) -> str:
    """Return the regular expression of a pattern with fields, a group for each."""
    form = fnmatch.translate(pattern)
    for name, values in _FIELDS.items():
        field = re.escape(f"{{{name}}}")
        form = form.replace(field, f"(?P<{name}>{values})", 1)
        form = form.replace(field, f"(?P={name})")
    return form


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
    """

    output: Path
    key: str

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
        """Whether the tables exist and lack no row."""
        return (scoring := self.scoring) is not None and not scoring.missing

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
            atomic_write_text(self.folder / _RECORD, scoring.model_dump_json(indent=1))
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


#: Where the rows of a source are.
RowSource: TypeAlias = GivenTable | StoredTables | JointTables
