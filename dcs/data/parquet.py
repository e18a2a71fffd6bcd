"""Probability tables on disk: Parquet columns, with classes and provenance in the metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from dcs.errors import TableError
from dcs.io import atomic_path, existing_file, memory_bound, parse_json
from dcs.messages import escaped, listing, reason, show
from dcs.validation import validated

PREFIX: Final = "p:"
"""What stands before a class in the name of its column."""

_KEY: Final = b"dcs"
_FORMAT: Final = "dcs-probability-table"

#: What pyarrow raises for files that are no whole Parquet files.
_DAMAGE = (pa.ArrowException, OSError, ValueError, LookupError, MemoryError)


class _Header(BaseModel):
    """The metadata of a table; files of other programs have none."""

    model_config = ConfigDict(strict=True)

    format: Literal["dcs-probability-table"]
    version: Literal[1]
    classes: list[str]
    provenance: dict[str, int | str | None] = {}


def write_parquet(
    path: str | os.PathLike[str],
    *,
    probs: NDArray[np.float64],
    labels: NDArray[np.int64],
    classes: Sequence[str],
    ids: Sequence[str],
    provenance: Mapping[str, Any],
) -> None:
    """Write checked content to `path` in one step."""
    header = {
        "format": _FORMAT,
        "version": 1,
        "classes": list(classes),
        "provenance": dict(provenance),
    }
    try:
        columns = {"id": pa.array(ids, pa.string()), "label": pa.array(labels, pa.int64())}
        for name, column in zip(classes, probs.T, strict=True):
            columns[PREFIX + name] = pa.array(np.ascontiguousarray(column), pa.float64())
        content = pa.table(columns).replace_schema_metadata(
            {_KEY: json.dumps(header, sort_keys=True)}
        )
        with atomic_path(path) as temporary:
            # Ids and probabilities hardly repeat: a dictionary of them only costs time.
            pq.write_table(
                content,
                temporary,
                compression="zstd",
                use_dictionary=["label"],
                write_page_checksum=True,
            )
    except (OSError, ValueError) as error:
        raise TableError(f"{escaped(path)}: cannot be written: {reason(error)}") from error


def read_parquet(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what a probability table is made of, its values not yet checked."""
    source = escaped(path)
    with open_parquet(path) as file:
        names = file.schema_arrow.names
        header = _header(file.schema_arrow.metadata or {}, source)
        found = [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]
        classes = found if header is None else header.classes
        if sorted(found) != sorted(classes):
            raise TableError(
                f"{source}: columns of probabilities are {listing(found)}, but the table's "
                f"metadata names the classes {listing(classes)}; make the table again"
            )
        columns = ["id", "label", *(PREFIX + name for name in classes)]
        for name in columns:
            if names.count(name) != 1:
                raise TableError(
                    f"{source}: {names.count(name)} columns {show(name)}; a table has one id, one "
                    "label and one p:<class> per class; `dcs import parquet` reads other names "
                    f"(columns here: {listing(names)})"
                )
        table = read_columns(file, columns, source)
    probs = np.array([_numbers(table, PREFIX + name, source) for name in classes])
    return {
        "probs": probs.reshape(len(classes), table.num_rows).T,
        "labels": table.column("label").to_numpy(),
        "classes": classes,
        "ids": table.column("id").to_pylist(),
        "provenance": {} if header is None else header.provenance,
    }


@contextmanager
def open_parquet(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a Parquet file as a `pyarrow.parquet.ParquetFile`, or say why it is none.

    What pyarrow raises inside the block is told as damage to the file.
    """
    target = existing_file(path, error=TableError)
    try:
        # A zstd page with one flipped bit may still decompress; only the checksum tells.
        with pq.ParquetFile(target, page_checksum_verification=True) as file:
            yield file
    except TableError:
        raise
    except _DAMAGE as error:
        raise TableError(
            f"{escaped(path)}: not a Parquet file, or damaged: {reason(error)}; `dcs import` "
            "makes tables of files of other kinds"
        ) from error


def read_columns(file: Any, columns: list[str], source: str) -> Any:
    """Read some columns of an open Parquet file into a `pyarrow.Table`."""
    needed, bound = file.metadata.num_rows * len(columns) * 8, memory_bound()
    if needed > bound:
        raise TableError(
            f"{source}: {file.metadata.num_rows} rows need {needed / 2**30:.1f} GiB or more; at "
            f"most {bound / 2**30:.1f} GiB are read on this machine; split the file"
        )
    return file.read(columns=columns)


def _numbers(table: Any, name: str, source: str) -> NDArray[np.float64]:
    """Return a column as float64 [M], NaN where it has no value."""
    column = table.column(name)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise TableError(
            f"{source}: column {show(name)} has type {column.type}; numbers are needed"
        )
    return np.asarray(column.to_numpy(), dtype=np.float64)


def _header(metadata: dict[bytes, bytes], source: str) -> _Header | None:
    if _KEY not in metadata:
        return None
    told = f"{source}: table metadata"
    values = parse_json(metadata[_KEY].decode("utf-8", "replace"), source=told, error=TableError)
    return validated(_Header, values, source=told, error=TableError)
