"""What a sweep is the product of: its axes, the names of their values, and the part asked for."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, PlainSerializer, PlainValidator, create_model

from dcs.errors import ConfigError
from dcs.messages import suggest
from dcs.prompting import get_task
from dcs.validation import Strict
from tracking.results.settings import objective_name
from workflows.config.tuner import FixedObjective, TunerSettings

__all__ = [
    "ABLATED",
    "GRID",
    "TABLE_GRID",
    "AxisValues",
    "SizeChoice",
    "differences",
    "distinct",
    "kept_values",
    "settings_of",
    "value_label",
]

#: The axes that decide which cells there are whatever is ablated, outermost first.
GRID: Final = ("models", "tasks", "shots", "seeds", "methods")
#: Those of a sweep over tables, which say the others themselves.
TABLE_GRID: Final = ("seeds", "methods")


def _size(value: Any) -> Any:
    number = isinstance(value, int) and not isinstance(value, bool) and value >= FEWEST_ROWS
    if number or value == "full":
        return value
    raise ValueError(
        f"{value!r} is not a number of optimization rows; write {FEWEST_ROWS} or more, or full"
    )


#: Fewer rows than this tell nothing about more than a few classes.
FEWEST_ROWS: Final = 10

#: A number of optimization rows, or ``"full"``.
SizeChoice = Annotated[int | str, PlainValidator(_size)]

#: The settings of the tuner that ``axes:`` may vary. The objective has an axis of its own name.
ABLATED: Final = tuple(name for name in TunerSettings.model_fields if name != "objective")

#: How people write the value None of an axis; of a limit it is that there is none.
_NONE: Final = {"weight_scale": "tuned", "memberships": "all", "optimization_sizes": "full"}


def distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of an axis.

    Raises
    ------
    ValueError
        There are none, or one comes twice.
    """
    if not values:
        raise ValueError("needs at least one entry")
    twice = sorted(str(value) for value, number in Counter(values).items() if number > 1)
    if twice:
        raise ValueError(f"names {', '.join(twice)} more than once; each entry once")
    return values


def _axes_model() -> Any:
    """Return a model with a list of values for each setting, each checked as the setting is."""
    fields: dict[str, Any] = {}
    for name in ABLATED:
        setting = TunerSettings.model_fields[name]
        value: Any = setting.annotation
        for bound in setting.metadata:
            value = Annotated[value, bound]
        fields[name] = (Annotated[tuple[value, ...], AfterValidator(distinct)], ())
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


def kept_values(
    restrictions: Iterable[str], axes: Mapping[str, tuple[Any, ...]]
) -> dict[str, tuple[Any, ...]]:
    """Return the values that restrictions leave, of those axes that they name.

    Parameters
    ----------
    restrictions : iterable of str
        Each ``axis=value,value``. Of several for one axis, all must be met.
    axes : mapping of str to tuple
        The values of every axis of the sweep.

    Raises
    ------
    ConfigError
        An axis is not known, a value is not among its values, or nothing is left.
    """
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
        among = kept.get(axis, axes[axis])
        chosen = [value for name, value in there.items() if name in wanted]
        kept[axis] = tuple(value for value in among if value in chosen)
        if not kept[axis]:
            raise ConfigError(f"--only {restriction!r}: no {axis} are left beside the others")
    return kept


def settings_of(
    base: TunerSettings,
    objectives: tuple[str | FixedObjective, ...],
    axes: Mapping[str, tuple[Any, ...]],
) -> list[TunerSettings]:
    """Return `base` with every combination of the values of the axes, the last axis fastest.

    Each value has been checked; whether they go together has not.
    """
    choices = {"objective": objectives or (base.objective,), **axes}
    return [
        base.model_copy(update=dict(zip(choices, combination, strict=True)))
        for combination in itertools.product(*choices.values())
    ]


def differences(settings: TunerSettings, base: TunerSettings) -> int:
    """Return in how many settings two tuners differ."""
    return sum(
        getattr(settings, name) != getattr(base, name) for name in TunerSettings.model_fields
    )
