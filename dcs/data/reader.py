"""One reader of class probabilities: Parquet, CSV, TSV, JSON lines, npz, vectors, data frames."""

from __future__ import annotations

import csv
import io
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dcs.data.checks import (
    MOST_VALUES,
    Named,
    checked_classes,
    checked_ids,
    flat_names,
    refuse_too_large,
)
from dcs.data.columns import CORRECTED, PREFIX, Reading, cells_of, infer, to_number, to_shares
from dcs.data.labels import TELLING, as_text, read_labels
from dcs.data.table import ProbabilityTable, Provenance, open_parquet
from dcs.errors import ConfigError, TableError, escaped, quoted, reason, show
from dcs.io import existing_file, parse_json, read_json, read_text, validated

if TYPE_CHECKING:
    import pandas as pd

#: Maximum size of a text file: its parsed content takes several times that much memory.
_TEXT_BYTES: Final = 2**32

#: Maximum number of columns: a mistaken separator or orientation fails at once.
_MOST_COLUMNS: Final = 20_000

#: Lines of a text file by which its separator is found.
_SAMPLED_LINES: Final = 20

SUFFIXES: Final = (".parquet", ".npz", ".csv", ".tsv", ".jsonl")
"""Suffixes of the files that are read, apart from the published vectors (.txt)."""

_PARTS: Final = {
    "optimization": "optimization",
    "opt": "optimization",
    "train": "optimization",
    "dev": "development",
    "test": "test",
}
_FOLDER: Final = re.compile(
    r"(?P<task>[^_]+)_(?P<model>.+)_shot(?P<shots>[0-9]{1,6}|N)_seed(?P<seed>[0-9]{1,18})"
)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A file of rows: its table, and all of its columns.

    Attributes
    ----------
    table : ProbabilityTable
        Its class probabilities and labels.
    frame : DataFrame
        All columns as they are in the file.
    reading : Reading
        How the columns were read.
    remark : str
        What was inferred, in one line; empty if nothing was.
    """

    table: ProbabilityTable
    frame: pd.DataFrame
    reading: Reading
    remark: str = ""


def read_table(source: Any, **reading: Any) -> ProbabilityTable:
    """Read class probabilities and labels from a file or a data frame.

    Parameters
    ----------
    source : path-like or DataFrame
        A Parquet, CSV, TSV, JSON-lines or npz file, published vectors (.txt), or a data frame.
    **reading
        Fields of :class:`dcs.data.columns.Reading`: ``columns``, ``classes``, ``label``, ``id``
        and ``values``; what is not specified is inferred from names and values.

    Returns
    -------
    ProbabilityTable
        The rows; ``table.provenance.reading`` is how they were read.

    Raises
    ------
    TableError
        If the content is ambiguous or invalid; the message names the file and the row, or says
        what to specify.

    Examples
    --------
    >>> frame = pd.DataFrame({"prob_no": ["90%", "20%"], "prob_yes": ["10%", "80%"]})
    >>> dcs.read_table(frame.assign(gold=["no", "yes"])).classes
    ('no', 'yes')
    """
    return open_source(source, as_reading(reading)).table


def as_reading(values: Mapping[str, Any], *, source: str = "reading") -> Reading:
    """Return the reading of plain values.

    Raises
    ------
    ConfigError
        If a key or value is invalid.
    """
    return validated(Reading, dict(values), source=source, error=ConfigError)


def open_source(
    source: Any, given: Reading | None = None, *, known: Reading | None = None
) -> Source:
    """Read a file or data frame with all of its columns.

    Parameters
    ----------
    source : path-like or DataFrame
        As in :func:`read_table`; ``-`` is CSV or JSON lines from standard input.
    given : Reading, optional
        What the user specifies.
    known : Reading, optional
        How earlier rows of the same kind were read; followed where it fits.

    Raises
    ------
    TableError
        As in :func:`read_table`.
    """
    given = given or Reading()
    if hasattr(source, "columns"):
        return _interpret(source, given, known, "data frame", Provenance())
    path = Path(source)
    name = escaped(path)
    if path.suffix == ".parquet":
        with open_parquet(path) as file:
            _refuse_many_columns(file.metadata.num_columns, name)
            refuse_too_large(file.metadata.num_rows, file.metadata.num_columns, source=name)
            own = b"dcs" in (file.schema_arrow.metadata or {})
            frame = _parquet_frame(file)
        if own:
            table = ProbabilityTable.read(path)
            columns = tuple(PREFIX + each for each in table.classes)
            reading = Reading(
                columns=columns,
                classes=table.classes,
                label="label",
                id="id",
                values="probabilities",
            )
            return Source(table, frame, reading)
        return _interpret(frame, given, known, name, Provenance(source=path.name))
    if path.suffix == ".npz":
        frame, kind, about = _npz_frame(path, given.classes)
        if given.values is None and kind != "probs":
            given = given.model_copy(update={"values": _ARRAYS[kind]})
        origin = Provenance(model=about.get("model"), task=about.get("task"), source=path.name)
        return _interpret(frame, given, known, name, origin, documented=True)
    if path.suffix == ".txt":
        origin = _provenance_of(path)
        return _interpret(_vectors_frame(path), given, known, name, origin, documented=True)
    if str(path) != "-" and path.suffix not in SUFFIXES and not path.is_file():
        fault = "is a folder" if path.is_dir() else "file or folder does not exist"
        raise TableError(f"{name}: {fault}; {READABLE}")
    text = (
        sys.stdin.read()
        if str(path) == "-"
        else read_text(path, error=TableError, limit=_TEXT_BYTES)
    )
    if path.suffix == ".jsonl" or (
        path.suffix not in SUFFIXES and text.lstrip()[:1] in ("{", "[")
    ):
        frame = _json_frame(text, name)
    else:
        frame, separator = _text_frame(text, name, given.separator)
        given = given.model_copy(update={"separator": separator})
    return _interpret(frame, given, known, name, Provenance(source=path.name))


READABLE: Final = (
    "give a .parquet, .csv, .tsv, .jsonl or .npz file, or a folder with optimization.* and test.* "
    "or opt.txt and test.txt; use `dcs import` for other formats"
)


def _interpret(
    frame: pd.DataFrame,
    given: Reading,
    known: Reading | None,
    source: str,
    origin: Provenance,
    *,
    documented: bool = False,
) -> Source:
    """Return the table of a frame."""
    if not len(frame):
        raise TableError(f"{source}: cannot be read: no rows")
    frame = _without_index(frame, source)
    _refuse_many_columns(frame.shape[1], source)
    refuse_too_large(*frame.shape, source=source)
    given, known = _normalised(given), known and _normalised(known)
    frame = frame.set_axis(flat_names(frame.columns), axis=1)
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise TableError(f"{source}: column names are not unique: {show(twice)}; rename one")
    reading, numbers = infer(frame, given, source=source, known=known)
    columns, kind = reading.columns or (), reading.values or "probabilities"
    classes = checked_classes(reading.classes, n_classes=len(columns), source=source)
    ids = None if reading.id is None else cells_of(frame[reading.id])
    names = Named(source, classes, checked_ids(ids, n_rows=len(frame), source=source))
    probs = to_shares(numbers, kind)
    remarks = [
        f"{source}: {len(frame):,} rows, classes {quoted(classes)} from columns "
        f"{quoted(columns, 4)} ({kind})",
        f"labels from {show(reading.label)}" if reading.label else "no labels",
        *([f"ids from {show(reading.id)}"] if reading.id else []),
    ]
    if kind in ("probabilities", "percent"):
        sums = np.nansum(numbers, axis=1) / (100.0 if kind == "percent" else 1.0)
        if rounded := int((np.abs(sums - 1.0) > 1e-6).sum()):
            remarks.append(f"{rounded:,} rows were rounded, and are normalised")
    if empty := int(np.isnan(numbers).sum()):
        remarks.append(f"{empty:,} empty cells are 0")
    cells = [None] * len(frame) if reading.label is None else cells_of(frame[reading.label])
    labels, how = read_labels(cells, probs, names, counting=reading.labels, documented=documented)
    if reading.label is not None:
        remarks[1] += f" {how}"
        marked = labels[labels >= 0]
        if marked.size and (marked == probs.argmax(axis=1)[labels >= 0]).all():
            remarks.append("labels name the most probable class of every row")
            if known is None and given.label is None and marked.size >= TELLING:
                raise TableError(
                    f"{source}: column {show(reading.label)} names the most probable class of "
                    "every row: are these labels or predictions; specify --read "
                    f"label={reading.label} if they are labels, or another column"
                )
        if missing := int((labels < 0).sum()):
            remarks.append(f"{missing:,} rows without a label")
        absent = [name for k, name in enumerate(classes) if marked.size and k not in marked]
        if absent:
            remarks.append(f"no row is labelled {quoted(absent)}")
    corrected = all(each.startswith(CORRECTED) for each in columns)
    origin = replace(origin, reading=reading, corrected_by="a scheme" if corrected else None)
    parts: dict[str, Any] = {"classes": classes, "ids": names.ids, "provenance": origin}
    if kind == "votes":
        counts = np.nan_to_num(numbers, nan=0.0)
        table = ProbabilityTable.from_counts(counts, labels, source=source, **parts)
    else:
        table = ProbabilityTable.from_arrays(probs, labels, source=source, **parts)
    return Source(table, frame, reading, "; ".join(remarks))


def _normalised(reading: Reading) -> Reading:
    """Return a reading whose names are spelled as those of columns are: in Unicode NFC."""
    lists = {name: getattr(reading, name) for name in ("columns", "classes")}
    changes: dict[str, Any] = {k: tuple(map(as_text, v)) for k, v in lists.items() if v}
    changes |= {k: as_text(v) for k in ("label", "id") if (v := getattr(reading, k)) is not None}
    return reading.model_copy(update=changes)


def _without_index(frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """Return a frame with the named levels of its index as columns."""
    import pandas as pd

    named = [name for name in frame.index.names if name is not None and name not in frame]
    if len(named) < frame.index.nlevels > 1:
        raise TableError(
            f"{source}: the index has {frame.index.nlevels} levels without names of their own; "
            "call reset_index() and name the columns"
        )
    levels = {
        name: frame.index.get_level_values(level)
        for level, name in enumerate(frame.index.names)
        if name in named
    }
    frame = frame.reset_index(drop=True)
    if not levels:
        return frame
    plain = pd.DataFrame({name: values.to_numpy() for name, values in levels.items()})
    return pd.concat([plain, frame.set_axis(flat_names(frame.columns), axis=1)], axis=1)


def _refuse_many_columns(number: int, source: str) -> None:
    if number > _MOST_COLUMNS:
        raise TableError(
            f"{source}: {number:,} columns; at most {_MOST_COLUMNS:,} can be read; give a file "
            "with a row per text and a column per class"
        )


def _parquet_frame(file: Any) -> pd.DataFrame:
    import pandas as pd

    # By default, pandas converts integer columns with missing values to float, and turns some
    # columns into an index.
    table = file.read()
    frame: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype, ignore_metadata=True)
    return frame


def _text_frame(text: str, source: str, separator: str | None) -> tuple[pd.DataFrame, str]:
    """Parse separated text under a header line; all cells are text."""
    import pandas as pd

    text = text.lstrip("\r\n")
    if separator is None:
        head = text.split("\n", 1)[0]
        for mark in ",;\t|":
            _refuse_many_columns(head.count(mark) + 1, source)
        separator = max(",;\t|", key=lambda mark: _n_fields(text, mark))
    try:
        # Missing fields at the end of a line become empty.
        cells = pd.read_csv(
            io.StringIO(text), header=None, sep=separator, dtype=str, keep_default_na=False
        )
    except ValueError as error:
        raise TableError(f"{source}: cannot be read as columns: {reason(error)}") from None
    names = [str(name).strip() for name in cells.iloc[0]]
    if not to_number(pd.Series(names)).wrong.any():
        raise TableError(
            f"{source}: the first line holds numbers; a line of column names is needed"
        )
    return cells[1:].set_axis(names, axis=1).reset_index(drop=True), separator


def _n_fields(text: str, separator: str) -> int:
    """Return the number of columns under a separator, 0 if the first lines differ."""
    lines = [
        line for line in text.split("\n", _SAMPLED_LINES + 1)[:_SAMPLED_LINES] if line.strip()
    ]
    try:
        counts = {len(row) for row in csv.reader(lines, delimiter=separator)}
    except csv.Error:
        return 0
    return counts.pop() if len(counts) == 1 else min(1, len(counts))


def _json_frame(text: str, source: str) -> pd.DataFrame:
    """Parse JSON lines, or a list of objects; objects and lists of numbers become columns."""
    import pandas as pd

    if text.lstrip()[:1] == "[":
        rows = parse_json(text, source=source, error=TableError, finite=False)
    else:
        lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
        rows = [
            parse_json(line, source=f"{source}: line {n}", error=TableError, finite=False)
            for n, line in lines
        ]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise TableError(
                f"{source}: line {number}: expected an object with a key per column, got "
                f"{show(row)}"
            )
    flat = [dict(_flattened(row)) for row in rows]
    _refuse_many_columns(max(map(len, flat), default=0), source)
    return pd.DataFrame(flat, dtype=object)


def _flattened(row: Mapping[str, Any]) -> Any:
    for key, value in row.items():
        inner = value if isinstance(value, dict) else None
        if isinstance(value, list):
            inner = {str(k): each for k, each in enumerate(value)}
        if inner and all(each is None or isinstance(each, int | float) for each in inner.values()):
            yield from ((f"{key}.{name}", each) for name, each in inner.items())
        else:
            yield key, value


_ARRAYS: Final[dict[str, Any]] = {
    "probs": "probabilities",
    "logits": "logits",
    "logprobs": "log-probabilities",
    "votes": "votes",
}
_KEYS: Final = frozenset({*_ARRAYS, "labels", "classes", "ids"})


def _npz_frame(
    path: Path, classes: tuple[str, ...] | None
) -> tuple[pd.DataFrame, str, dict[str, Any]]:
    """Read an archive of arrays ``probs`` (or ``logits`` ...), ``labels``, ``classes``, ``ids``.

    An ``index.json`` in the same folder, a list of entries with a key ``file``, specifies class
    names, model and task of the files it lists. Pickled objects are never loaded.
    """
    import pandas as pd

    source, file = escaped(path), existing_file(path, error=TableError)
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            names = archive.files
            # A small compressed file can hold very large arrays.
            members = [archive.zip.getinfo(f"{key}.npy") for key in _KEYS.intersection(names)]
            if sum(member.file_size for member in members) > 8 * MOST_VALUES:
                raise TableError(f"{source}: the arrays are too large for one table")
            arrays = {key: np.atleast_1d(archive[key]) for key in names if key in _KEYS}
    except TableError:
        raise
    except Exception as error:
        # Corrupt archives fail in zipfile, zlib, struct, the header parser or the allocator.
        raise TableError(
            f"{source}: not an npz archive of plain arrays, or corrupt: {reason(error)}; save "
            "probs and labels with numpy.savez"
        ) from error
    given = [key for key in _ARRAYS if key in arrays]
    misnamed = {"label", "y", "target", "gold"} & {*names}
    if len(given) != 1 or (misnamed and "labels" not in arrays):
        raise TableError(
            f"{source}: arrays are {quoted(names)}; must be one of {quoted([*_ARRAYS])}, and "
            "optionally 'labels', 'classes' and 'ids'"
        )
    values, entry = arrays[given[0]], _index_entry(path)
    if values.ndim != 2 or values.dtype.kind not in "fiu" or values.shape[1] < 2:
        raise TableError(
            f"{source}: array {given[0]!r} has shape {values.shape} and type {values.dtype}; must "
            "be numbers [rows, classes] with at least two classes"
        )
    own = arrays["classes"].tolist() if "classes" in arrays else entry.get("classes")
    found = checked_classes(classes or own, n_classes=values.shape[1], source=source)
    frame = pd.DataFrame(values, columns=[PREFIX + name for name in found])
    for key, name in (("labels", "label"), ("ids", "id")):
        if key in arrays:
            if arrays[key].shape != (len(values),):
                raise TableError(
                    f"{source}: {key} have shape {arrays[key].shape}; must be one for each of "
                    f"{len(values)} rows"
                )
            frame.insert(0, name, arrays[key])
    return frame, given[0], entry


def _index_entry(path: Path) -> dict[str, Any]:
    """Return the entry of the file in ``index.json``, if it exists and lists the file."""
    try:
        entries = read_json(path.parent / "index.json", error=TableError)
        entry = next(entry for entry in entries if entry["file"] == path.name)
    except (TableError, LookupError, TypeError, StopIteration):
        # Many programs write an index.json; ignore one that is not a list of files.
        return {}
    return {key: entry[key] for key in ("model", "task", "classes") if entry.get(key)}


def _vectors_frame(path: Path) -> pd.DataFrame:
    """Parse published vectors: lines ``id label prediction p_0 ... p_{N-1}``."""
    import pandas as pd

    text = read_text(path, error=TableError, limit=_TEXT_BYTES)
    try:
        frame = pd.read_csv(
            io.StringIO(text),
            header=None,
            dtype=object,
            keep_default_na=False,
            sep=r"\s+",
            quoting=csv.QUOTE_NONE,
        )
    except ValueError as error:
        raise TableError(f"{escaped(path)}: cannot be read as columns: {reason(error)}") from None
    names = ["id", "label", "prediction"]
    names += [f"{PREFIX}class_{k}" for k in range(frame.shape[1] - 3)]
    if len(names) < 5:
        raise TableError(
            f"{escaped(path)}: {frame.shape[1]} columns; must be id, label, prediction and at "
            "least 2 probabilities"
        )
    return frame.set_axis(names, axis=1)


def _provenance_of(path: Path) -> Provenance:
    """Return what the names of a published file and its folder specify."""
    split = _PARTS.get(path.stem)
    # Make the path absolute, so that a relative path inside the folder gives the same provenance.
    folder = path.absolute().parent.name
    match = _FOLDER.fullmatch(folder)
    if match is None:
        return Provenance(split=split, source=path.name)
    shots = match["shots"]
    return Provenance(
        model=match["model"],
        task=match["task"],
        shots=shots if shots == "N" else int(shots),
        demonstration_seed=int(match["seed"]),
        split=split,
        source=f"{folder}/{path.name}",
    )


def parts_of(folder: str | os.PathLike[str]) -> dict[str, Path]:
    """Return the files of a folder by part: ``optimization`` and ``test``, perhaps others."""
    found = {
        part: path
        for stem, part in _PARTS.items()
        for suffix in (*SUFFIXES, ".txt")
        if (path := Path(folder) / f"{stem}{suffix}").is_file()
    }
    return found if {"optimization", "test"} <= found.keys() else {}


def source_files(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return the sources at a path: the path itself, or all in a folder, sorted.

    Raises
    ------
    TableError
        If a folder contains no tables.
    """
    root = Path(path)
    if not root.is_dir() or parts_of(root):
        return (root,)
    sources = (p for p in root.iterdir() if p.suffix in SUFFIXES or (p.is_dir() and parts_of(p)))
    if found := tuple(sorted(sources)):
        return found
    raise TableError(f"{escaped(root)}: contains no tables; {READABLE}")


def open_sources(
    path: str | os.PathLike[str], given: Reading | None = None, known: Reading | None = None
) -> dict[str, Source]:
    """Read the optimization rows of a source, and its test rows if they are separate.

    Parameters
    ----------
    path : path-like
        A file, or a folder with two: ``optimization``, ``train`` or ``opt``, and ``test``, as
        written by `dcs generate` or as published, where the name of the folder,
        ``<task>_<model>_shot<k>_seed<s>``, specifies the provenance.
    given, known : Reading, optional
        As in :func:`open_source`.

    Returns
    -------
    dict of str to Source
        ``"optimization"``, and ``"test"`` unless test rows still have to be held out.

    Raises
    ------
    TableError
        If the path is not a source, a table is invalid, or the classes of a pair differ.
    """
    pair = parts_of(path) if Path(path).is_dir() else {}
    if not pair:
        return {"optimization": open_source(path, given, known=known)}
    first = open_source(pair["optimization"], given, known=known)
    second = open_source(pair["test"], given, known=first.reading)
    table = second.table.with_classes(first.table.classes, source=escaped(pair["test"]))
    return {"optimization": first, "test": replace(second, table=table)}
