"""What people see of schemes."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console

from dcs.evaluation.metrics import ClassificationMetrics
from dcs.schemes.corrections import Weight
from dcs.schemes.scheme import CorrectionScheme
from tests.workflows.conftest import biased_table
from workflows.cli.judgement import FIGURE_TITLES, judged_tables


@pytest.mark.parametrize("width", [80, 200])
def test_schemes_are_judged_side_by_side_whatever_the_width(width):
    table = biased_table(90, seed=1)
    schemes = {"uncorrected": CorrectionScheme.identity(table.classes)}
    for i, name in enumerate(("dcs", "logistic-balanced", "batch", "mine")):
        weights = (Weight(0.2 + 0.1 * i), Weight(1.0), Weight(1.0))
        schemes[name] = CorrectionScheme(table.classes, weights)
    console = Console(width=width)
    with console.capture() as capture:
        console.print(*judged_tables(table, schemes, width=width))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= width
    assert (sum("against dcs" in line for line in lines) == 2) == (width == 200)
    words = {*capture.get().split()}
    for scheme in schemes.values():
        predicted = scheme.predict(table.probs)
        metrics = ClassificationMetrics.from_predictions(table.labels, predicted, 3)
        figures = [getattr(metrics, name) for name in FIGURE_TITLES] + [*metrics.class_accuracies]
        assert {f"{100 * each:.1f}" for each in figures} <= words
    changed = np.mean(schemes["dcs"].predict(table.probs) == table.labels) - np.mean(
        table.probs.argmax(axis=1) == table.labels
    )
    assert f"{100 * changed:+.1f}," in words
