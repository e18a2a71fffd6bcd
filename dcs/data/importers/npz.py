"""NumPy archives: ``probs`` (or ``logits``) and ``labels``; optionally ``classes`` and ``ids``.

An ``index.json`` beside the file, a list of entries with a key ``file``, gives class names, model
and task for the files it lists. No pickle is ever loaded.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.data.checks import check_shape, listing
from dcs.data.importers.common import ImportOptions, build_table
from dcs.data.table import ProbabilityTable, Provenance
from dcs.errors import TableError
from dcs.io import existing_file, memory_bound
from dcs.messages import escaped, reason, show, suggest

_KEYS = ("probs", "logits", "labels", "classes", "ids")


def read(path: Path, options: ImportOptions) -> dict[str, ProbabilityTable]:
    """Read the one table of an archive."""
    target = existing_file(path, error=TableError)
    source = escaped(target)
    arrays = _arrays(target, source)
    found = "probs" if "probs" in arrays else "logits"
    n_classes = check_shape(arrays[found], source=source).shape[1]
    entry = _index_entry(target, n_classes, named=options.classes is not None)
    table = build_table(
        arrays[found],
        arrays["labels"],
        classes=_flat(arrays, "classes", source) or entry.get("classes"),
        ids=_flat(arrays, "ids", source),
        provenance=Provenance(
            model=entry.get("model"), task=entry.get("task"), source=target.name
        ),
        options=options,
        source=source,
        logits=found == "logits",
    )
    return {"all": table}


def _arrays(path: Path, source: str) -> dict[str, NDArray[Any]]:
    try:
        _check_kind(path, source)
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > memory_bound():
            raise TableError(
                f"{source}: unpacks to {size / 2**30:.1f} GiB; at most "
                f"{memory_bound() / 2**30:.1f} GiB are read on this machine; split the file"
            )
        with np.load(path, allow_pickle=False) as arrays:
            _check_keys(arrays.files, source)
            return {key: _array(arrays, key, source) for key in arrays.files if key in _KEYS}
    except TableError:
        raise
    except Exception as error:
        # Damaged archives fail in zipfile, zlib, struct, the header's parser or the allocator.
        raise TableError(f"{source}: damaged npz archive: {reason(error)}") from error


def _check_kind(path: Path, source: str) -> None:
    with path.open("rb") as file:
        head = file.read(6)
    if head == b"\x93NUMPY":
        raise TableError(f"{source}: one bare array; save probs and labels with numpy.savez")
    if head[:1] == b"\x80":
        raise TableError(
            f"{source}: looks like a pickle, which is never loaded; save it with numpy.savez"
        )
    if not head.startswith(b"PK"):
        raise TableError(f"{source}: not an npz archive; save probs and labels with numpy.savez")


def _check_keys(keys: list[str], source: str) -> None:
    held = f"arrays here: {listing(keys)}"
    values = [key for key in ("probs", "logits") if key in keys]
    if len(values) == 2:
        raise TableError(f"{source}: holds both 'probs' and 'logits'; exactly one is needed")
    if not values:
        raise TableError(f"{source}: holds neither 'probs' nor 'logits'; one is needed ({held})")
    if "labels" not in keys:
        near = suggest("labels", keys)
        raise TableError(f"{source}: holds no 'labels', which are needed{near} ({held})")


def _array(arrays: Any, key: str, source: str) -> NDArray[Any]:
    try:
        return np.asarray(arrays[key])
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise TableError(
            f"{source}: {show(key)} holds Python objects, which would need a pickle; "
            "save it as an array of numbers or texts"
        ) from None


def _flat(arrays: dict[str, NDArray[Any]], key: str, source: str) -> list[Any] | None:
    if key not in arrays:
        return None
    if arrays[key].ndim != 1:
        raise TableError(
            f"{source}: {show(key)} has shape {arrays[key].shape}; one dimension is needed"
        )
    values: list[Any] = arrays[key].tolist()
    return values


def _index_entry(path: Path, n_classes: int, *, named: bool) -> dict[str, Any]:
    """Return what ``index.json`` beside the file tells about it, if it lists the file."""
    index = path.parent / "index.json"
    try:
        entries = json.loads(index.read_bytes()) if index.is_file() else []
    except (OSError, ValueError, RecursionError):
        # Many programs write an index.json; one that is no list of files is not about this file.
        return {}
    listed = [
        entry
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and entry.get("file") == path.name
    ]
    if not listed:
        return {}
    entry = {
        key: listed[0][key] for key in ("model", "task") if isinstance(listed[0].get(key), str)
    }
    classes = listed[0].get("classes")
    if classes and not named:
        if not isinstance(classes, list) or len(classes) != n_classes:
            raise TableError(
                f"{escaped(index)}: classes of {show(path.name)} are {show(classes)}, but the "
                f"file has {n_classes} columns; mend the entry or give --classes"
            )
        entry["classes"] = classes
    return entry
