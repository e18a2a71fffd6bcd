"""Named columns: comma-, semicolon- or tab-separated text under a header line, and Parquet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dcs.data.checks import Named, checked_ids
from dcs.data.importers.common import ImportOptions, build_table, numbers_of, text_columns
from dcs.data.table import ProbabilityTable, Provenance
from dcs.errors import TableError
from dcs.messages import escaped, listing, show, suggest

_PREFIX = "p:"


def read_csv(path: Path, options: ImportOptions) -> dict[str, ProbabilityTable]:
    """Read the one table of a text file."""
    frame = text_columns(path, separators=",;\t")
    names = [name.strip() for name in frame.iloc[0]]
    return _table(names, lambda k: frame[k].tolist()[1:], path, options)


def read_parquet(path: Path, options: ImportOptions) -> dict[str, ProbabilityTable]:
    """Read the one table of a Parquet file; only the columns that are needed."""
    from dcs.data.parquet import open_parquet, read_columns

    with open_parquet(path) as file:
        names = list(file.schema_arrow.names)

        def column(k: int) -> list[Any]:
            if names.count(names[k]) > 1:
                raise TableError(
                    f"{escaped(path)}: {names.count(names[k])} columns are named "
                    f"{show(names[k])}; rename them"
                )
            values: list[Any] = read_columns(file, [names[k]], escaped(path)).column(0).to_pylist()
            return values

        return _table(names, column, path, options)


def _table(
    names: Sequence[str], column: Callable[[int], list[Any]], path: Path, options: ImportOptions
) -> dict[str, ProbabilityTable]:
    """Make the table of a file's columns, as the options or the default names say."""
    source = escaped(path)
    labels = column(_find(names, options.label_column or "label", "label_column", source))
    id_column = options.id_column or ("id" if "id" in names else None)
    ids = None if id_column is None else column(_find(names, id_column, "id_column", source))
    if options.class_columns is not None:
        chosen = [_find(names, name, "class_columns", source) for name in options.class_columns]
    else:
        chosen = [k for k, name in enumerate(names) if name.startswith(_PREFIX)]
    if len(chosen) < 2:
        raise TableError(
            f"{source}: {len(chosen)} column(s) of class probabilities; at least 2 are needed, "
            f"named p:<class> or given with --class-columns (columns here: {listing(names)})"
        )
    rows = Named(source, ids=checked_ids(ids, n_rows=len(labels), source=source))
    table = build_table(
        np.stack([numbers_of(column(k), names[k], rows) for k in chosen], axis=1),
        labels,
        classes=[names[k].removeprefix(_PREFIX) for k in chosen],
        ids=ids,
        provenance=Provenance(source=path.name),
        options=options,
        source=source,
    )
    return {"all": table}


def _find(names: Sequence[str], wanted: str, option: str, source: str) -> int:
    """Return the number of the one column of a name, or of a number given as text."""
    matches = [k for k, name in enumerate(names) if name == wanted]
    if not matches and wanted.isdecimal() and int(wanted[:9]) < len(names):
        matches = [int(wanted)]
    if len(matches) != 1:
        raise TableError(
            f"{source}: {len(matches)} columns {show(wanted)}{suggest(wanted, names)}; give the "
            f"name or number of one with --{option.replace('_', '-')} (columns here: "
            f"{listing(names)})"
        )
    return matches[0]
