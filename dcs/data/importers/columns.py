"""Comma-, semicolon- or tab-separated text under a header line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dcs.data.checks import listing
from dcs.data.importers.common import ImportOptions, build_table
from dcs.data.table import ProbabilityTable, Provenance
from dcs.errors import TableError
from dcs.io import text_file
from dcs.messages import escaped, reason, show, suggest

_PREFIX = "p:"


class Columns(Protocol):
    """A file of named columns."""

    names: Sequence[str]

    def texts_or_integers(self, index: int) -> Any:
        """Return ids or labels."""

    def numbers(self, index: int, ids: Sequence[Any] | None) -> NDArray[np.float64]:
        """Return probabilities or logits; `ids` name the rows in messages."""


def table_of_columns(columns: Columns, path: Path, options: ImportOptions) -> ProbabilityTable:
    """Make a table of a file's columns, as the options or the default names say."""
    source = escaped(path)
    names = columns.names
    label = _find(names, options.label_column or "label", "label_column", source)
    id_column = options.id_column or ("id" if "id" in names else None)
    ids = None
    if id_column is not None:
        ids = columns.texts_or_integers(_find(names, id_column, "id_column", source))
    if options.class_columns is not None:
        chosen = [_find(names, name, "class_columns", source) for name in options.class_columns]
    else:
        chosen = [k for k, name in enumerate(names) if name.startswith(_PREFIX)]
    if len(chosen) < 2:
        raise TableError(
            f"{source}: {len(chosen)} column(s) of class probabilities; at least 2 are needed, "
            f"named p:<class> or given with --class-columns (columns here: {listing(names)})"
        )
    values = [columns.numbers(k, ids) for k in chosen]
    return build_table(
        np.stack(values, axis=1),
        columns.texts_or_integers(label),
        classes=[names[k].removeprefix(_PREFIX) for k in chosen],
        ids=ids,
        provenance=Provenance(source=path.name),
        options=options,
        source=source,
    )


def _find(names: Sequence[str], wanted: str, option: str, source: str) -> int:
    matches = [k for k, name in enumerate(names) if name == wanted]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise TableError(
            f"{source}: {len(matches)} columns are named {show(wanted)}; give the number of one "
            f"from 0 with --{option.replace('_', '-')}"
        )
    if re.fullmatch(r"[0-9]{1,9}", wanted) and int(wanted) < len(names):
        return int(wanted)
    raise TableError(
        f"{source}: no column {show(wanted)}{suggest(wanted, names)}; name one with "
        f"--{option.replace('_', '-')} (columns here: {listing(names)})"
    )


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
