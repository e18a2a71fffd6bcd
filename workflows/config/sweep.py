"""The one typed configuration of a sweep.

Precedence: command line > YAML > defaults.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    create_model,
    field_validator,
    model_validator,
)

from dcs.errors import ConfigError, show, suggest, unknown
from dcs.io import Strict, as_value_error, parse_yaml, read_yaml, validated
from dcs.prompting import get_task, parse_shots
from dcs.scoring import engine_names, engine_options
from dcs.selection.methods import get_method, method_names
from tracking.results.settings import objective_name
from workflows.config.scoring import ScoringSettings
from workflows.config.tuner import (
    FixedObjective,
    ObjectiveChoice,
    StudyStorage,
    TrackingSettings,
    TunerSettings,
)

Model = TypeVar("Model", bound=Strict)

#: Fewer rows than this tell nothing about more than a few classes.
_FEWEST_ROWS: Final = 10


def _size(value: Any) -> Any:
    number = isinstance(value, int) and not isinstance(value, bool) and value >= _FEWEST_ROWS
    if number or value == "full":
        return value
    raise ValueError(
        f"{value!r} is not a number of optimization rows; write {_FEWEST_ROWS} or more, or full"
    )


#: A number of optimization rows, or ``"full"``.
SizeChoice = Annotated[int | str, PlainValidator(_size)]

#: The settings of the tuner that ``axes:`` may vary. The objective has an axis of its own name.
ABLATED: Final = tuple(name for name in TunerSettings.model_fields if name != "objective")

#: How people write the value None of an axis; of a limit it is that there is none.
_NONE: Final = {"weight_scale": "tuned", "memberships": "all", "optimization_sizes": "full"}


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuse the values of an axis if one comes twice."""
    twice = sorted(str(value) for value, number in Counter(values).items() if number > 1)
    if twice:
        raise ValueError(f"names {', '.join(twice)} more than once; each entry once")
    return values


#: The values of an axis of the type given, and those of one that must have some.
T = TypeVar("T")
Distinct: TypeAlias = Annotated[tuple[T, ...], AfterValidator(_distinct)]
Axis: TypeAlias = Annotated[tuple[T, ...], Field(min_length=1), AfterValidator(_distinct)]


def _axes_model() -> Any:
    """Return a model with a list of values for each setting, each checked as the setting is."""
    fields: dict[str, Any] = {}
    for name in ABLATED:
        value: Any = TunerSettings.model_fields[name].rebuild_annotation()
        fields[name] = (Axis[value], ())
    return create_model("Axes", __base__=Strict, **fields)


_AXES: Final = _axes_model()


def _checked(value: Any) -> dict[str, tuple[Any, ...]]:
    given = _AXES.model_validate(value)
    # In the order of the settings, however they were written.
    return {name: getattr(given, name) for name in ABLATED if name in given.model_fields_set}


#: Values for settings of the tuner, by name.
AxisValues = Annotated[
    dict[str, tuple[Any, ...]], PlainValidator(_checked), PlainSerializer(dict, return_type=Any)
]


def value_label(axis: str, value: Any) -> str:
    """Return how people write a value of an axis; ``--only`` takes it as well.

    Parameters
    ----------
    axis : str
        ``models``, ..., ``objectives``, ``optimization_sizes`` or a setting of the tuner.
    value : object
        One of its values.
    """
    if axis == "objectives":
        return objective_name(value.model_dump() if isinstance(value, FixedObjective) else value)
    return _NONE.get(axis, "none") if value is None else str(value)


def _table_choice(value: Any) -> Any:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, dict) and len(value) > 1:
        return {str(name): _table_choice(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)) and [type(each) for each in value] == [str, str]:
        return value[0], value[1]
    raise ValueError(
        f"{show(value)} is neither a path or pattern such as folder/*.parquet, nor a pair "
        "[OPTIMIZATION, TEST], nor several of them by name: {NAME: PATH, NAME: PATH}"
    )


#: A path or pattern of tables, those of the optimization and the test rows, or by name tables of
#: the same rows that are tuned on together.
TableChoice = Annotated[
    str | tuple[str, str] | dict[str, str | tuple[str, str]], PlainValidator(_table_choice)
]


def _known_storage(address: SecretStr) -> SecretStr:
    StudyStorage(address.get_secret_value())
    return address


_StorageAddress = Annotated[SecretStr, AfterValidator(_known_storage)]

#: What tables of the same rows differ in.
Grouping = Literal["prompts", "seeds", "models"]


class PromptsConfig(Strict):
    """Which prompts are scored with which models: all of `dcs generate`, and part of a sweep.

    Attributes
    ----------
    models : tuple of str
        Local folders, hub ids, or ``tiny_lm``.
    tasks : tuple of str
        Task names, or paths of task YAML files.
    shots : tuple of int or "N"
        Demonstrations per prompt; ``N`` is one per class.
    seeds : tuple of int
        Root seeds; demonstrations, split, annealing and sampler derive theirs from each.
    data : str or None
        Folder with the texts of tasks that come without them; on a cluster, one that all nodes
        share.
    limit : int or None
        At most so many texts of each split; None means all of them.
    scoring : ScoringSettings
        The engine that scores prompts, and its options.
    """

    models: Axis[str] = ("tiny_lm",)
    tasks: Axis[str]
    shots: Axis[int | Literal["N"]] = (1,)
    seeds: Axis[Annotated[int, Field(ge=0)]] = (0,)
    data: str | None = None
    limit: int | None = Field(default=None, ge=1)
    scoring: ScoringSettings = ScoringSettings()

    @field_validator("tasks")
    @classmethod
    def _known_tasks(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        # Results know a task by its name, whatever its file is called.
        _distinct(tuple(as_value_error(get_task, value).name for value in values))
        return values

    @field_validator("shots", mode="before")
    @classmethod
    def _parse_shots(cls, values: Any) -> Any:
        return [*map(parse_shots, values)] if isinstance(values, (list, tuple)) else values


class TuneConfig(Strict):
    """How schemes are searched and what is recorded: all of `dcs tune`, and half of a sweep.

    Attributes
    ----------
    tuner : TunerSettings
        The hyperparameter search of each cell.
    tracking : TrackingSettings
        What becomes a run or a figure in MLflow.
    """

    tuner: TunerSettings = TunerSettings()
    tracking: TrackingSettings = TrackingSettings()


class SweepConfig(PromptsConfig, TuneConfig):
    """A grid of models x tasks x shots x seeds x methods x ablations, and how a cell is tuned.

    Attributes
    ----------
    name : str
        Name of the sweep and of its MLflow experiment.
    tables : tuple of str, pair of str, or mapping
        Probability tables in the place of prompts: paths, folders, patterns, or pairs of the
        optimization and the test rows; by name, several of the same rows that are tuned on
        together; what :func:`dcs.data.importers.read_tables` takes. Where
        there are any, no model is loaded: model, task and shots are as the tables say.
    ensemble : tuple of "prompts", "seeds" or "models"
        Tables of the same rows that are also tuned on together, those that differ in this: in
        shots, demonstrations or template; in the seed of the demonstrations; or in the model.
    held_out : float
        Share of the rows of a table that become its test rows where it does not tell them apart,
        another draw for each seed.
    methods : tuple of str
        Correction methods; ``icl`` is the uncorrected model.
    objectives : tuple of str or FixedObjective
        Objectives to compare, as in :class:`TunerSettings`; none means that of the tuner.
    axes : mapping of str to tuple
        Values to compare of other settings of the tuner, by name.
    optimization_sizes : tuple of int or "full"
        Numbers of optimization rows to compare. Each is a seeded, stratified choice of the rows,
        the smaller within the larger; ``full`` and what is not smaller are all rows.
    combine : "all" or "one_at_a_time"
        Whether objectives, axes and sizes are combined with each other, or each is varied while
        the others are as in `tuner`, on all rows.
    optuna_storage : str or None
        URL of a database or path of a journal file in which Optuna's studies are written down,
        one per cell; None keeps them in memory. Shown and recorded nowhere: a URL may hold a
        password.
    """

    tasks: Distinct[str] = ()
    tables: tuple[TableChoice, ...] = ()
    ensemble: Distinct[Grouping] = ()
    held_out: float = Field(default=0.3, gt=0.0, lt=1.0)
    name: str = Field(min_length=1, max_length=120, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    methods: Axis[str] = method_names()
    limit: int | None = Field(default=None, ge=20)
    objectives: Distinct[ObjectiveChoice] = ()
    axes: AxisValues = Field(default_factory=dict)
    optimization_sizes: Axis[SizeChoice] = ("full",)
    combine: Literal["all", "one_at_a_time"] = "all"
    optuna_storage: _StorageAddress | None = Field(default=None, exclude=True)

    @field_validator("methods")
    @classmethod
    def _known_methods(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            as_value_error(get_method, value)
        if "contextual" in values:
            raise ValueError(
                "'contextual' needs the probabilities of content-free inputs, which sweeps do "
                "not score; use dcs.get_method('contextual').fit(..., content_free=...)"
            )
        return values

    @model_validator(mode="after")
    def _values_go_together(self) -> SweepConfig:
        if not self.tasks and not self.tables:
            raise ValueError("needs tasks whose prompts are scored, or tables")
        own = dict(self.tuner) | {"objectives": self.tuner.objective, "optimization_sizes": "full"}
        varied = {a: v for a, v in self.axis_values.items() if a in own and v != (own[a],)}
        for axis, values in varied.items() if self.combine == "one_at_a_time" else ():
            if own[axis] not in values and len(varied) > 1:
                lacking = "null" if own[axis] is None else value_label(axis, own[axis])
                others = ", ".join(other for other in varied if other != axis)
                raise ValueError(
                    f"axis {axis} lacks the tuner's own value {lacking}, with which combine: "
                    f"one_at_a_time varies {others}; add it"
                )
        for settings, _ in self.variants:
            TunerSettings.model_validate(settings.model_dump())
            if "furud" in self.methods and settings.memberships in (0, 1):
                raise ValueError(
                    f"memberships {settings.memberships} leaves method furud nothing to choose "
                    "from; give it 2 or more, or leave the method out"
                )
        return self

    @property
    def variants(self) -> list[tuple[TunerSettings, int | None]]:
        """Every combination of tuner settings and optimization rows; of these, None is all."""
        choices = {"objective": self.objectives or (self.tuner.objective,), **self.axes}
        sizes = [None if size == "full" else int(size) for size in self.optimization_sizes]
        found: list[tuple[TunerSettings, int | None]] = []
        for *values, size in itertools.product(*choices.values(), sizes):
            changed = dict(zip(choices, values, strict=True))
            if self.combine == "one_at_a_time":
                others = sum(getattr(self.tuner, name) != value for name, value in changed.items())
                if others + (size is not None) > 1:
                    continue
            found.append((self.tuner.model_copy(update=changed), size))
        return found

    @property
    def axis_values(self) -> dict[str, tuple[Any, ...]]:
        """The values of every axis, outermost first."""
        # Tables say the others themselves.
        prompts = () if self.tables else ("models", "tasks", "shots")
        return {
            **{name: getattr(self, name) for name in (*prompts, "seeds", "methods")},
            "objectives": self.objectives or (self.tuner.objective,),
            **self.axes,
            "optimization_sizes": self.optimization_sizes,
        }


def configured(
    model: type[Model], content: dict[str, Any], *, source: str, sets: Sequence[str], **named: Any
) -> Model:
    """Return a configuration in which the command line wins over the content of a file.

    Parameters
    ----------
    model : type
        :class:`SweepConfig` or one of its halves.
    content : dict
        Plain values by key; is changed.
    source : str
        Where they come from, for the error.
    sets : sequence of str
        Each ``key=value`` with a dotted key of the configuration and a value in YAML.
    **named
        Further values by key, ``__`` for a dot; None means not given.

    Raises
    ------
    ConfigError
        A key or value is not allowed.
    """
    given = [(name.split("__"), value) for name, value in named.items() if value is not None]
    for text in sets:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise ConfigError(f"--set {show(text)}: write KEY=VALUE, e.g. tuner.trials=10")
        parsed = parse_yaml(value, source=f"--set {key}", error=ConfigError)
        given.append((key.strip().split("."), parsed))
    _leave_engine(content, [value for path, value in given if path == ["scoring", "engine"]])
    for path, value in given:
        node = content
        for name in path[:-1]:
            if not isinstance(node.get(name), dict):
                node[name] = {}
            node = node[name]
        node[path[-1]] = value
    return validated(
        model, content, source=f"{source} with --set" if sets else source, error=ConfigError
    )


def _leave_engine(content: dict[str, Any], engines: list[Any]) -> None:
    """Drop what only the file's engine knows where the command line names another."""
    scoring = content.get("scoring")
    if not isinstance(scoring, dict) or not engines or engines[-1] not in engine_names():
        return
    if engines[-1] != scoring.get("engine", "transformers"):
        known = {"store", *engine_options(engines[-1])}
        content["scoring"] = {key: value for key, value in scoring.items() if key in known}


def load_config(
    path: str | os.PathLike[str], *, sets: Sequence[str] = (), **named: Any
) -> SweepConfig:
    """Read a sweep configuration.

    Parameters
    ----------
    path : path-like
        A YAML file.
    sets, **named
        Values from the command line, which win; see :func:`configured`.

    Returns
    -------
    SweepConfig
        Checked.

    Raises
    ------
    ConfigError
        The file is missing or not YAML, or a key or value is not allowed; names file and key.
    """
    content = read_yaml(path, error=ConfigError)
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path}: holds {type(content).__name__}, not a mapping of keys such as name, tasks"
        )
    return configured(SweepConfig, content, source=str(path), sets=sets, **named)


def narrowed(config: SweepConfig, restrictions: Sequence[str]) -> SweepConfig:
    """Return a sweep without the cells that are not asked for.

    Parameters
    ----------
    config : SweepConfig
        The whole sweep.
    restrictions : sequence of str
        Each ``axis=value,value``, e.g. ``tasks=trec,rte``; the axes are models, tasks, shots,
        seeds, methods, objectives, optimization_sizes and the settings under ``axes``. None is
        written as :func:`workflows.config.sweep.value_label` does: ``weight_scale=tuned``. Of
        several restrictions for one axis, all must be met.

    Returns
    -------
    SweepConfig
        The part.

    Raises
    ------
    ConfigError
        An axis is not known, a value is not in the configuration, or nothing is left.
    """
    axes = config.axis_values
    kept: dict[str, tuple[Any, ...]] = {}
    for restriction in restrictions:
        axis, _, text = restriction.partition("=")
        axis = axis.removeprefix("axes.")
        if axis not in axes:
            raise ConfigError(
                f"--only {restriction!r}: unknown axis {axis!r}{suggest(axis, axes)}; "
                f"write AXIS=VALUE,... with one of {', '.join(axes)}"
            )
        there = {value_label(axis, value): value for value in axes[axis]}
        if axis == "tasks":  # A file also by what it calls its task.
            there |= {get_task(value).name: value for value in axes[axis]}
        wanted = text.split(",")
        for name in wanted:
            if name not in there:
                raise ConfigError(
                    f"--only {restriction!r}: {name!r} is not among the {axis} of the sweep "
                    f"({', '.join(there)}){suggest(name, there)}"
                )
        chosen = [there[name] for name in wanted]
        among = kept.get(axis, axes[axis])
        kept[axis] = tuple(value for value in among if value in chosen)
        if not kept[axis]:
            raise ConfigError(f"--only {restriction!r}: no {axis} are left beside the others")
    own = {name: kept.pop(name, values) for name, values in config.axes.items()}
    part = config.model_copy(update={**kept, "axes": own})
    if not part.variants:
        raise ConfigError(
            f"--only {' '.join(restrictions)}: with combine: one_at_a_time no cell is left; keep "
            "the value of the tuner in all axes but one"
        )
    return part


def packaged_config(name: str) -> Path:
    """Return the path of a configuration that comes with the package.

    Parameters
    ----------
    name : str
        Its file's stem, e.g. ``quickstart``.

    Returns
    -------
    pathlib.Path
        The YAML file.

    Raises
    ------
    ConfigError
        There is none of that name.
    """
    folder = Path(__file__).parents[1] / "configs"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        names = sorted(file.stem for file in folder.glob("*.yaml"))
        raise unknown("packaged configuration", name, names)
    return path
