"""Figures, where matplotlib is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcs.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["new_figure"]


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches that belongs to no window.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "drawing needs matplotlib, which is not installed; pip install matplotlib"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")
