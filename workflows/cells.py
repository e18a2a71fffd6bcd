"""What a sweep is made of: table requests, and the cells that are tuned on them.

Both are named by the hash of their canonical JSON, so that finished work is recognised on any
machine and never done twice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from pydantic import ConfigDict, TypeAdapter, ValidationError

from dcs.errors import ConfigError
from dcs.io import content_key
from dcs.prompting import SPLITS, Shots, get_task, prompt_hash, select_demonstrations
from dcs.selection.methods import Method, get_method
from dcs.validation import first_fault
from workflows.config.scoring import ScoringSettings
from workflows.config.sweep import PromptsConfig, SweepConfig
from workflows.config.tuner import Bounds, TunerSettings

__all__ = [
    "UNFITTED",
    "Cell",
    "Source",
    "TableRequest",
    "Variant",
    "cells_of",
    "effective_settings",
    "request_key",
    "sharing",
    "table_requests",
    "texts_key",
    "variants_of",
]

#: Methods that take nothing from the optimization rows.
UNFITTED = frozenset({"icl"})


@dataclass(frozen=True, slots=True)
class TableRequest:
    """The class probabilities of one model on one task, prompted in one way.

    Attributes
    ----------
    model, task : str
        Names as in the configuration.
    shots : int or "N"
        Demonstrations per prompt.
    seed : int
        Root seed; the demonstrations derive theirs from it.
    limit : int or None
        At most so many texts of each split.
    data : str or None
        Folder with the texts of a task that comes without them.
    scoring : ScoringSettings
        The engine and its options.
    """

    model: str
    task: str
    shots: Shots
    seed: int
    limit: int | None
    data: str | None = None
    scoring: ScoringSettings = ScoringSettings()

    @property
    def label(self) -> str:
        """A short name for people."""
        return f"{self.model} {self.task} {self.shots}-shot seed {self.seed}"

    @property
    def prompted(self) -> dict[str, Any]:
        """The task and how it is prompted, as :mod:`dcs.scoring.generation` takes them."""
        task = get_task(self.task, self.data)
        return {"task": task, "shots": self.shots, "seed": self.seed, "limit": self.limit}


class Source(Protocol):
    """Whose class probabilities cells are tuned on: a request, or a given table."""

    @property
    def model(self) -> str:
        """Its name."""

    @property
    def task(self) -> str:
        """Its name."""

    @property
    def shots(self) -> Shots | None:
        """Demonstrations per prompt; None where nothing says."""

    @property
    def seed(self) -> int:
        """Root seed of the cells."""


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

    __pydantic_config__ = ConfigDict(extra="forbid")

    method: str
    tuner: TunerSettings | None
    optimization_size: int | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """All that decides the result, as plain JSON values."""
        plain: dict[str, Any] = _ADAPTERS[type(self)].dump_python(self, mode="json")
        return plain


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
            cell: Cell = _ADAPTERS[cls].validate_python(dict(identity))
        except ValidationError as error:
            raise ConfigError(f"cell identity: {first_fault(error)}") from None
        return cell

    @property
    def key(self) -> str:
        """Hash of :attr:`identity`."""
        return content_key(self.identity)

    @property
    def variant(self) -> Variant:
        """What it is on its table."""
        return Variant(
            method=self.method, tuner=self.tuner, optimization_size=self.optimization_size
        )

    @property
    def label(self) -> str:
        """A short name for people."""
        shots = "" if self.shots is None else f" {self.shots}-shot"
        rows = "" if self.optimization_size is None else f" {self.optimization_size} rows"
        return f"{self.method} {self.task}{shots} seed {self.seed}{rows} {self.model}"


_ADAPTERS: Final[dict[type, TypeAdapter[Any]]] = {
    kind: TypeAdapter(kind) for kind in (Variant, Cell)
}


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
    trials = tuner.n_trials(method)
    tuned = {"beta", "tau", "weight_scale"} if method.uses_weight_scale else {"beta", "tau"}
    idle: list[str] = []
    if not method.uses_memberships:
        idle.append("memberships")
    if method.name != "dcs" or tuner.protocol == "study":
        # Only calibrations learn from rows without labels.
        idle.append("keep_unlabelled")
    if not method.uses_weight_scale:
        idle.append("weight_scale")
    if tuner.protocol == "study":
        tuned = {*tuner.space(method)}
        if tuner.pmi == "normalised":
            idle.append("pseudo_count")
    else:
        idle.append("development")
        if trials == 0:
            idle += ["window", "sampler"]
            # The largest weight of PMI decides which weights are compared.
            tuned = {"tau"} if tuner.values("beta") == (0.0,) else set()
    bounds = {name: getattr(tuner.bounds, name) for name in tuned if len(tuner.values(name)) > 1}
    usual = {name: TunerSettings.model_fields[name].default for name in idle}
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


def table_requests(config: PromptsConfig) -> list[TableRequest]:
    """Return every table that is asked for, in the order of the configuration.

    Parameters
    ----------
    config : PromptsConfig
        A sweep, or the part of one that says what is scored.

    Returns
    -------
    list of TableRequest
        Models, then tasks, shots and seeds.
    """
    return [
        TableRequest(
            model=model,
            task=task,
            shots=shots,
            seed=seed,
            limit=config.limit,
            data=config.data,
            scoring=config.scoring,
        )
        for model, task, shots, seed in itertools.product(
            config.models, config.tasks, config.shots, config.seeds
        )
    ]


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
    return [
        Cell(
            model=source.model,
            task=source.task,
            shots=source.shots,
            seed=source.seed,
            method=variant.method,
            tuner=variant.tuner,
            optimization_digest=digests["optimization"],
            test_digest=digests["test"],
            optimization_size=variant.optimization_size,
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


def request_key(request: TableRequest, *, known: dict[Any, Any] | None = None) -> str:
    """Return the hash of all that decides the numbers of a table.

    Computed without loading the model, so that a finished sweep is recognised at once.

    Parameters
    ----------
    request : TableRequest
        What is asked for.
    known : dict, optional
        Give the same one, empty at first, for many requests: what they have in common, such as
        the texts of a task, is then looked at once.

    Raises
    ------
    DCSError
        The task or model is not known.
    """
    known = {} if known is None else known
    engine = (request.model, request.scoring)
    if engine not in known:
        known[engine] = request.scoring.identity(request.model)
    return content_key({**known[engine], **_texts_of(request, known)})


def texts_key(request: TableRequest, *, known: dict[Any, Any] | None = None) -> str:
    """Return the hash of what a model is asked, whichever it is: the part that files decide.

    Parameters
    ----------
    request : TableRequest
        What is asked for.
    known : dict, optional
        As in :func:`request_key`.

    Raises
    ------
    DCSError
        The task is not known.
    """
    return content_key(_texts_of(request, {} if known is None else known))


def _texts_of(request: TableRequest, known: dict[Any, Any]) -> dict[str, Any]:
    asked = (request.task, request.data, request.shots, request.seed)
    task = get_task(request.task, request.data)
    if asked not in known:
        demonstrations = select_demonstrations(task, request.shots, seed=request.seed)
        known[asked] = prompt_hash(task, demonstrations)
    texts = (request.task, request.data)
    if texts not in known:
        known[texts] = {
            split: content_key({"rows": [[e.id, e.text, e.label] for e in task.examples(split)]})
            for split in SPLITS
        }
    return {"prompt": known[asked], "limit": request.limit, "examples": known[texts]}
