"""The front of a cell: a study with two objectives beside the standard settings."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dcs.data.table import ProbabilityTable
from dcs.selection.front import pareto_front
from dcs.selection.methods import get_method
from tests.workflows.conftest import biased_table
from workflows.config.sweep import TunerSettings
from workflows.study import cross_validation
from workflows.study.cross_validation import cross_validated_scheme
from workflows.study.trials import Tuning

#: One point per fit keeps these tests short.
_SETTINGS = TunerSettings(
    trials=5, window=2, objective={"beta": 0.5, "tau": 0.0}, bounds={"weight_scale": [10, 20]}
)


@pytest.fixture(scope="module")
def table() -> ProbabilityTable:
    return biased_table(240)


def test_the_pareto_front_of_the_study_competes(table, monkeypatch):
    seen = {}

    def fit(*arguments, settings, **options):
        seen["fixed"] = settings.fixed
        return fit_scheme(*arguments, settings=settings, **options)

    fit_scheme = cross_validation.fit_scheme
    monkeypatch.setattr(cross_validation, "fit_scheme", fit)
    tuning = Tuning(table=table, method=get_method("dcs"), settings=_SETTINGS, seed=2)
    fitted = cross_validated_scheme(tuning)
    assert [trial.number for trial in fitted.trials] == list(range(len(fitted.trials)))
    tried = [
        SimpleNamespace(
            accuracy=trial.metrics["dev/accuracy"],
            cobias=trial.metrics["dev/cobias"],
            setting=(trial.params["calibration"], trial.params["corrections"]),
        )
        for trial in fitted.trials[: _SETTINGS.trials]
    ]
    wanted = [trial.setting for trial in pareto_front(tried)]
    assert [(s.calibration, s.corrections) for s in seen["fixed"]] == list(dict.fromkeys(wanted))
    assert fitted.best in fitted.trials


def test_preferences_choose_from_one_search_what_each_would_alone(table, monkeypatch):
    def tuning(prefer: str, known: dict) -> Tuning:
        settings = TunerSettings(prefer=prefer, bounds={"weight_scale": [10, 20]})
        what = {"table": table, "method": get_method("dnip"), "settings": settings}
        return Tuning(**what, seed=2, known=known)

    known: dict = {}
    cross_validated_scheme(tuning("accuracy", known))
    alone = cross_validated_scheme(tuning("balance", {}))
    monkeypatch.setattr(cross_validation, "fit_scheme", None)
    assert cross_validated_scheme(tuning("balance", known)).scheme == alone.scheme
