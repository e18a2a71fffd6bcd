"""The one typed configuration of a sweep.

Precedence: command line > YAML > defaults.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator

from dcs.errors import ConfigError, InvalidInputError
from dcs.io import read_yaml
from dcs.messages import suggest
from dcs.prompting import get_task, parse_shots
from dcs.selection.methods import get_method, method_names
from workflows.config.axes import (
    GRID,
    AxisValues,
    SizeChoice,
    differences,
    distinct,
    kept_values,
    settings_of,
)
from workflows.config.errors import as_value_error, first_mistake
from workflows.config.scoring import ScoringSettings, merged_options
from workflows.config.storage import StudyStorage
from workflows.config.tuner import (
    FixedObjective,
    ObjectiveChoice,
    Strict,
    TrackingSettings,
    TunerSettings,
)

__all__ = [
    "FixedObjective",
    "ScoringSettings",
    "SweepConfig",
    "TrackingSettings",
    "TunerSettings",
    "load_config",
    "narrowed",
    "packaged_config",
]


class SweepConfig(Strict):
    """A grid of models x tasks x shots x seeds x methods x ablations, and how a cell is tuned.

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
    tracking : TrackingSettings
        What becomes a run or a figure in MLflow.
    optuna_storage : str or None
        URL of a database or path of a journal file in which Optuna's studies are written down,
        one per cell; None keeps them in memory. Shown and recorded nowhere: a URL may hold a
        password.
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
    objectives: tuple[ObjectiveChoice, ...] = ()
    axes: AxisValues = Field(default_factory=dict)
    optimization_sizes: tuple[SizeChoice, ...] = ("full",)
    combine: Literal["all", "one_at_a_time"] = "all"
    tracking: TrackingSettings = TrackingSettings()
    optuna_storage: SecretStr | None = Field(default=None, exclude=True)

    @field_validator(*GRID, "optimization_sizes")
    @classmethod
    def _distinct(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return distinct(values)

    @field_validator("objectives")
    @classmethod
    def _distinct_objectives(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        # None given means that of the tuner.
        return distinct(values) if values else values

    @field_validator("tasks")
    @classmethod
    def _known_tasks(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            as_value_error(get_task, value)
        return values

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

    @field_validator("shots", mode="before")
    @classmethod
    def _parse_shots(cls, values: Any) -> Any:
        if not isinstance(values, (list, tuple)):
            return values
        return tuple(as_value_error(parse_shots, str(value)) for value in values)

    @field_validator("optuna_storage")
    @classmethod
    def _known_storage(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            as_value_error(StudyStorage, value.get_secret_value())
        return value

    @field_validator("seeds")
    @classmethod
    def _non_negative(cls, values: tuple[int, ...]) -> tuple[int, ...]:
        for value in values:
            if value < 0:
                raise ValueError(f"seed {value} is negative; use 0, 1, 2, ...")
        return values

    @model_validator(mode="after")
    def _values_go_together(self) -> SweepConfig:
        variants = self.variants
        if not variants:
            raise ValueError(
                "combine: one_at_a_time leaves no cell; objectives, axes and optimization_sizes "
                "must hold the value of the tuner (all rows), but for one of them"
            )
        for settings, _ in variants:
            TunerSettings.model_validate(settings.model_dump())
            for name in self.methods:
                try:
                    get_method(name).correction_set(memberships=settings.memberships)
                except InvalidInputError:
                    raise ValueError(
                        f"memberships {settings.memberships} leaves method {name!r} nothing to "
                        "choose from; give it 2 or more, or leave the method out"
                    ) from None
        return self

    @property
    def variants(self) -> list[tuple[TunerSettings, int | None]]:
        """Every combination of tuner settings and optimization rows; of these, None is all."""
        sizes = [None if size == "full" else int(size) for size in self.optimization_sizes]
        return [
            (settings, size)
            for settings in settings_of(self.tuner, self.objectives, self.axes)
            for size in sizes
            if self.combine == "all" or differences(settings, self.tuner) + (size is not None) <= 1
        ]

    @property
    def axis_values(self) -> dict[str, tuple[Any, ...]]:
        """The values of every axis, outermost first."""
        return {
            **{name: getattr(self, name) for name in GRID},
            "objectives": self.objectives or (self.tuner.objective,),
            **self.axes,
            "optimization_sizes": self.optimization_sizes,
        }


def load_config(path: str | os.PathLike[str], **overrides: Any) -> SweepConfig:
    """Read a sweep configuration.

    Parameters
    ----------
    path : path-like
        A YAML file.
    **overrides
        Values from the command line, which win; None means not given. Of a mapping, such as
        `scoring`, each key wins by itself.

    Returns
    -------
    SweepConfig
        Checked.

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
            content[key] = merged_options(content[key], value)
        elif value not in (None, {}):
            content[key] = value
    try:
        return SweepConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{file}: {first_mistake(error, SweepConfig)}") from None


def narrowed(config: SweepConfig, restrictions: Sequence[str]) -> SweepConfig:
    """Return a sweep without the cells that are not asked for.

    Parameters
    ----------
    config : SweepConfig
        The whole sweep.
    restrictions : sequence of str
        Each ``axis=value,value``, e.g. ``tasks=trec,rte``; the axes are models, tasks, shots,
        seeds, methods, objectives, optimization_sizes and the settings under ``axes``. None is
        written as :func:`workflows.config.axes.value_label` does: ``weight_scale=tuned``.

    Returns
    -------
    SweepConfig
        The part.

    Raises
    ------
    ConfigError
        An axis is not known, or a value is not in the configuration.
    """
    kept = kept_values(restrictions, config.axis_values)
    axes = {name: kept.pop(name, values) for name, values in config.axes.items()}
    part = config.model_copy(update={**kept, "axes": axes})
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
        raise ConfigError(
            f"no packaged configuration {name!r}{suggest(name, names)}; "
            f"there are {', '.join(names)}"
        )
    return path
