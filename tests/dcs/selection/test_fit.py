from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics, confusion_matrix
from dcs.evaluation.objective import Objective
from dcs.schemes.corrections import CorrectionSet
from dcs.search.annealing import Schedule
from dcs.search.exact import exact_search
from dcs.selection.cross_validation import (
    SelectionSettings,
    cross_validate,
    fit_scheme,
    stratified_folds,
)
from dcs.selection.front import Preference, choose, pareto_front
from dcs.selection.settings import Hyperparameters
from tests.dcs.biased import biased_table, fit_setting, gain

_VECTOR = Hyperparameters(calibration="vector", averages=4)
_QUICK = SelectionSettings(candidates=(_VECTOR,), betas=(0.0, 0.3, 1.0), folds=3)


@dataclass(frozen=True)
class _Point:
    accuracy: float
    cobias: float


_FRONT = [_Point(0.70, 0.30), _Point(0.69, 0.12), _Point(0.66, 0.06), _Point(0.60, 0.04)]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.builds(_Point, st.integers(0, 8).map(float), st.integers(0, 8).map(float)),
        min_size=1,
        max_size=12,
    )
)
def test_front_is_what_no_point_beats(points: list[_Point]) -> None:
    front = pareto_front(points)

    def beats(a: _Point, b: _Point) -> bool:
        return a.accuracy >= b.accuracy and a.cobias <= b.cobias and a != b

    assert {(p.accuracy, p.cobias) for p in front} == {
        (p.accuracy, p.cobias) for p in points if not any(beats(q, p) for q in points)
    }
    assert [p.accuracy for p in front] == sorted((p.accuracy for p in front), reverse=True)


@pytest.mark.parametrize(
    ("preference", "index"),
    [
        (Preference(), 2),
        (Preference(prefer="accuracy"), 0),
        (Preference(prefer="knee"), 1),
        (Preference(max_accuracy_loss=0.0), 0),
        (Preference(max_accuracy_loss=0.01), 1),
        (Preference(max_accuracy_loss=0.05), 2),
        (Preference(max_cobias=0.05), 3),
        (Preference(max_cobias=0.2, prefer="accuracy"), 1),
        (Preference(max_cobias=0.01), 3),
        (Preference(max_cobias=0.2, max_accuracy_loss=0.03), 2),
    ],
)
def test_rules_choose(preference: Preference, index: int) -> None:
    dominated = [_Point(0.68, 0.2), _Point(0.5, 0.5)]
    assert choose([*dominated, *_FRONT[::-1]], preference) is _FRONT[index]


def test_a_single_point_is_chosen_by_every_rule() -> None:
    for prefer in ("accuracy", "balance", "knee"):
        assert choose(_FRONT[:1], Preference(prefer=prefer)) is _FRONT[0]


@pytest.mark.parametrize(
    "arguments",
    [{"prefer": "speed"}, {"max_cobias": 5.0}, {"max_accuracy_loss": -0.1}],
)
def test_bad_preferences_are_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(arguments))):
        Preference(**arguments)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=4, max_size=60), st.integers(2, 4), st.integers(0, 9))
def test_folds_are_even_in_every_class(labels: list[int], folds: int, seed: int) -> None:
    place = stratified_folds(labels, folds, seed=seed)
    for rows in [np.full(len(labels), True), *(np.array(labels) == j for j in range(4))]:
        counts = np.bincount(place[rows], minlength=folds)
        assert counts.max() - counts.min() <= 1


def test_weights_do_what_beta_asks() -> None:
    probs, labels = biased_table(1200, 3)
    # With rare classes, being accurate and being fair are different things.
    keep = np.sort(np.concatenate([np.flatnonzero(labels == j)[: 400 // 4**j] for j in range(3)]))
    probs, labels = probs[keep], labels[keep]

    def judged(beta: float) -> ClassificationMetrics:
        scheme = fit_setting(probs, labels, replace(_VECTOR, beta=beta))
        return ClassificationMetrics.from_predictions(labels, scheme.predict(probs), 3)

    accurate, fair = judged(0.0), judged(1.0)
    assert fair.cobias < accurate.cobias
    assert fair.accuracy < accurate.accuracy


def test_without_guards_it_is_the_plain_search() -> None:
    probs, labels = biased_table(300, 2)
    setting = Hyperparameters(
        calibration="none",
        corrections="both",
        spacing="linear",
        weight_scale=20,
        beta=0.5,
        tau=0.1,
        prior_rows=0.0,
        averages=0,
        schedule=Schedule(),
    )
    scheme = fit_setting(probs, labels, setting)
    best = exact_search(
        probs,
        labels,
        corrections=CorrectionSet.dcs(weight_scale=20),
        objective=Objective(beta=0.5, tau=0.1),
    )
    confusion = confusion_matrix(labels, scheme.predict(probs), 2)
    assert Objective(beta=0.5, tau=0.1).value(confusion) == pytest.approx(best.z, abs=1e-12)


@pytest.mark.parametrize("corrections", ["none", "weights", "memberships", "both"])
@pytest.mark.parametrize("calibration", ["none", "batch", "logistic", "balanced"])
def test_every_setting_fits_on_very_few_rows(calibration: Any, corrections: Any) -> None:
    probs, labels = biased_table(9, 3)
    setting = Hyperparameters(calibration=calibration, corrections=corrections, averages=2)
    scheme = fit_setting(probs, labels, setting)
    assert np.isfinite(scheme.apply(probs)).all()


def test_cross_validation_judges_every_row_by_a_scheme_without_it() -> None:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([1.0] * 4, 40)
    labels = rng.integers(0, 4, 40)
    # Nothing can be learned here, so anything well above chance would be leakage.
    judged = cross_validate(probs, labels, Hyperparameters(averages=2), folds=4)
    assert judged.n_rows == 40
    assert judged.accuracy < 0.5


def test_fit_scheme_finds_a_front_and_repeats_itself() -> None:
    probs, labels = biased_table(500, 3)
    names = ("a", "b", "c")
    seen: list[float] = []
    found = fit_scheme(probs, labels, settings=_QUICK, seed=4, classes=names, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)
    assert len(found.points) == 4
    assert all(point in found.points for point in found.front)
    plain = found.points[-1]
    assert plain.setting is None
    assert found.chosen.accuracy - found.chosen.cobias > plain.accuracy - plain.cobias
    assert found.scheme.classes == names
    assert json.loads(found.scheme.to_json())["provenance"]["setting"]["calibration"] == "vector"
    again = fit_scheme(probs, labels, settings=_QUICK, seed=4, classes=names)
    assert again.scheme == found.scheme
    assert again.points == found.points


def test_probabilities_stay_as_they_are_when_nothing_is_gained() -> None:
    probs, labels = biased_table(200, 3)
    useless = Hyperparameters(calibration="temperature", corrections="none")
    found = fit_scheme(probs, labels, settings=replace(_QUICK, candidates=(useless,)))
    assert found.chosen.setting is None
    assert found.scheme.calibration is None
    always = replace(_QUICK, candidates=(useless,), keep_uncorrected=False)
    assert fit_scheme(probs, labels, settings=always).chosen.setting is not None


def test_fixed_settings_compete_with_the_beta_they_have() -> None:
    probs, labels = biased_table(700, 3)
    useless = Hyperparameters(calibration="temperature", corrections="none")
    good = replace(_VECTOR, beta=0.6)
    settings = replace(_QUICK, candidates=(useless,), fixed=(good,))
    found = fit_scheme(probs, labels, settings=settings)
    assert found.chosen.setting == good
    assert {point.setting for point in found.points} == {good, None}
    assert [point.beta for point in found.points[:-1]] == [0.0, 0.3, 1.0]


def test_where_folds_are_fitted_changes_nothing() -> None:
    probs, labels = biased_table(500, 3)
    asked: list[object] = []

    def reversed_map(function: Any, items: Any, /) -> Any:
        asked.extend(items)
        return iter([function(item) for item in asked[::-1]][::-1])

    elsewhere = fit_scheme(probs, labels, settings=_QUICK, mapper=reversed_map)
    assert len(asked) == 3
    assert elsewhere.points == fit_scheme(probs, labels, settings=_QUICK).points


@pytest.mark.parametrize("n_rows", [10, 50])
def test_few_rows_do_no_harm(n_rows: int) -> None:
    gains = []
    for seed in range(4):
        probs, labels = biased_table(2000, 4, seed=seed, bias=0.7)
        fitted = fit_scheme(probs[:n_rows], labels[:n_rows], settings=_QUICK, seed=seed)
        accuracy, cobias = gain(fitted.scheme, probs[n_rows:], labels[n_rows:])
        gains.append(accuracy + cobias)
    assert min(gains) > -0.05
    assert np.mean(gains) >= 0.0


def test_missing_class_warns_and_default_fits_two_rows() -> None:
    probs, labels = biased_table(60, 3)
    keep = labels < 2
    with pytest.warns(UserWarning, match="class_2"):
        fit_scheme(probs[keep], labels[keep], settings=_QUICK)
    with pytest.warns(UserWarning):
        found = fit_scheme(probs[:2], labels[:2])
    assert found.chosen.setting is None or np.isfinite(found.scheme.apply(probs)).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("calibration", "platt"),
        ("corrections", "all"),
        ("ridge", -1),
        ("weight_scale", 1),
        ("beta", -0.1),
        ("averages", -1),
    ],
)
def test_bad_settings_are_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=name):
        Hyperparameters(**{name: value})


def test_bad_selections_are_named() -> None:
    with pytest.raises(InvalidInputError, match="folds"):
        SelectionSettings(folds=1)
    with pytest.raises(InvalidInputError, match="betas"):
        SelectionSettings(betas=())
    with pytest.raises(InvalidInputError):
        fit_scheme([[0.5, 0.5]], [0])
    with pytest.raises(InvalidInputError, match="folds"):
        cross_validate([[0.5, 0.5]] * 4, [0, 1, 0, 1], Hyperparameters(), folds=1)
