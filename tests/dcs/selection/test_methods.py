"""Methods: one name each, the corrections each may choose from, and what they fit."""

from __future__ import annotations

import itertools
import json
import warnings

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from dcs.evaluation.metrics import ClassificationMetrics
from dcs.schemes.calibration import DEFAULT_FLOOR
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.methods import (
    PUBLISHED_GRID,
    Fitted,
    fit_published,
    get_method,
    method_names,
)
from tests.dcs.biased import biased_table

_PROBS, _LABELS = biased_table(240, 3)
_NAMES = [name for name in method_names(baselines=True) if "published" not in name]
_FEW = PUBLISHED_GRID[::100]
_CHEAP = [name for name in _NAMES if name not in ("dnip", "furud", "dcs")]


@pytest.mark.parametrize("name", _NAMES)
def test_one_protocol(name: str) -> None:
    names = ("a", "b", "c")
    scheme = get_method(name).fit(_PROBS, _LABELS, classes=names)
    assert (scheme.classes, scheme.provenance["method"]) == (names, name)
    assert CorrectionScheme.from_dict(json.loads(scheme.to_json())) == scheme
    if name == "icl":
        assert np.array_equal(scheme.predict(_PROBS), _PROBS.argmax(axis=1))


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(
    ("name", "class_weight"), [("logistic", None), ("logistic-balanced", "balanced")]
)
def test_logistic_is_scikit_learns(n_classes: int, name: str, class_weight: str | None) -> None:
    probs, labels = biased_table(240, n_classes)
    logs = np.log(np.maximum(probs, DEFAULT_FLOOR))
    model = LogisticRegression(max_iter=5000, class_weight=class_weight).fit(logs, labels)
    corrected = get_method(name).fit(probs, labels).apply(probs)
    np.testing.assert_allclose(corrected, model.predict_proba(logs), atol=1e-9)


@pytest.mark.parametrize("name", _CHEAP)
def test_missing_classes_are_survived(name: str) -> None:
    for keep in (_LABELS < 2, _LABELS < 1):
        scheme = get_method(name).fit(_PROBS[keep], _LABELS[keep])
        assert np.isfinite(scheme.apply(_PROBS)).all()


@pytest.mark.parametrize("name", ["drops", "surrogate"])
def test_peers_reduce_the_bias_of_rows_they_have_not_seen(name: str) -> None:
    probs, labels = biased_table(2000, 4, seed=2)
    scheme = get_method(name).fit(probs[:1200], labels[:1200])
    before, after = (
        ClassificationMetrics.from_predictions(labels[1200:], predictions, 4)
        for predictions in (probs[1200:].argmax(axis=1), scheme.predict(probs[1200:]))
    )
    assert after.cobias < 0.6 * before.cobias
    assert after.weakest_class > before.weakest_class


def test_the_grid_is_what_the_four_rules_leave() -> None:
    def skipped(alpha: float, beta: float, tau: float) -> bool:
        return (
            (alpha == beta == tau == 0)
            or (alpha == beta == 0 and tau != 1)
            or (alpha == tau == 0 and beta != 1)
            or (beta == tau == 0 and alpha != 1)
        )

    terms = itertools.product((0, 0.5, 1, 2), (0.5, 1, 2.7, 3, 10), (0, 0.2, 1, 5))
    left = [(*weights, d) for weights in terms if not skipped(*weights) for d in (30, 50, 70, 90)]
    assert list(PUBLISHED_GRID) == left
    assert len(PUBLISHED_GRID) == 304


@pytest.fixture(scope="module")
def pair() -> list[Fitted]:
    """The published method, and its variant that chooses otherwise from the same searches."""
    known: dict[object, object] = {}
    return [
        get_method(name).fitted(_PROBS, _LABELS, seed=1, known=known)
        for name in ("published", "published-balanced")
    ]


def test_every_combination_is_a_trial_and_the_most_accurate_is_taken(pair: list[Fitted]) -> None:
    fitted, _ = pair
    assert [tuple(trial.params.values()) for trial in fitted.trials] == list(PUBLISHED_GRID)
    best = min(fitted.trials, key=lambda trial: (-trial.accuracy, trial.cobias))
    assert fitted.best == best
    # 12 rows of 240 are for development.
    assert all((trial.accuracy * 12) % 1 == pytest.approx(0) for trial in fitted.trials)
    assert fitted.best is not None
    assert fitted.scheme.corrections == fitted.best.search.scheme.corrections
    assert fitted.scheme.provenance["setting"] == best.params
    assert fitted.best.search.evaluations <= 135 * 6


def test_selection_by_balance_tries_the_same(pair: list[Fitted]) -> None:
    fitted, balanced = pair
    assert balanced.scheme.provenance["method"] == "published-balanced"
    assert balanced.trials is fitted.trials
    assert balanced.best is not None
    score = balanced.best.accuracy - balanced.best.cobias
    assert score == max(trial.accuracy - trial.cobias for trial in fitted.trials)


def test_longer_searches_make_more_moves_and_are_not_taken_for_shorter_ones() -> None:
    known: dict[object, object] = {}
    short, long, again = (
        fit_published(_PROBS, _LABELS, seed=2, grid=_FEW, known=kept, **moves)
        for kept, moves in (
            (known, {}),
            (known, {"accepted": 150, "generated": 300}),
            (None, {}),
        )
    )
    assert long.best is not None
    assert 135 * 100 < long.best.search.evaluations <= 135 * 300
    assert short.scheme == again.scheme


def test_rows_that_lack_a_class() -> None:
    keep = _LABELS < 2
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = fit_published(_PROBS[keep], _LABELS[keep], grid=_FEW)
    assert len(caught) == 1
    assert len(found.trials) == len(_FEW)
