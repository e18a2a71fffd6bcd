"""Importers of probability tables: built-in formats and the entry points ``dcs.importers``.

A format is a function ``read(path, options)`` that returns the tables of a path by part.
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

TargetKind: TypeAlias = Literal["auto", "index", "text"]

#: Log-likelihood of a choice: the sum over its tokens, divided by the number of characters (as
#: ``acc_norm``), or minus that without the prompt (as ``acc_mutual_info``).
ChoiceScore: TypeAlias = Literal["sum", "mean", "unconditional"]

#: Maximum size of a text file: its parsed content takes several times that much memory.
_TEXT_BYTES: Final = 2**32


class ImportOptions(Strict):
    """User-specified options of an import.

    Parameters
    ----------
    normalise : bool
        Divide each row by its sum instead of refusing rows that do not sum to 1.
    logits : bool
        The values are logits or log-probabilities: apply a softmax to each row.
    counts : bool
        The values are votes; see :meth:`dcs.ProbabilityTable.from_counts`.
    classes : tuple of str, optional
        Class names in the order of the columns; they override those of the file.
    id_column, label_column : str, optional
        Column name, or number from 0; by default ``id`` and ``label`` if they exist.
    class_columns : tuple of str, optional
        Class columns by name or number, in class order; by default those named ``p:<class>``.
    filter : str, optional
        Filter whose responses are used if the log contains several.
    targets : {"auto", "index", "text"}
        Whether a target such as ``"1"`` is the index of a choice or its text. ``"auto"`` decides
        if only one interpretation fits the log.
    choice_score : {"sum", "mean", "unconditional"}
        How choices are scored: by the sum of the log-likelihoods of their tokens, by their mean
        per character, or by the sum minus that without the prompt.
    model, task : str, optional
        Provenance, if the file does not specify it.
    """

    normalise: bool = False
    logits: bool = False
    counts: bool = False
    classes: tuple[str, ...] | None = None
    id_column: str | None = None
    label_column: str | None = None
    class_columns: tuple[str, ...] | None = None
    filter: str | None = None
    targets: TargetKind = "auto"
    choice_score: ChoiceScore = "sum"
    model: str | None = None
    task: str | None = None


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


_ORIGIN = frozenset({"model", "task"})  # supported by every format
_VALUES = frozenset({"normalise", "logits", "counts", "classes"})
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


def table_sources(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return the sources for :func:`read_tables`: the path itself, or all in a folder, sorted.

    Raises
    ------
    TableError
        If a folder contains no tables.
    """
    root = Path(path)
    if not root.is_dir() or _find_pair(root):
        return (root,)
    sources = (p for p in root.iterdir() if p.suffix in (".parquet", ".npz") or _find_pair(p))
    if found := tuple(sorted(sources)):
        return found
    raise TableError(f"{escaped(root)}: contains no tables; {_READABLE}")


def read_tables(path: str | os.PathLike[str]) -> dict[str, ProbabilityTable]:
    """Read the optimization rows of a source, and its test rows if they are separate.

    Parameters
    ----------
    path : path-like
        A probability table (``.parquet``), a NumPy archive (``.npz``), or a folder with a pair of
        tables: ``optimization.parquet`` and ``test.parquet`` as written by `dcs generate`, or the
        published ``opt.txt`` and ``test.txt``, where the name of the folder,
        ``<task>_<model>_shot<k>_seed<s>``, specifies the provenance.

    Returns
    -------
    dict of str to ProbabilityTable
        ``"optimization"``, and ``"test"`` unless test rows still have to be held out.

    Raises
    ------
    TableError
        If the path is not a source, a table is invalid, or the classes of a pair differ.
    """
    source = Path(path)
    pair = _find_pair(source)
    if not pair:
        return {"optimization": _read(source)}
    tables = {part: _read(file) for part, file in pair.items()}
    optimization, test = (table.classes for table in tables.values())
    if optimization != test:
        raise TableError(
            f"{escaped(source)}: classes of the optimization rows are {listing(optimization)}, "
            f"those of the test rows {listing(test)}; both must be identical and in the same order"
        )
    return tables


_PAIRS = (("optimization.parquet", "test.parquet"), ("opt.txt", "test.txt"))

_READABLE = (
    "give a .parquet table, an .npz archive, or a folder with optimization.parquet and "
    "test.parquet or opt.txt and test.txt; use `dcs import` for other formats"
)


def _find_pair(folder: Path) -> dict[str, Path]:
    """Return the two files of a pair by part, or an empty dictionary if either is missing."""
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
    fault = "is not a source of tables" if path.exists() else "file or folder does not exist"
    raise TableError(f"{escaped(path)}: {fault}; {_READABLE}")


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
    """Create a table from the content of a file; labels can be names, and values logits."""
    array = checked_shape(values, source=source)
    n_rows, n_classes = array.shape
    class_names = options.classes or classes
    names = Named(
        source,
        checked_classes(class_names, n_classes=n_classes, source=source),
        checked_ids(ids, n_rows=n_rows, source=source),
    )
    parts: dict[str, Any] = {"classes": names.classes, "ids": names.ids, "source": source}
    indices = _to_indices(labels, names, named=class_names is not None)
    if options.counts:
        return ProbabilityTable.from_counts(array, indices, provenance=provenance, **parts)
    return ProbabilityTable.from_arrays(
        _to_probabilities(array, names) if logits or options.logits else array,
        indices,
        provenance=provenance,
        normalise=options.normalise,
        **parts,
    )


def _to_indices(labels: Sequence[Any], names: Named, *, named: bool) -> Sequence[Any]:
    """Convert labels that are strings to class indices; return other labels unchanged.

    If every string is a class name, strings are names. Otherwise every string must be an integer
    ``0 .. N-1``. Empty strings and -1 are missing labels.
    """
    labels = ["" if label is None or label != label else label for label in labels]
    if len(labels) != len(names.ids) or not all(isinstance(text, str) for text in labels):
        return [None if label == "" else label for label in labels]
    stripped = [text.strip() for text in labels]
    missing = {"": -1, "-1": -1}
    readings = [missing | {str(k): k for k in range(len(names.classes))}]
    if named:
        readings.insert(0, missing | {name.strip(): k for k, name in enumerate(names.classes)})
    wrong = [np.array([text not in reading for text in stripped]) for reading in readings]
    for reading, misfits in zip(readings, wrong, strict=True):
        if not misfits.any():
            return [reading[text] for text in stripped]
    # Report a row that is invalid in both readings rather than an earlier one valid in either.
    neither = np.logical_and.reduce(wrong)
    names.refuse(
        neither if neither.any() else wrong[-1],
        labels,
        f"must be in 0..{len(names.classes) - 1} or "
        + (f"one of {listing(names.classes)}" if named else "a name given with --classes"),
        what="label",
    )
    return labels


def _to_probabilities(logits: NDArray[np.float64], names: Named) -> NDArray[np.float64]:
    """Convert logits or log-probabilities to probabilities [M, N]; ``-inf`` becomes 0."""
    impossible = np.isneginf(logits.max(axis=1, keepdims=True))
    wrong = ~(logits < np.inf) | impossible
    names.refuse(wrong, logits, "must be finite or -inf, with a finite value in every row")
    return softmax(logits)


def text_of(path: Path) -> str:
    """Read the text of a file to be imported, up to the maximum size."""
    return read_text(path, error=TableError, limit=_TEXT_BYTES)
