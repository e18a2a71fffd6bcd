"""Settings of the tuning of a cell, the storage of its Optuna study, and its tracking."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    Field,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dcs.errors import ConfigError, DCSError, MissingDependencyError, reason, redact, unknown
from dcs.evaluation.metrics import PmiTerm
from dcs.io import Strict
from dcs.schemes.corrections import MEMBERSHIP_COUNT
from dcs.selection.front import Prefer, Preference
from dcs.selection.methods import Method
from tracking.records import FigureTracking, TrialTracking

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from sqlalchemy.engine import URL

#: Weights of the terms of Z that are tuned besides the error rate, by name of the objective.
_TERMS: Final[dict[str, frozenset[str]]] = {
    "full": frozenset({"beta", "tau"}),
    "err": frozenset(),
    "err+pmi": frozenset({"tau"}),
    "err+cobias": frozenset({"beta"}),
}

OBJECTIVE_NAMES: Final = tuple(_TERMS)


class FixedObjective(Strict):
    """An objective whose weights are not tuned.

    Attributes
    ----------
    beta, tau : float
        Weights of the COBias and PMI terms.
    """

    beta: float = Field(ge=0.0)
    tau: float = Field(ge=0.0)


def _check_objective(value: Any) -> str | FixedObjective:
    if isinstance(value, dict | FixedObjective):
        fixed = FixedObjective.model_validate(value)
        # Canonical name, so that the same work is not done under two names.
        return "err" if fixed.beta == fixed.tau == 0.0 else fixed
    if isinstance(value, str) and value in _TERMS:
        return value
    weights = ", or fixed weights such as {beta: 0.5, tau: 0.1}"
    raise unknown("objective", value, OBJECTIVE_NAMES, weights)


def _serialize(value: str | FixedObjective) -> Any:
    return value if isinstance(value, str) else value.model_dump()


#: The name of an objective, or fixed weights. Validated by a function, because pydantic would
#: include the types of the union in the key of an error.
ObjectiveChoice: TypeAlias = Annotated[
    str | FixedObjective,
    PlainValidator(_check_objective),
    PlainSerializer(_serialize, return_type=Any),
]


#: Tuned parameters of a Metropolis chain; both protocols record them with these names.
SCHEDULE_PARAMETERS: Final = (
    "initial_temperature",
    "final_temperature",
    "cooling_rate",
    "lambda1",
    "lambda2",
)
#: Parameters that are sampled on a logarithmic scale.
LOGARITHMIC: Final = frozenset({"pseudo_count", *SCHEDULE_PARAMETERS} - {"cooling_rate"})
_PREFERENCE_FIELDS: Final = tuple(each.name for each in fields(Preference))
#: Fields of a schedule that override those of the search.
_SCHEDULE_FIELDS: Final = ("moves", "restarts", "descend", "reheat", "budget")
#: Default number of trials of a study, and default pseudo-count.
_DEFAULT_TRIALS: Final = 30
_PSEUDO_COUNT: Final = 4000.0

#: Environment variable with the storage, used if the configuration has none.
STORAGE_VARIABLE: Final = "DCS_OPTUNA_STORAGE"
_DATABASES: Final = ("postgresql", "mysql", "mariadb")
_CONNECT_SECONDS: Final = 10


class Bounds(Strict):
    """Bounds of the tuned hyperparameters, in ascending order; a single value fixes one.

    Values between the first and the last are only used by ``sampler: grid``.

    Attributes
    ----------
    weight_scale : tuple of int
        D_W.
    beta, tau, error_weight, pseudo_count : tuple of float
        Weights of the terms of Z, and the pseudo-count k of the PMI term.
    initial_temperature, final_temperature : tuple of float
        On the scale of Z: the published 200,000 and 200 correspond to 200,000 / M and 200 / M.
        The final temperature is at most the initial temperature.
    cooling_rate : tuple of float
        The published value is 0.95.
    lambda1, lambda2 : tuple of float
        Accepted and generated moves per class. The published 3 and 6, or 150 and 300, are totals
        over all classes.
    """

    weight_scale: tuple[int, ...] = (10, 60)
    beta: tuple[float, ...] = (0.0, 2.0)
    tau: tuple[float, ...] = (0.0, 0.5)
    error_weight: tuple[float, ...] = (0.0, 2.0)
    pseudo_count: tuple[float, ...] = (10.0, 10_000.0)
    initial_temperature: tuple[float, ...] = (0.01, 200.0)
    final_temperature: tuple[float, ...] = (0.00001, 0.2)
    cooling_rate: tuple[float, ...] = (0.5, 0.98)
    lambda1: tuple[float, ...] = (0.2, 40.0)
    lambda2: tuple[float, ...] = (0.2, 80.0)

    @field_validator("*")
    @classmethod
    def _is_in_range(cls, values: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        name = str(info.field_name)
        least, most = {"weight_scale": (2, 1000), "cooling_rate": (0.01, 0.999)}.get(
            name, (1e-9 if name in LOGARITHMIC else 0.0, math.inf)
        )
        if not values or list(values) != sorted(set(values)):
            raise ValueError(f"{list(values)}: must be ascending values such as [low, high]")
        if not least <= values[0] <= values[-1] <= most:
            raise ValueError(f"{list(values)}: must lie between {least:g} and {most:g}")
        return values


def _is_unused(value: str | bool | None) -> bool:
    return value in (None, "none", False, "published")


class TunerSettings(Strict):
    """Settings of the search for the scheme of a cell.

    Attributes
    ----------
    protocol : "cross-validation" or "study"
        ``cross-validation``: a front of accuracy and COBias, each point selected by 5-fold
        cross-validation; see reports/results.md. ``study``: one Optuna study whose trials anneal
        on the optimization rows and are evaluated on development rows, as in the paper. `prefer`
        and the limits select among the tried schemes of either protocol.
    trials : int or None
        Number of Optuna trials per cell; None means 30 for a study, and no trials in addition to
        the standard settings for cross-validation.
    sampler : "tpe", "gp", "random" or "grid"
        Optuna sampler; ``grid`` uses combinations of the values in `bounds`, all of them if
        `trials` is None.
    window : int
        Maximum number of concurrent trials. Each trial is suggested without the results of those
        still running, also on a single CPU, so the window affects the result.
    development : float
        Fraction of the rows on which a study evaluates trials (paper, Appendix D: 0.05).
    search : "heat-bath", "metropolis", "published" or "published-long"
        Annealing of a study. ``heat-bath``: the default schedule, whose result does not depend on
        the temperatures, so that none are tuned. ``metropolis``: the chain of the paper;
        temperatures, cooling rate, lambda1 and lambda2 are tuned. ``published``: the schedule of
        the published code, unchanged; ``published-long``: with 150 accepted and 300 generated
        moves per temperature, as recommended by the published code for large runs.
    moves, restarts, descend, reheat, budget : str, int, bool or None
        Fields of :class:`dcs.Schedule` that override those of the search, in either protocol.
    objective : "full", "err", "err+pmi", "err+cobias" or FixedObjective
        The terms of Z; the weights of those named are tuned, those of the others are 0 (paper,
        Section 4.4). Alternatively, fixed weights of all terms.
    error_weight, pseudo_count : float or None
        Weight of the error rate and k of the PMI term in a study; None tunes them. The error
        weight is only used together with another term, and is 1 otherwise.
    pmi : "published" or "normalised"
        The PMI term of a study; see :class:`dcs.Objective`. The normalised term has no k.
    weight_scale : int or None
        The weight scale D_W; None tunes it.
    memberships : int or None
        Number of available membership functions, from coarse to fine; None means all. See
        :meth:`dcs.CorrectionSet.limited`.
    bounds : Bounds
        Bounds of the hyperparameters tuned by Optuna.
    cost : "moves", "seconds" or None
        Second objective of a study, to be minimised: the number of candidate solutions evaluated
        by the search of a trial, or its time. Trials on Optuna's Pareto front are marked. Times
        differ between runs, and so do the trials suggested with them.
    pruner : "successive-halving", "hyperband" or "none"
        Optuna pruner, which stops a trial whose scheme is worse than those of earlier trials at
        the same fraction of its annealing budget.
    keep_unlabelled : bool
        Whether to keep optimization rows beyond a number in `optimization_sizes` as unlabelled
        rows, in addition to the unlabelled rows of the table.
    prefer, exchange_rate, max_accuracy_loss, max_cobias : str, float or None
        Selection among all tried schemes; see :class:`dcs.Preference`. ``accuracy``, with ties
        broken by lowest COBias, is the rule of the published code.
    """

    protocol: Literal["cross-validation", "study"] = "cross-validation"
    trials: int | None = Field(default=None, ge=0, le=100_000)
    sampler: Literal["tpe", "gp", "random", "grid"] = "tpe"
    window: int = Field(default=4, ge=1, le=1000)
    development: float = Field(default=0.05, gt=0.0, lt=1.0)
    search: Literal["heat-bath", "metropolis", "published", "published-long"] = "heat-bath"
    moves: Literal["heat-bath", "metropolis"] | None = None
    restarts: int | None = Field(default=None, ge=1)
    descend: bool | None = None
    reheat: bool | None = None
    budget: int | None = Field(default=None, ge=1)
    objective: ObjectiveChoice = "full"
    error_weight: float | None = Field(default=None, ge=0.0)
    pseudo_count: float | None = Field(default=_PSEUDO_COUNT, gt=0.0)
    weight_scale: int | None = Field(default=None, ge=2, le=1000)
    memberships: int | None = Field(default=None, ge=0, le=MEMBERSHIP_COUNT)
    bounds: Bounds = Bounds()
    # Excluded from the cell identity if unused, so that keys of earlier versions remain valid.
    cost: Literal["moves", "seconds"] | None = Field(default=None, exclude_if=_is_unused)
    pruner: Literal["none", "successive-halving", "hyperband"] = Field(
        default="none", exclude_if=_is_unused
    )
    keep_unlabelled: bool = Field(default=False, exclude_if=_is_unused)
    pmi: PmiTerm = Field(default="published", exclude_if=_is_unused)
    prefer: Prefer = "no-harm"
    exchange_rate: float | None = Field(default=None, ge=0.0)
    max_accuracy_loss: float | None = Field(default=None, ge=0.0, le=100.0)
    max_cobias: float | None = Field(default=None, ge=0.0, le=100.0)

    @model_validator(mode="after")
    def _is_consistent(self) -> TunerSettings:
        if self.protocol == "study":
            if self.trials == 0:
                raise ValueError("trials 0: must be 1 or greater with protocol: study")
            if self.pruner != "none" and self.cost is not None:
                raise ValueError(f"pruner {self.pruner} requires a single objective; remove cost")
            coolings = self.restarts or (1000 if self.search == "heat-bath" else 1)
            if self.pruner != "none" and coolings == 1:
                raise ValueError(
                    f"pruner {self.pruner}: a search without restarts reports only its end; "
                    "set restarts to 2 or more"
                )
            return self
        for name in ("search", "error_weight", "pseudo_count", "pmi", "cost", "pruner"):
            if getattr(self, name) != TunerSettings.model_fields[name].default:
                raise ValueError(f"{name} {getattr(self, name)} needs protocol: study")
        if self.sampler == "grid":
            raise ValueError("sampler grid needs protocol: study")
        return self

    @property
    def preference(self) -> Preference:
        """The preferred point of the trade-off."""
        return Preference(**{name: getattr(self, name) for name in _PREFERENCE_FIELDS})

    @property
    def without_preference(self) -> TunerSettings:
        """The settings with the default preference, equal for all that differ only in it."""
        given = {name: TunerSettings.model_fields[name].default for name in _PREFERENCE_FIELDS}
        return self.model_copy(update=given)

    @property
    def schedule_fields(self) -> dict[str, Any]:
        """The fields of the schedule that override those of the search."""
        values = {name: getattr(self, name) for name in _SCHEDULE_FIELDS}
        return {name: value for name, value in values.items() if value is not None}

    def values(self, name: str) -> tuple[float, ...]:
        """Return the bounds of a hyperparameter; a single value if it is fixed.

        Parameters
        ----------
        name : str
            A field of :class:`Bounds`.
        """
        fixed = getattr(self, name, None)
        objective = self.objective
        if isinstance(objective, FixedObjective):
            fixed = objective.model_dump().get(name, fixed)
        elif name in ("beta", "tau") and name not in _TERMS[objective]:
            fixed = 0.0
        if name == "pseudo_count" and self.pmi == "normalised":
            fixed = _PSEUDO_COUNT
        # Without another term, the weight of the error rate has no effect.
        if fixed is None and name == "error_weight" and not _TERMS.get(str(objective)):
            fixed = 1.0
        bounds: tuple[float, ...] = getattr(self.bounds, name)
        return bounds if fixed is None else (fixed,)

    def space(self, method: Method) -> dict[str, tuple[float, ...]]:
        """Return the hyperparameters of a study of a method, with their bounds.

        Fixed hyperparameters are included with one value, so that trials record them.
        """
        names = ["beta", "tau", "error_weight", "pseudo_count"]
        if method.uses_weight_scale:
            names.insert(0, "weight_scale")
        if self.search == "metropolis":
            names += SCHEDULE_PARAMETERS
        return {name: self.values(name) for name in names}

    def n_trials(self, method: Method) -> int:
        """Return the number of Optuna trials."""
        if self.protocol == "cross-validation":
            # Other methods have no hyperparameters besides their corrections.
            return (self.trials or 0) if method.name == "dcs" else 0
        if self.sampler == "grid":
            combinations = math.prod(len(values) for values in self.space(method).values())
            return min(self.trials or combinations, combinations)
        return _DEFAULT_TRIALS if self.trials is None else self.trials


class TrackingSettings(Strict):
    """What a sweep records in MLflow; the results are not affected.

    Attributes
    ----------
    trials : "table", "runs" or "none"
        How to record the trials of a cell: as step metrics and one table of its run, as a nested
        run each in addition, or not at all.
    figures : "all", "sweep" or "none"
        Figures to draw: of each cell and of the sweep, of the sweep only, or none.
    """

    trials: TrialTracking = "table"
    figures: FigureTracking = "sweep"


class StudyStorageError(DCSError):
    """Raised if the storage of the Optuna studies cannot be used."""


@dataclass(frozen=True, slots=True)
class StudyStorage:
    """The storage of the Optuna studies, one study per cell.

    Parameters
    ----------
    address : str
        URL of a PostgreSQL or MySQL database, or the path of a journal file.

    Raises
    ------
    ConfigError
        If the address is neither.
    """

    address: str = field(repr=False)

    def __post_init__(self) -> None:
        url = self.url
        if url is not None and url.get_backend_name() not in _DATABASES:
            raise ConfigError(
                f"optuna_storage: {url.get_backend_name()}:// is not supported (SQLite loses "
                "trials with several concurrent writers); use the path of a journal file, or "
                f"{', '.join(f'{name}://' for name in _DATABASES)}"
            )

    @classmethod
    def chosen(cls, configured: SecretStr | None) -> StudyStorage | None:
        """Return the storage of the configuration or the environment; None if neither is set."""
        address = configured.get_secret_value() if configured else os.environ.get(STORAGE_VARIABLE)
        return cls(address) if address else None

    @property
    def url(self) -> URL | None:
        """The URL of the database; None for a journal file."""
        if "://" not in self.address:
            return None
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError

        try:
            return make_url(self.address)
        except (ArgumentError, ValueError):
            # The original message may contain a part of the password.
            raise ConfigError(
                "optuna_storage: invalid URL; percent-encode special characters of the password, "
                "e.g. / as %2F"
            ) from None

    @property
    def label(self) -> str:
        """The address without password and query options."""
        url = self.url
        if url is None:
            return self.address
        return url.set(query={}).render_as_string(hide_password=True)

    def hide(self, text: str) -> str:
        """Return the text with the password removed."""
        url = self.url
        text = redact(text.replace(self.address, self.label))
        return text if url is None or not url.password else text.replace(url.password, "***")

    def check(self) -> None:
        """Connect to the storage and create its tables, before anything is computed.

        Raises
        ------
        StudyStorageError
            If the storage cannot be reached or written.
        MissingDependencyError
            If the database driver is not installed.
        """
        import optuna

        with self.opened(first=True) as storage:
            optuna.get_all_study_names(storage)

    @contextmanager
    def opened(self, *, first: bool = False) -> Iterator[BaseStorage]:
        """Yield the Optuna storage, and convert failures in the block to one-line errors.

        Parameters
        ----------
        first : bool
            Whether to create the tables of a database. Concurrent creation by several workers
            would conflict.

        Raises
        ------
        StudyStorageError, MissingDependencyError
            As for :meth:`check`.
        """
        from optuna.exceptions import StorageInternalError
        from optuna.storages import RDBStorage
        from sqlalchemy.exc import SQLAlchemyError

        try:
            opened = self._open_journal() if self.url is None else self._open_database(first)
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"optuna_storage: {error.name} is not installed; run: pip install "
                "'dcs-debias[cluster]'"
            ) from None
        except Exception as error:
            # SQLAlchemy, drivers and the file system raise errors of many unrelated classes.
            raise self._convert_error(error) from None
        try:
            yield opened
        except (StorageInternalError, SQLAlchemyError, OSError) as error:
            raise self._convert_error(error) from None
        finally:
            if isinstance(opened, RDBStorage):
                opened.remove_session()
                opened.engine.dispose()

    def _open_database(self, first: bool) -> BaseStorage:
        from optuna.storages import RDBStorage

        return RDBStorage(
            self.address,
            # Each process has a single writer, so one connection suffices.
            engine_kwargs={
                "pool_pre_ping": True,
                "pool_size": 1,
                "connect_args": {"connect_timeout": _CONNECT_SECONDS},
            },
            skip_table_creation=not first,
            skip_compatibility_check=not first,
        )

    def _open_journal(self) -> BaseStorage:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        path = Path(self.address).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(str(path)))

    def _convert_error(self, error: BaseException) -> StudyStorageError:
        """Return a one-line error without its cause, which may contain the password."""
        while error.__cause__ is not None:
            error = error.__cause__  # the innermost error names the host and the reason
        return StudyStorageError(
            f"optuna_storage: {self.label} cannot be used: {self.hide(reason(error))}; "
            "make sure that it is reachable from every node, or remove optuna_storage"
        )
