"""The cells of a sweep or of user-supplied tables, and which of them are missing.

The key of a cell is the hash of its canonical JSON, so that finished work is recognised on any
machine and never repeated.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from pydantic import Field, TypeAdapter

from dcs.data.columns import Reading
from dcs.errors import ConfigError, DCSError
from dcs.io import Strict, content_key, validated
from dcs.methods.calibrations import CALIBRATIONS
from dcs.methods.parameters import MIXTURE, PARAMETERS
from dcs.plugins import plugin_version
from dcs.prompting.tasks import SPLITS
from dcs.selection.methods import Method, get_method
from dcs_tracking import Archive, CellRecord
from dcs_workflows.config.sweep import SweepConfig, TuneConfig, selected
from dcs_workflows.config.tuner import TERMS, TunerSettings
from dcs_workflows.sources.given import GivenTable, given_tables, source_name
from dcs_workflows.sources.joint import Origin, Rows, grouped_over, joint_names
from dcs_workflows.sources.scored import (
    JointTables,
    StoredTables,
    TableRequest,
    request_key,
    table_requests,
)

#: Where the rows of a source are.
RowSource: TypeAlias = GivenTable | StoredTables | JointTables

#: Axes of the sources of a sweep, with the attributes of a source.
ORIGINS: Final = {"models": "model", "tasks": "task", "shots": "shots", "seeds": "seed"}


def counted(number: int, noun: str) -> str:
    """Return a number of things: ``1 cell``, ``1,200 cells``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True, kw_only=True)  # Cells have slots, which only one of their bases can.
class Variant:
    """The settings in which the cells of one table differ.

    Attributes
    ----------
    method : str
        Correction method.
    tuner : TunerSettings or None
        None for a method without tuned settings.
    optimization_size : int or None
        Number of optimization rows to use; None means all.
    plugin : str or None
        Version and digest of the code of a method that is a plug-in.
    """

    method: str
    tuner: TunerSettings | None
    optimization_size: int | None = None
    plugin: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(Origin, Variant):
    """The unit of work, retry, resume and MLflow runs: a variant applied to a table of a source.

    Attributes
    ----------
    optimization_digest, test_digest : str
        Content hashes of the two tables.
    """

    optimization_digest: str
    test_digest: str

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that determines the result, as plain JSON values."""
        return dict(_CELL.dump_python(self, mode="json"))

    @property
    def key(self) -> str:
        """Hash of the settings that are not the default ones, and of versions above the first.

        A new knob, calibration or metric thus keeps the keys of finished cells.
        """
        own = _values(Cell, self)
        if self.tuner is not None:
            changed = self.tuner.model_dump(mode="json", exclude_defaults=True)
            # Its default has been another one.
            own["tuner"] = changed | {"trials": self.tuner.trials}
        return content_key(own | {"versions": self._versions, "version": _IDENTITY_VERSION})

    @property
    def _versions(self) -> dict[str, int]:
        method = get_method(self.method)
        rows: list[Any] = [method]
        if self.tuner is not None:
            names = (method.fixed or {}).get("calibration", self.tuner.space.calibration)
            used = CALIBRATIONS if MIXTURE in names else CALIBRATIONS.keys() & {*names}
            rows += [*PARAMETERS, *(CALIBRATIONS[name] for name in used)]
        return {row.name: row.version for row in rows if row.version > 1}

    @property
    def label(self) -> str:
        """A short display name."""
        return cell_label(_values(Cell, self))


_CELL: Final = TypeAdapter(Cell)


def cell_label(identity: Mapping[str, Any]) -> str:
    """Return a short display name of the cell of an identity, also of an earlier version's."""
    method, task, seed, model = map(identity.get, ("method", "task", "seed", "model"))
    shots, size = identity.get("shots"), identity.get("optimization_size")
    shown = "" if shots is None else f" {shots}-shot"
    rows = "" if size is None else f" {size} rows"
    return f"{method} {task}{shown} seed {seed}{rows} {model}"


#: To be raised if a default of the tuner or of a sweep changes. Knobs, calibrations and methods
#: have their own versions.
_IDENTITY_VERSION: Final = 1

#: Environment variable with the storage of studies, used if the configuration has none.
STORAGE_VARIABLE: Final = "DCS_OPTUNA_STORAGE"

#: Storage of studies that are not stored, so that nodes need no folder in common.
MEMORY: Final = "memory"


def effective_settings(method: Method, tuner: TunerSettings) -> TunerSettings | None:
    """Return the settings with those that do not affect a method reset to their defaults.

    A cell thus exists once, instead of once per value of an axis that does not affect it.

    Parameters
    ----------
    method : Method
        The method.
    tuner : TunerSettings
        Settings as configured.

    Returns
    -------
    TunerSettings or None
        None if the method has no tuned settings.
    """
    if method.fixed is None:
        return None
    names, corrections = {*method.fixed, *tuner.search.fixed}, method.fixed.get("corrections")
    names |= {"weight_scale"} if corrections == "memberships" else set()
    names |= {name for name, own in TERMS.items() if tuner.objective not in own}
    if corrections == "memberships" and tuner.memberships in (0, 1):
        fault = f"memberships {tuner.memberships}: {method.name} has no other functions"
        raise ConfigError(f"{fault}; give 2 to 19")
    known = type(tuner.space).model_fields
    space = tuner.space.model_copy(update={name: known[name].default for name in names})
    memberships = None if corrections == "weights" else tuner.memberships
    return tuner.model_copy(update={"space": space, "memberships": memberships})


def variants_of(config: SweepConfig) -> list[Variant]:
    """Return the distinct variants of a sweep in order.

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
        method, plugin = get_method(name), plugin_version("dcs.methods", name)
        for settings, size in config.variants:
            if method.needs == "nothing" or (size or 0) >= (config.limit or math.inf):
                size = None
            tuner = effective_settings(method, settings)
            variant = Variant(method=name, tuner=tuner, optimization_size=size, plugin=plugin)
            variants[variant] = None
    return list(variants)


def cells_of(
    sources: Iterable[Origin], variants: Iterable[Variant], digests: Mapping[str, str]
) -> list[Cell]:
    """Return the cells of a sweep that are tuned on one table.

    Parameters
    ----------
    sources : iterable of Origin
        Origins of the table.
    variants : iterable of Variant
        The variants of the sweep, from :func:`variants_of`.
    digests : mapping of str to str
        Content hashes of the ``optimization`` and ``test`` tables.

    Returns
    -------
    list of Cell
        In the order of the configuration.
    """
    both: dict[str, Any] = {f"{split}_digest": digests[split] for split in SPLITS}
    pairs = itertools.product(sources, variants)
    return [Cell(**_values(Origin, a), **_values(Variant, b), **both) for a, b in pairs]


def _values(kind: type, each: Any) -> dict[str, Any]:
    """Return the fields that an object has as one of a kind."""
    return {field.name: getattr(each, field.name) for field in fields(kind)}


def sharing(cells: Iterable[Cell]) -> list[tuple[Cell, ...]]:
    """Group cells that select from the same search, in order.

    Parameters
    ----------
    cells : iterable of Cell
        Cells of one table.
    """
    groups: dict[Cell, list[Cell]] = {}
    for cell in cells:
        method = get_method(cell.method)
        tuner = cell.tuner and cell.tuner.without_preference
        search = replace(cell, method=method.shares or method.name, tuner=tuner)
        groups.setdefault(search, []).append(cell)
    return [tuple(group) for group in groups.values()]


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The tables and cells of a sweep, and which of them are complete.

    Attributes
    ----------
    config : SweepConfig
        The sweep.
    output : pathlib.Path
        The output folder.
    variants : tuple of Variant
        The variants of each table, in order.
    sources : dict of str to list of Origin
        By table key, in the order of the configuration: the given tables, the ensemble, or the
        requests for the table. Several requests share a table if there are no demonstrations,
        because the seed then does not affect the prompts: the table is scored once, and each
        request has separate cells.
    tables : dict of str to RowSource
        Where the rows of each key are.
    cells : dict of str to list of Cell
        Cells of existing tables, by table key. Those of other tables are not known yet, because
        the identity of a cell includes the digests of its tables.
    ended : dict of str to CellRecord
        Summaries of cells of earlier runs that are not computed again, by key: finished ones, and
        failed ones unless they are to be retried.
    part : bool
        Whether the plan is restricted to some of the cells.
    whole : list of Origin
        All sources of the whole sweep.
    """

    config: SweepConfig
    output: Path
    variants: tuple[Variant, ...]
    part: bool = False
    whole: list[Origin] = field(default_factory=list)
    sources: dict[str, list[Origin]] = field(default_factory=dict)
    tables: dict[str, RowSource] = field(default_factory=dict)
    cells: dict[str, list[Cell]] = field(default_factory=dict)
    ended: dict[str, CellRecord] = field(default_factory=dict)

    def add(self, key: str, source: Origin, tables: RowSource) -> None:
        """Add a source to a plan, with the rows of its key."""
        self.sources.setdefault(key, []).append(source)
        self.tables.setdefault(key, tables)

    @property
    def study_storage(self) -> str | None:
        """Storage of the Optuna studies: that of the sweep, or of the environment, if any."""
        given = self.config.optuna_storage
        return given.get_secret_value() if given else os.environ.get(STORAGE_VARIABLE) or None

    def cells_on(self, key: str) -> list[Cell]:
        """Return the cells of a table that exists.

        Parameters
        ----------
        key : str
            The table's key.

        Returns
        -------
        list of Cell
            The cells of all its sources.
        """
        return cells_of(self.sources[key], self.variants, self.tables[key].digests)

    def cells_after(self, key: str, ready: Container[str]) -> dict[str, list[Cell]]:
        """Return the cells that can be computed once a table exists, by key.

        Parameters
        ----------
        key : str
            Key of a table that has just been scored.
        ready : container of str
            Keys of the tables that are complete, this one among them.

        Returns
        -------
        dict of str to list of Cell
            The cells of the table, and those of the ensembles that it completes.
        """
        keys = [key] + [
            other
            for other, tables in self.tables.items()
            if isinstance(tables, JointTables)
            and self.tables[key] in tables.members.values()
            and all(each.key in ready for each in tables.members.values())
        ]
        return {each: self.cells_on(each) for each in keys}

    @property
    def missing_tables(self) -> dict[str, TableRequest]:
        """The first request of each table to be scored, by key."""
        firsts = ((key, some[0]) for key, some in self.sources.items() if key not in self.cells)
        return {key: first for key, first in firsts if isinstance(first, TableRequest)}

    @property
    def missing_cells(self) -> dict[str, list[Cell]]:
        """Cells to be computed whose tables exist, by table key."""
        missing = (
            (key, [cell for cell in cells if cell.key not in self.ended])
            for key, cells in self.cells.items()
        )
        return {key: cells for key, cells in missing if cells}

    @property
    def remarks(self) -> list[str]:
        """What was inferred about the given tables, in lines for the user."""
        given = (each for some in self.sources.values() for each in some)
        lines = (line for each in given if isinstance(each, GivenTable) for line in each.remarks)
        return list(dict.fromkeys(lines))

    def files_of(self, key: str) -> dict[str, str]:
        """Return the file of each split of a table, if it has own ones, on any machine."""
        return {split: str(file.absolute()) for split, file in self.tables[key].files.items()}

    @property
    def varies(self) -> tuple[str, ...]:
        """Which of model, task, shots and seed differ between the sources of the whole sweep."""
        names = ORIGINS.values()
        return tuple(n for n in names if len({getattr(each, n) for each in self.whole}) > 1)

    @property
    def has_work(self) -> bool:
        """Whether tables or cells have to be computed."""
        return bool(self.missing_tables or self.missing_cells)

    @property
    def n_cells(self) -> int:
        """Number of cells in the sweep."""
        return sum(map(len, self.sources.values())) * len(self.variants)

    @property
    def n_failed(self) -> int:
        """Number of cells that failed earlier and are not retried."""
        return sum(not record.finished for record in self.ended.values())


@dataclass(slots=True, kw_only=True)
class Progress:
    """The progress of a sweep.

    Attributes
    ----------
    tables_done, tables_total : int
        Number of existing tables, and of all tables.
    cells_done, cells_failed, cells_total : int
        Number of ended cells, of those that failed, and of all cells.
    running : int
        Number of submitted cells.
    work : collections.Counter of str
        Work done in this run: ``cells``, ``trials``, ``prompts``, and of the prompts those that
        were not stored: ``requests`` to a model, with their ``tokens``.
    started, first_cell : float
        Time of the start of the run and of its first submitted cell, by :func:`time.monotonic`;
        NaN before that cell.
    """

    tables_done: int = 0
    tables_total: int = 0
    cells_done: int = 0
    cells_failed: int = 0
    cells_total: int = 0
    running: int = 0
    work: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=time.monotonic)
    first_cell: float = math.nan


class BudgetSpentError(DCSError):
    """A run of a sweep has used its budget, and left work to the next one."""


class Budget(Strict):
    """What one run of a sweep may use; what it has begun is finished.

    Attributes
    ----------
    hours : float
        Duration.
    requests, tokens : float
        Prompts that a model scores, and their tokens. Stored ones do not count. Without them no
        more tables are scored; cells of complete tables are computed.
    """

    hours: float = Field(default=math.inf, gt=0.0)
    requests: float = Field(default=math.inf, gt=0.0)
    tokens: float = Field(default=math.inf, gt=0.0)

    def spent(self, progress: Progress) -> str:
        """Return the name of a limit that is reached, or an empty text; ``hours`` goes first."""
        used = {"hours": (time.monotonic() - progress.started) / 3600.0, **progress.work}
        return next((name for name, limit in self if used.get(name, 0.0) >= limit), "")


def sweep_key(config: SweepConfig) -> str:
    """Return the key that identifies the parent run of a sweep across reruns.

    Parameters
    ----------
    config : SweepConfig
        The sweep.

    Returns
    -------
    str
        Hash of the settings that determine the results.
    """
    # Of tables that are given, nothing is scored, and no engine need be installed.
    scoring: Any = True if config.tables else {*config.scoring.indecisive}
    left_out: dict[str, Any] = {"tracking": True, "data": True, "scoring": scoring}
    decisive = config.model_dump(mode="json", exclude=left_out, exclude_defaults=True)
    # Empty where only options are given that decide nothing.
    decisive = {name: value for name, value in decisive.items() if value != {}}
    return content_key(decisive | {"version": _IDENTITY_VERSION})


def plan_sweep(
    config: SweepConfig,
    output: Path,
    *,
    only: Sequence[str] = (),
    retry_failed: bool = False,
) -> SweepPlan:
    """Compare a sweep with the results on disk.

    Parameters
    ----------
    config : SweepConfig
        The sweep.
    output : pathlib.Path
        The output folder, which may contain earlier results.
    only : sequence of str
        Restrictions to some of the cells; see :func:`selected`.
    retry_failed : bool
        Whether to compute cells that failed earlier again.

    Returns
    -------
    SweepPlan
        The plan; nothing is computed or written.

    Raises
    ------
    DCSError
        If a model, a task or its texts do not exist, a file of earlier results is damaged, or no
        cell satisfies the restrictions.
    """
    given: Sequence[GivenTable] = given_tables(config) if config.tables else ()
    origins = {a: tuple(dict.fromkeys(getattr(g, n) for g in given)) for a, n in ORIGINS.items()}
    chosen = selected(config.axis_values | (origins if given else {}), only)
    whole, config = [*(given or table_requests(config))], config.restricted(chosen)
    own = {ORIGINS[axis]: values for axis, values in chosen.items() if axis in ORIGINS}
    plan = SweepPlan(config, output, tuple(variants_of(config)), bool(only), whole)

    def kept(source: Origin) -> bool:
        return all(getattr(source, name) in values for name, values in own.items())

    for table in filter(kept, given):
        plan.add(content_key({"digests": table.digests}), table, table)
    if not config.tables:
        _plan_requests(plan, kept)
    for key, tables in plan.tables.items():
        # Rows that are missing are scored again, which may change the table.
        if tables.complete:
            plan.cells[key] = plan.cells_on(key)
    keys = [cell.key for cells in plan.cells.values() for cell in cells]
    earlier = Archive(output).load(keys, summaries=True).values()
    plan.ended.update({each.key: each for each in earlier if each.finished or not retry_failed})
    if not plan.n_cells:
        raise ConfigError(f"--only {' '.join(only)}: no cell remains")
    return plan


def _plan_requests(plan: SweepPlan, kept: Callable[[Origin], bool]) -> None:
    """Add the tables to be scored that are kept to a plan, and the ensembles of the sweep of them.

    An ensemble of fewer tables would be none of the sweep.
    """
    known = dict[Any, Any]()
    firsts: dict[str, Any] = {}
    for request in cast("list[TableRequest]", [*plan.whole]):
        key = request_key(request, known=known)
        # Without demonstrations, all seeds share one table.
        firsts.setdefault(key, request)
        if kept(request):
            plan.add(key, request, request.stored(plan.output, known))
    stored: dict[Any, Any] = {firsts[key]: tables for key, tables in plan.tables.items()}
    for over in plan.config.ensemble:
        for group, drawn in grouped_over([*firsts.values()], over):
            ensemble = Origin(seed=group[0].seed, **joint_names(group, over, drawn))
            plan.whole.append(ensemble)
            if all(request in stored for request in group):
                members = {request.label: stored[request] for request in group}
                key = content_key({"ensemble": [each.key for each in members.values()]})
                plan.add(key, ensemble, JointTables(members))


def paths_by_name(paths: Sequence[Path]) -> dict[str, Path]:
    """Return paths by file name, or by hyphenated path if file names are not unique.

    The names are used as parts of file names.

    Raises
    ------
    ConfigError
        If a path is given twice.
    """
    names = [*map(source_name, paths)]
    if len({*names}) < len(names):
        names = [re.sub(r"[^\w.-]+", "-", str(path.with_suffix(""))) for path in paths]
    found = dict(zip(names, paths, strict=True))
    if min(len(found), len({path.resolve() for path in paths})) < len(paths):
        raise ConfigError(f"{', '.join(names)}: a table is given twice; give each once")
    return found


def plan_tuning(
    tables: Mapping[str, Path],
    output: Path,
    *,
    config: TuneConfig,
    methods: Sequence[str],
    seed: int,
    test: Sequence[Path] = (),
    reading: Reading | None = None,
) -> tuple[SweepPlan, dict[str, Rows]]:
    """Return the plan for tables of the same rows, and the rows by split.

    Parameters
    ----------
    tables : mapping of str to path
        Sources of tables by name.
    output : pathlib.Path
        The output folder.
    config : TuneConfig
        Settings of the search.
    methods : sequence of str
        The requested method, and the methods to compare it with.
    seed : int
        Root seed.
    test : sequence of path
        For each table, a table of test rows; empty for none.
    reading : Reading, optional
        How the files are read, where it is not inferred.

    Raises
    ------
    DCSError
        If a table cannot be read, or options are incompatible.
    """
    if test and len(test) != len(tables):
        raise ConfigError(f"--test: {len(test)} for {len(tables)} tables; give one for each")
    names, tested = ([*map(source_name, each)] for each in (tables.values(), test))
    owners = [max((n for n in names if t.startswith(n)), key=len, default="") for t in tested]
    if owners != names and sorted(owners) == sorted(names):
        raise ConfigError(
            f"--test {', '.join(tested)}: are for {', '.join(owners)}, by their names"
        )
    paths = [*map(str, tables.values())]
    given: list[Any] = [*zip(paths, map(str, test), strict=True)] if test else paths
    content = {
        "name": "tune",
        "tables": [dict(zip(tables, given, strict=True))] if len(given) > 1 else given,
        "methods": [*dict.fromkeys(("icl", *methods))],
        "seeds": [seed],
        "reading": reading or Reading(),
        **dict(config),
    }
    sweep = validated(SweepConfig, content, source="command line", error=ConfigError)
    plan = plan_sweep(sweep, output, retry_failed=True)
    (key,) = plan.cells
    rows: dict[str, Rows] = {**plan.tables[key].read()}
    if test and not rows["test"].labelled.any():
        raise ConfigError(
            f"--test {', '.join(map(str, test))}: no row has a label; give others or none"
        )
    return plan, rows
