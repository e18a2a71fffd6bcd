"""The cells of a sweep, or of tables of one's own, and what of them is missing.

A cell is named by the hash of its canonical JSON, so that finished work is recognised on any
machine and never done twice.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from dcs.errors import ConfigError, DCSError
from dcs.io import content_key, first_fault, validated
from dcs.prompting import SPLITS, Shots, get_task
from dcs.selection.ensemble import joint_digest
from dcs.selection.methods import Method, get_method
from tracking import Archive, CellRecord
from workflows.config.scoring import INDECISIVE
from workflows.config.sweep import Grouping, SweepConfig, TuneConfig
from workflows.config.tuner import Bounds, TunerSettings
from workflows.tables import (
    GivenTable,
    ProbabilityStore,
    Rows,
    Source,
    TableRequest,
    alike,
    given_tables,
    join_unlabelled,
    joint_names,
    matched_tables,
    request_key,
    source_name,
    table_requests,
    texts_key,
)

#: Methods that take nothing from the optimization rows.
UNFITTED = frozenset({"icl"})

#: Labelled rows of a learning curve.
_CURVE_SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)

#: Tables between two calls of what is told.
_TOLD_EVERY = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What the cells of one table differ in.

    Attributes
    ----------
    method : str
        Correction method.
    tuner : TunerSettings or None
        None for a method that has nothing to tune.
    optimization_size : int or None
        Rows of the optimization table that are used; None for all.
    """

    method: str
    tuner: TunerSettings | None
    optimization_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(Variant):
    """The unit of work, of retry, of resume, and of an MLflow run: a variant on a table.

    Attributes
    ----------
    model, task : str
        Where the probabilities come from.
    shots : int, "N" or None
        Demonstrations per prompt; None where the source does not say.
    seed : int
        Root seed of split, annealing and sampler.
    optimization_digest, test_digest : str
        Content hashes of the two tables.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    model: str
    task: str
    shots: Shots | None
    seed: int
    optimization_digest: str
    test_digest: str

    @classmethod
    def from_identity(cls, identity: Mapping[str, Any]) -> Cell:
        """Return the cell of an identity.

        Parameters
        ----------
        identity : mapping
            What :attr:`identity` gave.

        Returns
        -------
        Cell
            The cell.

        Raises
        ------
        ConfigError
            It is not that of a cell, or holds settings that are not known.
        """
        try:
            return _CELL.validate_python(dict(identity))
        except ValidationError as error:
            raise ConfigError(f"cell identity: {first_fault(error)}") from None

    @property
    def identity(self) -> dict[str, Any]:
        """All that decides the result, as plain JSON values."""
        plain: dict[str, Any] = _CELL.dump_python(self, mode="json")
        return plain

    @property
    def key(self) -> str:
        """Hash of :attr:`identity`."""
        return content_key(self.identity)

    @property
    def label(self) -> str:
        """A short name for people."""
        shots = "" if self.shots is None else f" {self.shots}-shot"
        rows = "" if self.optimization_size is None else f" {self.optimization_size} rows"
        return f"{self.method} {self.task}{shots} seed {self.seed}{rows} {self.model}"


_CELL: Final = TypeAdapter(Cell)


def effective_settings(method: Method, tuner: TunerSettings) -> TunerSettings | None:
    """Return the settings with what changes nothing for a method as it usually is.

    So a cell exists once, and not once for each value of an axis that does not touch it.

    Parameters
    ----------
    method : Method
        The method.
    tuner : TunerSettings
        Settings as they were asked for.

    Returns
    -------
    TunerSettings or None
        None if there is nothing to tune.
    """
    if not method.searches:
        return None
    study, trials = tuner.protocol == "study", tuner.n_trials(method)
    idle = {
        "memberships": not method.uses_memberships,
        "weight_scale": not method.uses_weight_scale,
        # Only calibrations learn from rows without labels.
        "keep_unlabelled": study or method.name != "dcs",
        "pseudo_count": tuner.pmi == "normalised",
        "development": not study,
        "window": not trials,
        "sampler": not trials,
    }
    if study:
        tuned = {*tuner.space(method)}
    elif trials:
        tuned = {"beta", "tau", "weight_scale"}
    else:
        # The largest weight of PMI decides which weights are compared.
        tuned = {"tau"} if tuner.values("beta") == (0.0,) else set()
    bounds = {name: getattr(tuner.bounds, name) for name in tuned if len(tuner.values(name)) > 1}
    known = TunerSettings.model_fields
    usual = {name: known[name].default for name, unused in idle.items() if unused}
    return tuner.model_copy(update={**usual, "trials": trials, "bounds": Bounds(**bounds)})


def variants_of(config: SweepConfig) -> list[Variant]:
    """Return what the cells of one table of a sweep are, each once, in their order.

    Parameters
    ----------
    config : SweepConfig
        The sweep.

    Returns
    -------
    list of Variant
        One per cell of a table.
    """
    variants: dict[Variant, None] = {}
    for name in config.methods:
        method = get_method(name)
        for settings, size in config.variants:
            if name in UNFITTED or (size is not None and size >= (config.limit or math.inf)):
                size = None
            if size is None:
                settings = settings.model_copy(update={"keep_unlabelled": False})
            tuner = effective_settings(method, settings)
            variants[Variant(method=name, tuner=tuner, optimization_size=size)] = None
    return list(variants)


def cells_of(
    source: Source, variants: Iterable[Variant], digests: Mapping[str, str]
) -> list[Cell]:
    """Return the cells of a sweep that are tuned on one table.

    Parameters
    ----------
    source : Source
        How the table came about.
    variants : iterable of Variant
        Those of the sweep: :func:`variants_of`.
    digests : mapping of str to str
        Content hashes of the ``optimization`` and ``test`` tables.

    Returns
    -------
    list of Cell
        In the order of the configuration.
    """
    about: dict[str, Any] = {each.name: getattr(source, each.name) for each in fields(Source)}
    about |= {f"{split}_digest": digests[split] for split in SPLITS}
    return [
        Cell(
            method=variant.method,
            tuner=variant.tuner,
            optimization_size=variant.optimization_size,
            **about,
        )
        for variant in variants
    ]


def sharing(cells: Iterable[Cell]) -> list[tuple[Cell, ...]]:
    """Return cells with those together that choose from one search, in their order.

    Parameters
    ----------
    cells : iterable of Cell
        Of one table.
    """
    groups: dict[Cell, list[Cell]] = {}
    for cell in cells:
        method, tuner = get_method(cell.method), cell.tuner
        if tuner is not None and tuner.protocol == "cross-validation":
            tuner = tuner.without_preference
        search = replace(cell, method=method.shares or method.name, tuner=tuner)
        groups.setdefault(search, []).append(cell)
    return [tuple(group) for group in groups.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble(Source):
    """Tables of a sweep that are tuned on together.

    Attributes
    ----------
    members : dict of str to str
        The key of each table, by what it is called.
    """

    members: dict[str, str]


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What a sweep consists of and what of it has been done.

    Attributes
    ----------
    config : SweepConfig
        The sweep.
    output : pathlib.Path
        The folder that everything is written to.
    sources : dict of str to list of Source
        By the key of each table, in the order of the configuration: the given table, the
        ensemble, or the requests that it answers. Those are several where there are no
        demonstrations, since the seed then changes no prompt: the table is scored once, and each
        has cells of its own.
    cells : dict of str to list of Cell
        The cells of those tables that are there, by the table's key. Those of the others are not
        known yet, since a cell is named by its numbers.
    ended : dict of str to CellRecord
        Cells of earlier runs that are not to be computed again, by key: finished ones, and
        failed ones unless they are to be retried.
    texts : dict of str to str
        By key, the hash of the texts that the table is planned with.
    without_texts : dict of str to DCSError
        Tasks whose texts are not here, and why; their tables have keys that stand for others.
    variants : tuple of Variant
        What the cells of one table are, in their order.
    """

    config: SweepConfig
    output: Path
    sources: dict[str, list[Source]]
    cells: dict[str, list[Cell]]
    ended: dict[str, CellRecord]
    texts: dict[str, str] = field(default_factory=dict)
    without_texts: dict[str, DCSError] = field(default_factory=dict)
    variants: tuple[Variant, ...] = field(init=False)

    def __post_init__(self) -> None:
        # Made once: there may be thousands, asked for with every table.
        object.__setattr__(self, "variants", tuple(variants_of(self.config)))

    def cells_on(self, key: str, digests: Mapping[str, str]) -> list[Cell]:
        """Return the cells that are tuned on a table with these digests.

        Parameters
        ----------
        key : str
            The table's key.
        digests : mapping of str to str
            Content hashes of the ``optimization`` and ``test`` tables.

        Returns
        -------
        list of Cell
            Each once.
        """
        return [
            cell
            for source in self.sources[key]
            for cell in cells_of(source, self.variants, digests)
        ]

    def digests(self, key: str) -> Mapping[str, str] | None:
        """Return the content hashes of both tables of a key, or None unless all is there."""
        source = self.sources[key][0]
        if isinstance(source, GivenTable):
            return source.digests
        if not isinstance(source, Ensemble):
            return ProbabilityStore.under(self.output).digests(key)
        parts = [self.digests(member) for member in source.members.values()]
        there = [part for part in parts if part is not None]
        if len(there) < len(parts):
            return None
        return {str(s): joint_digest(part[s] for part in there) for s in SPLITS}

    def cells_after(self, key: str) -> dict[str, list[Cell]]:
        """Return what can be computed now that a table is there, by key.

        Parameters
        ----------
        key : str
            Of a table that has just been scored.

        Returns
        -------
        dict of str to list of Cell
            Its own cells, and those of the ensembles whose tables are now all there.
        """
        keys = [key] + [
            other
            for other, (source, *_) in self.sources.items()
            if isinstance(source, Ensemble) and key in source.members.values()
        ]
        found = ((each, self.digests(each)) for each in keys)
        return {each: self.cells_on(each, both) for each, both in found if both is not None}

    @property
    def missing_tables(self) -> dict[str, TableRequest]:
        """Tables to be scored, by key: the first request of each."""
        firsts = ((key, some[0]) for key, some in self.sources.items() if key not in self.cells)
        return {key: first for key, first in firsts if isinstance(first, TableRequest)}

    @property
    def missing_cells(self) -> dict[str, list[Cell]]:
        """Cells to be computed whose tables have been scored, by the table's key."""
        missing = {
            key: [cell for cell in cells if cell.key not in self.ended]
            for key, cells in self.cells.items()
        }
        return {key: cells for key, cells in missing.items() if cells}

    def read(self, key: str) -> dict[str, Rows]:
        """Return the optimization and test rows of a table or ensemble that is there.

        Raises
        ------
        TableError
            A file is missing, damaged or another one than the sweep was planned with.
        """
        source = self.sources[key][0]
        if isinstance(source, GivenTable):
            return source.read()
        store = ProbabilityStore.under(self.output)
        if isinstance(source, Ensemble):
            return matched_tables({n: store.read(k) for n, k in source.members.items()})
        return dict(store.read(key))

    def check_texts(self) -> None:
        """Refuse a sweep whose texts are not all here.

        Raises
        ------
        DCSError
            Some are not; names the tasks.
        """
        if self.without_texts:
            first, *others = self.without_texts.values()
            if not others:
                raise first
            names = ", ".join(self.without_texts)
            raise ConfigError(f"{len(others) + 1} tasks have no texts here ({names}): {first}")

    @property
    def has_work(self) -> bool:
        """Whether anything has to be computed."""
        return bool(self.missing_tables or self.missing_cells)

    @property
    def n_tables(self) -> int:
        """Number of tables in the sweep."""
        return len(self.sources)

    @property
    def n_cells(self) -> int:
        """Number of cells in the sweep."""
        return sum(map(len, self.sources.values())) * len(self.variants)

    @property
    def n_failed(self) -> int:
        """Number of cells that failed earlier and are left so."""
        return sum(not record.finished for record in self.ended.values())


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a sweep is.

    Attributes
    ----------
    show : callable
        Called with this after every change.
    tables_done, tables_total : int
        Tables that are there, and all.
    cells_done, cells_failed, cells_total : int
        Cells that have ended, those of them that raised, and all.
    running : int
        Cells handed out.
    machines : mapping of str to float
        What of the cluster is at work and what there is: ``cpus_used``, ``cpus``, ``gpus_used``,
        ``gpus``.
    work : collections.Counter of str
        What was done in this run: ``cells``, ``trials``, ``moves``, ``prompts``.
    started, first_computed : float
        When the run began and when its first cell ended, by :func:`time.monotonic`.
    """

    show: Callable[[Progress], object] = lambda progress: None
    tables_done: int = 0
    tables_total: int = 0
    cells_done: int = 0
    cells_failed: int = 0
    cells_total: int = 0
    running: int = 0
    machines: Mapping[str, float] = field(default_factory=dict)
    work: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=time.monotonic)
    first_computed: float = 0.0


class Work(NamedTuple):
    """What a sweep still has to do of one sort.

    Attributes
    ----------
    number : int
        Tables to be scored, or cells to be computed.
    seconds : float
        Of one worker or CPU after the other; NaN where nothing like it has been done yet.
    """

    number: int
    seconds: float


def rest_of(plan: SweepPlan) -> tuple[Work, Work]:
    """Judge missing tables by scored ones of their model, cells by those of their method."""
    store = ProbabilityStore.under(plan.output)
    scored = [(plan.sources[key][0].model, store.scoring(key)) for key in plan.cells]
    finished = [r for r in plan.ended.values() if r.finished]
    tables = Counter(request.model for request in plan.missing_tables.values())
    cells = Counter(cell.method for some in plan.missing_cells.values() for cell in some)
    unknown = sum(len(some) for key, some in plan.sources.items() if key not in plan.cells)
    for variant in plan.variants:
        cells[variant.method] += unknown
    return (
        _work(tables, [(model, one.seconds) for model, one in scored if one]),
        _work(cells, [(r.identity["method"], _cpu_seconds(r)) for r in finished]),
    )


def _work(missing: Counter[str], done: list[tuple[str, float]]) -> Work:
    """Judge what is missing, each by the mean of what is done of its kind, or of all."""
    of = {kind: [cost for k, cost in done if k == kind] for kind in missing}
    every = [cost for _, cost in done] or [math.nan]
    seconds = sum(number * fmean(of[kind] or every) for kind, number in missing.items())
    return Work(missing.total(), seconds)


def _cpu_seconds(record: CellRecord) -> float:
    # Trials of one cell may have run side by side.
    elapsed = (record.finished_ms - record.started_ms) / 1000
    return max(elapsed, sum(trial.seconds for trial in record.trials))


def sweep_key(config: SweepConfig) -> str:
    """Return the key under which reruns of a sweep find its parent run again.

    Parameters
    ----------
    config : SweepConfig
        The sweep.

    Returns
    -------
    str
        Hash of all in it that decides results.
    """
    left_out: dict[str, Any] = {"tracking": True, "data": True, "scoring": set(INDECISIVE)}
    if not config.ensemble:
        left_out["ensemble"] = True
    return content_key(config.model_dump(mode="json", exclude=left_out))


def plan_sweep(
    config: SweepConfig,
    output: Path,
    *,
    retry_failed: bool = False,
    strict: bool = True,
    progress: Callable[[int], object] = lambda done: None,
) -> SweepPlan:
    """Compare a sweep with what is on disk.

    Parameters
    ----------
    config : SweepConfig
        The sweep.
    output : pathlib.Path
        The folder of earlier work, or a new one.
    retry_failed : bool
        Whether cells that failed earlier are to be computed again.
    strict : bool
        Whether texts that are not here are an error; otherwise the plan says which.
    progress : callable
        Called now and then with the number of tables that were looked at.

    Returns
    -------
    SweepPlan
        Nothing is computed or written yet.

    Raises
    ------
    DCSError
        A model or task is not known, or a file of earlier work is damaged.
    """
    archive = Archive(output)
    plan = SweepPlan(config=config, output=output, sources={}, cells={}, ended={})
    for given in given_tables(config) if config.tables else ():
        key = content_key({"digests": given.digests})
        plan.sources.setdefault(key, []).append(given)
    for task in () if config.tables else config.tasks:
        try:
            for split in SPLITS:
                get_task(task, config.data).examples(split)
        except DCSError as error:
            plan.without_texts[task] = error
    if strict:
        plan.check_texts()
    known: dict[Any, Any] = {}
    keys: dict[TableRequest, str] = {}
    for number, request in enumerate(() if config.tables else table_requests(config)):
        if number % _TOLD_EVERY == 0:
            progress(number)
        if request.task in plan.without_texts:
            plan.sources[f"no texts {request.label}"] = [request]
            continue
        keys[request] = key = request_key(request, known=known)
        plan.sources.setdefault(key, []).append(request)
        plan.texts[key] = texts_key(request, known=known)
    for ensemble in _ensembles(keys, config):
        key = content_key({"ensemble": list(ensemble.members.values())})
        plan.sources.setdefault(key, []).append(ensemble)
    for key in plan.sources:
        both = plan.digests(key)
        if both is not None:
            plan.cells[key] = plan.cells_on(key, both)
            for record in archive.load([cell.key for cell in plan.cells[key]]).values():
                if record.finished or not retry_failed:
                    plan.ended[record.key] = record
    return plan


def _ensembles(keys: Mapping[TableRequest, str], config: SweepConfig) -> Iterator[Ensemble]:
    """Yield the ensembles of the tables of requests, which come with their keys."""
    # What has no demonstrations is one table, whatever the seed.
    firsts: dict[str, TableRequest] = {}
    for request, key in keys.items():
        firsts.setdefault(key, request)
    for over in config.ensemble:
        for group in alike([*firsts.values()], over):
            yield Ensemble(
                members={_member_name(request, over): keys[request] for request in group},
                task=group[0].task,
                seed=group[0].seed,
                **joint_names(group, over),
            )


def _member_name(request: TableRequest, over: Grouping) -> str:
    """Return the name of a table among those that differ from it."""
    if over == "models":
        return request.model
    seed = f"seed {request.seed}"
    return seed if over == "seeds" else f"{request.shots}-shot {seed}"


def called(paths: Sequence[Path]) -> dict[str, Path]:
    """Return paths by the name of the file, or by the words of the path where two are alike.

    The names become parts of file names.

    Raises
    ------
    ConfigError
        A path is given twice.
    """
    names = [*map(source_name, paths)]
    if len({*names}) < len(names):
        names = [re.sub(r"[^\w.-]+", "-", str(path.with_suffix(""))) for path in paths]
    found = dict(zip(names, paths, strict=True))
    if len(found) < len(paths):
        raise ConfigError(f"{', '.join(names)}: one is given twice; each table once")
    return found


def plan_tuning(
    tables: Mapping[str, Path],
    output: Path,
    *,
    config: TuneConfig,
    methods: Sequence[str],
    seed: int,
    test: Sequence[Path] = (),
    unlabelled: Sequence[Path] = (),
    refit: bool = False,
    learning_curve: bool = False,
) -> tuple[SweepPlan, dict[str, Rows]]:
    """Return what there is to compute for tables of the same rows, and these rows by split.

    Parameters
    ----------
    tables : mapping of str to path
        Sources of tables, by what they are called.
    output : pathlib.Path
        The folder of results.
    config : TuneConfig
        How schemes are searched.
    methods : sequence of str
        The one that is asked for, and those that it is compared with.
    seed : int
        Root seed.
    test, unlabelled : sequence of path
        None, or for each table that of the test rows, and one of rows without labels.
    refit, learning_curve : bool
        What is wanted besides; refused where it is not possible.

    Raises
    ------
    DCSError
        A table cannot be read, or what is wanted does not go together.
    """
    for option, given in (("--test", test), ("--unlabelled", unlabelled)):
        if given and len(given) != len(tables):
            raise ConfigError(
                f"{option}: {len(given)} given for {len(tables)} tables; give one for each, in "
                "the same order, or none"
            )
    choices: dict[str, Any] = {}
    for i, (name, table) in enumerate(tables.items()):
        choice = (str(table), str(test[i])) if test else str(table)
        if unlabelled:
            choice = join_unlabelled(choice, unlabelled[i], output / "joined" / f"{name}.parquet")
        choices[name] = choice
    content = {
        "name": "tune",
        "tables": [choices] if len(choices) > 1 else [*choices.values()],
        "methods": [*dict.fromkeys(("icl", *methods))],
        "seeds": [seed],
        **dict(config),
    }
    sweep = validated(SweepConfig, content, source="command line", error=ConfigError)
    plan = plan_sweep(sweep, output, retry_failed=True)
    (key,) = plan.cells
    rows = plan.read(key)
    fitted = rows["optimization"]
    if test and not rows["test"].labelled.any():
        raise ConfigError(
            f"--test {', '.join(map(str, test))}: no row has a label to judge by; give rows that "
            "have some, or leave it out"
        )
    if refit and (config.tuner.protocol == "study" or len(tables) > 1):
        raise ConfigError(
            "--refit fits again what cross-validation chose of one table; leave it out, or "
            "tuner.protocol=study, or give one table"
        )
    if learning_curve:
        labelled = int(fitted.labelled.sum())
        sizes = [size for size in _CURVE_SIZES if size < labelled]
        if not sizes:
            raise ConfigError(
                f"--learning-curve: {labelled} labelled rows to fit on; more than "
                f"{_CURVE_SIZES[0]} are needed"
            )
        axes = {"keep_unlabelled": (False, True)}
        curve = {"optimization_sizes": (*sizes, "full"), "axes": axes}
        plan = plan_sweep(sweep.model_copy(update=curve), output, retry_failed=True)
    return plan, rows
