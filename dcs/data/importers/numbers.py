"""Files of plain numbers: columns of text or Parquet, the published vectors, NumPy archives."""

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
    """Read comma-, semicolon- or tab-separated text under a header line."""
    text = text_of(path).lstrip("\r\n")
    header, *rows = _cells(text, path, sep=max(",;\t", key=text.partition("\n")[0].count))
    names = [name.strip() for name in header]
    return {"all": _table(path, names, lambda k: [row[k] for row in rows], len(rows), options)}


def _cells(text: str, path: Path, **form: Any) -> list[list[str]]:
    """Return the fields of every line."""
    import pandas as pd

    try:
        # Fields that a line lacks become empty texts, which no number or label is.
        frame = pd.read_csv(
            io.StringIO(text), header=None, dtype=object, keep_default_na=False, **form
        )
    except ValueError as error:
        raise TableError(f"{escaped(path)}: cannot be read as columns: {reason(error)}") from None
    cells: list[list[str]] = frame.to_numpy().tolist()
    return cells


def read_parquet(path: Path, options: ImportOptions) -> dict[str, ProbabilityTable]:
    """Read columns of any names; only those that are needed."""
    with open_parquet(path) as file:
        names = file.schema_arrow.names
        if len(set(names)) < len(names):
            raise TableError(f"{escaped(path)}: two columns have one name; rename one")

        def column(k: int) -> list[Any]:
            values: list[Any] = file.read(columns=[names[k]]).column(0).to_pylist()
            return values

        return {"all": _table(path, names, column, file.metadata.num_rows, options)}


def _table(
    path: Path,
    names: Sequence[str],
    column: Callable[[int], list[Any]],
    n_rows: int,
    options: ImportOptions,
    provenance: Provenance | None = None,
) -> ProbabilityTable:
    """Make a table of those columns that are needed."""
    source = escaped(path)
    counts, places = Counter(names), {name: k for k, name in enumerate(names)}

    def find(wanted: str, option: str) -> int:
        """Return the number of the one column of a name, or of a number given as text."""
        if wanted not in places and wanted in map(str, range(len(names))):
            return int(wanted)
        if counts[wanted] != 1:
            raise TableError(
                f"{source}: {counts[wanted]} columns {show(wanted)}"
                f"{'' if counts[wanted] else suggest(wanted, names)}; give the name or number of "
                f"one with --{option} (columns here: {listing(names)})"
            )
        return places[wanted]

    given = options.class_columns or [name for name in names if name.startswith(PREFIX)]
    if len(given) < 2:
        raise TableError(
            f"{source}: {len(given)} column(s) of class probabilities; at least 2 are needed, "
            f"named p:<class> or given with --class-columns (columns here: {listing(names)})"
        )
    refuse_too_large(n_rows, len(given) + 2, source=source)
    labels, ids = [None] * n_rows, None
    # A name that is nearly that of the labels is refused, not taken for a table without any.
    others = [name for name in {*names} - {*given} if not name.startswith(PREFIX)]
    if options.label_column is not None or suggest("label", others):
        labels = column(find(options.label_column or "label", "label-column"))
    if options.id_column is not None or "id" in names:
        ids = column(find(options.id_column or "id", "id-column"))
    # A class may be called p:odd: the prefix is one if all columns have it.
    chosen = [find(name, "class-columns") for name in given]
    found = [names[k] for k in chosen]
    is_named = all(name.startswith(PREFIX) for name in found)
    classes = [name.removeprefix(PREFIX) if is_named else name for name in found]
    told = [column(k) for k in chosen]
    values = np.array([[_number(value) for value in each] for each in told]).T
    if np.isnan(values).any():
        rows = list(zip(*told, strict=True))
        Named(source, classes, ids or ()).refuse(np.isnan(values), rows, "a number is needed")
    return build_table(
        values,
        labels,
        classes=classes,
        ids=ids,
        provenance=provenance or Provenance(source=path.name),
        options=options,
        source=source,
    )


def _number(value: Any) -> float:
    """Return a number or its text as a float, NaN where it is neither."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


_PARTS = {"opt": "optimization", "dev": "development", "test": "test"}
_FOLDER = re.compile(
    r"(?P<task>[^_]+)_(?P<model>.+)_shot(?P<shots>[0-9]{1,6}|N)_seed(?P<seed>[0-9]{1,18})"
)


def read_vectors(path: Path, options: ImportOptions) -> dict[str, ProbabilityTable]:
    """Read a file of the published vectors, or the files of a folder that are named after parts.

    Lines are ``id label prediction p_0 ... p_{N-1}``. The name of the folder,
    ``<task>_<model>_shot<k>_seed<s>``, gives the provenance, where the task is what stands before
    the first underscore.
    """
    if not path.is_dir():
        return {_PARTS.get(path.stem, "all"): _read_vectors(path, options)}
    files = {part: path / f"{stem}.txt" for stem, part in _PARTS.items()}
    tables = {part: _read_vectors(file, options) for part, file in files.items() if file.exists()}
    if not tables:
        raise TableError(f"{escaped(path)}: holds neither opt.txt nor test.txt; one is needed")
    return tables


def _read_vectors(path: Path, options: ImportOptions) -> ProbabilityTable:
    rows = _cells(text_of(path), path, sep=r"\s+", quoting=csv.QUOTE_NONE)
    classes = [f"{PREFIX}class_{k}" for k in range(len(rows[0]) - 3)]
    names = ["id", "label", "prediction", *classes]
    told = _vectors_provenance(path)
    return _table(path, names, lambda k: [row[k] for row in rows], len(rows), options, told)


def _vectors_provenance(path: Path) -> Provenance:
    split = _PARTS.get(path.stem)
    # An absolute path, so that a file given from inside its folder is told the same way.
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
    """Read a NumPy archive: ``probs`` or ``logits``, perhaps ``labels``, ``classes`` and ``ids``.

    An ``index.json`` beside the file, a list of entries with a key ``file``, gives class names,
    model and task for the files it lists. No pickle is ever loaded.
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
        # Damaged archives fail in zipfile, zlib, struct, the header's parser or the allocator.
        raise TableError(
            f"{source}: not an npz archive of plain arrays, or damaged: {reason(error)}; save "
            "probs and labels with numpy.savez"
        ) from error
    nearly = "" if "labels" in arrays else suggest("labels", names)
    if ("probs" in arrays) == ("logits" in arrays) or nearly:
        raise TableError(
            f"{source}: arrays are {listing(names)}; either 'probs' or 'logits' and, "
            "where there are any, 'labels' are needed"
        )
    found = "probs" if "probs" in arrays else "logits"
    entry = _index_entry(path)
    table = build_table(
        arrays[found],
        arrays["labels"].tolist() if "labels" in arrays else [None] * len(arrays[found]),
        classes=arrays["classes"].tolist() if "classes" in arrays else entry.get("classes"),
        ids=arrays["ids"].tolist() if "ids" in arrays else None,
        provenance=Provenance(model=entry.get("model"), task=entry.get("task"), source=path.name),
        options=options,
        source=source,
        logits=found == "logits",
    )
    return {"all": table}


def _refuse_too_large(archive: Any, key: str, source: str) -> None:
    """Refuse an array of an archive by its header, before it is unpacked."""
    header = np.lib.format
    with archive.zip.open(f"{key}.npy") as member:
        is_first = header.read_magic(member) == (1, 0)
        read = header.read_array_header_1_0 if is_first else header.read_array_header_2_0
        shape, _, dtype = read(member)
    rows, *columns = shape or (1,)
    # A text counts as the numbers that would take its place.
    width = math.prod(columns) * math.ceil(dtype.itemsize / 8)
    refuse_too_large(rows, width, source=f"{source}: array {key!r}")


def _index_entry(path: Path) -> dict[str, Any]:
    """Return what ``index.json`` beside the file tells about it, if it lists the file."""
    try:
        entries = read_json(path.parent / "index.json", error=TableError)
        entry = next(entry for entry in entries if entry["file"] == path.name)
    except (TableError, LookupError, TypeError, StopIteration):
        # Many programs write an index.json; one that is no list of files is not about this file.
        return {}
    return {key: entry[key] for key in ("model", "task", "classes") if entry.get(key)}
