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

from dcs._files import atomic_path
from dcs._reading import existing_file, memory_bound, one_line, reason, show
from dcs._table_checks import listing
from dcs.errors import TableError

FORMAT = "dcs-probability-table"
VERSION = 1
PREFIX = "p:"
_KEY = b"dcs"
_MAGIC = b"PAR1"
#: What pyarrow raises for files that are no whole Parquet files.
_DAMAGE = (pa.ArrowException, OSError, ValueError, LookupError, OverflowError, MemoryError)
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
        with atomic_path(path) as temporary:
            # Ids and probabilities hardly repeat: a dictionary of them only costs time.
            pq.write_table(
                table,
                temporary,
                compression="zstd",
                use_dictionary=["label"],
                write_page_checksum=True,
            )
    except (OSError, ValueError) as error:
        raise TableError(f"{one_line(path)}: cannot be written: {reason(error)}") from error


def read_parquet(path: str | os.PathLike[str]) -> RawTable:
    """Read the columns of a probability table, refusing what is not one."""
    target = existing_file(path, error=TableError)
    source = one_line(target)
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
    source = one_line(path)
    try:
        _check_magic(path, source)
        with pq.ParquetFile(
            path,
            # Written out, a few long texts that repeat may not fit in memory: `read_table` looks.
            read_dictionary=_dictionary_columns(pq.read_metadata(path)),
            # A zstd page with one flipped bit may still decompress; only the checksum tells.
            page_checksum_verification=True,
        ) as file:
            yield file
    except TableError:
        raise
    except _DAMAGE as error:
        raise TableError(
            f"{source}: damaged Parquet file: {reason(error)}; make it again"
        ) from error


def read_table(file: Any, columns: list[str], source: str) -> Any:
    """Read some columns of an open Parquet file into a `pyarrow.Table`.

    Raises
    ------
    TableError
        If they would take more memory than :func:`dcs._reading.memory_bound`.
    """
    n_rows = file.metadata.num_rows
    _check_size(max(n_rows * len(columns) * 8, _stored(file.metadata, columns)), n_rows, source)
    table = file.read(columns=columns)
    written_out = sum(
        _written_out(chunk)
        for column in table.columns
        if pa.types.is_dictionary(column.type)
        for chunk in column.chunks
    )
    _check_size(written_out, n_rows, source)
    return table


def _check_size(needed: int, n_rows: int, source: str) -> None:
    bound = memory_bound()
    if needed > bound:
        raise TableError(
            f"{source}: {n_rows} rows need {needed / 2**30:.1f} GiB; at most "
            f"{bound / 2**30:.1f} GiB are read on this machine; split the file"
        )


def _dictionary_columns(metadata: Any) -> list[str]:
    """Return the names of the text columns that are stored as numbers of a dictionary."""
    names = set()
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            coded = any(encoding.endswith("_DICTIONARY") for encoding in column.encodings)
            if column.physical_type == "BYTE_ARRAY" and coded:
                names.add(column.path_in_schema)
    return sorted(names)


def _stored(metadata: Any, columns: list[str]) -> int:
    """Return the bytes of some columns when decompressed, as the file tells it."""
    wanted = set(columns)
    total = 0
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            if column.path_in_schema in wanted:
                total += max(0, column.total_uncompressed_size)
    return total


def _written_out(chunk: Any) -> int:
    """Return the bytes that a dictionary-encoded array takes without its dictionary."""
    values = chunk.dictionary
    if not len(values) or not hasattr(values, "type") or values.nbytes <= 8 * len(chunk):
        return 0
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return 0
    lengths = pc.binary_length(values).to_numpy(zero_copy_only=False)
    counts = np.bincount(
        chunk.indices.drop_null().to_numpy(zero_copy_only=False), minlength=len(values)
    )
    return int(np.nan_to_num(lengths.astype(np.float64)) @ counts)


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
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
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
