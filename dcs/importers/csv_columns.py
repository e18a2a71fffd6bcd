"""Comma-, semicolon- or tab-separated text under a header line."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs._messages import escaped, reason, show
from dcs._reading import text_file
from dcs.errors import TableError
from dcs.importers._common import ImportOptions
from dcs.importers.columns import table_of_columns
from dcs.probabilities import ProbabilityTable

_SEPARATORS = ",;\t"


def read(path: Path, options: ImportOptions) -> dict[str, ProbabilityTable]:
    """Read the one table of a file."""
    return {"all": table_of_columns(CsvColumns(path), path, options)}


class CsvColumns:
    """The columns of a CSV file, as texts until asked for."""

    def __init__(self, path: Path) -> None:
        self._source = escaped(path)
        lines = _rows(path, self._source)
        _, header = next(lines, (0, []))
        if not header:
            raise TableError(f"{self._source}: empty file; a header line with names is needed")
        self.names: Sequence[str] = [name.strip() for name in header]
        self._rows: list[list[str]] = []
        for number, row in lines:
            if len(row) != len(header):
                raise TableError(
                    f"{self._source}: line {number} has {len(row)} fields, the header line has "
                    f"{len(header)}; every line needs as many"
                )
            self._rows.append(row)

    def texts_or_integers(self, index: int) -> list[str]:
        """Return a column's texts."""
        return [row[index] for row in self._rows]

    def numbers(self, index: int, ids: Sequence[Any] | None) -> NDArray[np.float64]:
        """Return a column's numbers."""
        values = np.empty(len(self._rows))
        for number, row in enumerate(self._rows):
            try:
                values[number] = float(row[index])
            except ValueError:
                name = show(str(number) if ids is None else ids[number], 40)
                raise TableError(
                    f"{self._source}: row {number} (id {name}), column "
                    f"{show(self.names[index])}: value is {show(row[index])}; a number is needed"
                ) from None
        return values


def _rows(path: Path, source: str) -> Iterator[tuple[int, list[str]]]:
    target = text_file(path, error=TableError)
    try:
        with target.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            # The separator is what the header line holds most of.
            reader = csv.reader(file, delimiter=max(_SEPARATORS, key=first.count), strict=True)
            for row in reader:
                if row:
                    yield reader.line_num, row
    except UnicodeDecodeError as error:
        raise TableError(f"{source}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    except (csv.Error, OSError) as error:
        raise TableError(f"{source}: cannot be read as CSV: {reason(error)}") from error
