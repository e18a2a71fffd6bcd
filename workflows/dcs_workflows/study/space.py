"""The search space of a study, and the settings that its parameters mean."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from optuna.trial import BaseTrial, FixedTrial

from dcs.search.schedule import Schedule
from dcs.selection.methods import Method
from dcs.selection.settings import STANDARD_SCHEDULE, Hyperparameters
from dcs_workflows.config.tuner import INTEGERS, LOGARITHMIC, SCHEDULE_KNOBS, TunerSettings

#: Corrections of the methods of the paper.
_FAMILIES: Final = {"dnip": "weights", "furud": "memberships"}
#: User attribute of enqueued trials without a search, which the space need not contain.
UNSEARCHED: Final = "unsearched"
#: Number of accepted and generated moves that end a temperature of the published schedules.
_PUBLISHED_MOVES: Final = {"published": (3, 6), "published-long": (150, 300)}


class SearchSpace:
    """The hyperparameters of a study.

    Parameters
    ----------
    settings : TunerSettings
        Bounds, choices and fixed values.
    method : Method
        Methods other than ``dcs`` have their own corrections and no calibration, as in the paper.
    standard : sequence of Hyperparameters
        The standard settings, which the bounds of regularisation include.
    n_rows, n_classes : int
        Size of the table that a search runs on.
    """

    def __init__(
        self,
        settings: TunerSettings,
        method: Method,
        standard: Sequence[Hyperparameters],
        *,
        n_rows: int,
        n_classes: int,
    ) -> None:
        self._settings, self._n_rows = settings, n_rows
        self._values = {name: settings.values(name) for name in type(settings.space).model_fields}
        if method.name in _FAMILIES:
            paper = {"calibration": "none", "corrections": _FAMILIES[method.name]}
            self._values |= {name: (value,) for name, value in paper.items()}
            self._values["spacing"] = ("linear",)
        if settings.memberships is not None and settings.memberships < 2:
            families = self._values["corrections"]
            self._values["corrections"] = tuple(f for f in families if f != "memberships")
        own = method.name == "dcs"
        unshrunk = any(each.corrections == "both" for each in standard)
        if own and not unshrunk and "corrections" not in settings.given:
            # A class with few rows has too few for functions that are not shrunk.
            self._values["corrections"] = ("weights",)
        if own and "calibration" not in settings.given:
            calibrations = {each.calibration for each in standard}
            self._values["calibration"] = tuple(
                c for c in self._values["calibration"] if c in calibrations
            )
        # As the standard settings, searches among many classes make fewer moves per class.
        self._share = min(1.0, standard[0].schedule.lambda2 / STANDARD_SCHEDULE.lambda2)
        for name in ("lambda1", "lambda2"):
            if name not in settings.given:
                self._values[name] = tuple(v * self._share for v in self._values[name])
        self._prior = (0.0, max(400.0, *(each.prior_rows for each in standard)))
        self._paper = method.name != "dcs"

    def suggest(self, trial: BaseTrial) -> Hyperparameters:
        """Suggest a complete setting."""
        calibration = self._draw(trial, "calibration")
        if UNSEARCHED in trial.user_attrs:
            own = Hyperparameters(calibration=calibration, corrections="none")
            if calibration == "surrogate":
                own = replace(own, beta=self._draw(trial, "beta"))
            return own
        corrections = self._draw(trial, "corrections")
        chosen = Hyperparameters(calibration=calibration, corrections=corrections)
        if corrections == "none":
            return chosen
        terms: dict[str, Any] = {
            name: self._draw(trial, name) for name in ("beta", "tau", "error_weight")
        }
        if terms["tau"] > 0.0:
            terms["pseudo_count"] = self._draw(trial, "pseudo_count")
        if terms["beta"] == terms["tau"] == 0.0:
            # Without another term, the weight of the error rate has no effect.
            terms["error_weight"] = 1.0
        regularised: dict[str, Any] = {"prior_rows": 0.0, "averages": 0}
        if not self._paper:
            regularised["prior_rows"] = trial.suggest_float("prior_rows", *self._prior)
            if corrections == "weights":
                regularised["averages"] = trial.suggest_int("averages", 0, 8)
        weights: dict[str, Any] = {}
        if corrections != "memberships":
            weights = {name: self._draw(trial, name) for name in ("spacing", "weight_scale")}
        return replace(
            chosen,
            **terms,
            **regularised,
            **weights,
            memberships=self._settings.memberships if corrections != "weights" else None,
            schedule=self._schedule(trial),
        )

    def first(self, standard: Sequence[Hyperparameters]) -> list[FixedTrial]:
        """Return the trials to enqueue, as near to `standard` as possible.

        With ``sampler: grid``, all combinations of the values that the configuration gives.
        """
        if self._settings.sampler == "grid":
            given = [n for n in self._values if n in self._settings.given]
            combined = itertools.product(*(self._values[name] for name in given))
            base = [self._params(each) for each in standard[:1]]
            found = [base[0] | dict(zip(given, values, strict=True)) for values in combined]
        else:
            found = [self._params(each) for each in standard if self._admits(each)]
            found = found or [self._params(standard[0])]
        distinct: dict[Hyperparameters, FixedTrial] = {}
        for params in found:
            trial = FixedTrial(params)
            if params["corrections"] == "none" and "none" not in self._values["corrections"]:
                trial.set_user_attr(UNSEARCHED, True)
            distinct.setdefault(self.suggest(trial), trial)
        return [*distinct.values()]

    def _admits(self, setting: Hyperparameters) -> bool:
        names: tuple[str, ...] = ("calibration", "corrections")
        if setting.corrections == "none" and not self._settings.given & {"corrections", "spacing"}:
            names = names[:1]
        return all(getattr(setting, name) in self._values[name] for name in names)

    def _params(self, setting: Hyperparameters) -> dict[str, Any]:
        """Return the parameters nearest to a setting."""
        defaults = replace(setting, corrections="weights").to_params()
        params = {name: defaults[name] for name in ("prior_rows", "averages")}
        params["prior_rows"] = min(max(params["prior_rows"], self._prior[0]), self._prior[1])
        params["corrections"] = setting.corrections
        for name, values in self._values.items():
            if name == "corrections" and setting.corrections == "none":
                continue
            value = defaults[name] if name != "corrections" else setting.corrections
            if value not in values:
                if isinstance(value, str) or isinstance(values[0], str):
                    value = values[0]
                elif len(values) == 2:
                    value = min(max(value, values[0]), values[1])
                else:
                    value = min(values, key=lambda each: abs(float(each) - float(value)))
            params[name] = value
        return params

    def _draw(self, trial: BaseTrial, name: str) -> Any:
        values = self._values[name]
        if len(values) == 2 and not isinstance(values[0], str) and values[0] != values[1]:
            if name in INTEGERS:
                return trial.suggest_int(name, int(values[0]), int(values[1]))
            low, high = float(values[0]), float(values[1])
            return trial.suggest_float(name, low, high, log=name in LOGARITHMIC)
        return trial.suggest_categorical(name, list(dict.fromkeys(values)))

    def _schedule(self, trial: BaseTrial) -> Schedule:
        search = self._settings.search
        changed = search.changed
        if search.schedule in _PUBLISHED_MOVES:
            published = Schedule.published(self._n_rows, *_PUBLISHED_MOVES[search.schedule])
            return replace(published, **changed)
        if search.schedule == "paper":
            lambdas = {name: self._draw(trial, name) for name in ("lambda1", "lambda2")}
            paper = Schedule.published(self._n_rows)
            return replace(paper, **lambdas, per_class=True, count_worse=True, start="dont-change")
        drawn = {name: self._draw(trial, name) for name in SCHEDULE_KNOBS}
        ratio = drawn.pop("temperature_ratio")
        drawn["final_temperature"] = drawn["initial_temperature"] * ratio
        return replace(STANDARD_SCHEDULE, **drawn, **changed)
