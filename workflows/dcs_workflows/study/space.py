"""The search space of a study, and the settings that its parameters mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from optuna.trial import BaseTrial, FixedTrial

from dcs.methods.parameters import PARAMETERS, STANDARD_SCHEDULE, Hyperparameters, Parameter
from dcs.search.schedule import Schedule
from dcs.selection.methods import Method
from dcs_workflows.config.tuner import TunerSettings

#: Number of accepted and generated moves that end a temperature of the published schedules.
_PUBLISHED_MOVES: Final = {"published": (3, 6), "published-long": (150, 300)}
#: Knobs of the schedule that are tuned, by name of the schedule.
_TUNED: Final = {"tuned": None, "paper": ("lambda1", "lambda2")}


class SearchSpace:
    """The hyperparameters of a study, all of which every trial has.

    Parameters
    ----------
    settings : TunerSettings
        Bounds, choices and fixed values.
    method : Method
        Its `fixed` knobs are not tuned.
    standard : sequence of Hyperparameters
        The standard settings.
    n_rows : int
        Number of rows of a search.
    """

    def __init__(
        self,
        settings: TunerSettings,
        method: Method,
        standard: Sequence[Hyperparameters],
        *,
        n_rows: int,
    ) -> None:
        self._settings, self._n_rows = settings, n_rows
        tuned = _TUNED.get(settings.search.schedule, ())
        self._rows = [
            row for row in PARAMETERS if not row.schedule or tuned is None or row.name in tuned
        ]
        self._values = {row.name: settings.values(row.name) for row in self._rows}
        self._values |= {name: (value,) for name, value in (method.fixed or {}).items()}
        if settings.memberships is not None and settings.memberships < 2:
            families = self._values["corrections"]
            self._values["corrections"] = tuple(f for f in families if f != "memberships")
        # As the standard settings, searches among many classes make fewer moves per class.
        share = min(1.0, standard[0].schedule.lambda2 / STANDARD_SCHEDULE.lambda2)
        for name in {"lambda1", "lambda2"} & self._values.keys() - settings.given:
            self._values[name] = tuple(v * share for v in self._values[name])

    @property
    def calibrations(self) -> tuple[str, ...]:
        """Names of the calibrations that trials may have."""
        return tuple(self._values["calibration"])

    def suggest(self, trial: BaseTrial) -> Hyperparameters:
        """Suggest a complete setting."""
        drawn = {row.name: self._draw(trial, row) for row in self._rows}
        own = [row.name for row in self._rows if row.schedule]
        schedule = self._schedule({name: drawn.pop(name) for name in own})
        if drawn["beta"] == drawn["tau"] == 0.0:
            # Without another term, the weight of the error rate has no effect.
            drawn["error_weight"] = 1.0
        weights_only = drawn["corrections"] == "weights"
        memberships = None if weights_only else self._settings.memberships
        return Hyperparameters(**drawn, memberships=memberships, schedule=schedule)

    def first(self, standard: Sequence[Hyperparameters]) -> list[FixedTrial]:
        """Return the trials to enqueue, as near to `standard` as possible."""
        own = [each for each in standard if each.corrections in self._values["corrections"]]
        found = [self._params(each) for each in own if self.admits(each)]
        found = found or [self._params(standard[0])]
        distinct: dict[Hyperparameters, FixedTrial] = {}
        for params in found:
            trial = FixedTrial(params)
            distinct.setdefault(self.suggest(trial), trial)
        return [*distinct.values()]

    def admits(self, setting: Hyperparameters) -> bool:
        """Whether a setting has a calibration and corrections of the space."""
        names = ["calibration"]
        if setting.corrections != "none":
            names += ["corrections", "spacing"]
        elif self._settings.given & {"corrections", "spacing"}:
            names += ["corrections"]
        return all(getattr(setting, name) in self._values[name] for name in names)

    def _params(self, setting: Hyperparameters) -> dict[str, Any]:
        """Return the parameters nearest to a setting."""
        schedule = setting.schedule
        own = {"temperature_ratio": schedule.final_temperature / schedule.initial_temperature}
        params: dict[str, Any] = {}
        for name, values in self._values.items():
            value: Any = own.get(name, getattr(setting, name, getattr(schedule, name, None)))
            if value not in values:
                if isinstance(values[0], str):
                    value = values[0]
                elif len(values) == 2:
                    value = min(max(value, values[0]), values[1])
                else:
                    value = min(values, key=lambda each: abs(float(each) - float(value)))
            params[name] = value
        return params

    def _draw(self, trial: BaseTrial, row: Parameter) -> Any:
        values = self._values[row.name]
        if len(values) == 2 and not isinstance(values[0], str) and values[0] != values[1]:
            if row.integer:
                return trial.suggest_int(row.name, int(values[0]), int(values[1]))
            low, high = float(values[0]), float(values[1])
            return trial.suggest_float(row.name, low, high, log=row.logarithmic and low > 0.0)
        return trial.suggest_categorical(row.name, list(dict.fromkeys(values)))

    def _schedule(self, drawn: dict[str, Any]) -> Schedule:
        search = self._settings.search
        changed = search.changed
        if search.schedule in _PUBLISHED_MOVES:
            published = Schedule.published(self._n_rows, *_PUBLISHED_MOVES[search.schedule])
            return replace(published, **changed)
        if search.schedule == "paper":
            paper = Schedule.published(self._n_rows)
            return replace(paper, **drawn, per_class=True, count_worse=True, start="dont-change")
        ratio = drawn.pop("temperature_ratio")
        drawn["final_temperature"] = drawn["initial_temperature"] * ratio
        return replace(STANDARD_SCHEDULE, **drawn, **changed)
