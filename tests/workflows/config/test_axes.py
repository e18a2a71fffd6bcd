"""The grid of a sweep: every cell once, narrowing leaves a part, each value its own cells."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, create_model

from dcs.methods.calibrations import CALIBRATIONS
from dcs.methods.parameters import MIXTURE
from dcs.selection.methods import get_method
from dcs_workflows.config.sweep import ABLATED, SweepConfig, selected, value_label
from dcs_workflows.config.tuner import PARTS, Space, TunerSettings
from dcs_workflows.plan import Cell, cells_of, effective_settings, variants_of
from dcs_workflows.sources.scored import TableRequest

TABLE = TableRequest(model="tiny_lm", task="reviews", shots=1, seed=0, limit=None)

VALUES: dict[str, list[Any]] = {
    "development": [None, 0.2],
    "trials": [3, 24],
    "budget": [None, 2000],
    "weight_scale": [None, 10, 30],
    "lambda1": [None, 1.0, [0.5, 2.0]],
    "memberships": [None, 2, 5, 10],
    "prefer": ["balance", "accuracy", "macro-f1"],
    "max_cobias": [None, 5.0],
}


def _some(values: list[Any], **limits: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(range(len(values))), unique=True, **limits).map(
        lambda chosen: [values[i] for i in chosen]
    )


@st.composite
def configs(draw: st.DrawFn) -> SweepConfig:
    """Draw a sweep with some ablations."""
    names = draw(_some(list(VALUES), max_size=3))
    objectives = draw(_some(["full", "err", "err+pmi", "err+cobias"], max_size=3))
    axes = {name: draw(_some(VALUES[name], min_size=1, max_size=3)) for name in names}
    sizes = draw(_some([10, 50, "full"], min_size=1))
    combine = draw(st.sampled_from(["all", "all", "one_at_a_time"]))
    if combine == "one_at_a_time":
        # Where the others vary, each is as in the tuner.
        objectives = list(dict.fromkeys(["full", *objectives]))
        usual = {"trials": 24, "prefer": "no-harm"}
        axes = {
            name: [usual.get(name), *(v for v in axes[name] if v != usual.get(name))]
            for name in axes
        }
        sizes = list(dict.fromkeys(["full", *sizes]))
    return _config(
        methods=draw(_some(["icl", "batch", "dnip", "furud", "dcs"], min_size=1)),
        objectives=objectives,
        axes=axes,
        optimization_sizes=sizes,
        combine=combine,
    )


def _config(**values: Any) -> SweepConfig:
    return SweepConfig(**{"name": "x", "tasks": ("reviews",), "methods": ("dcs",)} | values)


def _cells(config: SweepConfig) -> list[Cell]:
    return cells_of([TABLE], variants_of(config), {"optimization": "o", "test": "t"})


def narrowed(config: SweepConfig, *only: str) -> SweepConfig:
    return config.restricted(selected(config.axis_values, only))


@given(configs())
def test_every_cell_is_there_once_and_made_again_from_what_is_recorded(config: SweepConfig):
    cells = _cells(config)
    keys = [cell.key for cell in cells]
    assert len(set(keys)) == len(keys) == len(variants_of(config))
    assert Counter(cell.method for cell in cells)["icl"] == ("icl" in config.methods)
    again = SweepConfig.model_validate(json.loads(config.model_dump_json()))
    assert again == config
    written = [json.dumps(cell.identity) for cell in cells]
    read = [TypeAdapter(Cell).validate_json(text) for text in written]
    assert read == cells == _cells(again)
    assert [cell.key for cell in read] == keys


@given(configs(), st.data())
def test_narrowing_leaves_a_part_and_the_parts_are_the_whole(config: SweepConfig, data):
    axis = data.draw(st.sampled_from([*config.axes, "objectives", "optimization_sizes"]))
    whole = {cell.key for cell in _cells(config)}
    parts: list[str] = []
    for value in config.axis_values[axis]:
        part = narrowed(config, f"{axis}={value_label(axis, value)}")
        keys = {cell.key for cell in _cells(part)}
        # One at a time, no cell may have this value and the tuner's of the others.
        assert keys <= whole and (keys or config.combine == "one_at_a_time")
        parts += keys
    assert set(parts) == whole


def _flat(tuner: TunerSettings) -> dict[str, Any]:
    """Return the settings by name, those of the judge, space and search among them."""
    parts = [dict(getattr(tuner, part)) for part in PARTS]
    own = {name: value for name, value in dict(tuner).items() if name not in PARTS}
    return own | {name: value for part in parts for name, value in part.items()}


@given(configs())
def test_one_at_a_time_differs_from_the_tuner_in_one_thing_at_most(config: SweepConfig):
    config = config.model_copy(update={"combine": "one_at_a_time"})
    for tuner, size in config.variants:
        own, usual = _flat(tuner), _flat(config.tuner)
        different = [name for name in own if own[name] != usual[name]]
        assert len(different) + (size is not None) <= 1


@pytest.mark.parametrize(
    ("method", "asked", "idle"),
    [
        ("dnip", {"memberships": 5}, {}),
        ("dnip", {"space": {"calibration": "none"}}, {}),
        ("furud", {"space": {"weight_scale": 30}}, {}),
        (
            "dcs",
            {"search": {"schedule": "paper"}, "space": {"cooling_rate": 0.5}},
            {"search": {"schedule": "paper"}},
        ),
    ],
)
def test_settings_without_effect_make_no_other_cell(method, asked, idle):
    own = get_method(method)
    effective = effective_settings(own, TunerSettings(**asked))
    assert effective == effective_settings(own, TunerSettings(**idle)) == TunerSettings(**idle)


def test_every_setting_of_the_tuner_can_be_an_axis():
    usual = _flat(TunerSettings())
    assert {*ABLATED} | {"objective"} == {*usual}
    knobs = PARTS["space"].model_fields
    axes = {name: [None if name in knobs else usual[name]] for name in ABLATED}
    assert [cell.tuner for cell in _cells(_config(axes=axes))] == [TunerSettings()]


def test_a_new_knob_or_calibration_keeps_the_keys_of_cells():
    (cell,) = _cells(_config(tuner={"trials": 60, "space": {"beta": 0.5}}))
    names = (MIXTURE, *CALIBRATIONS, "another")
    space = create_model(
        "Space", __base__=Space, calibration=(tuple, names), patience=(tuple, (1.0,))
    )
    larger: Any = create_model("TunerSettings", __base__=TunerSettings, space=(space, space()))
    for patience, same in ((1.0, True), (2.0, False)):
        tuner = larger(trials=60, space={"beta": (0.5,), "patience": (patience,)})
        assert (replace(cell, tuner=tuner).key == cell.key) is same


def test_a_new_version_of_a_calibration_changes_the_keys_of_cells_that_use_it(monkeypatch):
    config = _config(methods=("icl", "dnip", "dcs"))
    before = [cell.key for cell in _cells(config)]
    monkeypatch.setitem(CALIBRATIONS, "drops", replace(CALIBRATIONS["drops"], version=2))
    after = [cell.key for cell in _cells(config)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False]
