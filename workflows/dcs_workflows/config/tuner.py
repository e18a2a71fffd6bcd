"""Settings of the study of a cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field, create_model, field_validator, model_validator

from dcs.io import Strict, as_values
from dcs.methods.parameters import PARAMETERS, Parameter
from dcs.schemes.corrections import MEMBERSHIP_COUNT
from dcs.selection.preference import Prefer, Preference

#: Names of objectives; the space may fix the weights of their terms.
ObjectiveName: TypeAlias = Literal["full", "err", "err+pmi", "err+cobias"]

#: The objectives that have a term, by its weight; the others have the weight 0.
TERMS: Final = {"beta": ("full", "err+cobias"), "tau": ("full", "err+pmi")}

#: The knobs that the schedule of the paper determines.
_FIXED: Final = ("initial_temperature", "temperature_ratio", "cooling_rate")

PREFERENCE_FIELDS: Final = tuple(each.name for each in fields(Preference))

#: Names of samplers of Optuna.
Sampler: TypeAlias = Literal["tpe", "nsga2", "gp", "random"]


def distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values; raise ValueError if they contain duplicates."""
    duplicates = sorted(str(value) for value, number in Counter(values).items() if number > 1)
    if duplicates:
        raise ValueError(f"names {', '.join(duplicates)} more than once; entries must be unique")
    return values


def _knob(row: Parameter) -> Any:
    """Return type and default of a knob: ``[low, high]``, a list of choices, or one value."""
    item: Any = int if row.integer else float
    item = Annotated[item, Field(ge=row.least, le=row.most, allow_inf_nan=False)]
    if isinstance(row.values[0], str):
        item = Literal[row.choices or row.values]
    values = Annotated[tuple[item, ...], BeforeValidator(as_values), Field(min_length=1)]
    return values, row.values


_Knobs: Any = create_model(
    "_Knobs", __base__=Strict, **{row.name: _knob(row) for row in PARAMETERS}
)


class Space(_Knobs):  # type: ignore[misc]
    """Hyperparameters of a trial: two numbers are bounds, other lists choices, one value fixes.

    The keys, their defaults and what may be given are the rows of
    :data:`dcs.methods.parameters.PARAMETERS`. By default all settings of a study search: without a
    search they cost no moves, so that a sampler would try little else. The default bounds of
    ``lambda1`` and ``lambda2`` shrink above 20 classes.
    """

    @field_validator("*")
    @classmethod
    def _ascends(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if not isinstance(distinct(values)[0], str) and list(values) != sorted(values):
            raise ValueError(f"{list(values)}: must be ascending values such as [low, high]")
        return values


class Judge(Strict):
    """The rows that settings are judged on, without having been fitted on them.

    Attributes
    ----------
    folds : int
        Number of cross-validation folds.
    development : float or None
        Share of the rows to hold out once, instead of folds (paper, Appendix D: 0.05).
    """

    folds: int = Field(default=5, ge=2, le=1000)
    development: float | None = Field(default=None, gt=0.0, lt=1.0)

    @model_validator(mode="after")
    def _is_one(self) -> Judge:
        if self.development is not None and self.folds != Judge.model_fields["folds"].default:
            raise ValueError("folds and development: give one of them")
        return self


class Search(Strict):
    """Annealing of all trials, besides the tuned parameters of the schedule.

    Attributes
    ----------
    schedule : "tuned" or "paper"
        ``tuned``: temperatures, cooling rate and both lambdas are those of the trial. ``paper``: a
        Metropolis chain from the temperature 200,000 / M at the rate 0.95 with tuned lambdas.
    moves : "heat-bath", "metropolis" or None
        See :class:`dcs.Schedule`; None means those of the schedule: heat-bath if tuned.
    restarts : int or None
        Number of coolings; None means one.
    budget : int or None
        Number of evaluated solutions after which no further cooling starts.
    """

    schedule: Literal["tuned", "paper"] = "tuned"
    moves: Literal["heat-bath", "metropolis"] | None = None
    restarts: int | None = Field(default=None, ge=1)
    budget: int | None = Field(default=None, ge=1)

    @property
    def fixed(self) -> tuple[str, ...]:
        """The knobs whose values the schedule determines."""
        return () if self.schedule == "tuned" else _FIXED

    @property
    def changed(self) -> dict[str, Any]:
        """The fields of the schedule that are given."""
        return self.model_dump(exclude={"schedule"}, exclude_none=True)


class TunerSettings(Strict):
    """The Optuna study of a cell.

    Attributes
    ----------
    trials : int
        Number of trials. The standard settings are the first, 12 by default and always tried; the
        sampler suggests the others. More of them gain nothing on a single table.
    sampler : "tpe", "nsga2", "gp" or "random"
        The sampler of Optuna.
    window : int
        Maximum number of concurrent trials. Each trial is suggested without the results of those
        still running, also on a single CPU, so the window affects the result.
    judge, space, search : Judge, Space, Search
        Rows to judge on, hyperparameters of a trial, and its annealing.
    objective : "full", "err", "err+pmi" or "err+cobias"
        The terms of Z: beta and tau of those not named are 0 (paper, Section 4.4).
    memberships : int or None
        Number of available membership functions, from coarse to fine; None means all. See
        :meth:`dcs.CorrectionSet.limited`.
    prefer, max_accuracy_loss, max_cobias, margin, rate, confidence, cautious
        Selection from the front of the study; see :class:`dcs.Preference`. Limits are constraints
        of the study too.
    """

    trials: int = Field(default=24, ge=0, le=100_000)
    sampler: Sampler = "tpe"
    window: int = Field(default=4, ge=1, le=1000)
    judge: Judge = Judge()
    space: Space = Space()
    search: Search = Search()
    objective: ObjectiveName = "full"
    memberships: int | None = Field(default=None, ge=0, le=MEMBERSHIP_COUNT)
    prefer: Prefer = "no-harm"
    max_accuracy_loss: float | None = Field(default=None, ge=0.0, le=100.0)
    max_cobias: float | None = Field(default=None, ge=0.0, le=100.0)
    margin: float | None = Field(default=None, ge=0.0, le=100.0)
    rate: float = Field(default=0.1, ge=0.0, le=100.0)
    confidence: float = Field(default=0.95, ge=0.5, le=0.9999)
    cautious: bool = True

    @model_validator(mode="after")
    def _has_a_rule(self) -> TunerSettings:
        _ = self.preference  # raises if its values contradict each other
        return self

    @property
    def preference(self) -> Preference:
        """The preferred point of the trade-off."""
        return Preference(**{name: getattr(self, name) for name in PREFERENCE_FIELDS})

    @property
    def without_preference(self) -> TunerSettings:
        """The settings with the default preference, equal for all that share a study.

        Limits are constraints of the study, so that they remain, as does a restriction to offsets.
        """
        shared = self.prefer if self.prefer == "offsets" else "no-harm"
        return self.model_copy(update={"prefer": shared, "cautious": True})

    def changed(self, values: Mapping[str, Any]) -> TunerSettings:
        """Return the settings with other values of axes; None keeps a knob of the space tuned."""
        own = {name: value for name, value in values.items() if name in type(self).model_fields}
        for part in PARTS:
            model = getattr(self, part)
            given = {n: v for n, v in values.items() if n in type(model).model_fields}
            if part == "space":
                given = {n: as_values(v) for n, v in given.items() if v is not None}
            own[part] = model.model_copy(update=given)
        return self.model_copy(update=own)

    @property
    def given(self) -> frozenset[str]:
        """Names of the knobs whose values are not the default ones."""
        return frozenset(self.space.model_dump(exclude_defaults=True))

    def values(self, name: str) -> tuple[Any, ...]:
        """Return the bounds or choices of a knob; a single value if it is fixed."""
        own: tuple[Any, ...] = getattr(self.space, name)
        has_term = self.objective in TERMS.get(name, (self.objective,))
        return own if has_term else (0.0,)


#: Groups of the tuner's settings, each of which ``axes`` may vary.
PARTS: Final[dict[str, type[Strict]]] = {"judge": Judge, "space": Space, "search": Search}
