"""What people see of schemes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from dcs.evaluation.metrics import FIGURES, ClassificationMetrics
from dcs.schemes.corrections import Weight
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.cross_validation import SelectionSettings, fit_scheme
from dcs.selection.front import FittedScheme, Preference
from dcs.selection.settings import Hyperparameters
from tests.workflows.conftest import biased_table
from workflows.cli.views import judged_tables, show_front


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
        figures = [getattr(metrics, name) for name in FIGURES] + [*metrics.class_accuracies]
        assert {f"{100 * each:.1f}" for each in figures} <= words
    changed = np.mean(schemes["dcs"].predict(table.probs) == table.labels) - np.mean(
        table.probs.argmax(axis=1) == table.labels
    )
    assert f"{100 * changed:+.1f}," in words


@pytest.fixture(scope="module")
def fitted() -> FittedScheme:
    table = biased_table(300)
    candidate = Hyperparameters(calibration="vector", averages=2)
    settings = SelectionSettings(candidates=(candidate,), betas=(0.0, 0.3, 1.0), folds=3)
    return fit_scheme(table.probs, table.labels, settings=settings, classes=table.classes)


@pytest.mark.parametrize("prefer", ["accuracy", "balance"])
def test_a_front_marks_the_choice_and_names_what_picks_each_point(fitted, prefer, capsys):
    front = fitted.pick(Preference(prefer=prefer))
    show_front(front)
    shown = capsys.readouterr().out
    assert "uncorrected" in shown
    (marked,) = (line for line in shown.splitlines() if "→" in line)
    assert prefer in marked and f" {100 * front.chosen.accuracy:.1f} ±" in marked
    for line in shown.splitlines():
        if "--max-cobias" in line:
            limit, accuracy = float(line.split()[-11]), line.split()[-10]
            picked = fitted.pick(Preference(max_cobias=limit)).chosen
            assert f"{100 * picked.accuracy:.1f}" == accuracy


def test_a_front_says_where_nothing_changed_and_what_the_choice_costs(fitted, capsys):
    chosen, plain = fitted.points[0], fitted.points[-1]
    costly = replace(chosen.change, accuracy=-0.021, accuracy_p=0.01)
    fair = replace(chosen, change=costly, accuracy=0.0, cobias=0.0)

    def said(points, chosen) -> str:
        show_front(replace(fitted, points=tuple(points), chosen=chosen))
        return capsys.readouterr().out

    assert "costs 2.1 points of accuracy (p = 0.010)" in said([fair, plain], fair)
    kept = said([fair, plain], plain)
    assert f"accuracy by {-100 * plain.accuracy:+.1f} and COBias by" in kept
    assert "no point that was tried is fairer" in said([plain, plain], plain)
    harmless = replace(fair, change=replace(costly, accuracy_p=0.2))
    assert "costs" not in said([harmless, plain], harmless)
