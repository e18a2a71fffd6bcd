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
from dcs.errors import InvalidInputError
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.cross_validation import fit_scheme
from tests.tracking.cells import failed_cell, make_cell
from tests.tracking.paper_cells import paper_cells
from tracking.records import CellRecord, TrialRecord
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
    sweep_figures,
    time_figure,
    trace_figure,
    tradeoff_figure,
)
from tracking.results.frames import learning_curve_frame
from tracking.results.style import figure_bytes


def _texts(figure: Figure) -> set[str]:
    return {text.get_text() for text in figure.findobj(Text) if text.get_text()}


def test_panels_come_in_the_order_of_the_records() -> None:
    figure = class_accuracy_figure(paper_cells(tasks=("trec", "agnews"), shots=(1, 5)))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [text.split(" ")[0] for text in titles] == ["trec", "agnews"]
    assert all("5-shot" in text for text in titles), "not the largest number of shots"
    assert "accuracy 60 → 80" in titles[0]
    assert "World" in _texts(figure)


def test_a_front_of_costs_joins_the_trials_that_were_recorded_on_it() -> None:
    trials = tuple(
        TrialRecord(
            number=i,
            params={},
            metrics={"opt/evaluations": 10.0 * (i + 1), "pareto": float(i != 2)},
            state="COMPLETE",
            seconds=0.1,
            started_ms=0,
            value=value,
        )
        for i, value in enumerate((0.1, 0.3, 0.2, 0.4))
    )
    who = make_cell().identity | {"tuner": {"cost": "moves"}}
    figure = cost_figure([replace(make_cell(), identity=who, trials=trials), make_cell(1)])
    (panel,) = figure.axes
    (line,) = panel.lines
    assert line.get_xdata() == pytest.approx([10, 20, 40])
    assert line.get_ydata() == pytest.approx([10, 30, 40])
    assert len(panel.collections[0].get_offsets()) == 4


def test_a_class_without_rows_is_left_out() -> None:
    figure = class_accuracy_figure([make_cell(0)])
    names = {label.get_text() for label in figure.axes[0].get_yticklabels()}
    assert names == {"Sports"}


def test_groups_run_from_the_weakest_class_to_the_strongest() -> None:
    figure = class_group_figure(paper_cells(tasks=("trec",)))
    bars = [patch.get_height() for patch in figure.axes[0].patches]
    assert bars == pytest.approx([70.0, 80.0] * 2), "weakest first, mean over seeds"
    assert "DCS (both levels)" in _texts(figure)


def test_ablation_bars_need_two_objectives() -> None:
    cells = paper_cells(tasks=("trec", "ddi"))
    cells += paper_cells(tasks=("trec", "ddi"), objective="err")
    figure = ablation_figure(cells)
    assert len(figure.axes) == 2
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
    assert "learning_curve" in overview_figures(records)
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
    assert "ablation_optimization_size" in overview_figures(cells)


def test_a_trace_shows_current_and_best() -> None:
    figure = trace_figure(make_cell(1))
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
    curve = figure.axes[0].lines[1]
    assert curve.get_ydata()[-1] == pytest.approx(0.8)
    assert len(scheme_figure(make_cell(1)).axes) == 2, "also without histograms"


def test_histograms_count_every_row_once_in_the_order_of_the_scheme() -> None:
    table = ProbabilityTable.from_arrays(
        np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [1.0, 0.0]]),
        np.array([0, 1, 1, 0]),
        classes=("World", "Sports"),
    )
    scheme = CorrectionScheme.from_dict(make_cell().scheme)
    assert scheme.classes == ("Sports", "World")
    counts = class_histograms(table, scheme)
    assert [sum(of_class) for of_class in counts["all"]] == [4, 4]
    sports, world = (np.flatnonzero(of_class).tolist() for of_class in counts["own"])
    assert sports == [16, 32], "0.4 and 0.8 in 40 bins"
    assert world == [36, 39], "1 lies in the last bin"


def test_the_overview_leaves_out_what_there_is_nothing_for() -> None:
    always = {"class_accuracies", "accuracy_cobias", "class_groups", "annealing_time", "slices"}
    assert set(overview_figures(paper_cells(tasks=("trec",)))) == always
    assert overview_figures([failed_cell(1)]) == {}


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


_OF_CELLS = (confusion_figure, front_figure, scheme_figure, trace_figure)
_OF_SWEEPS = (
    *(class_accuracy_figure, class_group_figure, tradeoff_figure, ablation_figure),
    *(time_figure, learning_curve_figure, cost_figure, slice_figure, importance_figure),
)


@pytest.mark.parametrize("draw", [*_OF_CELLS, *_OF_SWEEPS])
def test_nothing_to_draw_is_said(draw) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInputError):
        draw(failed_cell(1) if draw in _OF_CELLS else [failed_cell(1)])


def test_figures_of_cells_and_sweeps_are_files() -> None:
    assert set(cell_figures(make_cell(1))) == {"figures/scheme.png", "figures/annealing.png"}
    assert cell_figures(failed_cell(1)) == {}
    plain = make_cell(1, identity={"method": "icl"}, trace=())
    assert cell_figures(plain) == {}
    files = sweep_figures(paper_cells(tasks=("trec",), seeds=(0,)))
    assert files["figures/accuracy_cobias.png"].startswith(b"\x89PNG")
    assert {name.rsplit(".")[-1] for name in files} == {"png", "svg"}


def test_a_cell_shows_where_its_rows_went_and_the_front_that_it_is_from() -> None:
    counts = {"counts_before": [[9, 1], [7, 3]], "counts_after": [[8, 2], [4, 6]]}
    columns = {**make_cell().class_accuracies, **counts}
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 60)
    probs = rng.dirichlet([2.0, 1.0], 60)
    fitted = fit_scheme(probs, labels, classes=("Sports", "World"), seed=0)
    cell = make_cell(class_accuracies=columns, front=fitted.to_dict())
    assert {f"figures/{name}.png" for name in ("confusion", "front")} <= cell_figures(cell).keys()
    assert {"40", "60", "70", "Sports"} <= _texts(confusion_figure(cell))
    drawn = {line.get_label(): line.get_xydata() for line in front_figure(cell).axes[0].lines}
    np.testing.assert_allclose(
        drawn["picked"], [[100 * fitted.chosen.cobias, 100 * fitted.chosen.accuracy]]
    )
    assert len(drawn["front"]) == len(fitted.front)
    scheme = CorrectionScheme.from_dict(make_cell().scheme)
    curves = [axes.lines[1].get_ydata() for axes in scheme.plot().axes if axes.lines]
    assert len(curves) == 2
    np.testing.assert_allclose(curves[0], 0.8 * np.linspace(0, 1, 257))
