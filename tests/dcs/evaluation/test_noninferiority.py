from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import xlogy

from dcs.evaluation.uncertainty import NonInferiority, accuracy_difference


@pytest.mark.parametrize("n_rows", [200, 1000, 5000])
@pytest.mark.parametrize("changed", [0.02, 0.1, 0.4])
def test_level_is_held_at_the_margin(n_rows: int, changed: float) -> None:
    rng = np.random.default_rng(0)
    gains, losses = (changed - 0.005) / 2, (changed + 0.005) / 2
    drawn = rng.multinomial(n_rows, [gains, losses, 1.0 - gains - losses], size=4000)
    passed = [NonInferiority(int(g), int(lost), n_rows, 0.005).passed for g, lost, _ in drawn]
    assert np.mean(passed) <= 0.06


@pytest.mark.parametrize(("gained", "lost"), [(12, 10), (0, 7), (9, 0), (60, 80)])
def test_the_statistic_is_the_score_at_the_most_likely_losses(gained: int, lost: int) -> None:
    n, margin = 500, 0.02

    def unlikely(p: float) -> float:
        rest = xlogy(n - gained - lost, 1.0 - 2.0 * p + margin)
        return -float(xlogy(gained, p - margin) + xlogy(lost, p) + rest)

    p = minimize_scalar(unlikely, bounds=(margin, 0.51), options={"xatol": 1e-10}).x
    expected = (gained - lost + n * margin) / np.sqrt(n * (2.0 * p - margin - margin**2))
    found = NonInferiority(gained, lost, n, margin).statistic
    assert found == pytest.approx(expected, rel=1e-4)


def test_power_grows_with_rows_and_is_told_in_advance() -> None:
    few = NonInferiority(gained=12, lost=10, n_rows=400, margin=0.005)
    assert not few.passed
    needed = few.rows_needed
    assert needed is not None and needed > 400
    scale = needed / 400
    more = NonInferiority(round(12 * scale), round(10 * scale), needed, 0.005)
    assert more.statistic == pytest.approx(more.critical, rel=0.05)
    assert NonInferiority(1, 30, 400, 0.005).rows_needed is None
    assert NonInferiority(10, 20, 1000, 0.01).rows_needed is None


def test_no_difference_on_few_rows_proves_nothing() -> None:
    assert not NonInferiority(0, 0, 100, 0.005).passed
    assert NonInferiority(0, 0, 1000, 0.005).passed


@pytest.mark.parametrize("share", [0.5, 1 / 3])
def test_fractions_of_rows_count_as_such(share: float) -> None:
    whole = NonInferiority(60, 40, 2000, 0.01)
    part = NonInferiority(60 * share, 40 * share, 2000 * share, 0.01)
    assert part.statistic == pytest.approx(whole.statistic * np.sqrt(share))
    if whole.rows_needed and not part.passed:
        assert part.rows_needed == pytest.approx(
            2000 * (part.critical / whole.statistic) ** 2, abs=1
        )


@pytest.mark.parametrize(("gains", "losses"), [(0.01, 0.02), (0.1, 0.06), (0.004, 0.004)])
@pytest.mark.parametrize("n_rows", [300, 3000])
def test_intervals_of_differences_cover(gains: float, losses: float, n_rows: int) -> None:
    rng = np.random.default_rng(1)
    drawn = rng.multinomial(n_rows, [gains, losses, 1.0 - gains - losses], size=1500)
    ends = [accuracy_difference(g, lost, n_rows) for g, lost, _ in drawn.tolist()]
    covered = np.mean([low <= gains - losses <= high for low, high in ends])
    # Of 95 %, with an error of 0.6 points.
    assert covered > 0.945 - 0.012


def test_the_interval_is_what_the_score_test_does_not_reject() -> None:
    low, high = accuracy_difference(30, 12, 700)
    assert low < 18 / 700 < high
    assert NonInferiority(30, 12, 700, -low).statistic == pytest.approx(1.96, abs=1e-3)
    assert NonInferiority(12, 30, 700, high).statistic == pytest.approx(1.96, abs=1e-3)
    assert accuracy_difference(12, 30, 700) == pytest.approx((-high, -low))
    # No differing row is some evidence, and not proof, of no difference.
    low, high = accuracy_difference(0, 0, 700)
    assert -low == pytest.approx(high)
    assert 0.0 < high < 0.01
