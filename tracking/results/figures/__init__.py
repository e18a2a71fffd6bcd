"""Figures of results, from cell records: matplotlib figures, not attached to any window.

`save_figure` writes one as PNG and SVG; `overview_figures` makes those that a sweep has data for.
"""

from __future__ import annotations

from tracking.results.figures.overview import cell_figures, overview_figures, sweep_figures
from tracking.results.figures.results import (
    ablation_figure,
    axis_figure,
    class_accuracy_figure,
    class_group_figure,
    tradeoff_figure,
)
from tracking.results.figures.schemes import scheme_figure
from tracking.results.figures.search import (
    importance_figure,
    slice_figure,
    time_figure,
    trace_figure,
)
from tracking.results.figures.style import figure_bytes, save_figure

__all__ = [
    "ablation_figure",
    "axis_figure",
    "cell_figures",
    "class_accuracy_figure",
    "class_group_figure",
    "figure_bytes",
    "importance_figure",
    "overview_figures",
    "save_figure",
    "scheme_figure",
    "slice_figure",
    "sweep_figures",
    "time_figure",
    "trace_figure",
    "tradeoff_figure",
]
