from __future__ import annotations

import numpy as np
import pytest

from dcs.evaluation.noninferiority import NonInferiority


@pytest.mark.parametrize("n_rows", [200, 1000, 5000])
@pytest.mark.parametrize("changed", [0.02, 0.1, 0.4])
def test_level_is_held_at_the_margin(n_rows: int, changed: float) -> None:
    rng = np.random.default_rng(0)
    gains, losses = (changed - 0.005) / 2, (changed + 0.005) / 2
    drawn = rng.multinomial(n_rows, [gains, losses, 1.0 - gains - losses], size=4000)
    passed = [NonInferiority(int(g), int(lost), n_rows, 0.005).passed for g, lost, _ in drawn]
    assert np.mean(passed) <= 0.06


def test_power_grows_with_rows_and_is_told_in_advance() -> None:
    few = NonInferiority(gained=12, lost=10, n_rows=400, margin=0.005)
    assert not few.passed
    needed = few.rows_needed
    assert needed is not None and needed > 400
    scale = needed / 400
    more = NonInferiority(round(12 * scale), round(10 * scale), needed, 0.005)
    assert more.statistic == pytest.approx(more.critical, rel=0.05)
    assert NonInferiority(1, 30, 400, 0.005).rows_needed is None


def test_no_difference_on_few_rows_proves_nothing() -> None:
    assert not NonInferiority(0, 0, 100, 0.005).passed
    assert NonInferiority(0, 0, 1000, 0.005).passed
