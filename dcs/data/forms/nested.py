"""A column of lists, or of objects, of numbers: JSON, Parquet, or their text in CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dcs.data.columns import Reading, is_label
from dcs.data.forms.base import Form, Rows, is_number, parsed_cells, structured
from dcs.errors import TableError, show

if TYPE_CHECKING:
    import pandas as pd


def _inner(cell: Any) -> dict[str, Any]:
    """Return numbers by their key or place; empty if the cell is something else."""
    pairs = [*enumerate(cell)] if isinstance(cell, list | tuple) else []
    pairs = [*cell.items()] if isinstance(cell, dict) else pairs
    numbers = all(each is None or is_number(each) for _, each in pairs)
    return {str(key): each for key, each in pairs} if numbers else {}


def _columns(frame: pd.DataFrame, given: Reading) -> dict[str, list[dict[str, Any]]]:
    """Return the columns whose cells are lists or objects of numbers; a label is neither."""
    found = {}
    for name in (n for n in structured(frame) if n != given.label and not is_label(n)):
        cells = parsed_cells(frame, name)
        rows = [_inner(cell) for cell in cells]
        if any(rows) and all(row or cell is None for row, cell in zip(rows, cells, strict=True)):
            found[name] = rows
    return found


def _rows(frame: pd.DataFrame, given: Reading) -> Rows:
    import pandas as pd

    parts = {name: frame[[name]] for name in frame.columns}
    for name, rows in _columns(frame, given).items():
        keys = list(dict.fromkeys(key for row in rows for key in row))
        short = [k for k, row in enumerate(rows) if row and len(row) < len(keys)]
        if short and keys == [str(k) for k in range(len(keys))]:
            raise TableError(
                f"row {short[0]}, column {show(name)}: {len(rows[short[0]])} numbers, others have "
                f"{len(keys)}; give one per class in every row"
            )
        added = {f"{name}.{key}": [row.get(key) for row in rows] for key in keys}
        parts[name] = pd.DataFrame(added, index=frame.index, dtype=object)
    return Rows(pd.concat([*parts.values()], axis=1))


FORM = Form(
    "lists or objects of numbers", lambda frame, given: bool(_columns(frame, given)), _rows
)
