"""The typed configuration of a sweep.

Precedence: command line > YAML > defaults.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    create_model,
    field_validator,
    model_validator,
)

from dcs.data.columns import Reading
from dcs.errors import ConfigError, check_choice, show, unknown
from dcs.io import Strict, as_values, parse_yaml, read_yaml, validated
from dcs.prompting.files import get_task
from dcs.prompting.tasks import parse_shots
from dcs.selection.methods import get_method, method_names
from dcs_tracking.archive import TrackingSettings
from dcs_tracking.results.settings import NONE_LABELS
from dcs_workflows.config.scoring import ScoringSettings
from dcs_workflows.config.tuner import (
    PARTS,
    PREFERENCE_FIELDS,
    Judge,
    ObjectiveName,
    TunerSettings,
    distinct,
)

Model = TypeVar("Model", bound=Strict)

#: Maximum number of cells, all values of all axes combined: a sweep is planned in memory.
MAX_CELLS: Final = 100_000


#: A number of optimization rows: fewer are not informative for more than a few classes.
SizeChoice: TypeAlias = Annotated[int, Field(ge=10, strict=True)] | Literal["full"]

#: Keys that sweeps of tables do not use.
_OF_PROMPTS: Final = ("limit", "tasks", "models", "shots", "data", "scoring")

#: Tuner settings that ``axes:`` may vary, those of the space, search and judge among them. The
#: objective has the separate axis ``objectives``.
_MODELS: Final[tuple[type[Strict], ...]] = (TunerSettings, *PARTS.values())
ABLATED: Final = {
    name: model.model_fields[name]
    for model in _MODELS
    for name in model.model_fields
    if name not in ("objective", *PARTS)
}


def _as_single(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


#: Unique values of an axis of the given type; those of `AtLeastOne` must not be empty.
T = TypeVar("T")
Distinct: TypeAlias = Annotated[tuple[T, ...], AfterValidator(distinct)]
AtLeastOne: TypeAlias = Annotated[tuple[T, ...], Field(min_length=1), AfterValidator(distinct)]


def _axis(name: str) -> Any:
    """Return type and default of the values of a setting, validated like the setting itself."""
    value: Any = ABLATED[name].rebuild_annotation()
    if name in PARTS["space"].model_fields:
        # None stands for the space of the tuner.
        value = Annotated[value | None, AfterValidator(_as_single)]
    return AtLeastOne[value], ()


_AXES: Any = create_model("Axes", __base__=Strict, **{name: _axis(name) for name in ABLATED})


def _check_axes(value: Any) -> dict[str, tuple[Any, ...]]:
    given = _AXES.model_validate(value)
    # In the order of the settings, not in that of the file.
    return {name: getattr(given, name) for name in ABLATED if name in given.model_fields_set}


#: Values of tuner settings by name.
AxisValues = Annotated[
    dict[str, tuple[Any, ...]], PlainValidator(_check_axes), PlainSerializer(dict, return_type=Any)
]


def value_label(axis: str, value: Any) -> str:
    """Return the displayed form of an axis value, which ``--only`` accepts.

    Parameters
    ----------
    axis : str
        ``models``, ..., ``objectives``, ``optimization_sizes`` or a setting of the tuner.
    value : object
        A value of the axis.
    """
    if isinstance(value, tuple):
        return "..".join(map(str, value))
    if isinstance(value, float):
        return str(value).removesuffix(".0")
    return NONE_LABELS.get(axis, "none") if value is None else str(value)


def _check_table(value: Any) -> Any:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, dict) and len(value) > 1 and dict not in map(type, value.values()):
        return {str(name): _check_table(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)) and [type(each) for each in value] == [str, str]:
        return value[0], value[1]
    raise ValueError(
        f"{show(value)}: expected a path or pattern such as folder/*.parquet, a pair "
        "[OPTIMIZATION, TEST], or several of them by name: {NAME: PATH, NAME: PATH}"
    )


#: A path or pattern of tables, a pair of paths of the optimization and test rows, or a mapping of
#: names to tables of the same rows that are tuned jointly.
TableChoice = Annotated[
    str | tuple[str, str] | dict[str, str | tuple[str, str]],
    PlainValidator(_check_table),
    PlainSerializer(lambda value: value, return_type=Any),
]


def _known_method(name: str) -> str:
    return get_method(name).name


#: The respect in which the tables of an ensemble differ.
Grouping = Literal["prompts", "seeds", "models", "all"]


class ScoringConfig(Strict):
    """The engine and its options: configuration of `dcs predict`.

    Attributes
    ----------
    scoring : ScoringSettings
        The scoring engine and its options.
    """

    scoring: ScoringSettings = ScoringSettings()


class PromptsConfig(ScoringConfig):
    """The prompts and models to score: configuration of `dcs generate`, and part of a sweep.

    Attributes
    ----------
    models : tuple of str
        Local folders, hub ids, or ``tiny_lm``.
    tasks : tuple of str
        Task names, or paths of task YAML files.
    shots : tuple of int or "N"
        Number of demonstrations per prompt; ``N`` is one per class.
    seeds : tuple of int
        Root seeds, from which those of demonstrations, split, annealing and sampler derive.
    data : str or None
        Folder with the texts of tasks that are packaged without texts; on a cluster, it must be
        shared by all nodes.
    limit : int or None
        Maximum number of texts per split; None means all.
    """

    models: AtLeastOne[str] = ("tiny_lm",)
    tasks: AtLeastOne[str]
    shots: AtLeastOne[Annotated[int | Literal["N"], BeforeValidator(parse_shots)]] = (1,)
    seeds: AtLeastOne[Annotated[int, Field(ge=0)]] = (0,)
    data: str | None = None
    limit: int | None = Field(default=None, ge=1)

    @field_validator("tasks")
    @classmethod
    def _known_tasks(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        # Results identify a task by its name and not by its file name.
        distinct(tuple(get_task(value).name for value in values))
        return values


class TuneConfig(Strict):
    """The search and its tracking: configuration of `dcs tune`, and part of a sweep.

    Attributes
    ----------
    tuner : TunerSettings
        The hyperparameter search of each cell.
    tracking : TrackingSettings
        What is recorded as runs and figures in MLflow.
    earlier : pathlib.Path, optional
        A scheme.json of dcs tune on some of the rows. They stay fitted or held out as they were
        for it, and only further rows are divided.
    """

    tuner: TunerSettings = TunerSettings()
    tracking: TrackingSettings = TrackingSettings()
    earlier: Path | None = None


class SweepConfig(PromptsConfig, TuneConfig):
    """A grid of models x tasks x shots x seeds x methods x ablations, and its tuner settings.

    Attributes
    ----------
    name : str
        Name of the sweep and of its MLflow experiment.
    tables : tuple of str, pair of str, or mapping
        Probability tables to use instead of prompts, in any format of
        :func:`dcs.read_table`: paths, folders, patterns, pairs of the
        optimization and test rows, or named tables of the same rows to be tuned jointly. If given,
        no model is loaded; model, task and shots are taken from the fields of a pattern, such as
        ``{task}_seed{seed}.npz``, or from the tables.
    reading : Reading
        How the columns of `tables` are read, where it is not inferred.
    ensemble : tuple of "prompts", "seeds", "models" or "all"
        Additionally tune jointly on tables of the same rows that differ in shots, demonstrations
        or template (``prompts``), in the demonstration seed, or in the model. ``all`` shows what
        more tables of a task buy: it combines all of them, and some numbers of them in three
        random orders.
    held_out : float
        Fraction of the rows of a table to hold out as test rows if it has no test rows; drawn
        separately for each seed.
    methods : tuple of str
        Correction methods; ``icl`` is the uncorrected model.
    objectives : tuple of str
        Objectives to compare, as in :class:`TunerSettings`; by default that of the tuner.
    axes : mapping of str to tuple
        Values to compare of other tuner settings, by name.
    optimization_sizes : tuple of int or "full"
        Numbers of optimization rows to compare. Each is a seeded, stratified, nested sample of
        the rows; ``full`` and sizes that are not smaller use all rows.
    combine : "all" or "one_at_a_time"
        Whether to combine all objectives, axes and sizes, or to vary one at a time with the
        others set as in `tuner` and all rows.
    optuna_storage : str or None
        URL of a database for the Optuna studies, one per cell; by default they are journals in the
        folder ``studies`` of the output folder. ``memory`` stores none: a cell that is stopped
        begins again, and nodes need no folder in common. Never displayed or recorded, because a
        URL may contain a password.
    """

    tasks: Distinct[str] = ()
    tables: Annotated[tuple[TableChoice, ...], BeforeValidator(as_values)] = ()
    reading: Reading = Reading()
    ensemble: Annotated[Distinct[Grouping], BeforeValidator(as_values)] = ()
    held_out: float = Field(default=0.3, gt=0.0, lt=1.0)
    name: str = Field(min_length=1, max_length=120, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    methods: AtLeastOne[Annotated[str, AfterValidator(_known_method)]] = method_names()
    limit: int | None = Field(default=None, ge=20)
    objectives: Distinct[ObjectiveName] = ()
    axes: AxisValues = Field(default_factory=dict)
    optimization_sizes: AtLeastOne[SizeChoice] = ("full",)
    combine: Literal["all", "one_at_a_time"] = "all"
    optuna_storage: SecretStr | None = Field(default=None, exclude=True)

    @model_validator(mode="after")
    def _picks_in_ablations(self) -> SweepConfig:
        """Set ``prefer: balance`` if settings are compared: no-harm would hide most changes."""
        several = any(len(values) > 1 for values in (self.objectives, *self.axes.values()))
        if several and not {*self.tuner.model_fields_set, *self.axes} & {*PREFERENCE_FIELDS}:
            balanced = self.tuner.model_copy(update={"prefer": "balance"})
            object.__setattr__(self, "tuner", balanced)  # frozen for all others
        return self

    @model_validator(mode="after")
    def _is_consistent(self) -> SweepConfig:
        if not self.tasks and not self.tables:
            raise ValueError("tasks or tables is required")
        kinds = {"tables": ("held_out", "reading", "earlier"), "prompts": _OF_PROMPTS}
        own, other = ("tables", "prompts") if self.tables else ("prompts", "tables")
        for name in kinds[other]:
            usual = type(self).model_fields[name].get_default(call_default_factory=True)
            if getattr(self, name) != usual:
                raise ValueError(f"{name} is of sweeps of {other}, and this one is of {own}")
        cells = math.prod(map(len, self.axis_values.values()))
        if cells > MAX_CELLS:
            raise ValueError(f"{cells:,} cells; a sweep has at most {MAX_CELLS:,}, use several")
        if {*self.axes} & {*PREFERENCE_FIELDS, *Judge.model_fields}:
            for tuner, _ in self.variants:
                # These raise if their values contradict each other.
                _ = tuner.preference, Judge(**dict(tuner.judge))
        if self.combine == "one_at_a_time" and (self.tuner, None) not in self.variants:
            axes = ", ".join(("objectives", *self.axes, "optimization_sizes"))
            raise ValueError(
                f"combine: one_at_a_time varies each of {axes} from the values under tuner and "
                "all rows; each must contain its own"
            )
        return self

    @property
    def variants(self) -> list[tuple[TunerSettings, int | None]]:
        """Every combination of tuner settings and number of optimization rows; None means all."""
        choices = {"objective": self.objectives or (self.tuner.objective,), **self.axes}
        sizes = [None if size == "full" else int(size) for size in self.optimization_sizes]
        found: list[tuple[TunerSettings, int | None]] = []
        for *values, size in itertools.product(*choices.values(), sizes):
            changed = dict(zip(choices, values, strict=True))
            if self.combine == "one_at_a_time":
                others = sum(self.tuner.changed({n: v}) != self.tuner for n, v in changed.items())
                if others + (size is not None) > 1:
                    continue
            found.append((self.tuner.changed(changed), size))
        return found

    def restricted(self, values: Mapping[str, tuple[Any, ...]]) -> SweepConfig:
        """Return the sweep with fewer values of some of its axes."""
        axes = {name: values.get(name, own) for name, own in self.axes.items()}
        others = {name: own for name, own in values.items() if name not in axes}
        return self.model_copy(update={**others, "axes": axes})

    @property
    def axis_values(self) -> dict[str, tuple[Any, ...]]:
        """The values of every axis, outermost first."""
        # Tables determine their model, task and shots.
        prompts = () if self.tables else ("models", "tasks", "shots")
        return {
            **{name: getattr(self, name) for name in (*prompts, "seeds", "methods")},
            "objectives": self.objectives or (self.tuner.objective,),
            **self.axes,
            "optimization_sizes": self.optimization_sizes,
        }


def configured(
    model: type[Model],
    content: dict[str, Any] | None = None,
    *,
    source: str = "command line",
    sets: Sequence[str] | None = None,
    **named: Any,
) -> Model:
    """Return a configuration in which the command line takes precedence over the file.

    Parameters
    ----------
    model : type
        :class:`SweepConfig` or one of its base classes.
    content : dict, optional
        Plain values by key; modified in place.
    source : str
        Origin of the values, for error messages.
    sets : sequence of str, optional
        Strings ``key=value`` with a dotted configuration key and a YAML value.
    **named
        Further values by key, with ``__`` for a dot; None values are ignored.

    Raises
    ------
    ConfigError
        If a key or value is invalid.
    """
    content = {} if content is None else content
    given = [(name.split("__"), value) for name, value in named.items() if value is not None]
    for text in sets or ():
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise ConfigError(f"--set {show(text)}: must be KEY=VALUE, e.g. tuner.trials=10")
        parsed = parse_yaml(value, source=f"--set {key}", error=ConfigError)
        given.append((key.strip().split("."), parsed))
    keys = [f"{'.'.join(path)}." for path, _ in given]
    for one, other in itertools.permutations(keys, 2):
        if one.startswith(other):
            raise ConfigError(f"{one[:-1]} is given twice, alone or in a mapping; give it once")
    for path, value in given:
        node = content
        for name in path[:-1]:
            if not isinstance(node.get(name), dict):
                node[name] = {}
            node = node[name]
        node[path[-1]] = value
    origin = f"{source} with options" if given and source != "command line" else source
    return validated(model, content, source=origin, error=ConfigError)


def load_config(
    path: str | os.PathLike[str], *, sets: Sequence[str] | None = None, **named: Any
) -> SweepConfig:
    """Read a sweep configuration.

    Parameters
    ----------
    path : path-like
        A YAML file.
    sets, **named
        Values from the command line, which take precedence; see :func:`configured`.

    Returns
    -------
    SweepConfig
        The validated configuration.

    Raises
    ------
    ConfigError
        If the file does not exist or is not YAML, or a key or value is invalid.
    """
    content = read_yaml(path, error=ConfigError)
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path}: expected a mapping of keys such as name, tasks, got {type(content).__name__}"
        )
    if named.get("tables"):  # instead of the prompts of the file
        content = {name: value for name, value in content.items() if name not in _OF_PROMPTS}
    return configured(SweepConfig, content, source=str(path), sets=sets, **named)


def selected(
    axes: Mapping[str, Sequence[Any]], restrictions: Sequence[str]
) -> dict[str, tuple[Any, ...]]:
    """Return the values of axes that satisfy restrictions, of each restricted axis.

    Parameters
    ----------
    axes : mapping of str to sequence
        The values of every axis of a sweep.
    restrictions : sequence of str
        Strings ``axis=value,value``, e.g. ``tasks=trec,rte``; the axes are models, tasks, shots,
        seeds, methods, objectives, optimization_sizes and the settings in ``axes``, also in the
        singular. Values are written as returned by :func:`value_label`, e.g.
        ``weight_scale=tuned``. Several restrictions of one axis are combined with AND.

    Raises
    ------
    ConfigError
        If an axis is unknown, or a value is not in the sweep.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for restriction in restrictions:
        given, _, text = restriction.partition("=")
        given = given.removeprefix("axes.")
        axis = given if given in axes else f"{given}s"
        if axis not in axes:
            raise unknown(f"--only {restriction!r}: axis", given, axes)
        known = {value_label(axis, value): value for value in axes[axis]}
        wanted = [text] if text in known else text.split(",")
        for name in wanted:
            check_choice(f"--only {restriction!r}: {axis}", name, known)
        chosen = [known[name] for name in wanted]
        found[axis] = tuple(value for value in found.get(axis, axes[axis]) if value in chosen)
        if not found[axis]:
            raise ConfigError(f"--only {restriction!r}: excludes all remaining {axis}")
    return found


def packaged_config(name: str) -> Path:
    """Return the path of a packaged configuration.

    Parameters
    ----------
    name : str
        File name without suffix, e.g. ``quickstart``.

    Returns
    -------
    pathlib.Path
        The YAML file.

    Raises
    ------
    ConfigError
        If the configuration does not exist.
    """
    folder = Path(__file__).parents[1] / "configs"
    files = {file.stem: file for file in sorted(folder.glob("*.yaml"))}
    check_choice("packaged configuration", name, files)
    return files[name]
