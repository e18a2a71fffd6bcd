"""What held-out rows say of a setting, and what of it is shipped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn.metrics import log_loss

from dcs.errors import InvalidInputError, TableError
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.methods.calibrations import CALIBRATIONS
from dcs.methods.parameters import Hyperparameters
from dcs.schemes.corrections import Membership
from dcs.selection.compare import fit_scheme
from dcs.selection.fitting import Fit, Fitting, Threads, cobias_noise
from tests.dcs.biased import biased_table
from tests.dcs.refusals import refuses

#: Not shrunk: it equalises the classes on the rows that it is fitted on.
_EQUALISER = Hyperparameters(calibration="none", beta=1.0, prior_rows=0.0, weight_scale=200)


def _cobias(labels: NDArray[np.int64], predictions: NDArray[np.int64], n_classes: int) -> float:
    return ClassificationMetrics.from_predictions(labels, predictions, n_classes).cobias


def _logits(fit: Fit, probs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean over folds of the centred logarithms of corrected probabilities."""
    logs = [np.log(scheme.correct(probs)) for scheme in fit.schemes]
    return np.mean([each - each.mean(axis=1, keepdims=True) for each in logs], axis=0)


_LINEAR = [
    Hyperparameters(corrections="none"),
    *(Hyperparameters(calibration=name) for name in ("mixture", *CALIBRATIONS)),
]


def test_what_is_shipped_is_the_mean_of_the_schemes_of_the_folds() -> None:
    probs, labels = biased_table(120, 3)
    probs = np.maximum(probs, 1e-3)
    probs /= probs.sum(axis=1, keepdims=True)
    fitting = Fitting(probs, labels, 3, seed=1)
    for fit in fitting.judge(_LINEAR):
        shipped = np.log(fitting.whole(fit).correct(probs))
        shipped -= shipped.mean(axis=1, keepdims=True)
        # Coefficients are rounded to six decimals, of up to 65 terms of a size up to 50.
        np.testing.assert_allclose(shipped, _logits(fit, probs), atol=1e-4)


def test_a_mean_of_settings_is_judged_and_shipped_as_such() -> None:
    probs, labels = biased_table(200, 3)
    fitting = Fitting(probs, labels, 4, seed=0)
    names = ("linear", "products")
    fits = fitting.judge([Hyperparameters(calibration=name, beta=0.2) for name in names])
    mean = fitting.averaged([(fits[0], 0.25), (fits[1], 0.75)])
    for fold in range(4):
        rows = fitting.rows.place == fold
        logs = sum(
            share * np.log(fit.schemes[fold].correct(probs[rows]))
            for fit, share in zip(fits, (0.25, 0.75), strict=True)
        )
        assert np.array_equal(np.asarray(logs).argmax(axis=1), mean.predictions[rows])
    again = fitting.averaged([(mean, 0.5), (fits[1], 0.5)])
    assert [share for _, share in again.parts] == pytest.approx([0.125, 0.875])
    shipped = fitting.whole(mean).predict(probs)
    expected = 0.25 * _logits(fits[0], probs) + 0.75 * _logits(fits[1], probs)
    assert np.mean(shipped == expected.argmax(axis=1)) > 0.99


@pytest.mark.parametrize("corrections", ["memberships", "both"])
def test_memberships_are_searched_again_on_all_rows(corrections: str) -> None:
    probs, labels = biased_table(200, 3)
    fitting = Fitting(probs, labels, 3, seed=0)
    (fit,) = fitting.judge([Hyperparameters(calibration="none", corrections=corrections)])  # type: ignore[arg-type]
    whole = fitting.whole(fit)
    assert whole.provenance["rows"] == 200
    assert {scheme.provenance["rows"] for scheme in fit.schemes} <= {133, 134}
    assert corrections == "both" or all(isinstance(c, Membership) for c in whole.corrections)


def test_the_search_of_a_fold_does_not_use_its_labels() -> None:
    probs, labels = biased_table(150, 3)
    fitting = Fitting(probs, labels, 3, seed=0)
    other = labels.copy()
    inside = fitting.rows.place == 0
    # Turned within the class structure, so that the folds stay the same.
    other[inside] = np.random.default_rng(0).permutation(labels[inside])
    changed = Fitting(probs, other, 3, seed=0)
    changed.rows = replace(changed.rows, place=fitting.rows.place)
    for setting in (Hyperparameters(calibration="drops", corrections="none"), _EQUALISER):
        one, two = (each.rows.fit(setting)[0] for each in (fitting, changed))
        assert one.corrections == two.corrections
        # Nor do the slopes of its calibration; the offsets of all folds are levelled.
        assert one.calibration is None or one.calibration.matrix == two.calibration.matrix


def test_calibrations_of_folds_have_the_same_mean_logits() -> None:
    probs, labels = biased_table(120, 3)
    rows = Fitting(probs, labels, 3, seed=0).rows
    for name in ("offsets", "linear", "products", "surrogate", "drops"):
        found = rows.calibrations((name, 10.0, 1.0))
        means = np.array([each.logits(probs).mean(axis=0) for each in found if each])
        means -= means.mean(axis=1, keepdims=True)
        assert np.ptp(means, axis=0).max() < 1e-5


def test_what_a_search_cancels_is_added_again() -> None:
    figures = []
    for seed in range(6):
        probs, labels = biased_table(20_000, 4, seed=seed, bias=0.5)
        chosen = np.concatenate([np.flatnonzero(labels == j)[:60] for j in range(4)])
        fitting = Fitting(probs[chosen], labels[chosen], 5, seed=seed)
        (fit,) = fitting.judge([_EQUALISER])
        rest = np.setdiff1d(np.arange(labels.size), chosen)
        # What as many new rows show: the lasting bias and their noise.
        fresh = np.random.default_rng(seed).choice(rest, chosen.size, replace=False)
        shown = fitting.whole(fit).predict(probs[fresh])
        found = ClassificationMetrics.from_predictions(fitting.truth, fit.predictions, 4)
        counted, noise = found.cobias, cobias_noise(found, fitting.counts)
        assert fit.cobias == pytest.approx(math.hypot(counted, math.sqrt(2.0) * noise))
        figures.append((counted, fit.cobias, _cobias(labels[fresh], shown, 4)))
    counted, corrected, true = np.mean(figures, axis=0)
    assert counted < 0.75 * true
    assert corrected == pytest.approx(true, rel=0.3)


def test_noise_is_what_equal_classes_show() -> None:
    rates, counts = 0.8, np.array([40, 90, 15, 60])
    drawn = np.random.default_rng(0).binomial(counts, rates, (3000, 4)) / counts
    shown = [np.abs(row[:, None] - row)[np.triu_indices(4, 1)].mean() for row in drawn]
    metrics = ClassificationMetrics(rates, 0.0, rates, (rates,) * 4, int(counts.sum()))
    assert cobias_noise(metrics, counts) == pytest.approx(np.mean(shown), rel=0.05)
    perfect = ClassificationMetrics(1.0, 0.0, 1.0, (1.0, 1.0, math.nan), 8)
    assert 0.0 < cobias_noise(perfect, [4, 4, 0]) < 0.5
    assert cobias_noise(perfect, [4, 0, 0]) == 0.0


def test_development_rows_take_part_in_no_fit() -> None:
    probs, labels = biased_table(400, 3)
    fitting = Fitting(probs, labels, 5, development=0.25, seed=0)
    assert (fitting.n_folds, fitting.truth.size) == (1, 100)
    (fit,) = fitting.judge([replace(_EQUALISER, calibration="linear")])
    assert fit.schemes[0].provenance["rows"] == 300
    assert fitting.whole(fit) is fit.schemes[0]
    assert np.array_equal(fit.predictions, fit.schemes[0].predict(fitting.held_out))
    assert fit.cobias == _cobias(fitting.truth, fit.predictions, 3)


def test_copies_stay_in_one_fold_and_count_once() -> None:
    probs, labels = biased_table(200, 3)
    fitting = Fitting(np.tile(probs, (2, 1)), np.tile(labels, 2), 5, seed=0)
    assert np.array_equal(fitting.rows.place[:200], fitting.rows.place[200:])
    before, after = probs.argmax(axis=1), np.roll(probs.argmax(axis=1), 1)
    one = Fitting(probs, labels, 5, seed=0).change(before, after)
    two = fitting.change(np.tile(before, 2), np.tile(after, 2))
    assert (one.effect, two.effect) == (1.0, 2.0)
    assert two.accuracy_error == pytest.approx(one.accuracy_error, rel=0.2)


def test_rows_of_a_group_are_in_one_fold() -> None:
    probs, labels = biased_table(200, 3)
    groups = np.arange(200) // 2
    for share in (None, 0.3):
        place = Fitting(probs, labels, 5, seed=0, development=share, groups=groups).rows.place
        assert np.array_equal(place[::2], place[1::2])
    assert (place == 0).sum() == pytest.approx(60, abs=2)
    refuses(TableError, fit_scheme, probs, labels, groups=np.arange(199))


def test_rows_that_are_all_equal_are_refused() -> None:
    labels = np.arange(30) % 3
    refuses(InvalidInputError, Fitting, np.full((30, 3), 1 / 3), labels, 5, seed=0)
    two = np.where(labels[:, None] == 0, [0.51234, 0.28766, 0.2], [1 / 3] * 3)
    assert Fitting(two, labels, 5, seed=0).n_folds >= 2


def test_threads_keep_the_order_and_take_no_more_than_allowed() -> None:
    taken: list[int] = []

    def source() -> Iterator[int]:
        for i in range(20):
            taken.append(i)
            yield i

    for n, result in enumerate(Threads(4)(lambda i: i * i, source(), ahead=3)):
        assert result == n * n
        assert taken[-1] < n + 3
    assert taken == list(range(20))
    refuses(ZeroDivisionError, list, Threads(2)(lambda i: 1 // i, [1, 0, 1]))


def test_the_mixture_is_of_those_that_likelihood_and_score_favour_for_all_classes_alike() -> None:
    probs, labels = biased_table(900, 3, seed=1)
    rows = np.flatnonzero(np.arange(900) % (1 + 3 * labels) == 0)
    fitting = Fitting(probs[rows], labels[rows], 5, development=0.4, seed=0)
    pool = [("none", 0.0, 0.0), ("batch", 0.0, 0.0)]
    pool += [("offsets", ridge, 1.0) for ridge in (10.0, 50.0)]
    pool += [("linear", ridge, anchor) for anchor in (0.0, 1.0) for ridge in (2.0, 10.0, 50.0)]
    pool += [("surrogate", 25.0, 1.0), ("drops", 2.0, 0.0)]
    pool += [("products", ridge, anchor) for anchor in (0.0, 1.0) for ridge in (25.0, 100.0)]
    truth, losses, scores, scaled = fitting.truth, [], [], []

    def best(logits: NDArray[np.float64]) -> tuple[float, float]:
        def loss(scale: float) -> float:
            alike = 1.0 / np.bincount(truth)[truth]
            return log_loss(truth, softmax(scale * logits, axis=1), sample_weight=alike)

        found = minimize_scalar(loss, bounds=(0.02, 20.0), method="bounded")
        return found.x, found.fun

    for each in pool:
        logits = fitting.logits_of(fitting.rows.calibrations(each))
        scale, loss = best(logits)
        losses.append(loss)
        scaled.append(scale * logits)
        found = ClassificationMetrics.from_predictions(truth, logits.argmax(axis=1), 3)
        scores.append(found.cobias - found.accuracy)
    fitting.prepare()
    number, shares = round(math.sqrt(len(pool))) + 1, np.zeros(len(pool))
    for values in (losses, scores):
        shares[np.argsort(values, kind="stable")[:number]] += 0.5 / number
    fitted = rows.size / (rows.size + 12 * 3)
    shares = fitted * shares + (1.0 - fitted) * (np.arange(len(pool)) == 1)
    named = {"{} {:g} {:g}".format(*each): share for each, share in zip(pool, shares, strict=True)}
    assert fitting.pool == pytest.approx({name: share for name, share in named.items() if share})
    mixture = fitting.logits_of(fitting.rows.calibrations(("mixture", 0.0, 0.0)))
    expected = np.tensordot(shares, scaled, 1)
    np.testing.assert_allclose(mixture, best(expected)[0] * expected, atol=0.01)
