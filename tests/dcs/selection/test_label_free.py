"""Rows without labels: what they add to a fit, and what is left when no row has one."""

from __future__ import annotations

import numpy as np
import pytest

from dcs.errors import InvalidInputError
from dcs.methods.calibrations import batch_calibration
from dcs.selection.compare import SelectionSettings, fit_scheme
from dcs.selection.estimator import DCSClassifier
from dcs.selection.methods import get_method
from dcs.selection.preference import Preference
from tests.dcs.biased import biased_table, gain
from tests.dcs.refusals import refuses

_PROBS, _LABELS = biased_table(900, 4)
_QUICK = SelectionSettings(betas=(1.0,), folds=3, preference=Preference(prefer="balance"))


def _with(count: int, seed: int = 0) -> np.ndarray:
    """Return the labels with all but so many of them missing."""
    kept = np.random.default_rng(seed).permutation(_LABELS.size)[:count]
    labels = np.full(_LABELS.size, -1)
    labels[kept] = _LABELS[kept]
    return labels


@pytest.mark.parametrize(("count", "alone"), [(10, False), (60, True)])
def test_few_labels_do_not_fall_behind_none(count: int, alone: bool) -> None:
    probs, labels = biased_table(20_000, 4, seed=7)
    gains = []
    for seed in range(3):
        few = _with(count, seed)
        rows = few >= 0 if alone else np.full(few.size, True)
        schemes = (
            fit_scheme(_PROBS[rows], few[rows], settings=_QUICK, seed=seed).scheme,
            get_method("batch").fit(_PROBS[rows], few[rows]),
        )
        gains.append([sum(gain(scheme, probs, labels)) for scheme in schemes])
        assert schemes[0].provenance["estimate"]["rows"] == count, "others are not judged"
    fitted, batch = np.mean(gains, axis=0)
    assert fitted > batch - 0.01 > 0.0


@pytest.mark.parametrize("name", ["surrogate", "logistic-balanced", "drops"])
def test_what_learns_from_labels_takes_the_rows_that_have_them(name: str) -> None:
    method, labels = get_method(name), _with(300)
    known = labels >= 0
    assert method.fit(_PROBS, labels) == method.fit(_PROBS[known], labels[known])
    refuses(InvalidInputError, method.fit, _PROBS, _with(0))


@pytest.mark.parametrize("count", [0, 1])
def test_with_too_few_labels_to_compare_it_is_batch_calibration(count: int) -> None:
    labels = _with(count)
    assert get_method("dcs").fit(_PROBS, labels) == get_method("batch").fit(_PROBS, _LABELS)
    refuses(InvalidInputError, fit_scheme, _PROBS, labels)


_FEW = SelectionSettings(betas=(0.3,), folds=3)


def test_minus_one_is_no_label() -> None:
    names = np.array([3, 5, 7, 9, -1])
    model = DCSClassifier(settings=_FEW).fit(_PROBS, names[_with(80)])
    assert model.classes_.tolist() == [3, 5, 7, 9]
    assert set(model.predict(_PROBS)) <= {3, 5, 7, 9}
    unlabelled = DCSClassifier(labels=[3, 5, 7, 9]).fit(_PROBS, np.full(900, -1))
    assert unlabelled.result_ is None
    batch = batch_calibration(_PROBS).apply(_PROBS)
    np.testing.assert_allclose(unlabelled.predict_proba(_PROBS), batch)


def test_or_it_is_a_class() -> None:
    pairs, two = _PROBS[:, :2] + _PROBS[:, 2:], np.array([-1, 1])[_LABELS % 2]
    assert DCSClassifier(settings=_FEW).fit(pairs, two).classes_.tolist() == [-1, 1]
    y = np.array([-1, 1, 2, 3])[_LABELS]
    found = DCSClassifier(settings=_FEW, labels=[-1, 1, 2, 3]).fit(_PROBS, y)
    assert found.scheme_.provenance["estimate"]["rows"] == 900
