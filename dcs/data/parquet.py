"""Probability tables on disk: Parquet columns, with classes and provenance in the metadata."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dcs.data.checks import listing
from dcs.errors import TableError
from dcs.io import atomic_path, existing_file, memory_bound
from dcs.messages import escaped, reason, show

FORMAT = "dcs-probability-table"
VERSION = 1
PREFIX = "p:"
_KEY = b"dcs"
_MAGIC = b"PAR1"
#: What pyarrow raises for files that are no whole Parquet files.
_DAMAGE = (pa.ArrowException, OSError, ValueError, LookupError, OverflowError, MemoryError)
_BATCH_ROWS = 65_536
_IMPORTABLE = {".npz": "npz", ".csv": "csv", ".tsv": "csv", ".jsonl": "lm-eval"}


@dataclass(frozen=True, slots=True)
class RawTable:
    """What a file holds, with types but not yet values checked."""

    probs: NDArray[np.float64]
    labels: NDArray[Any]
    classes: tuple[str, ...]
    ids: list[Any]
    provenance: Mapping[str, Any]


def write_parquet(
    path: str | os.PathLike[str],
    *,
    probs: NDArray[np.float64],
    labels: NDArray[np.int64],
    classes: tuple[str, ...],
    ids: tuple[str, ...],
    provenance: Mapping[str, Any],
) -> None:
    """Write checked content to `path` in one step."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "classes": list(classes),
        "provenance": dict(provenance),
    }
    columns = {"id": pa.array(ids, pa.string()), "label": pa.array(labels, pa.int64())}
    for k, name in enumerate(classes):
        columns[PREFIX + name] = pa.array(np.ascontiguousarray(probs[:, k]), pa.float64())
    table = pa.table(columns).replace_schema_metadata({_KEY: json.dumps(header, sort_keys=True)})
    try:
        # Opened here, since pyarrow takes no name that is not UTF-8.
        with atomic_path(path) as temporary, temporary.open("wb") as sink:
            # Ids and probabilities hardly repeat: a dictionary of them only costs time.
            pq.write_table(
                table,
                sink,
                compression="zstd",
                use_dictionary=["label"],
                write_page_checksum=True,
            )
    except (OSError, ValueError) as error:
        raise TableError(f"{escaped(path)}: cannot be written: {reason(error)}") from error


def read_parquet(path: str | os.PathLike[str]) -> RawTable:
    """Read the columns of a probability table, refusing what is not one."""
    target = existing_file(path, error=TableError)
    source = escaped(target)
    with open_parquet(target) as file:
        schema = file.schema_arrow
        header = _header(schema.metadata, source)
        classes = _classes(schema.names, header, source)
        columns = ["id", "label", *(PREFIX + name for name in classes)]
        for name in columns:
            _check_type(name, schema.field(name).type, source)
        table = read_table(file, columns, source)
        ids = plain(table.column("id")).to_pylist()
    labels = no_nulls(table.column("label"), "label", ids, source)
    probs = np.empty((table.num_rows, len(classes)), dtype=np.float64)
    for k, name in enumerate(classes):
        probs[:, k] = no_nulls(table.column(PREFIX + name), PREFIX + name, ids, source)
    return RawTable(probs, labels, classes, ids, header.get("provenance", {}))


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Open a Parquet file as a `pyarrow.parquet.ParquetFile`, or say why it is none.

    What pyarrow raises inside the block is told as damage to the file.
    """
    source = escaped(path)
    try:
        _check_magic(path, source)
        with path.open("rb") as raw, pq.ParquetFile(raw) as file:
            texts = [field.name for field in file.schema_arrow if is_text(field.type)]
            metadata = file.metadata
        with (
            path.open("rb") as raw,
            pq.ParquetFile(
                _place(path, raw),
                metadata=metadata,
                # A few long texts that repeat may not fit in memory when written out.
                read_dictionary=texts,
                # A zstd page with one flipped bit may still decompress; only the checksum tells.
                page_checksum_verification=True,
            ) as file,
        ):
            yield file
    except TableError:
        raise
    except _DAMAGE as error:
        raise TableError(
            f"{source}: damaged Parquet file: {reason(error)}; make it again"
        ) from error


def _place(path: Path, raw: Any) -> Any:
    """Return the path, which pyarrow reads faster, or the open file if its name is not UTF-8."""
    try:
        os.fspath(path).encode("utf-8")
    except UnicodeEncodeError:
        return raw
    return path


def read_table(file: Any, columns: list[str], source: str) -> Any:
    """Read some columns of an open Parquet file into a `pyarrow.Table`.

    Raises
    ------
    TableError
        If they would take more memory than :func:`dcs.io.memory_bound`.
    """
    n_rows = file.metadata.num_rows
    _check_size(n_rows * len(columns) * 8, n_rows, source)
    batches, size = [], 0
    # A part at a time: how large texts are when decompressed only shows then. (The file's own
    # word for it is not asked for: pyarrow aborts the process where that is damaged.)
    for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
        batches.append(batch)
        size += sum(_written_out(column) for column in batch.columns)
        _check_size(size, n_rows, source)
    if not batches:
        return file.read(columns=columns)
    return pa.Table.from_batches(batches)


def _check_size(needed: int, n_rows: int, source: str) -> None:
    bound = memory_bound()
    if needed > bound:
        raise TableError(
            f"{source}: {n_rows} rows need {needed / 2**30:.1f} GiB or more; at most "
            f"{bound / 2**30:.1f} GiB are read on this machine; split the file"
        )


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is one of the text types."""
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _written_out(column: Any) -> int:
    """Return the bytes that a column takes without its dictionary, if it has one."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    values = column.dictionary
    if not is_text(values.type) or not len(values):
        return int(column.nbytes)
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    indices = column.indices.drop_null().to_numpy(zero_copy_only=False)
    counts = np.bincount(indices, minlength=len(values))
    return int(lengths.astype(np.float64) @ counts)


def no_nulls(column: Any, name: str, ids: list[Any], source: str) -> NDArray[Any]:
    """Return a column of numbers as an array, refusing missing values by row."""
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise TableError(
            f"{source}: row {row} (id {show(ids[row], 40)}): column {show(name)} has no value; "
            "fill it in or leave the row out"
        )
    return np.asarray(column.to_numpy())


def plain(column: Any) -> Any:
    """Return a column without dictionary encoding (pandas' categories)."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _check_magic(path: Path, source: str) -> None:
    with path.open("rb") as raw:
        head = raw.read(4)
        size = raw.seek(0, os.SEEK_END)
        raw.seek(max(0, size - 4))
        tail = raw.read(4)
    if head != _MAGIC:
        kind = _IMPORTABLE.get(path.suffix.lower())
        hint = f"; make a table of it with `dcs import {kind}`" if kind else ""
        raise TableError(f"{source}: not a Parquet file{hint}")
    if tail != _MAGIC or size < 12:
        raise TableError(f"{source}: truncated Parquet file, its end is missing; make it again")


def _header(metadata: Mapping[bytes, bytes] | None, source: str) -> dict[str, Any]:
    if not metadata or _KEY not in metadata:
        return {}
    try:
        header = json.loads(metadata[_KEY])
    except (ValueError, RecursionError):
        raise TableError(f"{source}: damaged table metadata, not JSON; make it again") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        found = header.get("format") if isinstance(header, dict) else header
        raise TableError(f"{source}: file format is {show(found)}; {show(FORMAT)} is needed")
    version = header.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise TableError(f"{source}: table version is {show(version)}; 1..{VERSION} are readable")
    if version > VERSION:
        raise TableError(
            f"{source}: table version {version} is newer than this program, which reads up to "
            f"{VERSION}; install a newer dcs-debias"
        )
    classes = header.get("classes")
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise TableError(
            f"{source}: table metadata: classes is {show(classes)}, not a list of names"
        )
    if not isinstance(header.get("provenance", {}), dict):
        raise TableError(
            f"{source}: table metadata: provenance is {show(header['provenance'])}, "
            "not a mapping of names to values"
        )
    return header


def _classes(names: list[str], header: Mapping[str, Any], source: str) -> tuple[str, ...]:
    for name, count in Counter(names).items():
        if count > 1 and (name in ("id", "label") or name.startswith(PREFIX)):
            raise TableError(
                f"{source}: {count} columns are named {show(name)}; names must differ"
            )
    for name in ("id", "label"):
        if name not in names:
            raise TableError(
                f"{source}: no column {show(name)}; a table has the columns id, label and one "
                f"p:<class> per class; `dcs import parquet` reads other names (columns here: "
                f"{listing(names)})"
            )
    found = tuple(name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX))
    if "classes" not in header:
        if not found:
            raise TableError(
                f"{source}: no p:<class> column; one column of probabilities per class is needed "
                f"(columns here: {listing(names)})"
            )
        return found
    classes = tuple(header["classes"])
    for name in classes:
        if name not in found:
            raise TableError(
                f"{source}: no column {show(PREFIX + name)} for class {show(name)}, which the "
                "table's metadata names; make the table again"
            )
    for name in found:
        if name not in classes:
            raise TableError(
                f"{source}: column {show(PREFIX + name)} is of no class that the table's metadata "
                f"names ({listing(classes)}); make the table again"
            )
    return classes


def _check_type(name: str, kind: Any, source: str) -> None:
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    text = is_text(kind)
    if name == "id":
        if not (text or types.is_integer(kind)):
            raise TableError(
                f"{source}: column 'id' has type {kind}; texts or integers are needed"
            )
    elif name == "label":
        if not types.is_integer(kind):
            hint = "; `dcs import parquet` reads class names" if text else ""
            raise TableError(
                f"{source}: column 'label' has type {kind}; integers 0..N-1 are needed{hint}"
            )
    elif not types.is_floating(kind):
        raise TableError(
            f"{source}: column {show(name)} has type {kind}; floating-point numbers are needed"
        )
