"""What is compared, what becomes of few rows, and what cross-validation promises."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dcs.evaluation.metrics import ClassificationMetrics
from dcs.methods.parameters import Hyperparameters
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.compare import (
    SelectionSettings,
    fit_scheme,
    front_of,
    reference_of,
    standard_settings,
)
from dcs.selection.fitting import Fitting, Threads
from dcs.selection.front import FittedScheme
from dcs.selection.preference import Preference, pareto_front
from tests.dcs.biased import biased_table, gain

_ONE_POINT = SelectionSettings(betas=(1.0,), folds=3, preference=Preference("balance"))
_LINEAR = Hyperparameters(calibration="linear")
_QUICK = SelectionSettings(candidates=(_LINEAR,), betas=(0.0, 0.3, 1.0), folds=3)


@pytest.mark.parametrize("n_classes", [2, 12, 13, 100])
def test_every_candidate_competes_at_every_number_of_classes(n_classes: int) -> None:
    settings = SelectionSettings()
    grid = standard_settings(settings, n_classes)

    def kind(each: Hyperparameters) -> tuple[str, str]:
        return each.calibration, each.corrections

    assert {kind(each) for each in grid} == {kind(each) for each in settings.candidates}
    assert len(grid) == 2 * len(settings.betas) + 4 == len(set(grid))
    searched = [each.corrections != "none" for each in grid]
    assert searched == sorted(searched)
    # No class is visited less often because moves of others were accepted.
    assert all(each.schedule.lambda1 >= each.schedule.lambda2 for each in grid)


@pytest.mark.parametrize(("n_rows", "n_classes"), [(399, 4), (130, 13)])
def test_labels_are_used_on_both_sides_of_any_number(n_rows: int, n_classes: int) -> None:
    """Nothing changes from one row, or one class, to the next."""
    probs, labels = biased_table(5000, n_classes, seed=n_classes)
    scores = []
    for size in (n_rows, n_rows + 1):
        found = fit_scheme(probs[:size], labels[:size], settings=_ONE_POINT)
        assert any("linear" in name for name in found.mixture)
        assert found.chosen is not found.plain
        scores.append(sum(gain(found.scheme, probs[1500:], labels[1500:])))
    assert min(scores) > 0.05
    # Former thresholds moved it by a tenth; other folds move it too.
    assert abs(scores[1] - scores[0]) < 0.06


def test_fit_scheme_finds_a_front_and_repeats_itself() -> None:
    probs, labels = biased_table(500, 3)
    names = ("a", "b", "c")
    seen: list[float] = []
    found = fit_scheme(probs, labels, settings=_QUICK, seed=4, classes=names, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)
    assert all(any(point is each for each in found.points) for point in found.front)
    assert found.plain.settings == ()
    assert found.chosen.cobias < found.plain.cobias
    assert found.scheme.classes == names
    provenance = json.loads(found.scheme.to_json())["provenance"]
    rule = {"prefer": "no-harm", "rate": 0.1, "confidence": 0.95, "cautious": True}
    assert provenance["rule"] == rule
    assert provenance["estimate"]["cobias"] == found.chosen.cobias
    assert sum(each["share"] for each in provenance["settings"]) == pytest.approx(1.0)
    again = fit_scheme(probs, labels, settings=_QUICK, seed=4, classes=names, mapper=Threads(2))
    assert again == found


def test_numpy_scalars_are_saved_as_numbers(tmp_path: Path) -> None:
    setting = replace(_LINEAR, corrections="none", ridge=np.float32(20), prior_rows=np.int64(100))
    settings = SelectionSettings((setting,), betas=(np.float32(0.5),), folds=np.int64(2))  # type: ignore[arg-type]
    probs, labels = biased_table(40, 2)
    fitted = fit_scheme(probs, labels, settings=settings, seed=np.int64(3))  # type: ignore[arg-type]
    fitted = fitted.pick(Preference(max_cobias=np.float32(5)))  # type: ignore[arg-type]
    fitted.save(tmp_path / "front.json")
    assert FittedScheme.load(tmp_path / "front.json") == fitted


def test_the_best_few_are_averaged_and_no_single_one_is_trusted() -> None:
    probs, labels = biased_table(400, 3)
    fitting = Fitting(probs, labels, 3, seed=0)
    fits = fitting.judge([replace(_LINEAR, beta=b, ridge=r) for b in (0.5, 1, 2) for r in (1, 9)])
    equal = [replace(fit, accuracy=0.7, cobias=0.1) for fit in fits]
    lucky = replace(equal[0], accuracy=0.71)
    reference = reference_of(fitting, [lucky, *equal[1:]], _QUICK)
    # The square root of six, and one.
    assert len(reference.parts) == 3
    shares = {id(fit): share for fit, share in reference.parts}
    right = (0.71 * 400 + 1) / 402
    others = 2 * np.exp(-0.01 / np.sqrt(right * (1 - right) / 400))
    assert max(shares.values()) == shares[id(lucky)] == pytest.approx(1 / (1 + others))
    # What is worse by more than the noise of the rows is left out.
    clear = replace(lucky, accuracy=0.9)
    assert reference_of(fitting, [clear, *equal[1:]], _QUICK) is clear
    front = front_of(fitting, fits, settings=_QUICK, classes=tuple("abc"))
    own = [p for p in front.points if p.path is None and p is not front.plain]
    assert all(len(point.settings) > 1 for point in own)


def test_rows_that_are_mostly_alike_give_no_better_estimate_than_the_shipped_scheme() -> None:
    """The schemes of the folds can predict many equal rows in different ways."""
    probs, labels = biased_table(300, 4, seed=1)
    most = probs.max(axis=1, keepdims=True)
    stated = most.round(1).clip(0.4, 0.9)
    alike = np.where(probs == most, stated, (1.0 - stated) / 3.0)
    found = fit_scheme(alike, labels)
    assert len(found.front) > 1
    for point in found.points:
        own = ClassificationMetrics.from_predictions(labels, point.scheme.predict(alike), 4)
        assert point.accuracy <= own.accuracy + 1e-12
        assert point.cobias >= own.cobias - 1e-12
        assert point.change.accuracy <= own.accuracy - found.plain.accuracy + 1e-12


def test_the_front_has_small_steps_from_the_uncorrected_probabilities_on() -> None:
    probs, labels = biased_table(1500, 4)
    found = fit_scheme(probs, labels, settings=_QUICK)
    way = sorted((p for p in found.points if p.path is not None), key=lambda p: p.path or 0.0)
    changed = [0, *(p.change.changed for p in way)]
    assert len(way) > 10 and 0.0 < way[0].path < way[-1].path < 1.0
    assert changed == sorted(changed)
    assert max(np.diff(changed)) < 150
    front = [p for p in found.points if p.path is None and p is not found.plain]
    most = pareto_front(front)[-1].change.changed
    assert all(p.score > found.plain.score for p in front if p.change.changed < most)


def test_missing_class_warns_and_default_fits_two_rows() -> None:
    probs, labels = biased_table(60, 3)
    keep = labels < 2
    with pytest.warns(UserWarning, match="class_2"):
        fit_scheme(probs[keep], labels[keep], settings=_QUICK)
    with pytest.warns(UserWarning):
        found = fit_scheme(probs[:2], labels[:2])
    assert np.isfinite(found.scheme.apply(probs)).all()
    plain = CorrectionScheme.identity(found.scheme.classes)
    assert np.array_equal(found.scheme.predict(probs), plain.predict(probs))
