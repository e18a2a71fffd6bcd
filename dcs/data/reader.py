"""One reader of class probabilities: of all files and forms of rows, and of data frames."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dcs.data.arrow import frame_of
from dcs.data.checks import Named, checked_classes, checked_ids, flat_names, refuse_too_large
from dcs.data.columns import CORRECTED, PREFIX, Reading, cells_of, infer, to_shares
from dcs.data.files import (
    PARTS,
    READABLE,
    SUFFIXES,
    Records,
    read_records,
    suffix_of,
)
from dcs.data.forms import FORMS
from dcs.data.labels import TELLING, as_text, read_labels
from dcs.data.table import ProbabilityTable, open_parquet
from dcs.errors import ConfigError, TableError, escaped, quoted, show
from dcs.io import validated

if TYPE_CHECKING:
    import pandas as pd


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
        A file of rows in any form that docs/own-data.md lists, or a data frame.
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
        return _interpret(Records(source), given, known, "data frame")
    path = Path(source)
    if path.suffix.lower() == ".parquet" and (own := _own_table(path)):
        return own
    text = sys.stdin.read() if str(path) == "-" else None
    return _interpret(read_records(path, given, text=text), given, known, escaped(path))


def _own_table(path: Path) -> Source | None:
    """Return a table that was written by this package."""
    with open_parquet(path) as file:
        if b"dcs" not in (file.schema_arrow.metadata or {}):
            return None
        refuse_too_large(file.metadata.num_rows, file.metadata.num_columns, source=escaped(path))
        frame = frame_of(file.read(), escaped(path))
    table = ProbabilityTable.read(path)
    columns = tuple(PREFIX + each for each in table.classes)
    reading = Reading(
        columns=columns, classes=table.classes, label="label", id="id", values="probabilities"
    )
    return Source(table, frame, reading)


def _interpret(records: Records, given: Reading, known: Reading | None, source: str) -> Source:
    """Return the table of the records of a file."""
    frame = records.frame
    if not len(frame):
        raise TableError(f"{source}: cannot be read: no rows")
    frame = _without_index(frame, source)
    refuse_too_large(*frame.shape, source=source)
    given, known = _normalised(given), known and _normalised(known)
    frame = _without_copies(frame.set_axis(flat_names(frame.columns), axis=1), source)
    told = {key: value for key, value in records.told.items() if getattr(given, key) is None}
    given = given.model_copy(update=told)
    frame, given, about = _in_columns(frame, given, known, source)
    refuse_too_large(*frame.shape, source=source)
    frame = _without_copies(frame.set_axis(flat_names(frame.columns), axis=1), source)
    reading, numbers = infer(frame, given, source=source, known=known)
    columns, kind = reading.columns or (), reading.values or "probabilities"
    classes = checked_classes(reading.classes, n_classes=len(columns), source=source)
    ids = None if reading.id is None else cells_of(frame[reading.id])
    names = Named(source, classes, checked_ids(ids, n_rows=len(frame), source=source))
    probs = to_shares(numbers, kind)
    remarks = [
        f"{source}: {about}{len(frame):,} rows, classes {quoted(classes)} from columns "
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
    way = given.labels or (known.labels if known else None)
    try:
        labels, how = read_labels(cells, probs, names, counting=way, documented=records.documented)
    except TableError:
        if way == given.labels:
            raise
        # The labels of these rows are written in another way than those of earlier ones.
        labels, how = read_labels(cells, probs, names, documented=records.documented)
    counted = [f"from-{k}" for k in (0, 1) if f"from {k}" in how]
    reading = reading.model_copy(update={"labels": next(iter(counted), reading.labels)})
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
        if absent and known is None:
            remarks.append(
                f"warning: no row is labelled {quoted(absent)}: no metric counts the class, and a "
                "scheme may hardly predict it"
            )
    corrected = all(each.startswith(CORRECTED) for each in columns)
    origin = replace(
        records.origin, reading=reading, corrected_by="a scheme" if corrected else None
    )
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


def _without_copies(frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """Return a frame whose columns have different names: equal ones of a name are one."""
    if frame.columns.is_unique:
        return frame
    kept: dict[str, int] = {}
    for k, name in enumerate(frame.columns):
        first = kept.setdefault(name, k)
        if first != k and cells_of(frame.iloc[:, first]) != cells_of(frame.iloc[:, k]):
            raise TableError(f"{source}: column names are not unique: {show(name)}; rename one")
    return frame.iloc[:, [*kept.values()]]


def _in_columns(
    frame: pd.DataFrame, given: Reading, known: Reading | None, source: str
) -> tuple[pd.DataFrame, Reading, str]:
    """Return a frame with a column per class, what its form tells, and the name of the form."""
    hint = given.model_copy(
        update={
            key: getattr(known, key)
            for key in ("classes", "label", "filter")
            if known is not None
            and getattr(given, key) is None
            and (key != "label" or known.label in frame)
        }
    )
    for form in FORMS:
        if form.sniff(frame, hint):
            try:
                rows = form.rows(frame, hint)
            except TableError as fault:
                raise TableError(f"{source}: {form.name}: {fault}") from None
            kept = ("label", "id", "values")
            told = {k: v for k, v in rows.told.items() if k not in kept or not getattr(given, k)}
            about = f"{form.name}: " + (f"{rows.remark}; " if rows.remark else "")
            return rows.frame, given.model_copy(update=told), about
    return frame, given, ""


def parts_of(folder: str | os.PathLike[str]) -> dict[str, Path]:
    """Return the files of a folder by part: ``optimization`` and ``test``, perhaps others."""
    found = {
        part: path
        for stem, part in PARTS.items()
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
    sources = (
        p for p in root.iterdir() if suffix_of(p) in SUFFIXES or (p.is_dir() and parts_of(p))
    )
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
