"""Parquet files whose columns have other names or types than a probability table's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dcs.data.importers.columns import table_of_columns
from dcs.data.importers.common import ImportOptions
from dcs.data.parquet import is_text, no_nulls, open_parquet, plain, read_table
from dcs.data.table import ProbabilityTable
from dcs.errors import TableError
from dcs.io import existing_file
from dcs.messages import escaped, show


def read(path: Path, options: ImportOptions) -> dict[str, ProbabilityTable]:
    """Read the one table of a file."""
    target = existing_file(path, error=TableError)
    with open_parquet(target) as file:
        columns = ParquetColumns(file, escaped(target))
        return {"all": table_of_columns(columns, target, options)}


class ParquetColumns:
    """The columns of an open Parquet file, each read when asked for."""

    def __init__(self, file: Any, source: str) -> None:
        self._file = file
        self._source = source
        self.names: Sequence[str] = list(file.schema_arrow.names)

    def texts_or_integers(self, index: int) -> list[Any]:
        """Return a column of texts or integers."""
        column = self._column(index)
        name, kind = self.names[index], column.type
        if not (pa.types.is_integer(kind) or is_text(kind)):
            raise TableError(
                f"{self._source}: column {show(name)} has type {kind}; "
                "texts or integers are needed"
            )
        no_nulls(column, name, [str(row) for row in range(len(column))], self._source)
        values: list[Any] = column.to_pylist()
        return values

    def numbers(self, index: int, ids: Sequence[Any] | None) -> NDArray[np.float64]:
        """Return a column of numbers."""
        column = self._column(index)
        name, kind = self.names[index], column.type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            raise TableError(
                f"{self._source}: column {show(name)} has type {kind}; numbers are needed"
            )
        rows = list(ids) if ids is not None else [str(row) for row in range(len(column))]
        return no_nulls(column, name, rows, self._source).astype(np.float64)

    def _column(self, index: int) -> Any:
        name = self.names[index]
        if self.names.count(name) > 1:
            raise TableError(f"{self._source}: two columns are named {show(name)}; rename one")
        return plain(read_table(self._file, [name], self._source).column(name))
