from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcs.errors import InvalidInputError, SchemeError
from dcs.schemes.corrections import CorrectionSet, Membership, Weight
from dcs.schemes.scheme import CorrectionScheme

_SET = CorrectionSet.dcs(weight_scale=5)


@settings(max_examples=25, deadline=None)
@given(
    choice=st.lists(st.integers(0, len(_SET) - 1), min_size=3, max_size=3), seed=st.integers(0, 99)
)
def test_apply_predict_and_round_trip(choice: list[int], seed: int) -> None:
    probs = np.random.default_rng(seed).dirichlet([0.3] * 3, size=40)
    scheme = CorrectionScheme(("a", "b", "c"), tuple(_SET[k] for k in choice), {"seed": seed})
    raw = scheme.correct(probs)
    applied = scheme.apply(probs)
    np.testing.assert_allclose(applied.sum(axis=1), 1.0)
    assert np.array_equal(raw.argmax(axis=1), scheme.predict(probs))
    columns = np.stack([_SET[k](probs[:, j]) for j, k in enumerate(choice)], axis=1)
    zero = columns.max(axis=1) == 0
    assert np.array_equal(raw, np.where(zero[:, None], probs, columns))
    assert CorrectionScheme.from_json(scheme.to_json()) == scheme


def test_identity_keeps_everything() -> None:
    probs = np.array([[0.25, 0.75], [0.5, 0.5]])
    scheme = CorrectionScheme.identity(["x", "y"])
    assert np.array_equal(scheme.apply(probs), probs)
    assert scheme.predict(probs).tolist() == [1, 0]


def test_ties_go_to_the_lowest_class_and_lost_rows_stay() -> None:
    scheme = CorrectionScheme(("a", "b"), (Weight(0.25), Weight(0.75)))
    assert scheme.predict([[0.75, 0.25]]).tolist() == [0]
    high = Membership(0.5, 1, 1)
    scheme = CorrectionScheme(("a", "b", "c"), (high, high, high))
    assert scheme.predict([[0.3, 0.45, 0.25]]).tolist() == [1]
    assert np.array_equal(scheme.correct([[0.3, 0.45, 0.25]]), [[0.3, 0.45, 0.25]])


def test_file_round_trip_and_form(tmp_path: Path) -> None:
    path = tmp_path / "scheme.json"
    scheme = CorrectionScheme(("Sports", "Wörld"), (Weight(0.8), Membership(0, 0, 0.5)))
    scheme.save(path)
    assert CorrectionScheme.load(path) == scheme
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["format"] == "dcs-scheme"
    assert data["version"] == 1
    assert data["corrections"][0] == {"class": "Sports", "kind": "weight", "value": 0.8}
    assert data["corrections"][1]["kind"] == "membership"


def test_explain_has_one_sentence_per_class() -> None:
    names = tuple(f"c{k}" for k in range(len(_SET)))
    sentences = CorrectionScheme(names, tuple(_SET)).explain()
    assert len(sentences) == len(_SET)
    assert len({s.split(": ", 1)[1] for s in sentences}) == len(_SET)
    assert all(
        s.startswith(f"{n}: ") and s.endswith(".") for n, s in zip(names, sentences, strict=True)
    )


def _good() -> dict[str, Any]:
    return json.loads(CorrectionScheme(("a", "b"), (Weight(0.5), Weight(1.0))).to_json())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "key 'format'"),
        ({"version": 3}, "key 'version' is 3, newer"),
        ({"version": "1"}, "key 'version' is '1'"),
        ({"correction": []}, r"unknown key 'correction' \(did you mean 'corrections'\?\)"),
        ({"corrections": {}}, "key 'corrections' must be a list"),
        ({"corrections": [1]}, r"corrections\[0\] is 1"),
        ({"corrections": [{"kind": "weight", "value": 0.5}]}, "key 'class' is None"),
        ({"corrections": [{"class": "a", "kind": "x"}]}, r"\(class 'a'\): key 'kind' is 'x'"),
        ({"corrections": [{"class": "a", "kind": "weight", "value": 0.5}] * 2}, "'a' twice"),
        ({"corrections": []}, "at least two classes"),
        ({"provenance": 3}, "key 'provenance'"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(_good() | change))
    with pytest.raises(SchemeError, match=message) as caught:
        CorrectionScheme.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_or_garbled_file(tmp_path: Path) -> None:
    with pytest.raises(SchemeError, match="no such file"):
        CorrectionScheme.load(tmp_path / "none.json")
    path = tmp_path / "x.json"
    path.write_bytes(b"{\xff")
    with pytest.raises(SchemeError, match="not UTF-8"):
        CorrectionScheme.load(path)
    with pytest.raises(SchemeError, match="not JSON"):
        CorrectionScheme.from_json("{")


def test_provenance_must_fit_json() -> None:
    scheme = CorrectionScheme.identity(["a", "b"])
    odd = CorrectionScheme(scheme.classes, scheme.corrections, {"x": object()})
    with pytest.raises(SchemeError, match="provenance"):
        odd.to_json()


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        ([[0.5, 0.25, 0.25]], "3 classes but 2 are expected"),
        ([[0.5, np.nan]], "row 0, class 1 has nan"),
        ([[0.5, 0.5], [-0.5, 1.5]], "row 1, class 0 has -0.5"),
        ([[0.5, 0.5], [0.0, 0.0]], "row 1 is all zeros"),
        (np.zeros((0, 2)), "no rows"),
        ([0.5, 0.5], "shape"),
        ([["x", "y"]], "numbers"),
    ],
)
def test_bad_probabilities_are_named(probs: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        CorrectionScheme.identity(["a", "b"]).predict(probs)


def test_corrections_must_match_classes() -> None:
    with pytest.raises(SchemeError, match="one each"):
        CorrectionScheme(("a", "b"), (Weight(0.5),))
    with pytest.raises(SchemeError, match="class 'b'"):
        CorrectionScheme(("a", "b"), (Weight(0.5), 0.5))  # type: ignore[arg-type]
