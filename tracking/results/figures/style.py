"""How all figures look: colours, panels, axes, labels, files."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tracking.results.frames import method_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Look",
    "bars",
    "draw_point",
    "empty_figure",
    "figure_bytes",
    "figure_files",
    "grid_of",
    "label_points",
    "legend",
    "log_scale",
    "looks",
    "place_labels",
    "tidy",
    "title",
]

GREY, LIGHT, INK, ACCENT = "#8a96a3", "#d9dee3", "#26323d", "#b0204f"
BLUE = "#0072b2"
GRID = "#eceff1"
_DPI = 150


@dataclass(frozen=True, slots=True)
class Look:
    """How a method is drawn: hue, lightness, marker and hatching all tell it."""

    color: str
    marker: str
    hatch: str


_LOOKS = {
    "icl": Look(GREY, "o", ""),
    "dnip": Look(BLUE, "s", "///"),
    "furud": Look("#e69f00", "^", "..."),
    "dcs": Look(ACCENT, "D", ""),
}
_OTHERS = (
    Look("#009e73", "v", "xxx"),
    Look("#56b4e9", "P", "\\\\\\"),
    Look("#5b4a9c", "X", "ooo"),
    Look("#26323d", "*", "++"),
)


def looks(methods: Iterable[Any]) -> dict[Any, Look]:
    """Return a look for each method, all different as far as they reach."""
    names = list(dict.fromkeys(methods))
    others = [name for name in names if name not in _LOOKS]
    return {name: _LOOKS.get(name) or _OTHERS[others.index(name) % len(_OTHERS)] for name in names}


def bars(
    axes: Axes, heights: Sequence[float], style: Look, *, at: int, of: int, label: str, **more: Any
) -> None:
    """Draw series number `at` of `of` as bars side by side, in percent."""
    width = 0.8 / of
    axes.bar(
        [place + (at - (of - 1) / 2) * width for place in range(len(heights))],
        [100 * height for height in heights],
        width=0.92 * width,
        color=style.color,
        hatch=style.hatch,
        edgecolor="white",
        linewidth=0,
        label=label,
        **more,
    )


def draw_point(
    axes: Axes,
    point: tuple[float, float],
    method: object,
    style: Look,
    *,
    xerr: Any = None,
    yerr: Any = None,
) -> None:
    """Draw a mean as a marker over faint lines of its deviations."""
    label = method_title(method)
    axes.errorbar(
        *point, xerr=xerr, yerr=yerr, fmt="none", ecolor=style.color, elinewidth=1, alpha=0.45
    )
    axes.plot(
        *point,
        style.marker,
        color=style.color,
        markersize=7.5,
        markeredgecolor="white",
        markeredgewidth=0.8,
        label=label,
        zorder=4,
    )


def empty_figure(width: float, height: float, *, fitted: bool = True) -> Figure:
    """Return a figure of a size in inches; `fitted` finds its margins out, which takes a while."""
    from matplotlib.figure import Figure

    layout: Literal["constrained"] | None = "constrained" if fitted else None
    return Figure(figsize=(width, height), layout=layout, dpi=_DPI)


def grid_of(
    count: int,
    *,
    width: float,
    height: float,
    columns: int = 3,
    shares: Sequence[float] | None = None,
    head: float = 0.0,
    fitted: bool = True,
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its `count` panels of `width` by `height` inches each.

    With `shares`, one per panel, a row is so much of `height` as its largest panel needs; above
    all panels `head` inches are left free.
    """
    rows = math.ceil(count / columns)
    columns = math.ceil(count / rows)
    by_row = [1.0] * rows
    if shares is not None:
        by_row = [max(shares[columns * row : columns * (row + 1)]) for row in range(rows)]
    figure = empty_figure(width * columns, height * sum(by_row) + head, fitted=fitted)
    panels = list(figure.subplots(rows, columns, squeeze=False, height_ratios=by_row).flat)
    for unused in panels[count:]:
        unused.set_axis_off()
    return figure, panels[:count]


def place_labels(axes: Axes, *, left: float, below: float) -> None:
    """Put the labels of a panel's axes so many inches off it.

    By default matplotlib looks for room beside the numbers, which takes as long as the drawing.
    """
    axes.xaxis.set_label_coords(0.5, -below * _DPI / axes.bbox.height)
    axes.yaxis.set_label_coords(-left * _DPI / axes.bbox.width, 0.5)


def tidy(axes: Axes, *, grid: Literal["x", "y", "both"] | None = "y") -> None:
    """Take away what carries no information."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LIGHT)
    axes.tick_params(which="both", color=LIGHT, labelcolor=INK, labelsize=9)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(color=INK, fontsize=9.5)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color=GRID)


def title(axes: Axes, text: str) -> None:
    """Set a panel's title, on the left."""
    # With a place of its own it is not looked for at every drawing.
    axes.set_title(text, loc="left", y=1.0, fontsize=10, color=INK)


def log_scale(axes: Axes, which: Literal["x", "y"], *, ticks: int = 3) -> None:
    """Make an axis logarithmic, with plain numbers and at least so many of them."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = sorted(axis.get_view_interval())
    for steps in ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)):
        if sum(low <= s * 10.0**power <= high for power in range(-9, 10) for s in steps) >= ticks:
            break
    axis.set_major_locator(LogLocator(base=10, subs=steps))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())


def legend(figure: Figure, axes: Axes, *, columns: int = 4) -> None:
    """Set one legend above all panels, each label once."""
    handles, labels = axes.get_legend_handles_labels()
    entries = dict(zip(reversed(labels), reversed(handles), strict=True))
    if entries:
        names = list(dict.fromkeys(labels))
        figure.legend(
            [entries[name] for name in names],
            names,
            loc="outside upper right",
            ncols=columns,
            frameon=False,
            fontsize=9,
            labelcolor=INK,
            handlelength=1.6,
        )


#: Half the side of a marker and the height of a letter, in points.
_MARKER, _SIZE = 5.0, 8
#: How far a label is from its marker, and in which directions to look, best first.
_DISTANCES = (4.0, 10.0, 18.0, 28.0)
_SIDES = ((1, 1), (1, 0), (1, -1), (-1, 1), (-1, 0), (-1, -1), (0, 1), (0, -1))
#: A label farther away is tied to its point by a line.
_FAR = 8.0


def label_points(
    figure: Figure,
    points: Mapping[Axes, Sequence[tuple[float, float, str]]],
    *,
    others: Sequence[tuple[float, float]] = (),
) -> None:
    """Write a text beside each point, where neither points nor other texts are.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        With the final limits of its axes.
    points : mapping of matplotlib.axes.Axes to sequence of (float, float, str)
        In the coordinates of the data.
    others : sequence of (float, float)
        Points without a label, which no text is to lie on.
    """
    from matplotlib.transforms import Bbox

    # Laying out takes long where there are many axes, and is the same for all of them.
    figure.draw_without_rendering()
    scale = 72 / figure.dpi
    tie = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
    for axes, own in points.items():
        frame = Bbox(scale * axes.get_window_extent().get_points())
        marks = [(x, y) for x, y, _ in own] + list(others)
        places = scale * axes.transData.transform(marks)
        taken = [Bbox.from_extents(*(at - _MARKER), *(at + _MARKER)) for at in places]
        for (x, y, text), at in zip(own, places, strict=False):
            half = 0.31 * _SIZE * len(text) + 1.0, 0.62 * _SIZE
            cost, offset, box = math.inf, (0.0, 0.0, 0.0), frame
            for distance in _DISTANCES:
                for side in _SIDES:
                    # Beside a corner of the marker a label is near enough in one direction.
                    reach = _MARKER + distance - (4.0 if all(side) else 2.0)
                    dx, dy = (way * (reach + size) for way, size in zip(side, half, strict=True))
                    middle = at + (dx, dy)
                    tried = Bbox.from_extents(*(middle - half), *(middle + half))
                    hidden = sum(_overlap(tried, other) for other in taken)
                    outside = tried.width * tried.height - _overlap(tried, frame)
                    if (now := 10.0 * (hidden + outside) + distance) < cost:
                        cost, offset, box = now, (dx, dy, distance), tried
            taken.append(box)
            axes.annotate(
                text,
                (x, y),
                xytext=offset[:2],
                textcoords="offset points",
                ha="center",
                va="center",
                fontsize=_SIZE,
                color=INK,
                arrowprops=tie if offset[2] > _FAR else None,
                zorder=6,
            )


def _overlap(one: Any, other: Any) -> float:
    shared = one.intersection(one, other)
    return 0.0 if shared is None else float(shared.width * shared.height)


def figure_bytes(figure: Figure, form: Literal["png", "svg"]) -> bytes:
    """Return a figure as PNG or as SVG; the same figure always gives the same bytes."""
    import matplotlib

    buffer = io.BytesIO()
    # Text stays text: it can be searched, and the file is a third of the size.
    # The date and the program's version would make every file another one.
    metadata: dict[str, Any] = {"Date": None} if form == "svg" else {"Software": None}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dcs"}):
        figure.savefig(buffer, format=form, metadata=metadata)
    return buffer.getvalue()


def figure_files(figure: Figure, name: str) -> dict[str, bytes]:
    """Return ``name.png`` and ``name.svg``."""
    png = figure_bytes(figure, "png")
    # The layout stands, and takes as long as the drawing.
    figure.set_layout_engine("none")
    return {f"{name}.png": png, f"{name}.svg": figure_bytes(figure, "svg")}
