"""Labels of points that do not lie on each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tracking.figures._style import GREY, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["label_points"]

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
