"""Figures draw what is in the records; how they look is for people to judge."""

from __future__ import annotations

import struct
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from dcs.data.table import ProbabilityTable
from dcs.selection.front import Change, FittedScheme, FrontPoint, Preference
from tests.tracking.cells import SCHEME, failed_cell, make_cell
from tests.tracking.paper_cells import paper_cells
from tracking.records import CellRecord
from tracking.results.figures import (
    ablation_figure,
    cell_figures,
    class_accuracy_figure,
    class_group_figure,
    class_histograms,
    confusion_figure,
    cost_figure,
    front_figure,
    importance_figure,
    learning_curve_figure,
    overview_figures,
    scheme_figure,
    slice_figure,
    time_figure,
    trace_figure,
    tradeoff_figure,
)
from tracking.results.frames import learning_curve_frame
from tracking.results.style import figure_bytes


def _texts(figure: Figure) -> set[str]:
    return {text.get_text() for text in figure.findobj(Text) if text.get_text()}


def test_class_accuracies_are_those_of_most_shots_and_of_classes_with_rows() -> None:
    figure = class_accuracy_figure(paper_cells(tasks=("trec", "agnews"), shots=(1, 5)))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [text.split(" ")[0] for text in titles] == ["trec", "agnews"]
    assert all("5-shot" in text for text in titles), "not the largest number of shots"
    assert "accuracy 60 → 80" in titles[0]
    (axes,) = class_accuracy_figure([make_cell(0)]).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Sports"]


def test_a_front_of_costs_joins_the_trials_that_were_recorded_on_it() -> None:
    cell = make_cell(trials=4)
    trials = tuple(
        replace(
            trial,
            metrics={"opt/evaluations": 10.0 * (trial.number + 1), "pareto": float(value != 0.2)},
            value=value,
        )
        for trial, value in zip(cell.trials, (0.1, 0.3, 0.2, 0.4), strict=True)
    )
    who = cell.identity | {"tuner": {"cost": "moves"}}
    (panel,) = cost_figure([replace(cell, identity=who, trials=trials), make_cell(1)]).axes
    (line,) = panel.lines
    assert line.get_xdata() == pytest.approx([10, 20, 40])
    assert line.get_ydata() == pytest.approx([10, 30, 40])
    assert len(panel.collections[0].get_offsets()) == 4


def test_groups_run_from_the_weakest_class_to_the_strongest() -> None:
    figure = class_group_figure(paper_cells(tasks=("trec",)))
    bars = [patch.get_height() for patch in figure.axes[0].patches]
    assert bars == pytest.approx([70.0, 80.0] * 2), "weakest first, mean over seeds"


def test_ablation_bars_need_two_objectives() -> None:
    cells = paper_cells(tasks=("trec", "ddi"))
    cells += paper_cells(tasks=("trec", "ddi"), objective="err")
    figure = ablation_figure(cells)
    assert [len(axes.containers) for axes in figure.axes] == [4, 4], "bars and their spreads"
    assert {"full objective", "$Z_{err}$", "TREC", "DDI"} <= _texts(figure)
    heights = [patch.get_height() for patch in figure.axes[0].patches]
    assert heights == pytest.approx([80.0] * 4), "mean over the seeds of one objective"


def test_learning_curves_end_where_all_rows_have_labels() -> None:
    def cells(kept: bool, size: int | None, **settings: object) -> list[CellRecord]:
        tuner = {"memberships": None, "keep_unlabelled": kept, **settings}
        return paper_cells(tasks=("trec",), optimization_size=size, tuner=tuner)

    records = [*cells(False, None), *cells(False, 100), *cells(True, 100), *cells(False, 30)]
    records += cells(False, 300, memberships=5)
    frame = learning_curve_frame(records)
    assert frame.groupby("rows_used")["labelled"].apply(list).to_dict() == {
        "labelled rows alone": [30, 100, 10_000],
        "with unlabelled rows": [100, 10_000],
    }
    assert frame["accuracy"].tolist() == pytest.approx([0.8] * 5)
    accuracy, _ = learning_curve_figure(records).axes
    assert [line.get_linestyle() for line in accuracy.lines] == ["-", "--", ":"]
    alone = [*cells(False, None), *cells(False, 100)]
    assert set(learning_curve_frame(alone)["rows_used"]) == {"labelled rows alone"}


def test_another_setting_is_a_line_per_method() -> None:
    cells = [
        cell
        for size, methods in ((None, ("icl", "dnip", "dcs")), (100, ("dnip", "dcs")))
        for cell in paper_cells(tasks=("trec",), methods=methods, optimization_size=size)
    ]
    figure = ablation_figure(cells, "optimization_size")
    accuracy, cobias = figure.axes
    assert [label.get_text() for label in accuracy.get_xticklabels()] == ["100", "all"]
    assert {"DNIP", "DCS"} <= _texts(figure) and "uncorrected" not in _texts(figure)
    assert list(cobias.containers[0][0].get_ydata()) == pytest.approx([20.0, 20.0])
    assert {"ablation_optimization_size", "learning_curve"} <= overview_figures(cells).keys()


def test_a_trace_shows_current_and_best() -> None:
    figure = trace_figure([make_cell(1)])
    current, best = figure.axes[0].lines[:2]
    assert list(current.get_ydata()) == [0.5] * 5
    assert list(best.get_ydata()) == [0.4] * 5


def test_time_and_outer_loops_of_what_was_searched_by_task() -> None:
    cells = [
        replace(cell, metrics={**cell.metrics, "opt/seconds": 1.0 + cell.identity["seed"]})
        for cell in paper_cells(tasks=("trec", "ddi"))
    ]
    figure = time_figure(cells)
    seconds, loops, size = figure.axes
    assert "DCS" in _texts(figure) and "uncorrected" not in _texts(figure)
    assert list(seconds.containers[0][0].get_ydata()) == [2.0, 2.0], "mean over seeds"
    assert list(loops.containers[0][0].get_ydata()) == [5.0, 5.0], "temperatures of the trace"
    assert [bar.get_height() for bar in size.patches] == [98, 98], "2 classes, 49 corrections"


def test_importances_are_means_over_cells() -> None:
    first = replace(make_cell(0), importances={"beta": 0.5, "tau": 0.5})
    second = replace(make_cell(1), importances={"beta": 0.9, "tau": 0.1})
    bars = importance_figure([first, second, make_cell(2)]).axes[0]
    assert [label.get_text() for label in bars.get_yticklabels()] == ["tau", "beta"]
    assert [bar.get_width() for bar in bars.patches] == pytest.approx([30.0, 70.0])


def test_slices_are_of_what_varies() -> None:
    cell = make_cell(0, trials=4)
    kinds = [
        replace(trial, params={**trial.params, "kind": "ab"[trial.number % 2], "fixed": 1.0})
        for trial in cell.trials
    ]
    slices = slice_figure([replace(cell, trials=tuple(kinds))]).axes
    assert [axes.get_title(loc="left") for axes in slices] == ["weight scale", "kind"]
    assert [label.get_text() for label in slices[1].get_xticklabels()] == ["a", "b"]


def test_corrections_are_drawn_over_the_probabilities_of_their_class() -> None:
    counts = {"all": [[0] * 40, [1] * 40], "own": [[0] * 40, [1] * 40]}
    figure = scheme_figure(replace(make_cell(1), histograms=counts))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "Sports\nweight 0.80",
        "World\nPeak 0-0.25-0.5",
    ]
    without = scheme_figure(make_cell(1)), SCHEME.plot()
    for each in (figure, *without):
        curve = each.axes[0].lines[1].get_ydata()
        assert curve == pytest.approx(0.8 * np.linspace(0, 1, 257))


def test_histograms_count_every_row_once_in_the_order_of_the_scheme() -> None:
    table = ProbabilityTable.from_arrays(
        np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [1.0, 0.0]]),
        np.array([0, 1, 1, 0]),
        classes=("World", "Sports"),
    )
    counts = class_histograms(table, SCHEME)
    assert [sum(of_class) for of_class in counts["all"]] == [4, 4]
    sports, world = (np.flatnonzero(of_class).tolist() for of_class in counts["own"])
    assert sports == [16, 32], "0.4 and 0.8 in 40 bins"
    assert world == [36, 39], "1 lies in the last bin"


def test_what_there_is_nothing_for_is_left_out() -> None:
    always = {"class_accuracies", "accuracy_cobias", "annealing_time", "annealing"}
    always |= {"class_groups", "slices"}
    assert set(overview_figures(paper_cells(tasks=("trec",)))) == always
    assert overview_figures([failed_cell(1)]) == cell_figures(failed_cell(1)) == {}
    assert cell_figures(make_cell(1, identity={"method": "icl"})) == {}
    assert set(cell_figures(make_cell(1))) == {"figures/scheme.png"}


def test_figures_are_png_and_svg_that_say_their_values_and_always_the_same() -> None:
    cells = paper_cells(tasks=("trec",), shots=(1, "N"))
    png, svg = (figure_bytes(tradeoff_figure(cells), form) for form in ("png", "svg"))
    assert png.startswith(b"\x89PNG") and figure_bytes(tradeoff_figure(cells), "png") == png
    assert struct.unpack(">I", png[16:20])[0] > 400, "too small for print"
    root = ET.fromstring(svg)
    texts = {text.strip() for text in root.itertext()}
    assert {"uncorrected", "DCS", "Pareto front", "N"} <= texts, "text is drawn as outlines"
    said = {title.text for title in root.iter("{http://www.w3.org/2000/svg}title")}
    assert "DCS, N-shot: accuracy 80.0 ± 10.0, COBias 20.0 ± 10.0" in said


def _point(accuracy: float, cobias: float) -> FrontPoint:
    return FrontPoint(
        setting=None,
        accuracy=accuracy,
        cobias=cobias,
        confusion=((8, 2), (3, 7)),
        scheme=SCHEME,
        beta=1.0,
        noise=0.0,
        change=Change(0.2, 0.01, 0.01, 0.01, 0.01),
        doubt=0.0,
    )


def test_a_cell_shows_where_its_rows_went_and_the_front_that_it_is_from() -> None:
    points = [_point(0.8, 0.3), _point(0.7, 0.1), _point(0.6, 0.2), _point(0.5, 0.5)]
    front = FittedScheme.picked(points, Preference(prefer="accuracy"))
    counts = {"counts_before": [[9, 1], [7, 3]], "counts_after": [[8, 2], [4, 6]]}
    columns = {**make_cell().class_accuracies, **counts}
    cell = make_cell(class_accuracies=columns, front=front.to_dict())
    assert {f"figures/{name}.png" for name in ("confusion", "front")} <= cell_figures(cell).keys()
    assert {"40", "60", "70", "Sports"} <= _texts(confusion_figure(cell))
    drawn = {line.get_label(): line.get_xydata() for line in front_figure(cell).axes[0].lines}
    assert drawn["picked"].tolist() == pytest.approx(np.array([[30.0, 80.0]]))
    assert sorted(drawn["front"].tolist()) == pytest.approx(np.array([[10, 70], [30, 80]]))
