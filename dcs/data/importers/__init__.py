"""Other people's files -> probability tables: ours, and the entry points ``dcs.importers``.

A format is one function ``read(path, options)`` that gives the tables a path holds, by part.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcs.data.importers.common import ImportOptions
from dcs.data.table import ProbabilityTable
from dcs.errors import ConfigError, TableError
from dcs.messages import check_choice, escaped, listing, unknown
from dcs.plugins import find_plugin, plugin_names, refuse_shadow
from dcs.validation import validated

__all__ = [
    "IMPORTERS",
    "ImportOptions",
    "Importer",
    "find_importer",
    "format_names",
    "import_file",
    "import_tables",
    "read_tables",
    "table_sources",
    "the_table",
]


@dataclass(frozen=True, slots=True)
class Importer:
    """A format that can be imported.

    Parameters
    ----------
    name : str
        What is typed.
    summary : str
        What the files look like, in one line.
    module : str
        The module that reads them, imported when first used; its function is ``read`` unless
        another follows after a colon.
    options : frozenset of str
        The fields of :class:`ImportOptions` it heeds besides those that every format heeds.
    """

    name: str
    summary: str
    module: str
    options: frozenset[str] = frozenset()


_ORIGIN = frozenset({"model", "task"})  # which every format heeds
_VALUES = frozenset({"normalise", "logits", "classes"})
_COLUMNS = _VALUES | {"id_column", "label_column", "class_columns"}

IMPORTERS: tuple[Importer, ...] = (
    Importer(
        "npz",
        "NumPy archive with probs (or logits) [M, N]; optionally labels [M], classes and ids",
        "dcs.data.importers.numbers:read_npz",
        _VALUES,
    ),
    Importer(
        "csv",
        "text columns under a header line: one p:<class> per class, optionally label and id",
        "dcs.data.importers.numbers:read_csv",
        _COLUMNS,
    ),
    Importer(
        "parquet",
        "Parquet columns of any names: one p:<class> per class, optionally label and id",
        "dcs.data.importers.numbers:read_parquet",
        _COLUMNS,
    ),
    Importer(
        "vectors",
        "text lines `id label prediction p_0 ... p_{N-1}`: one file, or a folder with opt.txt "
        "and test.txt",
        "dcs.data.importers.numbers:read_vectors",
        _VALUES,
    ),
    Importer(
        "lm-eval",
        "lm-evaluation-harness sample log of a multiple-choice task (samples_<task>_<date>.jsonl) "
        "or folder of such logs",
        "dcs.data.importers.lm_eval",
        frozenset({"classes", "filter", "targets"}),
    ),
)
"""Our own formats, in the order in which help lists them."""


def format_names() -> tuple[str, ...]:
    """Return the names of all formats, ours first."""
    own = tuple(importer.name for importer in IMPORTERS)
    return own + tuple(name for name in plugin_names("dcs.importers") if name not in own)


def import_file(
    format: str, path: str | os.PathLike[str], *, part: str | None = None, **options: Any
) -> ProbabilityTable:
    """Read one probability table from a file of another format.

    Parameters
    ----------
    format : str
        One of :func:`format_names`.
    path : path-like
        A file, or a folder where the format allows one.
    part : str, optional
        Which table, if the path holds several: ``"optimization"``, ``"test"``, or a name that
        :func:`import_tables` gives.
    **options
        The fields of :class:`ImportOptions`. One that the format does not heed is refused.

    Raises
    ------
    ConfigError
        If format, part or an option is not allowed.
    TableError
        If the content cannot become a table; names file, row, class and value.
    """
    return the_table(import_tables(format, path, **options), part, path)


def the_table(
    tables: Mapping[str, ProbabilityTable], part: str | None, path: str | os.PathLike[str]
) -> ProbabilityTable:
    """Return the only table of a path, or the part that was named.

    Raises
    ------
    ConfigError
        If there is no such part, or several and none was named.
    """
    if part is None and len(tables) == 1:
        return next(iter(tables.values()))
    if part is not None and part in tables:
        return tables[part]
    raise unknown(f"{escaped(path)}: --part (part=...)", part, tables)


def import_tables(
    format: str, path: str | os.PathLike[str], **options: Any
) -> dict[str, ProbabilityTable]:
    """Read all tables that a path holds.

    Returns
    -------
    dict of str to ProbabilityTable
        By part: ``"optimization"``, ``"test"``, or ``"all"`` if the format knows no parts; of a
        folder of lm-evaluation-harness by task and model.

    Raises
    ------
    ConfigError, TableError
        As in :func:`import_file`.
    """
    importer = find_importer(format)
    asked = validated(ImportOptions, options, source=f"format {importer.name}", error=ConfigError)
    given = asked.model_dump(exclude_defaults=True)
    for name in given:
        check_choice(f"option of format {importer.name}", name, sorted(importer.options | _ORIGIN))
    tables = _reader(importer)(Path(path), asked)
    told = {name: given[name] for name in _ORIGIN & given.keys()}
    return {
        part: dataclasses.replace(table, provenance=dataclasses.replace(table.provenance, **told))
        for part, table in tables.items()
    }


def find_importer(format: str) -> Importer:
    """Return the importer of a format, built in or of an installed package.

    Raises
    ------
    ConfigError
        If there is none, or that of a package cannot be used.
    """
    for importer in IMPORTERS:
        if importer.name == format:
            refuse_shadow("dcs.importers", format)
            return importer
    plugin = find_plugin("dcs.importers", format, Importer, lacks=_lacks)
    if plugin is None:
        raise unknown("format", format, format_names())
    return plugin


def _lacks(importer: Importer) -> list[str]:
    return [] if callable(_reader(importer)) else [f"a function {importer.module}"]


def _reader(importer: Importer) -> Any:
    module, _, function = importer.module.partition(":")
    return getattr(importlib.import_module(module), function or "read", None)


def table_sources(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return what :func:`read_tables` reads: the path itself, or all that a folder holds.

    Returns
    -------
    tuple of pathlib.Path
        Sorted.

    Raises
    ------
    TableError
        If a folder holds no tables.
    """
    given = Path(path)
    if not given.is_dir() or _pair(given):
        return (given,)
    sources = (p for p in given.iterdir() if p.suffix in (".parquet", ".npz") or _pair(p))
    if found := tuple(sorted(sources)):
        return found
    raise TableError(f"{escaped(given)}: holds no tables; {_READABLE}")


def read_tables(path: str | os.PathLike[str]) -> dict[str, ProbabilityTable]:
    """Read the optimization rows of a source, and its test rows if it tells them apart.

    Parameters
    ----------
    path : path-like
        A table of ours (``.parquet``), a NumPy archive (``.npz``), or a folder with a pair of
        tables: ``optimization.parquet`` and ``test.parquet`` as `dcs generate` writes them, or
        ``opt.txt`` and ``test.txt`` as published, where the name of the folder,
        ``<task>_<model>_shot<k>_seed<s>``, becomes the provenance.

    Returns
    -------
    dict of str to ProbabilityTable
        ``"optimization"``, and ``"test"`` unless test rows are yet to be held out of the first.

    Raises
    ------
    TableError
        If it is something else, a table is malformed, or the classes of a pair differ.
    """
    source = Path(path)
    pair = _pair(source)
    if not pair:
        return {"optimization": _read(source)}
    tables = {part: _read(file) for part, file in pair.items()}
    optimization, test = (table.classes for table in tables.values())
    if optimization != test:
        raise TableError(
            f"{escaped(source)}: the optimization rows have the classes {listing(optimization)}, "
            f"the test rows {listing(test)}; both must be the same in the same order"
        )
    return tables


_PAIRS = (("optimization.parquet", "test.parquet"), ("opt.txt", "test.txt"))

_READABLE = (
    "give a .parquet table, an .npz archive, or a folder with optimization.parquet and "
    "test.parquet or opt.txt and test.txt; `dcs import` makes tables of other files"
)


def _pair(folder: Path) -> dict[str, Path]:
    """Return the two files of a pair by part, or nothing unless both are in the folder."""
    for names in _PAIRS:
        optimization, test = (folder / name for name in names)
        if optimization.is_file() and test.is_file():
            return {"optimization": optimization, "test": test}
    return {}


def _read(path: Path) -> ProbabilityTable:
    if path.suffix == ".parquet":
        return ProbabilityTable.read(path)
    if path.suffix in (".npz", ".txt"):
        return import_file("npz" if path.suffix == ".npz" else "vectors", path)
    raise TableError(f"{escaped(path)}: is no source of tables; {_READABLE}")
