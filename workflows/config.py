"""The one typed configuration of a sweep.

Precedence: command line > YAML > defaults.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from dcs._files import suggest
from dcs._reading import read_yaml, show
from dcs.errors import ConfigError, DCSError
from dcs.methods import get_method, method_names
from dcs.prompting import get_task, parse_shots
from workflows.scoring import ScoringSettings

__all__ = [
    "AXES",
    "SweepConfig",
    "TunerSettings",
    "checked_scoring",
    "checked_settings",
    "load_config",
    "narrowed",
    "packaged_config",
]

#: What a sweep is the product of, outermost first.
AXES = ("models", "tasks", "shots", "seeds", "methods")


class _Strict(BaseModel):
    """Unknown keys are errors: a misspelt key that is ignored costs a night on a cluster."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TunerSettings(_Strict):
    """How the scheme of one cell is found.

    Attributes
    ----------
    protocol : "paper" or "front"
        ``paper``: an Optuna study whose trials anneal on the optimization rows and are judged on
        development rows. ``front``: cross-validation over a front of accuracy and COBias, from
        which `prefer` picks a point; see docs/results.md.
    trials : int
        Settings that Optuna tries per cell; with ``front`` beside the standard ones, 0 for none.
    window : int
        Trials that may run at once where there are CPUs to spare. Each is suggested without
        knowing the results of those under way, on one CPU too, so it is part of the result.
    development : float
        Share of the rows on which ``paper`` judges trials (paper, Appendix D: 0.05).
    budget : int
        With ``paper``: schemes judged per annealing, after which it ends.
    max_weight_scale : int
        Largest weight scale D_W tried.
    max_beta, max_tau : float
        Largest weight of the COBias and PMI terms tried.
    prefer : "balance", "accuracy" or "knee"
        The point of the front: highest accuracy minus COBias, highest accuracy, or the knee.
    max_accuracy_loss, max_cobias : float or None
        In points. Take the fairest scheme that loses no more accuracy than this; keep to schemes
        with no more COBias than this.
    """

    protocol: Literal["paper", "front"] = "paper"
    trials: int = Field(default=30, ge=0, le=100_000)
    window: int = Field(default=4, ge=1, le=1000)
    development: float = Field(default=0.05, gt=0.0, lt=1.0)
    budget: int = Field(default=750_000, ge=100)
    max_weight_scale: int = Field(default=60, ge=10, le=1000)
    max_beta: float = Field(default=2.0, gt=0.0)
    max_tau: float = Field(default=0.5, gt=0.0)
    prefer: Literal["balance", "accuracy", "knee"] = "balance"
    max_accuracy_loss: float | None = Field(default=None, ge=0.0, le=100.0)
    max_cobias: float | None = Field(default=None, ge=0.0, le=100.0)

    @model_validator(mode="after")
    def _some_trials(self) -> TunerSettings:
        if self.protocol == "paper" and self.trials < 1:
            raise ValueError("trials 0: the paper's protocol needs at least one")
        return self


class SweepConfig(_Strict):
    """A grid of models x tasks x shots x seeds x methods, and how each cell is tuned.

    Attributes
    ----------
    name : str
        Name of the sweep and of its MLflow experiment.
    models : tuple of str
        Local folders, hub ids, or ``tiny_lm``.
    tasks : tuple of str
        Task names, or paths of task YAML files.
    shots : tuple of int or "N"
        Demonstrations per prompt; ``N`` is one per class.
    seeds : tuple of int
        Root seeds; demonstrations, split, annealing and sampler derive theirs from each.
    methods : tuple of str
        Correction methods; ``icl`` is the uncorrected model.
    data : str or None
        Folder with the texts of tasks that come without them; on a cluster, one that all nodes
        share.
    limit : int or None
        At most so many texts of each split; None means all of them.
    scoring : ScoringSettings
        The engine that scores prompts, and its options.
    tuner : TunerSettings
        The hyperparameter search of each cell.
    tracked_trials : "all", "none" or int
        Trials logged as MLflow runs: all, none, or the best so many per cell.
    """

    name: str = Field(min_length=1, max_length=120, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    models: tuple[str, ...] = ("tiny_lm",)
    tasks: tuple[str, ...] = Field(min_length=1)
    shots: tuple[int | Literal["N"], ...] = (1,)
    seeds: tuple[int, ...] = (0,)
    methods: tuple[str, ...] = method_names()
    data: str | None = None
    limit: int | None = Field(default=None, ge=20)
    scoring: ScoringSettings = ScoringSettings()
    tuner: TunerSettings = TunerSettings()
    tracked_trials: Literal["all", "none"] | int = "all"

    @field_validator("models", "tasks", "shots", "seeds", "methods")
    @classmethod
    def _distinct(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if not values:
            raise ValueError("needs at least one entry")
        twice = sorted({str(value) for value in values if values.count(value) > 1})
        if twice:
            raise ValueError(f"names {', '.join(twice)} more than once; each entry once")
        return values

    @field_validator("tasks")
    @classmethod
    def _known_tasks(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            _as_value_error(get_task, value)
        return values

    @field_validator("methods")
    @classmethod
    def _known_methods(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            _as_value_error(get_method, value)
        if "contextual" in values:
            raise ValueError(
                "'contextual' needs the probabilities of content-free inputs, which sweeps do "
                "not score; use dcs.get_method('contextual').fit(..., content_free=...)"
            )
        return values

    @field_validator("shots", mode="before")
    @classmethod
    def _parse_shots(cls, values: Any) -> Any:
        if not isinstance(values, (list, tuple)):
            return values
        return tuple(_as_value_error(parse_shots, str(value)) for value in values)

    @field_validator("seeds")
    @classmethod
    def _non_negative(cls, values: tuple[int, ...]) -> tuple[int, ...]:
        for value in values:
            if value < 0:
                raise ValueError(f"seed {value} is negative; use 0, 1, 2, ...")
        return values


def load_config(path: str | os.PathLike[str], **overrides: Any) -> SweepConfig:
    """Read a sweep configuration.

    Parameters
    ----------
    path : path-like
        A YAML file.
    **overrides
        Values from the command line, which win; None means not given. Of a mapping, such as
        `scoring`, each key wins by itself.

    Raises
    ------
    ConfigError
        The file is missing or not YAML, or a key or value is not allowed; names file and key.
    """
    file = Path(path)
    content = read_yaml(file, error=ConfigError)
    if not isinstance(content, dict):
        raise ConfigError(
            f"{file}: holds {type(content).__name__}, not a mapping of keys such as name, tasks"
        )
    for key, value in overrides.items():
        if isinstance(value, dict) and isinstance(content.get(key), dict):
            content[key] = content[key] | value
        elif value not in (None, {}):
            content[key] = value
    try:
        return SweepConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{file}: {_one_line(error)}") from None


def checked_settings(**values: Any) -> TunerSettings:
    """Return tuner settings given on the command line.

    Raises
    ------
    ConfigError
        A value is not allowed.
    """
    try:
        return TunerSettings(**values)
    except ValidationError as error:
        raise ConfigError(f"command line: {_one_line(error)}") from None


def checked_scoring(**values: Any) -> ScoringSettings:
    """Return scoring settings given on the command line; None means not given.

    Raises
    ------
    ConfigError
        A value is not allowed.
    """
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return ScoringSettings(**given)
    except ValidationError as error:
        raise ConfigError(f"command line: {_one_line(error)}") from None


def narrowed(config: SweepConfig, restrictions: Iterable[str]) -> SweepConfig:
    """Return a sweep without the cells that are not asked for.

    Parameters
    ----------
    config : SweepConfig
        The whole sweep.
    restrictions : iterable of str
        Each ``axis=value,value``, e.g. ``tasks=trec,rte``; the axes are models, tasks, shots,
        seeds and methods.

    Raises
    ------
    ConfigError
        An axis is not known, or a value is not in the configuration.
    """
    kept: dict[str, tuple[Any, ...]] = {}
    for restriction in restrictions:
        axis, _, text = restriction.partition("=")
        if axis not in AXES:
            raise ConfigError(
                f"--only {restriction!r}: unknown axis {axis!r}{suggest(axis, AXES)}; "
                f"write AXIS=VALUE,... with one of {', '.join(AXES)}"
            )
        there = {str(value): value for value in getattr(config, axis)}
        for value in text.split(","):
            if value not in there:
                raise ConfigError(
                    f"--only {restriction!r}: {value!r} is not among the {axis} of the sweep "
                    f"({', '.join(there)}){suggest(value, there)}"
                )
        wanted = text.split(",")
        kept[axis] = tuple(value for name, value in there.items() if name in wanted)
    return config.model_copy(update=kept)


def packaged_config(name: str) -> Path:
    """Return the path of a configuration that comes with the package.

    Raises
    ------
    ConfigError
        There is none of that name.
    """
    folder = Path(__file__).parent / "configs"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        names = sorted(file.stem for file in folder.glob("*.yaml"))
        raise ConfigError(
            f"no packaged configuration {name!r}{suggest(name, names)}; "
            f"there are {', '.join(names)}"
        )
    return path


def _as_value_error(function: Any, value: str) -> Any:
    try:
        return function(value)
    except DCSError as error:
        raise ValueError(str(error)) from None


def _one_line(error: ValidationError) -> str:
    """Render the first problem; the rest are counted, since one mistake often causes several."""
    details = error.errors()
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return _describe(details[0]) + more


def _describe(detail: ErrorDetails) -> str:
    location = detail["loc"]
    path = ".".join(str(part) for part in location)
    if detail["type"] == "extra_forbidden":
        allowed = sorted(_fields_at(location[:-1]))
        return (
            f"unknown key {path!r}; allowed here: {', '.join(allowed)}"
            f"{suggest(location[-1], allowed)}"
        )
    if detail["type"] == "missing":
        return f"key {path!r} is missing"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "value_error":
        return f"key {path!r}: {message}" if path else message
    return f"key {path!r}: {message}, got {show(detail['input'])}"


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = SweepConfig
    for part in location:
        annotation = model.model_fields[str(part)].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return list(model.model_fields)
