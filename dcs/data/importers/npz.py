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

from dcs.data.importers.common import ImportOptions, build_table
from dcs.data.table import ProbabilityTable, Provenance
from dcs.errors import TableError
from dcs.io import existing_file, memory_bound
from dcs.messages import escaped, listing, reason, show, suggest

_KEYS = ("probs", "logits", "labels", "classes", "ids")


def read(path: Path, options: ImportOptions) -> dict[str, ProbabilityTable]:
    """Read the one table of an archive."""
    source = escaped(path)
    arrays = _arrays(existing_file(path, error=TableError), source)
    found = "probs" if "probs" in arrays else "logits"
    entry = _index_entry(path)
    classes, ids = (_flat(arrays, key, source) for key in ("classes", "ids"))
    table = build_table(
        arrays[found],
        arrays["labels"].tolist(),
        classes=classes or entry.get("classes"),
        ids=ids,
        provenance=Provenance(model=entry.get("model"), task=entry.get("task"), source=path.name),
        options=options,
        source=source,
        logits=found == "logits",
    )
    return {"all": table}


def _arrays(path: Path, source: str) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > memory_bound():
            raise TableError(
                f"{source}: unpacks to {size / 2**30:.1f} GiB; at most "
                f"{memory_bound() / 2**30:.1f} GiB are read on this machine; split the file"
            )
        with np.load(path, allow_pickle=False) as archive:
            _check_keys(archive.files, source)
            return {key: np.asarray(archive[key]) for key in archive.files if key in _KEYS}
    except TableError:
        raise
    except Exception as error:
        # Damaged archives fail in zipfile, zlib, struct, the header's parser or the allocator.
        raise TableError(
            f"{source}: not an npz archive of plain arrays, or damaged: {reason(error)}; save "
            "probs and labels with numpy.savez"
        ) from error


def _check_keys(keys: list[str], source: str) -> None:
    if ("probs" in keys) == ("logits" in keys) or "labels" not in keys:
        raise TableError(
            f"{source}: arrays are {listing(keys)}{suggest('labels', keys)}; 'labels' and either "
            "'probs' or 'logits' are needed"
        )


def _flat(arrays: dict[str, NDArray[Any]], key: str, source: str) -> list[Any] | None:
    if key not in arrays:
        return None
    if arrays[key].ndim != 1:
        raise TableError(
            f"{source}: {show(key)} has shape {arrays[key].shape}; one dimension is needed"
        )
    values: list[Any] = arrays[key].tolist()
    return values


def _index_entry(path: Path) -> dict[str, Any]:
    """Return what ``index.json`` beside the file tells about it, if it lists the file."""
    try:
        entries = json.loads((path.parent / "index.json").read_bytes())
        entry = next(entry for entry in entries if entry["file"] == path.name)
    except (OSError, ValueError, LookupError, TypeError, StopIteration, RecursionError):
        # Many programs write an index.json; one that is no list of files is not about this file.
        return {}
    return {key: entry[key] for key in ("model", "task", "classes") if entry.get(key)}
