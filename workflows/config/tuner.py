"""How a cell is tuned, where its Optuna study is kept, and what is recorded of it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    AfterValidator,
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
from tracking.records import parse_trials

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from sqlalchemy.engine import URL

#: The terms of Z that a search may have beside the error rate, by the name of the objective.
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


def _objective(value: Any) -> str | FixedObjective:
    if isinstance(value, dict | FixedObjective):
        fixed = FixedObjective.model_validate(value)
        # One name for one objective: the same work must not be done under two.
        return "err" if fixed.beta == fixed.tau == 0.0 else fixed
    if isinstance(value, str) and value in _TERMS:
        return value
    weights = ", or fixed weights such as {beta: 0.5, tau: 0.1}"
    raise unknown("objective", value, OBJECTIVE_NAMES, weights)


def _plain(value: str | FixedObjective) -> Any:
    return value if isinstance(value, str) else value.model_dump()


#: The name of an objective, or fixed weights. Checked by hand: pydantic names the members of a
#: union in its paths, which nobody wrote.
ObjectiveChoice: TypeAlias = Annotated[
    str | FixedObjective, PlainValidator(_objective), PlainSerializer(_plain, return_type=Any)
]


#: What is tuned of a Metropolis chain; recorded under these names by both protocols.
SCHEDULE_PARAMETERS: Final = (
    "initial_temperature",
    "final_temperature",
    "cooling_rate",
    "lambda1",
    "lambda2",
)
#: What is drawn in equal ratios.
LOGARITHMIC: Final = frozenset({"pseudo_count", *SCHEDULE_PARAMETERS} - {"cooling_rate"})
_PREFERENCE_FIELDS: Final = tuple(each.name for each in fields(Preference))
#: Fields of a schedule that a tuner may set in place of those of its search.
_SCHEDULE_FIELDS: Final = ("moves", "restarts", "descend", "reheat", "budget")
#: Trials of a study, and the pseudo-count, where nothing else is said.
_TRIALS: Final = 30
_PSEUDO_COUNT: Final = 4000.0

#: Names the storage where the configuration does not.
STORAGE_VARIABLE: Final = "DCS_OPTUNA_STORAGE"
_DATABASES: Final = ("postgresql", "mysql", "mariadb")
_CONNECT_SECONDS: Final = 10


class Bounds(Strict):
    """Values between which hyperparameters are tuned, in ascending order; one value fixes it.

    Those between the first and the last count for ``sampler: grid`` alone.

    Attributes
    ----------
    weight_scale : tuple of int
        D_W.
    beta, tau, error_weight, pseudo_count : tuple of float
        Weights of the terms of Z, and the pseudo-count k of the PMI term.
    initial_temperature, final_temperature : tuple of float
        On the scale of Z: the published 200,000 and 200 are 200,000 / M and 200 / M here. The
        final one is at most the initial one.
    cooling_rate : tuple of float
        The published one is 0.95.
    lambda1, lambda2 : tuple of float
        Accepted and generated moves per class. The published 3 and 6, or 150 and 300, are of all
        classes together.
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
    def _in_range(cls, values: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        name = str(info.field_name)
        least, most = {"weight_scale": (2, 1000), "cooling_rate": (0.01, 0.999)}.get(
            name, (1e-9 if name in LOGARITHMIC else 0.0, math.inf)
        )
        if not values or list(values) != sorted(set(values)):
            raise ValueError(f"{list(values)}: needs ascending values such as [low, high]")
        if not least <= values[0] <= values[-1] <= most:
            raise ValueError(f"{list(values)}: must lie between {least:g} and {most:g}")
        return values


def _unused(value: str | bool | None) -> bool:
    return value in (None, "none", False, "published")


class TunerSettings(Strict):
    """How the scheme of one cell is found.

    Attributes
    ----------
    protocol : "cross-validation" or "study"
        ``cross-validation``: a front of accuracy and COBias, each point chosen by 5-fold
        cross-validation; see docs/results.md. ``study``: one Optuna study whose trials anneal on
        the optimization rows and are judged on development rows, as in the paper. From what
        either tried, `prefer` and the limits choose.
    trials : int or None
        Settings that Optuna tries per cell; None is 30 for a study, and none beside the standard
        settings of cross-validation.
    sampler : "tpe", "gp", "random" or "grid"
        Optuna's sampler of that name; ``grid`` takes combinations of the values in `bounds`, all
        of them if `trials` is None.
    window : int
        Trials that may run at once where there are CPUs to spare. Each is suggested without
        knowing the results of those under way, on one CPU too, so it is part of the result.
    development : float
        Share of the rows on which a study judges trials (paper, Appendix D: 0.05).
    search : "heat-bath", "metropolis", "published" or "published-long"
        How a study anneals. ``heat-bath``: by the default schedule, which ends alike at any
        temperatures, so that none are tuned. ``metropolis``: by the paper's chain; temperatures,
        cooling rate, lambda1 and lambda2 are tuned. ``published``: by the schedule of the
        published code, as it is; ``published-long``: with 150 accepted and 300 generated moves a
        temperature, which it advises for large runs.
    moves, restarts, descend, reheat, budget : str, int, bool or None
        Fields of :class:`dcs.Schedule`, in place of those of the search; in either protocol.
    objective : "full", "err", "err+pmi", "err+cobias" or FixedObjective
        The terms of Z that are searched for beside each other; the weights of those named are
        tuned, those of the others are 0 (paper, Section 4.4). Or fixed weights of all.
    error_weight, pseudo_count : float or None
        Weight of the error rate and k of the PMI term in a study; None tunes them. An error
        weight counts beside another term alone, and is 1 otherwise.
    pmi : "published" or "normalised"
        The PMI term of a study; see :class:`dcs.Objective`. The normalised one has no k.
    weight_scale : int or None
        The weight scale D_W; None tunes it.
    memberships : int or None
        How many of the membership functions are offered, from coarse to fine; None is all. See
        :meth:`dcs.CorrectionSet.limited`.
    bounds : Bounds
        Values between which Optuna tunes.
    cost : "moves", "seconds" or None
        Second objective of a study, to be low: candidate solutions that the search of a trial
        judged, or its time. Optuna's Pareto front is marked among the trials. The time is
        another on every run, and so is then what is tried.
    pruner : "successive-halving", "hyperband" or "none"
        Optuna's pruner of that name ends a trial whose scheme is behind those of earlier trials
        at the same share of the budget of its annealing.
    keep_unlabelled : bool
        Whether optimization rows beyond a number under `optimization_sizes` stay, without their
        labels, beside those that the table has without.
    prefer, exchange_rate, max_accuracy_loss, max_cobias : str, float or None
        What is chosen among all that was tried; see :class:`dcs.Preference`. ``accuracy``, with
        ties by lowest COBias, is the rule of the published code.
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
    # Left out of what names a cell where they are not used: it is the cell it was without them.
    cost: Literal["moves", "seconds"] | None = Field(default=None, exclude_if=_unused)
    pruner: Literal["none", "successive-halving", "hyperband"] = Field(
        default="none", exclude_if=_unused
    )
    keep_unlabelled: bool = Field(default=False, exclude_if=_unused)
    pmi: PmiTerm = Field(default="published", exclude_if=_unused)
    prefer: Prefer = "no-harm"
    exchange_rate: float | None = Field(default=None, ge=0.0)
    max_accuracy_loss: float | None = Field(default=None, ge=0.0, le=100.0)
    max_cobias: float | None = Field(default=None, ge=0.0, le=100.0)

    @model_validator(mode="after")
    def _go_together(self) -> TunerSettings:
        if self.protocol == "study":
            if self.trials == 0:
                raise ValueError("trials 0: a study needs at least one")
            if self.pruner != "none" and self.cost is not None:
                raise ValueError(f"pruner {self.pruner} needs a single objective; leave cost out")
            coolings = self.restarts or (1000 if self.search == "heat-bath" else 1)
            if self.pruner != "none" and coolings == 1:
                raise ValueError(
                    f"pruner {self.pruner}: a search of one cooling has nothing to show before "
                    "its end; set restarts to 2 or more"
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
        """Which point of a trade-off is asked for."""
        return Preference(**{name: getattr(self, name) for name in _PREFERENCE_FIELDS})

    @property
    def without_preference(self) -> TunerSettings:
        """The same for all settings that differ in their preference alone."""
        given = {name: TunerSettings.model_fields[name].default for name in _PREFERENCE_FIELDS}
        return self.model_copy(update=given)

    @property
    def schedule_fields(self) -> dict[str, Any]:
        """What is set of a schedule in place of what the search has."""
        values = {name: getattr(self, name) for name in _SCHEDULE_FIELDS}
        return {name: value for name, value in values.items() if value is not None}

    def values(self, name: str) -> tuple[float, ...]:
        """Return the values between which a hyperparameter is tuned: one where it is fixed.

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
        # Without another term beside it the weight of the error rate counts for nothing.
        if fixed is None and name == "error_weight" and not _TERMS.get(str(objective)):
            fixed = 1.0
        bounds: tuple[float, ...] = getattr(self.bounds, name)
        return bounds if fixed is None else (fixed,)

    def space(self, method: Method) -> dict[str, tuple[float, ...]]:
        """Return what a study tunes of a method, and between which values.

        What is fixed is there with its one value, so that it is among a trial's parameters.
        """
        names = ["beta", "tau", "error_weight", "pseudo_count"]
        if method.uses_weight_scale:
            names.insert(0, "weight_scale")
        if self.search == "metropolis":
            names += SCHEDULE_PARAMETERS
        return {name: self.values(name) for name in names}

    def n_trials(self, method: Method) -> int:
        """Return how many trials Optuna is asked for."""
        if self.protocol == "cross-validation":
            # The other methods have nothing to try beside their own corrections.
            return (self.trials or 0) if method.name == "dcs" else 0
        if self.sampler == "grid":
            combinations = math.prod(len(values) for values in self.space(method).values())
            return min(self.trials or combinations, combinations)
        return _TRIALS if self.trials is None else self.trials


class TrackingSettings(Strict):
    """What a sweep leaves in MLflow; the results are the same in any case.

    Attributes
    ----------
    trials : "all", "none", "best:K" or int
        Trials that become runs: all, none, or the best so many of each cell.
    figures : "all" or "none"
        Whether the scheme and the search of each cell, and the sweep, are drawn.
    """

    trials: Annotated[str | int, AfterValidator(parse_trials)] = 5
    figures: Literal["all", "none"] = "all"


class StudyStorageError(DCSError):
    """The storage of the Optuna studies cannot be used."""


@dataclass(frozen=True, slots=True)
class StudyStorage:
    """The storage of Optuna's studies, one study per cell.

    Parameters
    ----------
    address : str
        URL of a PostgreSQL or MySQL database, or the path of a journal file.

    Raises
    ------
    ConfigError
        It is neither.
    """

    address: str = field(repr=False)

    def __post_init__(self) -> None:
        url = self.url
        if url is not None and url.get_backend_name() not in _DATABASES:
            raise ConfigError(
                f"optuna_storage: {url.get_backend_name()}:// is not taken (SQLite loses trials "
                "when several cells write to it); give the path of a journal file, or "
                f"{', '.join(f'{name}://' for name in _DATABASES)}"
            )

    @classmethod
    def chosen(cls, configured: SecretStr | None) -> StudyStorage | None:
        """Return what a configuration names, or else the environment; None for neither."""
        address = configured.get_secret_value() if configured else os.environ.get(STORAGE_VARIABLE)
        return cls(address) if address else None

    @property
    def url(self) -> URL | None:
        """The address of a database; None for a journal file."""
        if "://" not in self.address:
            return None
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError

        try:
            return make_url(self.address)
        except (ArgumentError, ValueError):
            # The reason would quote a part of the password.
            raise ConfigError(
                "optuna_storage: not a URL; write the special characters of a password as %2F "
                "and so on"
            ) from None

    @property
    def label(self) -> str:
        """The address without password and options."""
        url = self.url
        if url is None:
            return self.address
        return url.set(query={}).render_as_string(hide_password=True)

    def hide(self, text: str) -> str:
        """Return a text without the password, should it be there."""
        url = self.url
        text = redact(text.replace(self.address, self.label))
        return text if url is None or not url.password else text.replace(url.password, "***")

    def check(self) -> None:
        """Reach the storage and make its tables, before anything is computed.

        Raises
        ------
        StudyStorageError
            It cannot be reached, or is not to be written to.
        MissingDependencyError
            The database's driver is not installed.
        """
        import optuna

        with self.opened(first=True) as storage:
            optuna.get_all_study_names(storage)

    @contextmanager
    def opened(self, *, first: bool = False) -> Iterator[BaseStorage]:
        """Give Optuna's storage, and say of any failure in the block where and why.

        Parameters
        ----------
        first : bool
            Whether the tables of a database may have to be made. Workers that all make them at
            once get into each other's way.

        Raises
        ------
        StudyStorageError, MissingDependencyError
            As :meth:`check` does.
        """
        from optuna.exceptions import StorageInternalError
        from optuna.storages import RDBStorage
        from sqlalchemy.exc import SQLAlchemyError

        try:
            opened = self._journal() if self.url is None else self._database(first)
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"optuna_storage: {error.name} is not installed; run: pip install "
                "'dcs-debias[cluster]'"
            ) from None
        except Exception as error:
            # Whatever SQLAlchemy, the driver or the file system raises.
            raise self._failure(error) from None
        try:
            yield opened
        except (StorageInternalError, SQLAlchemyError, OSError) as error:
            raise self._failure(error) from None
        finally:
            if isinstance(opened, RDBStorage):
                opened.remove_session()
                opened.engine.dispose()

    def _database(self, first: bool) -> BaseStorage:
        from optuna.storages import RDBStorage

        return RDBStorage(
            self.address,
            # One process, one writer: more than a connection is of no use.
            engine_kwargs={
                "pool_pre_ping": True,
                "pool_size": 1,
                "connect_args": {"connect_timeout": _CONNECT_SECONDS},
            },
            skip_table_creation=not first,
            skip_compatibility_check=not first,
        )

    def _journal(self) -> BaseStorage:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        path = Path(self.address).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(str(path)))

    def _failure(self, error: BaseException) -> StudyStorageError:
        """Say what is wrong without the cause, which may quote the password."""
        while error.__cause__ is not None:
            error = error.__cause__  # The innermost one names the host and what it said.
        return StudyStorageError(
            f"optuna_storage: {self.label} cannot be used: {self.hide(reason(error))}; "
            "see that it is reachable from every node, or leave optuna_storage out"
        )
