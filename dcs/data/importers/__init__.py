"""Other people's files -> probability tables.

A format is one module with a function ``read(path, options)`` that gives the tables a path holds,
by part; it is imported when first used. Ours are listed in `IMPORTERS`; an installed package adds
one as an entry point of ``dcs.importers``.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from dcs.data.importers.common import COMMON_OPTIONS, ImportOptions, TargetKind
from dcs.data.table import ProbabilityTable
from dcs.errors import ConfigError
from dcs.messages import escaped, show, suggest
from dcs.plugins import find_plugin, plugin_names

__all__ = [
    "IMPORTERS",
    "ImportOptions",
    "Importer",
    "format_names",
    "import_file",
    "import_tables",
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
        The module that reads them, imported when first used.
    options : frozenset of str
        The fields of :class:`ImportOptions` it heeds besides those that every format heeds.
    """

    name: str
    summary: str
    module: str
    options: frozenset[str] = frozenset()


IMPORTERS: tuple[Importer, ...] = (
    Importer(
        "npz",
        "NumPy archive with probs (or logits) [M, N] and labels [M]; optionally classes and ids",
        "dcs.data.importers.npz",
        frozenset({"normalise", "logits", "classes"}),
    ),
    Importer(
        "csv",
        "text columns under a header line: label, one p:<class> per class, optionally id",
        "dcs.data.importers.columns",
        frozenset(
            {"normalise", "logits", "classes", "id_column", "label_column", "class_columns"}
        ),
    ),
    Importer(
        "parquet",
        "Parquet columns of any names: label, one p:<class> per class, optionally id",
        "dcs.data.importers.parquet_columns",
        frozenset(
            {"normalise", "logits", "classes", "id_column", "label_column", "class_columns"}
        ),
    ),
    Importer(
        "vectors",
        "text lines `id label prediction p_0 ... p_{N-1}`: one file, or a folder with opt.txt "
        "and test.txt",
        "dcs.data.importers.vectors",
        frozenset({"normalise", "logits", "classes"}),
    ),
    Importer(
        "lm-eval",
        "lm-evaluation-harness sample log of a multiple-choice task (samples_<task>_<date>.jsonl)",
        "dcs.data.importers.lm_eval",
        frozenset({"classes", "filter", "targets"}),
    ),
)
"""Our own formats, in the order in which help lists them."""


def format_names() -> tuple[str, ...]:
    """Return the names of all formats, ours first.

    Returns
    -------
    tuple of str
        What `import_file` takes.
    """
    own = tuple(importer.name for importer in IMPORTERS)
    return own + tuple(name for name in plugin_names("dcs.importers") if name not in own)


def import_file(
    format: str,
    path: str | os.PathLike[str],
    *,
    part: str | None = None,
    normalise: bool = False,
    logits: bool = False,
    classes: Iterable[str] | None = None,
    id_column: str | None = None,
    label_column: str | None = None,
    class_columns: Iterable[str] | None = None,
    filter: str | None = None,
    targets: TargetKind = "auto",
    model: str | None = None,
    task: str | None = None,
) -> ProbabilityTable:
    """Read one probability table from a file of another format.

    Parameters
    ----------
    format : str
        One of :func:`format_names`.
    path : path-like
        A file, or a folder where the format allows one.
    part : str, optional
        Which table, if the path holds several: ``"optimization"`` or ``"test"``.
    normalise, logits, classes, id_column, label_column, class_columns, filter, targets : optional
        See :class:`ImportOptions`. An option that the format does not heed is refused.
    model, task : str, optional
        Provenance that the file does not tell.

    Raises
    ------
    ConfigError
        If format, part or an option is not allowed.
    TableError
        If the content cannot become a table; names file, row, class and value.
    """
    options = ImportOptions(
        normalise=normalise,
        logits=logits,
        classes=_names(classes, "classes"),
        id_column=id_column,
        label_column=label_column,
        class_columns=_names(class_columns, "class_columns"),
        filter=filter,
        targets=targets,
        model=model,
        task=task,
    )
    tables = import_tables(format, path, options)
    held = ", ".join(map(show, tables))
    if part is not None:
        if part not in tables:
            raise ConfigError(f"{escaped(path)}: no part {show(part)}; parts here: {held}")
        return tables[part]
    if len(tables) > 1:
        raise ConfigError(
            f"{escaped(path)}: holds several tables ({held}); choose one with --part (part=...)"
        )
    return next(iter(tables.values()))


def import_tables(
    format: str, path: str | os.PathLike[str], options: ImportOptions | None = None
) -> dict[str, ProbabilityTable]:
    """Read all tables that a path holds.

    Returns
    -------
    dict of str to ProbabilityTable
        By part: ``"optimization"``, ``"test"``, or ``"all"`` if the format knows no parts.

    Raises
    ------
    ConfigError, TableError
        As in :func:`import_file`.
    """
    options = options or ImportOptions()
    importer = _find(format)
    heeded = importer.options | COMMON_OPTIONS
    for name in options.given():
        if name not in heeded:
            raise ConfigError(
                f"format {importer.name} has no option {name}; "
                f"its options: {', '.join(sorted(heeded))}"
            )
    if options.targets not in get_args(TargetKind):
        raise ConfigError(
            f"option targets is {show(options.targets)}; "
            f"allowed: {', '.join(get_args(TargetKind))}"
        )
    module = importlib.import_module(importer.module)
    tables: dict[str, ProbabilityTable] = module.read(Path(path), options)
    return {part: _told(table, options) for part, table in tables.items()}


def _told(table: ProbabilityTable, options: ImportOptions) -> ProbabilityTable:
    if options.model is None and options.task is None:
        return table
    provenance = dataclasses.replace(
        table.provenance,
        model=options.model or table.provenance.model,
        task=options.task or table.provenance.task,
    )
    return dataclasses.replace(table, provenance=provenance)


def _find(format: str) -> Importer:
    for importer in IMPORTERS:
        if importer.name == format:
            return importer
    plugin = find_plugin("dcs.importers", format, Importer)
    if plugin is not None:
        return plugin
    names = format_names()
    raise ConfigError(
        f"unknown format {show(format)}{suggest(format, names)}; allowed: {', '.join(names)}"
    )


def _names(values: Iterable[str] | None, option: str) -> tuple[str, ...] | None:
    if values is None:
        return None
    if isinstance(values, str):
        raise ConfigError(f"option {option} is the text {show(values)}; a list of names is needed")
    return tuple(values)
