"""Figures from cell records: matplotlib figures, not attached to any window.

`figure_bytes` makes one a PNG or SVG; `overview_figures` are those that a sweep has data for.
"""

from __future__ import annotations

from tracking.results.figures.cells import (
    cell_figures,
    confusion_figure,
    front_figure,
    scheme_figure,
    trace_figure,
)
from tracking.results.figures.style import figure_bytes
from tracking.results.figures.sweeps import (
    class_accuracy_figure,
    overview_figures,
    sweep_figures,
)

__all__ = [
    "cell_figures",
    "class_accuracy_figure",
    "confusion_figure",
    "figure_bytes",
    "front_figure",
    "overview_figures",
    "scheme_figure",
    "sweep_figures",
    "trace_figure",
]
