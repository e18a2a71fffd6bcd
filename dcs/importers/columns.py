"""Choosing the columns of a table that other people named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dcs._messages import escaped, show, suggest
from dcs._table_checks import listing
from dcs.errors import TableError
from dcs.importers._common import ImportOptions, build_table
from dcs.probabilities import ProbabilityTable
from dcs.provenance import Provenance

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
