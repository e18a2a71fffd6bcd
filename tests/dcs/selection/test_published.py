"""The published baseline does as its public configuration says."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace

import pytest

from dcs.errors import InvalidInputError
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.baselines import PUBLISHED_GRID, fit_published
from dcs.selection.front import Fitted
from dcs.selection.methods import get_method
from tests.dcs.biased import biased_table

_PROBS, _LABELS = biased_table(240, 3)
_FEW = PUBLISHED_GRID[::25]


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
def fitted() -> Fitted:
    return get_method("published").fitted(_PROBS, _LABELS, classes=("a", "b", "c"), seed=1)


def test_every_combination_is_a_trial_and_the_most_accurate_is_taken(fitted: Fitted) -> None:
    assert [tuple(trial.params.values()) for trial in fitted.trials] == list(PUBLISHED_GRID)
    assert [trial.number for trial in fitted.trials] == list(range(304))
    best = min(fitted.trials, key=lambda trial: (-trial.accuracy, trial.cobias, trial.number))
    assert fitted.best == best
    # 12 rows of 240 are for development.
    assert all((trial.accuracy * 12) % 1 == pytest.approx(0) for trial in fitted.trials)


def test_the_scheme_is_that_of_the_chosen_search(fitted: Fitted) -> None:
    assert fitted.best is not None
    assert fitted.annealing is not None
    assert fitted.scheme.corrections == fitted.annealing.scheme.corrections
    assert fitted.scheme.classes == ("a", "b", "c")
    assert fitted.scheme.provenance["setting"] == fitted.best.params
    assert CorrectionScheme.from_json(fitted.scheme.to_json()) == fitted.scheme
    assert len(fitted.annealing.trace) == 135
    assert fitted.annealing.evaluations <= 135 * 6


def test_selection_by_balance_tries_the_same(fitted: Fitted) -> None:
    def timeless(found: Fitted) -> list[object]:
        return [replace(trial, seconds=0.0) for trial in found.trials]

    balanced = get_method("published-balanced").fitted(_PROBS, _LABELS, seed=1)
    assert timeless(balanced) == timeless(fitted)
    assert balanced.best is not None
    score = balanced.best.accuracy - balanced.best.cobias
    assert score == max(trial.accuracy - trial.cobias for trial in fitted.trials)


def test_longer_searches_make_more_moves() -> None:
    short = fit_published(_PROBS, _LABELS, seed=2, grid=_FEW)
    long = fit_published(_PROBS, _LABELS, seed=2, grid=_FEW, accepted=150, generated=300)
    assert short.annealing is not None
    assert long.annealing is not None
    assert 135 * 100 < long.annealing.evaluations <= 135 * 300
    assert (
        long.scheme
        == fit_published(_PROBS, _LABELS, seed=2, grid=_FEW, accepted=150, generated=300).scheme
    )


def test_rows_that_are_too_few_or_lack_a_class() -> None:
    with pytest.raises(InvalidInputError, match="row"):
        fit_published([[0.5, 0.5]], [0])
    keep = _LABELS < 2
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = fit_published(_PROBS[keep], _LABELS[keep], grid=_FEW)
    assert len(caught) == 1
    assert len(found.trials) == len(_FEW)
