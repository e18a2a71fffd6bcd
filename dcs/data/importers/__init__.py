"""Other people's files -> probability tables: ours, and the entry points ``dcs.importers``.

A format is one function ``read(path, options)`` that gives the tables a path holds, by part.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import Named, checked_classes, checked_ids, checked_shape, softmax
from dcs.data.table import ProbabilityTable, Provenance
from dcs.errors import ConfigError, TableError, check_choice, escaped, listing, unknown
from dcs.io import Strict, read_text, validated
from dcs.plugins import find_named

__all__ = [
    "IMPORTERS",
    "ImportOptions",
    "Importer",
    "build_table",
    "find_importer",
    "import_file",
    "import_tables",
    "read_tables",
    "table_sources",
    "text_of",
    "the_table",
]

TargetKind: TypeAlias = Literal["auto", "index", "text"]

#: Largest file of text: the numbers read from it take several times its size.
_TEXT_BYTES: Final = 2**32


class ImportOptions(Strict):
    """What a person can say about a file to be imported.

    Parameters
    ----------
    normalise : bool
        Divide each row by its sum instead of refusing rows that do not sum to 1.
    logits : bool
        The values are logits or log-probabilities: apply a softmax to each row.
    classes : tuple of str, optional
        Class names in the order of the columns; they replace those the file gives.
    id_column, label_column : str, optional
        Column by name, or by number from 0; ``id`` and ``label``, if there, when not given.
    class_columns : tuple of str, optional
        Columns of the classes by name or number, in class order; ``p:<class>`` when not given.
    filter : str, optional
        Which filter's responses to take where the log holds several.
    targets : {"auto", "index", "text"}
        Whether a target such as ``"1"`` is a choice's number or its text. ``auto`` decides where
        only one reading fits the log.
    model, task : str, optional
        Provenance that the file does not tell.
    """

    normalise: bool = False
    logits: bool = False
    classes: tuple[str, ...] | None = None
    id_column: str | None = None
    label_column: str | None = None
    class_columns: tuple[str, ...] | None = None
    filter: str | None = None
    targets: TargetKind = "auto"
    model: str | None = None
    task: str | None = None


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


def import_file(
    format: str, path: str | os.PathLike[str], *, part: str | None = None, **options: Any
) -> ProbabilityTable:
    """Read one probability table from a file of another format.

    Parameters
    ----------
    format : str
        One of `IMPORTERS` or of an installed package.
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
        part: replace(table, provenance=replace(table.provenance, **told))
        for part, table in tables.items()
    }


def find_importer(format: str) -> Importer:
    """Return the importer of a format, built in or of an installed package.

    Raises
    ------
    ConfigError
        If there is none, or that of a package cannot be used.
    """
    own = {importer.name: importer for importer in IMPORTERS}
    return find_named("dcs.importers", format, own, Importer, lacks=_lacks)


def _lacks(importer: Importer) -> str:
    return "" if callable(_reader(importer)) else f"a function {importer.module}"


def _reader(importer: Importer) -> Callable[[Path, ImportOptions], dict[str, ProbabilityTable]]:
    place = importer.module if ":" in importer.module else f"{importer.module}:read"
    reader: Callable[..., dict[str, ProbabilityTable]] = resolve_name(place)
    return reader


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
    if not path.exists():
        raise TableError(f"{escaped(path)}: no such file or folder; {_READABLE}")
    raise TableError(f"{escaped(path)}: is no source of tables; {_READABLE}")


def build_table(
    values: ArrayLike,
    labels: Sequence[Any],
    *,
    classes: Sequence[Any] | None,
    ids: Sequence[Any] | None,
    provenance: Provenance,
    options: ImportOptions,
    source: str,
    logits: bool = False,
) -> ProbabilityTable:
    """Make a table from what a file holds: labels may be names or missing, values logits."""
    array = checked_shape(values, source=source)
    n_rows, n_classes = array.shape
    given = options.classes or classes
    names = Named(
        source,
        checked_classes(given, n_classes=n_classes, source=source),
        checked_ids(ids, n_rows=n_rows, source=source),
    )
    return ProbabilityTable.from_arrays(
        _probabilities(array, names) if logits or options.logits else array,
        _label_numbers(labels, names, named=given is not None),
        classes=names.classes,
        ids=names.ids,
        provenance=provenance,
        normalise=options.normalise,
        source=source,
    )


def _label_numbers(labels: Sequence[Any], names: Named, *, named: bool) -> Sequence[Any]:
    """Return labels that are texts as class numbers; leave others as they are.

    If every text is a class name, the texts are names. If not, every text must be an integer
    ``0 .. N-1``. What is empty or -1 is no label.
    """
    labels = ["" if label is None or label != label else label for label in labels]
    if len(labels) != len(names.ids) or not all(isinstance(text, str) for text in labels):
        return [None if label == "" else label for label in labels]
    stripped = [text.strip() for text in labels]
    none = {"": -1, "-1": -1}
    readings = [none | {str(k): k for k in range(len(names.classes))}]
    if named:
        readings.insert(0, none | {name.strip(): k for k, name in enumerate(names.classes)})
    wrong = [np.array([text not in reading for text in stripped]) for reading in readings]
    for reading, misfits in zip(readings, wrong, strict=True):
        if not misfits.any():
            return [reading[text] for text in stripped]
    # A row that is neither is the fault, even if rows before it are only one of the two.
    neither = np.logical_and.reduce(wrong)
    names.refuse(
        neither if neither.any() else wrong[-1],
        labels,
        f"allowed are 0..{len(names.classes) - 1} or "
        + (listing(names.classes) if named else "class names if --classes names the columns"),
        what="label",
    )
    return labels


def _probabilities(logits: NDArray[np.float64], names: Named) -> NDArray[np.float64]:
    """Return probabilities [M, N] of logits or log-probabilities; ``-inf`` becomes 0."""
    none = np.isneginf(logits.max(axis=1, keepdims=True))
    wrong = ~(logits < np.inf) | none
    names.refuse(wrong, logits, "finite numbers or -inf, one in a row finite, are needed")
    return softmax(logits)


def text_of(path: Path) -> str:
    """Return the text of a file to be imported."""
    return read_text(path, error=TableError, limit=_TEXT_BYTES)
