"""Import of probability tables: files of rows, and logs of other programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dcs.data.columns import Reading
from dcs.data.importers.lm_eval import LogOptions, read_logs
from dcs.data.reader import open_source, parts_of
from dcs.data.table import ProbabilityTable
from dcs.errors import ConfigError, TableError, check_choice, escaped
from dcs.io import Strict, validated


def the_table(
    tables: Mapping[str, ProbabilityTable], part: str | None, path: str | os.PathLike[str]
) -> ProbabilityTable:
    """Return the specified part, or the only table of a path.

    Raises
    ------
    ConfigError
        If the part does not exist, or there are several and none is specified.
    """
    if part is None and len(tables) == 1:
        return next(iter(tables.values()))
    check_choice(f"{escaped(path)}: --part", part, tables)
    return tables[str(part)]


def import_tables(
    format: str,
    path: str | os.PathLike[str],
    origin: Mapping[str, Any] | None = None,
    /,
    **options: Any,
) -> dict[str, ProbabilityTable]:
    """Read all tables of a path.

    Parameters
    ----------
    format : {"table", "lm-eval"}
        Rows in any form of :func:`dcs.read_table`, or sample logs of lm-evaluation-harness.
    path : path-like
        A file, or a folder of several.
    origin : mapping, optional
        Fields of :class:`dcs.Provenance` that the file may lack.
    **options
        Fields of :class:`dcs.data.columns.Reading` or
        :class:`dcs.data.importers.lm_eval.LogOptions`.

    Returns
    -------
    dict of str to ProbabilityTable
        Tables by part: ``"optimization"`` and ``"test"``, or ``"all"`` for a single file; for a
        folder of lm-evaluation-harness, by task and model.

    Raises
    ------
    ConfigError
        If the format or an option is invalid.
    TableError
        If the content is invalid; the message names file, row, class and value.
    """
    check_choice("format", format, _READERS)
    reader, kind = _READERS[format]
    given = validated(kind, options, source=f"format {format}", error=ConfigError)
    return {
        part: replace(table, provenance=replace(table.provenance, **(origin or {})))
        for part, table in reader(Path(path), given).items()
    }


def _read_rows(path: Path, given: Reading) -> dict[str, ProbabilityTable]:
    """Read a file of rows, or those of a folder by part."""
    files = parts_of(path) if path.is_dir() else {"all": path}
    if not files:
        raise TableError(f"{escaped(path)}: contains no pair such as opt.txt and test.txt")
    return {part: open_source(file, given).table for part, file in files.items()}


#: Function and options of every format.
_READERS: Final[dict[str, tuple[Callable[..., dict[str, ProbabilityTable]], type[Strict]]]] = {
    "table": (_read_rows, Reading),
    "lm-eval": (read_logs, LogOptions),
}
