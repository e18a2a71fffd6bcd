"""Numeric files: text and Parquet columns, the published vectors, NumPy archives."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dcs.data.checks import Named, refuse_too_large
from dcs.data.importers import ImportOptions, build_table, text_of
from dcs.data.table import PREFIX, ProbabilityTable, Provenance, open_parquet
from dcs.errors import TableError, escaped, listing, reason, show, suggest
from dcs.io import existing_file, read_json


def read_csv(path: Path, options: ImportOptions) -> dict[str, ProbabilityTable]:
    """Read comma-, semicolon- or tab-separated text with a header line."""
    text = text_of(path).lstrip("\r\n")
    header, *rows = _read_cells(text, path, sep=max(",;\t", key=text.partition("\n")[0].count))
    names = [name.strip() for name in header]
    return {"all": _build(path, names, lambda k: [row[k] for row in rows], len(rows), options)}


def _read_cells(text: str, path: Path, **options: Any) -> list[list[str]]:
    """Parse text into the fields of every line."""
    import pandas as pd

    try:
        # Missing fields at the end of a line become empty strings: invalid as a probability.
        frame = pd.read_csv(
            io.StringIO(text), header=None, dtype=object, keep_default_na=False, **options
        )
    except ValueError as error:
        raise TableError(f"{escaped(path)}: cannot be read as columns: {reason(error)}") from None
    cells: list[list[str]] = frame.to_numpy().tolist()
    return cells


def read_parquet(path: Path, options: ImportOptions) -> dict[str, ProbabilityTable]:
    """Read the required columns of a Parquet file; they can have any names."""
    with open_parquet(path) as file:
        names = file.schema_arrow.names
        if len(set(names)) < len(names):
            raise TableError(f"{escaped(path)}: column names are not unique; rename one")

        def column(k: int) -> Any:
            return file.read(columns=[names[k]]).column(0).to_pylist()

        return {"all": _build(path, names, column, file.metadata.num_rows, options)}


def _build(
    path: Path,
    names: Sequence[str],
    column: Callable[[int], list[Any]],
    n_rows: int,
    options: ImportOptions,
    provenance: Provenance | None = None,
) -> ProbabilityTable:
    """Create a table from the required columns."""
    source = escaped(path)
    counts, places = Counter(names), {name: k for k, name in enumerate(names)}

    def find(wanted: str, option: str) -> int:
        """Return the index of a column that is given by name or by number."""
        if wanted not in places and wanted in map(str, range(len(names))):
            return int(wanted)
        if counts[wanted] != 1:
            raise TableError(
                f"{source}: {counts[wanted]} columns {show(wanted)}"
                f"{'' if counts[wanted] else suggest(wanted, names)}; give the name or number of "
                f"one column with --{option} (columns: {listing(names)})"
            )
        return places[wanted]

    specified = options.class_columns or [name for name in names if name.startswith(PREFIX)]
    if len(specified) < 2:
        raise TableError(
            f"{source}: {len(specified)} column(s) of class probabilities; must be at least 2, "
            f"named p:<class> or given with --class-columns (columns: {listing(names)})"
        )
    refuse_too_large(n_rows, len(specified) + 2, source=source)
    labels, ids = [None] * n_rows, None
    # A column name similar to "label" is an error: the table would silently be unlabelled.
    others = [name for name in {*names} - {*specified} if not name.startswith(PREFIX)]
    if options.label_column is not None or suggest("label", others):
        labels = column(find(options.label_column or "label", "label-column"))
    if options.id_column is not None or "id" in names:
        ids = column(find(options.id_column or "id", "id-column"))
    # A class can be named p:odd: "p:" is a prefix only if all columns have it.
    chosen = [find(name, "class-columns") for name in specified]
    columns = [names[k] for k in chosen]
    prefixed = all(name.startswith(PREFIX) for name in columns)
    classes = [name.removeprefix(PREFIX) if prefixed else name for name in columns]
    cells = [column(k) for k in chosen]
    values = np.array([[_to_float(value) for value in each] for each in cells]).T
    if np.isnan(values).any():
        rows = list(zip(*cells, strict=True))
        Named(source, classes, ids or ()).refuse(np.isnan(values), rows, "must be a number")
    return build_table(
        values,
        labels,
        classes=classes,
        ids=ids,
        provenance=provenance or Provenance(source=path.name),
        options=options,
        source=source,
    )


def _to_float(value: Any) -> float:
    """Convert a number or a string to a float; return NaN if that fails."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


_PARTS = {"opt": "optimization", "dev": "development", "test": "test"}
_FOLDER = re.compile(
    r"(?P<task>[^_]+)_(?P<model>.+)_shot(?P<shots>[0-9]{1,6}|N)_seed(?P<seed>[0-9]{1,18})"
)


def read_vectors(path: Path, options: ImportOptions) -> dict[str, ProbabilityTable]:
    """Read a file of published vectors, or ``opt.txt``, ``dev.txt`` and ``test.txt`` of a folder.

    Lines are ``id label prediction p_0 ... p_{N-1}``. The name of the folder,
    ``<task>_<model>_shot<k>_seed<s>``, specifies the provenance; the task ends at the first
    underscore.
    """
    if not path.is_dir():
        return {_PARTS.get(path.stem, "all"): _read_vectors(path, options)}
    files = {part: path / f"{stem}.txt" for stem, part in _PARTS.items()}
    tables = {part: _read_vectors(file, options) for part, file in files.items() if file.exists()}
    if not tables:
        raise TableError(f"{escaped(path)}: contains neither opt.txt nor test.txt")
    return tables


def _read_vectors(path: Path, options: ImportOptions) -> ProbabilityTable:
    rows = _read_cells(text_of(path), path, sep=r"\s+", quoting=csv.QUOTE_NONE)
    classes = [f"{PREFIX}class_{k}" for k in range(len(rows[0]) - 3)]
    names = ["id", "label", "prediction", *classes]
    origin = _parse_provenance(path)
    return _build(path, names, lambda k: [row[k] for row in rows], len(rows), options, origin)


def _parse_provenance(path: Path) -> Provenance:
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


_KEYS = frozenset({"probs", "logits", "labels", "classes", "ids"})


def read_npz(path: Path, options: ImportOptions) -> dict[str, ProbabilityTable]:
    """Read a NumPy archive: ``probs`` or ``logits``; optional ``labels``, ``classes``, ``ids``.

    An ``index.json`` in the same folder, a list of entries with a key ``file``, specifies class
    names, model and task of the files it lists. Pickled objects are never loaded.
    """
    source, file = escaped(path), existing_file(path, error=TableError)
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            names = archive.files
            for key in set(names) & _KEYS:
                _refuse_too_large(archive, key, source)
            arrays = {key: np.atleast_1d(archive[key]) for key in names if key in _KEYS}
    except TableError:
        raise
    except Exception as error:
        # Corrupt archives fail in zipfile, zlib, struct, the header parser or the allocator.
        raise TableError(
            f"{source}: not an npz archive of plain arrays, or corrupt: {reason(error)}; save "
            "probs and labels with numpy.savez"
        ) from error
    misspelt = "labels" not in arrays and suggest("labels", names)
    if ("probs" in arrays) == ("logits" in arrays) or misspelt:
        raise TableError(
            f"{source}: arrays are {listing(names)}; must be either 'probs' or 'logits', "
            "and optionally 'labels'"
        )
    key = "probs" if "probs" in arrays else "logits"
    entry = _read_index_entry(path)
    table = build_table(
        arrays[key],
        arrays["labels"].tolist() if "labels" in arrays else [None] * len(arrays[key]),
        classes=arrays["classes"].tolist() if "classes" in arrays else entry.get("classes"),
        ids=arrays["ids"].tolist() if "ids" in arrays else None,
        provenance=Provenance(model=entry.get("model"), task=entry.get("task"), source=path.name),
        options=options,
        source=source,
        logits=key == "logits",
    )
    return {"all": table}


def _refuse_too_large(archive: Any, key: str, source: str) -> None:
    """Check the size of an array from its header, before it is decompressed."""
    header = np.lib.format
    with archive.zip.open(f"{key}.npy") as member:
        is_first = header.read_magic(member) == (1, 0)
        read = header.read_array_header_1_0 if is_first else header.read_array_header_2_0
        shape, _, dtype = read(member)
    rows, *columns = shape or (1,)
    # A string counts as the number of float64 values of the same size.
    width = math.prod(columns) * math.ceil(dtype.itemsize / 8)
    refuse_too_large(rows, width, source=f"{source}: array {key!r}")


def _read_index_entry(path: Path) -> dict[str, Any]:
    """Return the entry of the file in ``index.json``, if it exists and lists the file."""
    try:
        entries = read_json(path.parent / "index.json", error=TableError)
        entry = next(entry for entry in entries if entry["file"] == path.name)
    except (TableError, LookupError, TypeError, StopIteration):
        # Many programs write an index.json; ignore one that is not a list of files.
        return {}
    return {key: entry[key] for key in ("model", "task", "classes") if entry.get(key)}
