"""Files of Arrow as frames: what pandas cannot hold is cast once, at the door."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcs.errors import TableError, escaped, reason, show
from dcs.io import existing_file

if TYPE_CHECKING:
    import pandas as pd


@contextmanager
def reading_arrow(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Raise errors of pyarrow inside the block as a :class:`TableError` about the file."""
    import pyarrow as pa

    target = existing_file(path, error=TableError)
    try:
        yield target
    except TableError:
        raise
    except (pa.ArrowException, OSError, TypeError, ValueError, LookupError, MemoryError) as error:
        raise TableError(
            f"{escaped(path)}: not a {target.suffix[1:]} file, or corrupt: {reason(error)}; "
            "give another file, or write it again"
        ) from error


@contextmanager
def open_parquet(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a Parquet file as a `pyarrow.parquet.ParquetFile`; see :func:`reading_arrow`."""
    import pyarrow.parquet as pq

    # A zstd page with one flipped bit can still decompress; only the checksum detects it.
    with (
        reading_arrow(path) as target,
        pq.ParquetFile(target, page_checksum_verification=True) as file,
    ):
        yield file


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
    faults = (pa.ArrowException, ValueError, OverflowError, TypeError, LookupError, RuntimeError)
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            columns.append(_series(column))
        except faults as error:
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

    types, kind = pa.types, column.type
    if isinstance(kind, pa.BaseExtensionType):
        column = pa.chunked_array([each.storage for each in column.chunks], kind.storage_type)
    if types.is_run_end_encoded(kind):
        column = pa.chunked_array([*map(pc.run_end_decode, column.chunks)], kind.value_type)
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if types.is_nested(kind) or types.is_null(kind) or types.is_interval(kind):
        return pd.Series(column.to_pylist(maps_as_pydicts="strict"), dtype=object)
    if types.is_float16(kind) or types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif types.is_temporal(kind):
        column.to_pylist()  # fails if Python cannot represent one of them
    elif not (types.is_primitive(kind) or types.is_boolean(kind)):
        # Strings, binary and views of them.
        try:
            column = column.cast(pa.large_string())
        except pa.ArrowInvalid:  # pictures, say
            return pd.Series(column.to_pylist(), dtype=object)
    return pd.Series(pd.arrays.ArrowExtensionArray(column))
