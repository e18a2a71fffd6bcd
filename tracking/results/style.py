"""Common style of figures: style sheet, looks of methods, panels, legends and files."""

from __future__ import annotations

import io
import logging
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeVar

from dcs.errors import InvalidInputError, one_line
from tracking.records import UNCORRECTED

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY, LIGHT, INK, ACCENT = "#8a96a3", "#d9dee3", "#26323d", "#b0204f"
BLUE, GRID, BEATEN = "#0072b2", "#eceff1", "#f4f6f8"
#: Color map of shares from 0 to 100 %.
SHADES: Final = "Blues"
_DPI = 150
_STYLE: Final[dict[Any, Any]] = {
    "figure.dpi": _DPI,
    "axes.axisbelow": True,
    "axes.edgecolor": LIGHT,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.labelsize": 9.5,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    # With a fixed position, the title is not placed anew at every drawing.
    "axes.titley": 1.0,
    "grid.color": GRID,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.labelcolor": INK,
    "lines.markeredgecolor": "white",
    "lines.markersize": 7,
    "text.color": INK,
    # Names of classes are literal, also $5 - $10.
    "text.parse_math": False,
    "xtick.color": LIGHT,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.color": LIGHT,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 9,
    # Keep text as text: it can be searched, and the file is a third of the size.
    "svg.fonttype": "none",
    "svg.hashsalt": "dcs",
}

#: Groups marked by `tip` in an SVG; replaced with tooltips of the browser.
_TOOLTIPS: Final = re.compile(rb'<g id="tip ([^"]*)">')

_P = ParamSpec("_P")
T = TypeVar("T")

_log = logging.getLogger(__name__)


def styled(draw: Callable[_P, Figure]) -> Callable[_P, Figure]:
    """Decorate a function to draw in the common style."""

    @wraps(draw)
    def drawn(*args: _P.args, **options: _P.kwargs) -> Figure:
        import matplotlib

        with matplotlib.rc_context(_STYLE):
            return draw(*args, **options)

    return drawn


@dataclass(frozen=True, slots=True)
class Look:
    """Color, marker and hatching of a method, each of which identifies it."""

    color: str
    marker: str
    hatch: str


_LOOKS = {
    UNCORRECTED: Look(GREY, "o", ""),
    "dnip": Look(BLUE, "s", "///"),
    "furud": Look("#e69f00", "p", "..."),
    "dcs": Look(ACCENT, "D", ""),
}
# Objectives share the looks of the methods that they resemble.
_LOOKS |= {"err": _LOOKS["dnip"], "err+pmi": _LOOKS["furud"], "full": _LOOKS["dcs"]}
_OTHERS = (
    Look("#009e73", "v", "xxx"),
    Look("#56b4e9", "P", "\\\\\\"),
    Look("#5b4a9c", "X", "ooo"),
    Look("#26323d", "<", "++"),
)


def looks(names: Iterable[Any]) -> dict[Any, Look]:
    """Return a look for each method or objective; looks repeat if there are too few."""
    different = list(dict.fromkeys(names))
    others = [name for name in different if name not in _LOOKS]
    return {
        name: _LOOKS.get(name) or _OTHERS[others.index(name) % len(_OTHERS)] for name in different
    }


def series(
    axes: Axes,
    means: pd.DataFrame,
    looks: Mapping[Any, Look],
    titles: Mapping[Any, str],
    *,
    spreads: pd.DataFrame | None = None,
    kind: Literal["bars", "points", "lines"] = "points",
    dashed: Collection[Any] = (),
) -> None:
    """Draw the columns of `means` that have a look over its index, with error bars.

    Bars and points are side by side; lines, optionally dashed, join the points of a column.
    """
    step = {"bars": 0.8 / len(looks), "points": 0.12, "lines": 0.0}[kind]
    for at, (name, look) in enumerate(looks.items()):
        if name not in means:
            continue
        own = means[name].dropna()
        places = own.index.to_numpy(dtype=float) + step * (at - (len(looks) - 1) / 2)
        off = None if spreads is None else spreads[name].reindex(own.index).fillna(0)
        about: dict[str, Any] = {"yerr": off, "color": look.color, "label": titles[name]}
        if kind == "bars":
            about |= {"hatch": look.hatch, "edgecolor": "white", "linewidth": 0, "ecolor": INK}
            for bar, value in zip(axes.bar(places, own, 0.92 * step, **about), own, strict=True):
                tip(bar, f"{titles[name]}: {value:.1f}")
        else:
            line = "none" if kind != "lines" else "--" if name in dashed else "-"
            about |= {"marker": look.marker, "linestyle": line}
            axes.errorbar(places, own, elinewidth=0.8, **about)


def grid_of(
    count: int, *, width: float, height: float | Sequence[float], columns: int = 3
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its `count` panels of `width` by `height` inches each.

    If `height` is a sequence, with one height per panel, each row has its maximum.
    """
    from matplotlib.figure import Figure

    rows = math.ceil(count / columns)
    columns = math.ceil(count / rows)
    heights = height if isinstance(height, Sequence) else [height] * count
    by_row = [max(heights[columns * row : columns * (row + 1)]) for row in range(rows)]
    figure = Figure(figsize=(width * columns, sum(by_row)), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, height_ratios=by_row).flat)
    for unused in panels[count:]:
        unused.set_axis_off()
    return figure, panels[:count]


def tip(artist: Artist, text: str) -> None:
    """Add a tooltip with `text` to an artist in an SVG."""
    artist.set_gid(f"tip {text}")


def legend(figure: Figure, *, columns: int = 5) -> None:
    """Add one legend above all panels, with each label once."""
    entries = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(entries.values()), list(entries), loc="outside upper right", ncols=columns)


def drawn_or_none(name: str, draw: Callable[[], T]) -> T | None:
    """Return what `draw` returns, or None: a figure must never lose the results it shows.

    None without a warning if the records lack the data of the figure, and after a warning of one
    line if it cannot be drawn.
    """
    try:
        return draw()
    except InvalidInputError:
        return None
    except Exception as error:
        _log.warning("figure %s could not be drawn (%s)", name, one_line(error))
        return None


def figure_bytes(figure: Figure, form: Literal["png", "svg"]) -> bytes:
    """Return a figure as PNG or SVG; the same figure always gives the same bytes."""
    import matplotlib

    buffer = io.BytesIO()
    # The date and the version of the program would make files differ.
    metadata: dict[str, Any] = {"Date": None} if form == "svg" else {"Software": None}
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format=form, metadata=metadata)
    return _TOOLTIPS.sub(rb"<g><title>\1</title>", buffer.getvalue())
