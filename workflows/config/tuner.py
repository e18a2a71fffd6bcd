"""The parts of a sweep's configuration that say how a cell is tuned and what is recorded."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, PlainSerializer, PlainValidator, field_validator, model_validator

from dcs.messages import suggest
from dcs.schemes.corrections import MEMBERSHIP_COUNT
from dcs.selection.front import Preference
from dcs.validation import Strict, as_value_error
from tracking.archive import parse_trials

__all__ = [
    "OBJECTIVE_NAMES",
    "FixedObjective",
    "ObjectiveChoice",
    "TrackingSettings",
    "TunerSettings",
]

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
    if isinstance(value, FixedObjective):
        return value
    if isinstance(value, dict):
        fixed = FixedObjective.model_validate(value)
        # One name for one objective: the same work must not be done under two.
        return "err" if fixed.beta == fixed.tau == 0.0 else fixed
    if isinstance(value, str) and value in _TERMS:
        return value
    near = suggest(value, OBJECTIVE_NAMES) if isinstance(value, str) else ""
    raise ValueError(
        f"objective {value!r} is not known{near}; allowed are {', '.join(OBJECTIVE_NAMES)}, or "
        "fixed weights such as {beta: 0.5, tau: 0.1}"
    )


def _plain(value: str | FixedObjective) -> Any:
    return value if isinstance(value, str) else value.model_dump()


#: The name of an objective, or fixed weights. Checked by hand: pydantic names the members of a
#: union in its paths, which nobody wrote.
ObjectiveChoice: TypeAlias = Annotated[
    str | FixedObjective, PlainValidator(_objective), PlainSerializer(_plain, return_type=Any)
]


class TunerSettings(Strict):
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
    objective : "full", "err", "err+pmi", "err+cobias" or FixedObjective
        The terms of Z that are searched for beside each other; the weights of those named are
        tuned, those of the others are 0 (paper, Section 4.5). Or fixed weights of all.
    weight_scale : int or None
        The weight scale D_W; None tunes it.
    memberships : int or None
        How many of the membership functions are offered, from coarse to fine; None is all. See
        :meth:`dcs.CorrectionSet.limited`.
    max_weight_scale : int
        Largest weight scale D_W tried.
    max_beta, max_tau : float
        Largest weight of the COBias and PMI terms tried.
    prefer : "balance", "accuracy" or "knee"
        What is chosen among all that was tried: highest accuracy minus COBias, highest accuracy,
        or the knee of their front.
    max_accuracy_loss, max_cobias : float or None
        In points. Take the fairest scheme that loses no more accuracy than this; keep to schemes
        with no more COBias than this.
    """

    protocol: Literal["paper", "front"] = "paper"
    trials: int = Field(default=30, ge=0, le=100_000)
    window: int = Field(default=4, ge=1, le=1000)
    development: float = Field(default=0.05, gt=0.0, lt=1.0)
    budget: int = Field(default=750_000, ge=100)
    objective: ObjectiveChoice = "full"
    weight_scale: int | None = Field(default=None, ge=2, le=1000)
    memberships: int | None = Field(default=None, ge=0, le=MEMBERSHIP_COUNT)
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

    def without_effect(self, *names: str) -> TunerSettings:
        """Return the settings with those of `names`, which change nothing, as they usually are.

        Parameters
        ----------
        *names : str
            Names of settings.

        Returns
        -------
        TunerSettings
            With these at their defaults.
        """
        usual = {name: TunerSettings.model_fields[name].default for name in names}
        return self.model_copy(update=usual)

    @property
    def preference(self) -> Preference:
        """Which point of a trade-off is asked for, in shares and not in points."""
        loss, cobias = (
            None if points is None else points / 100.0
            for points in (self.max_accuracy_loss, self.max_cobias)
        )
        return Preference(prefer=self.prefer, max_accuracy_loss=loss, max_cobias=cobias)

    @property
    def beta_bounds(self) -> tuple[float, float]:
        """Between which weights of COBias to tune; alike where the weight is fixed."""
        return self._bounds("beta", self.max_beta)

    @property
    def tau_bounds(self) -> tuple[float, float]:
        """Between which weights of PMI to tune; alike where the weight is fixed."""
        return self._bounds("tau", self.max_tau)

    @property
    def weight_scale_bounds(self) -> tuple[int, int]:
        """Between which weight scales to tune; alike where the scale is fixed."""
        fixed = self.weight_scale
        return (10, self.max_weight_scale) if fixed is None else (fixed, fixed)

    def _bounds(self, name: Literal["beta", "tau"], highest: float) -> tuple[float, float]:
        if isinstance(self.objective, FixedObjective):
            weight: float = getattr(self.objective, name)
            return (weight, weight)
        return (0.0, highest if name in _TERMS[self.objective] else 0.0)


class TrackingSettings(Strict):
    """What a sweep leaves in MLflow; the results are the same in any case.

    Attributes
    ----------
    trials : "all", "none", "best:K" or int
        Trials that become runs: all, none, or the best so many of each cell.
    figures : "all" or "none"
        Whether the scheme and the search of each cell, and the sweep, are drawn.
    """

    trials: str | int = "all"
    figures: Literal["all", "none"] = "all"

    @field_validator("trials")
    @classmethod
    def _readable(cls, value: str | int) -> str | int:
        chosen: str | int = as_value_error(parse_trials, value)
        return chosen
