"""Figures draw what is in the records; how they look is for people to judge."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from dcs_tracking.results import figures
from dcs_tracking.results.cells import Cells
from dcs_tracking.results.figures import figure_bytes
from tests.tracking.cells import SCHEME, failed_cell, make_cell, paper_cells


def _titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes]


def test_class_accuracies_are_those_of_most_shots_and_of_classes_with_rows() -> None:
    cells = paper_cells(tasks=("trec", "agnews"), shots=(1, 5))
    titles = _titles(figures.class_accuracy_figure(Cells.of(cells)))
    assert [text.split(" ")[0] for text in titles] == ["trec", "agnews"]
    assert all("5-shot" in text for text in titles), "not the largest number of shots"
    assert "accuracy 60 → 80" in titles[0]
    coarse = Cells.of(paper_cells(tasks=("topics, coarse",)))
    (title,) = _titles(figures.class_accuracy_figure(coarse))
    assert title.startswith("topics, coarse (")
    (axes,) = figures.class_accuracy_figure(Cells.of([make_cell(0)])).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Sports"]


def test_error_bars_are_along_their_axes() -> None:
    cells = paper_cells(tasks=("trec",), methods=("dcs",), seeds=(0, 1))
    even = [replace(cell, metrics=cell.metrics | {"test/accuracy": 0.5}) for cell in cells]
    (axes,) = figures.tradeoff_figure(Cells.of(even)).axes
    bars = [each for each in axes.collections if isinstance(each, LineCollection)]
    across, up = np.sum([np.ptp(each.get_segments()[0], axis=0) for each in bars], axis=0)
    assert across > 1.0 and up == pytest.approx(0.0)


def test_names_with_dollars_are_drawn_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    names = ["$5 - $10", "$$"]
    drawn = make_cell(
        scheme=replace(SCHEME, classes=tuple(names)).to_dict(),
        class_accuracies={"class": names, "before": [0.9, 0.2], "after": [0.8, 0.5]},
    )
    figure = figures.class_accuracy_figure(Cells.of([drawn]))
    assert b"$5 - $10" in figure_bytes(figure, "svg")
    assert not caplog.records


def test_a_figure_that_cannot_be_drawn_is_left_out_with_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "pareto_front", lambda points: {}["no\nkey"])
    drawn = figures.overview_figures(Cells.of(paper_cells(tasks=("trec",))))
    (message,) = (each.getMessage() for each in caplog.records)
    assert [*drawn] == ["class_accuracies"]
    assert "accuracy_cobias" in message and "\n" not in message


def test_the_legend_of_many_methods_is_within_a_figure_of_one_panel() -> None:
    methods = ("icl", "batch", "logistic", "logistic-balanced", "dnip", "furud", "dcs")
    figure = figures.tradeoff_figure(Cells.of(paper_cells(tasks=("trec",), methods=methods)))
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(methods) + 1
    assert legend.get_window_extent().x0 >= 0


def test_what_there_is_nothing_for_is_left_out() -> None:
    assert figures.overview_figures(Cells.of([failed_cell(1)])) == {}


def test_figures_are_png_and_svg_that_say_their_values_and_always_the_same() -> None:
    cells = Cells.of(paper_cells(tasks=("trec",), shots=(1, "N")))
    drawn = [figures.tradeoff_figure(cells) for _ in range(3)]
    png, again, svg = map(figure_bytes, drawn, ("png", "png", "svg"))
    assert again == png
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20], "big") > 400, "too small for print"
    texts = {text.strip() for text in ET.fromstring(svg).itertext()}
    assert {"uncorrected", "DCS", "Pareto front", "N"} <= texts, "text is drawn as outlines"
