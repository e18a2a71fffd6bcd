"""Importers of probability tables: built-in formats and the entry points ``dcs.importers``.

A format is a function ``read(path, options)`` that returns the tables of a path by part. Files of
rows are read without an importer, by :mod:`dcs.data.reader`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, TypeAlias

from dcs.data.columns import Reading
from dcs.data.reader import open_source, parts_of
from dcs.data.table import ProbabilityTable
from dcs.errors import ConfigError, TableError, check_choice, escaped, unknown
from dcs.io import validated
from dcs.plugins import find_named

TargetKind: TypeAlias = Literal["auto", "index", "text"]

#: Log-likelihood of a choice: the sum over its tokens, divided by the number of characters (as
#: ``acc_norm``), or minus that without the prompt (as ``acc_mutual_info``).
ChoiceScore: TypeAlias = Literal["sum", "mean", "unconditional"]


class ImportOptions(Reading):
    """User-specified options of an import, besides those of how columns are read.

    Parameters
    ----------
    filter : str, optional
        Filter whose responses are used if the log contains several.
    targets : {"auto", "index", "text"}
        Whether a target such as ``"1"`` is the index of a choice or its text. ``"auto"`` decides
        if only one interpretation fits the log.
    choice_score : {"sum", "mean", "unconditional"}
        How choices are scored: by the sum of the log-likelihoods of their tokens, by their mean
        per character, or by the sum minus that without the prompt.
    model, task, shots, demonstration_seed : optional
        Provenance, if the file does not specify it.
    """

    filter: str | None = None
    targets: TargetKind = "auto"
    choice_score: ChoiceScore = "sum"
    model: str | None = None
    task: str | None = None
    shots: int | Literal["N"] | None = None
    demonstration_seed: int | None = None


@dataclass(frozen=True, slots=True)
class Importer:
    """A format that can be imported.

    Parameters
    ----------
    name : str
        Name of the format on the command line.
    summary : str
        One-line description of the files.
    module : str
        Module with the reader, imported on first use. The function is ``read``, unless another
        name follows after a colon.
    options : frozenset of str
        Supported fields of :class:`ImportOptions`, besides those that every format supports.
    """

    name: str
    summary: str
    module: str
    options: frozenset[str] = frozenset()


_ORIGIN = frozenset({"model", "task", "shots", "demonstration_seed"})  # supported by every format
_READING = frozenset({"columns", "classes", "label", "id", "values", "separator"})

IMPORTERS: tuple[Importer, ...] = (
    Importer(
        "table",
        "Parquet, CSV, TSV, JSON lines, npz, or vectors `id label prediction p_0 ...` in opt.txt "
        "and test.txt; columns are inferred",
        "dcs.data.importers:read_any",
        _READING,
    ),
    Importer(
        "lm-eval",
        "lm-evaluation-harness sample log of a multiple-choice task (samples_<task>_<date>.jsonl) "
        "or folder of such logs",
        "dcs.data.importers.lm_eval",
        frozenset({"classes", "filter", "targets", "choice_score"}),
    ),
)
"""Built-in formats, in the order in which the help lists them."""


def import_file(
    format: str, path: str | os.PathLike[str], *, part: str | None = None, **options: Any
) -> ProbabilityTable:
    """Read one probability table from a file of another format.

    Parameters
    ----------
    format : str
        Name of one of `IMPORTERS`, or of a format of an installed package.
    path : path-like
        A file, or a folder if the format supports it.
    part : str, optional
        Table to return if the path contains several: ``"optimization"``, ``"test"``, or another
        key of :func:`import_tables`.
    **options
        Fields of :class:`ImportOptions`; those that the format does not support are refused.

    Raises
    ------
    ConfigError
        If format, part or an option is invalid.
    TableError
        If the content is invalid; the message names file, row, class and value.
    """
    return the_table(import_tables(format, path, **options), part, path)


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
    if part is not None and part in tables:
        return tables[part]
    raise unknown(f"{escaped(path)}: --part (part=...)", part, tables)


def import_tables(
    format: str, path: str | os.PathLike[str], **options: Any
) -> dict[str, ProbabilityTable]:
    """Read all tables of a path.

    Returns
    -------
    dict of str to ProbabilityTable
        Tables by part: ``"optimization"``, ``"test"``, or ``"all"`` for a format without parts;
        for a folder of lm-evaluation-harness, by task and model.

    Raises
    ------
    ConfigError, TableError
        As in :func:`import_file`.
    """
    importer = find_importer(format)
    chosen = validated(ImportOptions, options, source=f"format {importer.name}", error=ConfigError)
    specified = chosen.model_dump(exclude_defaults=True)
    for name in specified:
        check_choice(f"option of format {importer.name}", name, sorted(importer.options | _ORIGIN))
    tables = _load_reader(importer)(Path(path), chosen)
    origin = {name: specified[name] for name in _ORIGIN & specified.keys()}
    return {
        part: replace(table, provenance=replace(table.provenance, **origin))
        for part, table in tables.items()
    }


def find_importer(format: str) -> Importer:
    """Return the importer of a format, built-in or of an installed package.

    Raises
    ------
    ConfigError
        If the format does not exist, or the importer of a package is invalid.
    """
    own = {importer.name: importer for importer in IMPORTERS}
    return find_named("dcs.importers", format, own, Importer, lacks=_lacks)


def _lacks(importer: Importer) -> str:
    return "" if callable(_load_reader(importer)) else f"a function {importer.module}"


def _load_reader(importer: Importer) -> Callable[..., dict[str, ProbabilityTable]]:
    name = importer.module if ":" in importer.module else f"{importer.module}:read"
    reader: Callable[..., dict[str, ProbabilityTable]] = resolve_name(name)
    return reader


def read_any(path: Path, options: ImportOptions) -> dict[str, ProbabilityTable]:
    """Read a file of rows, or those of a folder by part."""
    given = Reading(**{name: getattr(options, name) for name in Reading.model_fields})
    files = parts_of(path) if path.is_dir() else {"all": path}
    if not files:
        raise TableError(f"{escaped(path)}: contains no pair such as opt.txt and test.txt")
    return {part: open_source(file, given).table for part, file in files.items()}
