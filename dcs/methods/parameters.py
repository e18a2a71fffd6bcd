"""Hyperparameters of the method: a row for each, and the settings that they make up."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from dcs.data.checks import finite_number, whole_number
from dcs.errors import check_choice
from dcs.evaluation.metrics import Objective
from dcs.methods.calibrations import CALIBRATIONS
from dcs.schemes.corrections import CorrectionSet
from dcs.search.schedule import Schedule

CorrectionFamily: TypeAlias = Literal["none", "weights", "memberships", "both"]

WeightSpacing: TypeAlias = Literal["logarithmic", "linear"]

#: Calibration that is the mean of several others, weighted by what held-out rows show of them.
MIXTURE: Final = "mixture"

#: Short, because cross-validation repeats the search. No descent follows: the temperatures, the
#: cooling rate and both lambdas decide the result and the number of moves.
STANDARD_SCHEDULE: Final = Schedule(
    initial_temperature=0.02,
    final_temperature=0.0001,
    cooling_rate=0.4,
    lambda1=2.0,
    lambda2=2.0,
    restarts=1,
    descend=False,
    reheat=False,
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A hyperparameter of a trial.

    Attributes
    ----------
    name : str
        Name in settings, configurations, studies and records.
    values : tuple
        Two numbers are bounds and a longer tuple, or one of texts, choices; what a study explores
        by default. A single value is not explored.
    least, most : float
        Smallest and largest value that may be given.
    choices : tuple of str
        Texts that may be given, if more than `values`.
    integer, logarithmic : bool
        How it is sampled.
    schedule : bool
        Whether it belongs to the annealing schedule.
    version : int
        Raised if its meaning or default changes, so that tuned cells are computed again.
    """

    name: str
    values: tuple[Any, ...]
    least: float = 0.0
    most: float = math.inf
    choices: tuple[str, ...] = ()
    integer: bool = False
    logarithmic: bool = False
    schedule: bool = False
    version: int = 1


#: All hyperparameters of a trial, in the order of tables; see :class:`Hyperparameters`.
PARAMETERS: Final = (
    Parameter("calibration", (MIXTURE, *CALIBRATIONS)),
    Parameter("ridge", (1.0, 300.0), least=1e-9, logarithmic=True),
    Parameter("anchor", (0.0, 1.0), most=1.0),
    Parameter(
        "corrections", ("weights", "memberships", "both"), choices=get_args(CorrectionFamily)
    ),
    Parameter("spacing", get_args(WeightSpacing)),
    Parameter("weight_scale", (10, 120), least=2, most=1000, integer=True),
    Parameter("beta", (0.0, 2.0)),
    Parameter("tau", (0.0, 0.5)),
    Parameter("error_weight", (1.0,)),
    Parameter("pseudo_count", (4000.0,), least=1e-9, logarithmic=True),
    Parameter("prior_rows", (0.0, 200.0)),
    # Of the schedule: temperatures are on the scale of Z, the last is a share of the first.
    Parameter("initial_temperature", (0.002, 0.2), least=1e-9, logarithmic=True, schedule=True),
    Parameter(
        "temperature_ratio", (0.0001, 0.1), least=1e-9, most=1.0, logarithmic=True, schedule=True
    ),
    Parameter("cooling_rate", (0.2, 0.8), least=0.01, most=0.999, schedule=True),
    Parameter("lambda1", (0.5, 4.0), least=1e-9, logarithmic=True, schedule=True),
    Parameter("lambda2", (0.5, 4.0), least=1e-9, logarithmic=True, schedule=True),
)


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """A setting: a calibration, followed by a search for corrections.

    Parameters
    ----------
    calibration : str
        ``"mixture"``, the mean of the calibrations that held-out rows favour, or one of them:
        ``"none"``, ``"batch"``, ``"offsets"``, ``"linear"``, ``"products"``, ``"surrogate"``,
        ``"drops"``; see :mod:`dcs.methods.calibrations`.
    ridge : float
        Penalty of a single calibration, in rows.
    anchor : float
        Where the penalty pulls, from 0 (uniform probabilities) to 1 (batch calibration).
    corrections : {"none", "weights", "memberships", "both"}
        Corrections from which the search chooses; ``"none"`` disables the search.
    weight_scale : int
        Number of weights, D_W.
    spacing : {"logarithmic", "linear"}
        Weights in equal steps of the logarithm, over a range determined from the probabilities,
        or ``i / D_W`` as in the paper.
    memberships : int, optional
        Number of membership functions to search, by default all; see
        :meth:`dcs.CorrectionSet.limited`.
    beta, tau : float
        Weights of COBias and PMI in the objective.
    error_weight, pseudo_count : float
        Weight of the error rate, and k of the PMI term; see :class:`dcs.Objective`.
    prior_rows : float
        Regularisation in rows per class: with M rows of N classes, the share
        ``prior_rows * N / (prior_rows * N + M)`` of the evidence comes from the expectation under
        the calibrated probabilities rather than from the labels. 0 uses the labels only.
    schedule : Schedule
        Annealing schedule of every search, which runs as it is given.
    stream : int
        Random stream of the searches: settings that differ only in it draw other numbers.

    Raises
    ------
    InvalidInputError
        If a value is invalid.
    """

    calibration: str = MIXTURE
    ridge: float = 10.0
    anchor: float = 1.0
    corrections: CorrectionFamily = "weights"
    weight_scale: int = 80
    spacing: WeightSpacing = "logarithmic"
    memberships: int | None = None
    beta: float = 1.0
    tau: float = 0.0
    error_weight: float = 1.0
    pseudo_count: float = 4000.0
    prior_rows: float = 50.0
    schedule: Schedule = field(default_factory=lambda: STANDARD_SCHEDULE)
    stream: int = 0

    def __post_init__(self) -> None:
        for row in PARAMETERS:
            if row.schedule:
                continue
            value = getattr(self, row.name)
            if isinstance(row.values[0], str):
                check_choice(row.name, value, row.choices or row.values)
                continue
            if row.integer:
                least, most = int(row.least), int(row.most)
                number: float = whole_number(value, row.name, least=least, most=most)
            else:
                number = finite_number(value, row.name, least=row.least, most=row.most)
            object.__setattr__(self, row.name, number)
        whole_number(self.stream, "stream", least=0)
        CorrectionSet.dcs().limited(self.memberships)

    @property
    def calibrated(self) -> tuple[str, float, float]:
        """Name, ridge and anchor of the calibration, which settings can share."""
        fixed = self.calibration == MIXTURE or not CALIBRATIONS[self.calibration].needs_labels
        ridge, anchor = (0.0, 0.0) if fixed else (self.ridge, self.anchor)
        return self.calibration, ridge, anchor

    @property
    def is_linear(self) -> bool:
        """Whether schemes of the setting are linear in the log-probabilities, as is their mean.

        Weights ``i / D_W`` are excluded: the mean of two of them is none.
        """
        weights = self.corrections == "weights" and self.spacing == "logarithmic"
        return weights or self.corrections == "none"

    @property
    def adds_offsets(self) -> bool:
        """Whether schemes of the setting only add offsets to the log-probabilities."""
        free = self.calibration in CALIBRATIONS and CALIBRATIONS[self.calibration].adds_offsets
        return free and self.corrections in ("none", "weights")

    def at(self, beta: float) -> Hyperparameters:
        """Return the setting with another weight of COBias in its search, if it has one."""
        return self if self.corrections == "none" else replace(self, beta=beta)

    @property
    def objective(self) -> Objective:
        """The objective of every search."""
        return Objective(self.beta, self.tau, self.error_weight, self.pseudo_count)

    def to_params(self) -> dict[str, Any]:
        """Return all values by name, those of the schedule among them, as trials record them."""
        # Without the deep copies of asdict: a front has hundreds of settings.
        values, schedule = (
            {each.name: getattr(part, each.name) for each in fields(part)}
            for part in (self, self.schedule)
        )
        del values["schedule"]
        if self.stream == 0:
            del values["stream"]
        if self.corrections == "none":
            names = ("calibration", "ridge", "anchor", "corrections")
            return {name: values[name] for name in names}
        first, last = self.schedule.initial_temperature, self.schedule.final_temperature
        schedule["temperature_ratio"] = last / first
        return values | schedule

    def smoothing(self, n_rows: int, n_classes: int) -> float:
        """Return the share of the evidence that comes from the calibrated probabilities."""
        prior = self.prior_rows * n_classes
        return prior / (prior + n_rows)

    def follows(self, n_rows: int, n_classes: int) -> float:
        """Return the degree to which corrections fitted on `n_rows` rows follow the labels, 0..1.

        0 without labels, 1 without regularisation. Labels are smoothed and weights shrunk by the
        same share.
        """
        if self.corrections == "none" and self.calibration in ("none", "batch"):
            return 0.0
        searched = 1.0 - self.smoothing(n_rows, n_classes)
        return searched if self.corrections in ("memberships", "both") else searched**2
