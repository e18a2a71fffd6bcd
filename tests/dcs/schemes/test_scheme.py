from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcs.data.table import ProbabilityTable
from dcs.errors import SchemeError
from dcs.methods.calibrations import CALIBRATIONS
from dcs.schemes.calibration import Calibration, from_arrays
from dcs.schemes.corrections import DONT_CHANGE, CorrectionSet, Membership, Weight
from dcs.schemes.scheme import CorrectionScheme
from tests.dcs.biased import biased_table
from tests.dcs.refusals import refuses

_SET = CorrectionSet.dcs(weight_scale=5)
_CALIBRATION = Calibration("vector", ((1.0, 0.0), (0.0, 1.0)), (0.0, 0.5))
_PROBS, _LABELS = biased_table(400, 3)


@given(
    choice=st.lists(st.integers(0, len(_SET) - 1), min_size=3, max_size=3), seed=st.integers(0, 99)
)
def test_apply_predict_and_round_trip(choice: list[int], seed: int) -> None:
    probs = np.random.default_rng(seed).dirichlet([0.3] * 3, size=40)
    scheme = CorrectionScheme(("a", "b", "c"), tuple(_SET[k] for k in choice), {"seed": seed})
    raw = scheme.correct(probs)
    np.testing.assert_allclose(scheme.apply(probs).sum(axis=1), 1.0)
    assert np.array_equal(raw.argmax(axis=1), scheme.predict(probs))
    columns = np.stack([_SET[k](probs[:, j]) for j, k in enumerate(choice)], axis=1)
    zero = columns.max(axis=1) == 0
    assert np.array_equal(raw, np.where(zero[:, None], probs, columns))
    assert CorrectionScheme.from_dict(json.loads(scheme.to_json())) == scheme


@pytest.mark.parametrize("name", ["linear", "products"])
def test_a_row_by_itself_is_calibrated_as_among_others(name: str) -> None:
    found = CALIBRATIONS[name].fit(_PROBS, _LABELS, ridge=10.0, anchor=0.0)
    alone = np.concatenate([found.apply(row[None]) for row in _PROBS])
    assert np.array_equal(found.apply(_PROBS), alone)


@pytest.mark.parametrize("correction", [DONT_CHANGE, Weight(0.5), Weight(1.0)])
def test_nothing_changed_is_said_and_true(correction: Weight | Membership) -> None:
    probs = np.random.default_rng(0).dirichlet([0.5] * 3, size=30)
    scheme = CorrectionScheme(("a", "b", "c"), (correction,) * 3)
    assert scheme.explain()[0].startswith("Nothing is changed")
    np.testing.assert_allclose(scheme.apply(probs), probs)
    calibrated = CorrectionScheme(("a", "b"), (correction,) * 2, {}, _CALIBRATION)
    assert len(calibrated.explain()) == 2
    peak = CorrectionScheme(("a", "b"), (Membership(0, 0.5, 1),) * 2)
    assert len(peak.explain()) == 2


def test_words_say_what_changes_and_of_many_classes_the_most() -> None:
    calibration = from_arrays("batch", np.eye(3), np.log([0.5, 0.25, 0.25]))
    words = CorrectionScheme.identity("abc", calibration=calibration).explain()
    assert "33.3 % each, it makes a 50.0 %, b 25.0 %, c 25.0 %." in words[0]
    names = tuple(f"class {k}" for k in range(40))
    weights = tuple(Weight(1.0 - k / 50) for k in range(40))
    batch = from_arrays("batch", np.eye(40), np.arange(40.0))
    words = CorrectionScheme(names, weights, calibration=batch).explain()
    assert words[1].startswith("class 30: ") and words[-2].startswith("class 39: ")
    assert len(words) == 12 and "30 classes change less" in words[-1]
    assert "class 39 " in words[0] and len(words[0]) < 400


def test_offsets_have_the_mean_0() -> None:
    scheme = CorrectionScheme(("a", "b", "c"), (Weight(0.25), DONT_CHANGE, Weight(2.0)))
    np.testing.assert_allclose(scheme.offsets, np.log([0.25, 1.0, 2.0]) + np.log(2.0) / 3)


def test_a_scheme_knows_the_rows_it_was_fitted_on() -> None:
    probs = np.random.default_rng(0).dirichlet([0.5] * 3, size=500)
    table = ProbabilityTable.from_arrays(probs, probs.argmax(axis=1), classes=("c", "a", "b"))
    fitted, others = table.subset(range(300)), table.subset(range(300, 500))
    weights = (Weight(1),) * 3
    scheme = CorrectionScheme(table.classes, weights, {"fitted_on": {"sample": fitted.sample}})
    assert scheme.share_fitted(table) == scheme.share_fitted(fitted) == 1.0
    assert scheme.share_fitted(others) == 0.0
    assert 0.2 < scheme.share_fitted(table.subset(range(150, 250))) < 0.5
    assert scheme.share_fitted(table.with_classes("abc")) == 1.0
    votes = [np.random.default_rng(k).multinomial(3, [0.8, 0.2], size=400) / 3 for k in (1, 2)]
    fit, new = (ProbabilityTable.from_arrays(v, v.argmax(axis=1), classes="ab") for v in votes)
    scheme = CorrectionScheme(("a", "b"), weights[:2], {"fitted_on": {"sample": fit.sample}})
    assert scheme.share_fitted(fit) == 1.0 and scheme.share_fitted(new) == 0.0
    for noted in ({}, {"fitted_on": 3}, {"fitted_on": {"sample": [[], 2]}}):
        assert CorrectionScheme(table.classes, weights, noted).share_fitted(table) == 0.0


def test_version_1_files_load() -> None:
    entries = [
        {"class": "x", "kind": "weight", "value": 0.5},
        {"class": "y", "kind": "membership", "a": 0, "b": 1, "c": 1, "name": "same"},
    ]
    scheme = CorrectionScheme.from_dict(
        {"format": "dcs-scheme", "version": 1, "corrections": entries}
    )
    assert scheme.corrections == (Weight(0.5), DONT_CHANGE)
    assert "calibration" not in scheme.to_dict()


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"format": "other"}, "format"),
        ({"version": 99}, "version"),
        ({"inputs": ["x", "y"]}, "inputs"),
        ({"corrections": {}}, "corrections"),
        ({"corrections": [{"kind": "weight", "value": 0.5}]}, "class"),
        ({"corrections": [{"class": "a", "kind": "weight", "value": "0.5"}]}, "value"),
        ({"corrections": [{"class": "a", "kind": "weight", "value": 0.5}] * 2}, "a"),
        ({"corrections": [{"class": "a", "kind": "weight", "value": 0.5, "a": 0.0}] * 2}, "value"),
        ({"corrections": []}, "classes"),
        ({"calibration": {"name": "x"}}, "calibration.matrix"),
        ({"calibration": {**_CALIBRATION.to_dict(), "floor": 0.5}}, "floor"),
        ({"calibration": {**_CALIBRATION.to_dict(), "matrix": [[1.0, 0.0]]}}, "matrix"),
        ({"calibration": {**_CALIBRATION.to_dict(), "matrix": [[1.0, 0.0], [0.0]]}}, "matrix"),
        ({"calibration": {**_CALIBRATION.to_dict(), "matrix": [[1.0, 0.0, 0.0]] * 2}}, "matrix"),
        ({"calibration": {**_CALIBRATION.to_dict(), "offset": [0.0, None]}}, "offset"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    corrections = (Weight(0.5), DONT_CHANGE)
    good = CorrectionScheme(("a", "b"), corrections, {"seed": 1}, _CALIBRATION).to_dict()
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(good | change))
    refuses(SchemeError, CorrectionScheme.load, path, names=[path, key])


def test_parts_must_match() -> None:
    one = Calibration("one", ((1.0,),), (0.0,))
    for count, calibration, name in ((1, None, "2 classes"), (2, one, "'one'")):
        parts = ((Weight(0.5),) * count, {}, calibration)
        refuses(SchemeError, CorrectionScheme, ("a", "b"), *parts, names=[name])


def test_a_scheme_that_was_edited_is_refused_until_its_digest_is_deleted(tmp_path: Path) -> None:
    scheme = CorrectionScheme(("a", "Wörld"), (Weight(0.5), Membership(0, 0, 0.5)))
    path = tmp_path / "scheme.json"
    scheme.save(path)
    assert CorrectionScheme.load(path) == CorrectionScheme.load(path.parent) == scheme
    edited = json.loads(path.read_text())
    edited["corrections"][0]["value"] = 0.75
    path.write_text(json.dumps(edited))
    refuses(SchemeError, CorrectionScheme.load, path)
    del edited["digest"]
    path.write_text(json.dumps(edited))
    assert CorrectionScheme.load(path).corrections[0] == Weight(0.75)
