"""The table of knobs: its limits, and what trials record of a setting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dcs.methods.parameters import PARAMETERS, Hyperparameters, Parameter
from dcs.search.schedule import Schedule


@pytest.mark.parametrize("parameter", PARAMETERS, ids=lambda each: each.name)
def test_defaults_are_within_the_limits(parameter: Parameter) -> None:
    numbers = [value for value in parameter.values if not isinstance(value, str)]
    assert all(parameter.least <= value <= parameter.most for value in numbers)
    assert parameter.least > 0.0 or not parameter.logarithmic
    if parameter.choices:
        assert {*parameter.values} <= {*parameter.choices}


def test_the_ratio_of_temperatures_is_recorded() -> None:
    schedule = replace(Schedule(), initial_temperature=0.05, final_temperature=0.001)
    params = Hyperparameters(schedule=schedule).to_params()
    assert params["temperature_ratio"] == pytest.approx(0.02) and "stream" not in params
    assert {each.name for each in PARAMETERS} <= params.keys()
