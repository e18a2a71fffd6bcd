"""A column of lists, or of objects, of numbers: JSON, Parquet, or their text in CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dcs.data.columns import Reading, is_label
from dcs.data.forms.base import Form, Rows, is_number, parsed_cells
from dcs.errors import TableError

if TYPE_CHECKING:
    import pandas as pd


def _inner(cell: Any) -> dict[str, Any] | None:
    """Return numbers by their key or place, None if the cell has others."""
    found = cell if isinstance(cell, dict) else None
    if isinstance(cell, list | tuple):
        found = {str(k): each for k, each in enumerate(cell)}
    if not found or not all(each is None or is_number(each) for each in found.values()):
        return None
    return {str(key): each for key, each in found.items()}


def _columns(frame: pd.DataFrame, given: Reading) -> dict[str, list[dict[str, Any] | None]]:
    """Return the columns whose cells are lists or objects of numbers."""
    found = {}
    for name in frame.columns:
        # A label is one class: a list of them is refused.
        cells = [] if name == given.label or is_label(name) else parsed_cells(frame, name)
        rows = [_inner(cell) for cell in cells]
        if any(rows) and all(row or cell is None for row, cell in zip(rows, cells, strict=True)):
            found[name] = rows
    return found


def _rows(frame: pd.DataFrame, given: Reading, source: str) -> Rows:
    import pandas as pd

    for name, rows in _columns(frame, given).items():
        keys = list(dict.fromkeys(key for row in rows if row for key in row))
        sizes = [len(row) for row in rows if row]
        if keys == [str(k) for k in range(len(keys))] and len({*sizes}) > 1:
            row = next(k for k, each in enumerate(rows) if each and len(each) != sizes[0])
            raise TableError(
                f"{source}: row {row}, column {name!r}: a list of {len(rows[row] or ())} numbers, "
                f"others have {sizes[0]}; give one number per class in every row"
            )
        added = {f"{name}.{key}": [(row or {}).get(key) for row in rows] for key in keys}
        place = list(frame.columns).index(name)
        flat = pd.DataFrame(added, index=frame.index, dtype=object)
        frame = pd.concat([frame.iloc[:, :place], flat, frame.iloc[:, place + 1 :]], axis=1)
    return Rows(frame)


FORM = Form(
    "lists or objects of numbers", lambda frame, given: bool(_columns(frame, given)), _rows
)
