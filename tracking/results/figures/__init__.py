"""Figures of results, from cell records: matplotlib figures, not attached to any window.

`figure_bytes` makes one a PNG or SVG; `overview_figures` are those that a sweep has data for.
"""

from __future__ import annotations

from tracking.results.figures.overview import cell_figures, overview_figures, sweep_figures
from tracking.results.figures.results import class_accuracy_figure
from tracking.results.figures.schemes import scheme_figure
from tracking.results.figures.search import trace_figure
from tracking.results.figures.style import figure_bytes

__all__ = [
    "cell_figures",
    "class_accuracy_figure",
    "figure_bytes",
    "overview_figures",
    "scheme_figure",
    "sweep_figures",
    "trace_figure",
]
