"""Columns of Arrow as columns of a frame: what pandas cannot hold is cast once, at the door."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dcs.errors import TableError, escaped, reason, show
from dcs.io import existing_file

if TYPE_CHECKING:
    import pandas as pd


def frame_of(table: Any, source: str) -> pd.DataFrame:
    """Return the frame of a `pyarrow.Table`: numbers, text, and nested values as plain Python.

    Raises
    ------
    TableError
        If a column cannot be converted; names it and its type.
    """
    import pandas as pd
    import pyarrow as pa

    columns: list[pd.Series[Any]] = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            columns.append(_series(column))
        except (
            pa.ArrowException,
            ValueError,
            OverflowError,
            TypeError,
            LookupError,
            RuntimeError,
        ) as error:
            raise TableError(
                f"{source}: column {show(name)} of type {column.type} cannot be converted: "
                f"{reason(error)}; drop it, or cast it to text or numbers"
            ) from None
    if not columns:
        return pd.DataFrame(index=range(table.num_rows))
    return pd.concat(columns, axis=1).set_axis([*table.column_names], axis=1)


def _series(column: Any) -> pd.Series[Any]:
    """Return a column of Arrow as one of pandas."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc

    types = pa.types
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array(
            [chunk.storage for chunk in column.chunks], column.type.storage_type
        )
    if types.is_run_end_encoded(column.type):
        column = pa.chunked_array(
            [pc.run_end_decode(chunk) for chunk in column.chunks], column.type.value_type
        )
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if types.is_nested(kind):
        pairs = types.is_map(kind)
        cells = [dict(cell) if pairs and cell is not None else cell for cell in column.to_pylist()]
        return pd.Series(cells, dtype=object)
    if types.is_null(kind):
        return pd.Series([None] * len(column), dtype=object)
    if types.is_float16(kind) or types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif types.is_temporal(kind):
        column = _dates(column)
    elif not (types.is_primitive(kind) or types.is_boolean(kind)):
        # Strings, binary and views of them.
        try:
            column = column.cast(pa.large_string())
        except pa.ArrowInvalid:  # pictures, say
            return pd.Series(column.to_pylist(), dtype=object)
    frame: pd.DataFrame = pa.table({"": column}).to_pandas(
        types_mapper=pd.ArrowDtype, ignore_metadata=True
    )
    return frame.iloc[:, 0]


def _dates(column: Any) -> Any:
    """Return dates, times and durations unchanged if Python can represent them, else as text."""
    import pyarrow as pa

    if pa.types.is_interval(column.type):
        return pa.chunked_array([pa.array([str(each) for each in column.to_pylist()])])
    try:
        column.to_pylist()
    except (pa.ArrowException, ValueError, OverflowError, TypeError, LookupError):
        # The text of a moment in an unknown zone has no zone.
        known = not pa.types.is_timestamp(column.type)
        plain = column if known else column.cast(pa.timestamp(column.type.unit))
        return plain.cast(pa.string() if not pa.types.is_duration(column.type) else pa.int64())
    return column


def open_feather(path: str | os.PathLike[str]) -> Any:
    """Return the `pyarrow.Table` of a Feather or Arrow file or stream.

    Raises
    ------
    TableError
        If it is neither, or is corrupt.
    """
    import pyarrow as pa

    target = existing_file(path, error=TableError)
    try:
        with pa.memory_map(os.fspath(target)) as file:
            try:
                return pa.ipc.open_file(file).read_all()
            except pa.ArrowInvalid:
                file.seek(0)
                return pa.ipc.open_stream(file).read_all()
    except (pa.ArrowException, OSError, ValueError, TypeError, MemoryError) as error:
        raise TableError(
            f"{escaped(path)}: not a Feather or Arrow file, or corrupt: {reason(error)}; "
            "give another file, or write it again"
        ) from error
