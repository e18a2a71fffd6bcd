"""Labels of points that do not lie on each other."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dcs.io import atomic_write_bytes
from tracking.records import CellRecord
from tracking.results.frames import finished_cells, main_cells, place, shots_rank, shots_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["label_points"]


GREY, LIGHT, INK, ACCENT = "#8a96a3", "#d9dee3", "#26323d", "#b0204f"

BLUE = "#0072b2"

GRID = "#eceff1"

_DPI = 150


@dataclass(frozen=True, slots=True)
class Frame:
    """Inches around each panel for numbers and titles, and `head` above all of them.

    What is drawn for every cell is given it: finding it out takes as long as drawing.
    """

    left: float
    right: float
    top: float
    bottom: float
    head: float = 0.0


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


def look(method: object, others: Sequence[object] = ()) -> Look:
    """Return the look of a method; of an unknown one by its place among `others`."""
    known = _LOOKS.get(str(method))
    if known is not None:
        return known
    at = list(others).index(method) if method in others else 0
    return _OTHERS[at % len(_OTHERS)]


def looks(methods: Iterable[object]) -> dict[Any, Look]:
    """Return a look for each method, all different as far as they reach."""
    names = list(methods)
    others = [name for name in names if str(name) not in _LOOKS]
    return {name: look(name, others) for name in names}


def draw_point(
    axes: Axes,
    point: tuple[float, float],
    style: Look,
    *,
    xerr: Any = None,
    yerr: Any = None,
    label: str | None = None,
) -> None:
    """Draw a mean as a marker over faint lines of its deviations."""
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
    frame: Frame | None = None,
    shares: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its `count` panels of `width` by `height` inches each.

    With `shares`, one per panel, a row is so much of `height` as its largest panel needs.
    """
    rows = math.ceil(count / columns)
    columns = math.ceil(count / rows)
    head = 0.0 if frame is None else frame.head
    by_row = [1.0] * rows
    if shares is not None:
        by_row = [max(shares[columns * row : columns * (row + 1)]) for row in range(rows)]
    figure = empty_figure(width * columns, height * sum(by_row) + head, fitted=frame is None)
    if frame is not None:
        across, down = frame.left + frame.right, frame.top + frame.bottom
        figure.subplots_adjust(
            left=frame.left / (width * columns),
            right=1.0 - frame.right / (width * columns),
            bottom=frame.bottom / (height * rows + head),
            top=1.0 - (head + frame.top) / (height * rows + head),
            wspace=across / (width - across),
            hspace=down / (height - down),
        )
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
    if grid is not None:
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
    """Set one legend above all panels."""
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        figure.legend(
            handles,
            labels,
            loc="outside upper right",
            ncols=columns,
            frameon=False,
            fontsize=9,
            labelcolor=INK,
            handlelength=1.6,
        )


def fullest_prompt(records: Iterable[CellRecord]) -> dict[tuple[Any, Any], list[CellRecord]]:
    """Return the cells of the largest number of shots, by model and task; no ablations."""
    groups: dict[tuple[Any, Any], list[CellRecord]] = {}
    for cell in main_cells(finished_cells(records)):
        model, task = place(cell, "model", "task")
        groups.setdefault((model, task), []).append(cell)
    result = {}
    for key, cells in groups.items():
        shots = max((cell.identity.get("shots") for cell in cells), key=shots_rank)
        result[key] = [cell for cell in cells if cell.identity.get("shots") == shots]
    return result


def panel_name(cell: CellRecord, *, with_shots: bool = True) -> str:
    """Return task, model and prompt of a panel's cells."""
    model, task, shots = place(cell, "model", "task", "shots")
    about = ", ".join(filter(None, (str(model), shots_text(shots) if with_shots else "")))
    return f"{task} ({about})"


def shots_suffix(cells: Iterable[CellRecord]) -> str:
    """Return ``, N-shot`` where all cells have the same number of shots."""
    shots = {cell.identity.get("shots") for cell in cells}
    text = shots_text(shots.pop()) if len(shots) == 1 else ""
    return f", {text}" if text else ""


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


def save_figure(figure: Figure, folder: Path | str, name: str) -> tuple[Path, Path]:
    """Write ``name.png`` and ``name.svg`` into a folder, and return both paths."""
    paths = Path(folder) / f"{name}.png", Path(folder) / f"{name}.svg"
    atomic_write_bytes(paths[0], figure_bytes(figure, "png"))
    # The layout stands, and takes as long as the drawing.
    figure.set_layout_engine("none")
    atomic_write_bytes(paths[1], figure_bytes(figure, "svg"))
    return paths


_Box = tuple[float, float, float, float]

_SIZE = 8

#: Half the side of a marker, in points.
_MARKER = 5.0

#: From the marker to the label's nearer edge, and in which directions to look, best first.
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
    # Laying out takes long where there are many axes, and is the same for all of them.
    figure.draw_without_rendering()
    for axes, own in points.items():
        _label(axes, own, others, scale=72 / figure.dpi)


def _label(
    axes: Axes,
    points: Sequence[tuple[float, float, str]],
    others: Sequence[tuple[float, float]],
    *,
    scale: float,
) -> None:
    places = [scale * axes.transData.transform((x, y)) for x, y, _ in points]
    frame = axes.get_window_extent()
    inside: _Box = (scale * frame.x0, scale * frame.y0, scale * frame.x1, scale * frame.y1)
    bare = [scale * axes.transData.transform(point) for point in others]
    taken: list[_Box] = [
        (x - _MARKER, y - _MARKER, x + _MARKER, y + _MARKER) for x, y in (*places, *bare)
    ]
    for (x, y, text), (at_x, at_y) in zip(points, places, strict=True):
        dx, dy, distance = min(
            _offsets(text),
            key=lambda o: _cost(_box(text, at_x + o[0], at_y + o[1]), taken, inside) + o[2],
        )
        taken.append(_box(text, at_x + dx, at_y + dy))
        tie = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
        axes.annotate(
            text,
            (x, y),
            xytext=(dx, dy),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=_SIZE,
            color=INK,
            arrowprops=tie if distance > _FAR else None,
            zorder=6,
        )


def _offsets(text: str) -> Iterator[tuple[float, float, float]]:
    """Yield where the middle of a label may be, and how far its edge is from the point."""
    half_width, half_height = _half(text)
    for distance in _DISTANCES:
        for side_x, side_y in _SIDES:
            # Beside a corner of the marker a label is near enough in one direction.
            reach = _MARKER + distance - (4.0 if side_x and side_y else 2.0)
            yield side_x * (reach + half_width), side_y * (reach + half_height), distance


def _half(text: str) -> tuple[float, float]:
    return 0.31 * _SIZE * len(text) + 1.0, 0.62 * _SIZE


def _box(text: str, x: float, y: float) -> _Box:
    half_width, half_height = _half(text)
    return x - half_width, y - half_height, x + half_width, y + half_height


def _cost(box: _Box, taken: Sequence[_Box], inside: _Box) -> float:
    covered = sum(_overlap(box, other) for other in taken)
    area = (box[2] - box[0]) * (box[3] - box[1])
    return 10.0 * covered + 10.0 * (area - _overlap(box, inside))


def _overlap(one: _Box, other: _Box) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, width) * max(0.0, height)
