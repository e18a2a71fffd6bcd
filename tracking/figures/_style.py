"""One look for all figures: colours told apart by lightness too, light grids, no clutter."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dcs._files import atomic_write_bytes
from tracking._readings import finished_cells, place, shots_rank, shots_text
from tracking.records import CellRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY, LIGHT, INK, ACCENT = "#8a96a3", "#d9dee3", "#26323d", "#b0204f"
GRID = "#eceff1"


@dataclass(frozen=True, slots=True)
class Look:
    """How a method is drawn: hue, lightness, marker and hatching all tell it."""

    color: str
    marker: str
    hatch: str


_LOOKS = {
    "icl": Look(GREY, "o", ""),
    "dnip": Look("#0072b2", "s", "///"),
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


def grid_of(
    count: int, *, width: float, height: float, columns: int = 3
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its `count` panels of `width` by `height` inches each."""
    from matplotlib.figure import Figure

    rows = math.ceil(count / columns)
    columns = math.ceil(count / rows)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained", dpi=150)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in panels[count:]:
        unused.set_axis_off()
    return figure, panels[:count]


def tidy(axes: Axes, *, grid: Literal["x", "y", "both"] | None = "y") -> None:
    """Take away what carries no information."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LIGHT)
    axes.tick_params(color=LIGHT, labelcolor=INK, labelsize=9)
    axes.set_axisbelow(True)
    if grid is not None:
        axes.grid(axis=grid, color=GRID)


def title(axes: Axes, text: str) -> None:
    """Set a panel's title, on the left."""
    axes.set_title(text, loc="left", fontsize=10, color=INK)


def legend(figure: Figure, axes: Axes, *, columns: int = 4) -> None:
    """Set one legend above all panels."""
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        figure.legend(
            handles, labels, loc="outside upper right", ncols=columns, frameon=False, fontsize=9
        )


def fullest_prompt(records: Iterable[CellRecord]) -> dict[tuple[Any, Any], list[CellRecord]]:
    """Return the cells of the largest number of shots, by model and task."""
    groups: dict[tuple[Any, Any], list[CellRecord]] = {}
    for cell in finished_cells(records):
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
    atomic_write_bytes(paths[1], figure_bytes(figure, "svg"))
    return paths
