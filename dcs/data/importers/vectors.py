"""The published vectors: lines ``id label prediction p_0 ... p_{N-1}``.

A folder ``<task>_<model>_shot<k>_seed<s>`` holds ``opt.txt`` and ``test.txt``; its name gives the
provenance, where the task is what stands before the first underscore.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from dcs.data.checks import Named
from dcs.data.importers.common import ImportOptions, build_table, numbers_of, text_columns
from dcs.data.table import ProbabilityTable, Provenance
from dcs.errors import TableError
from dcs.messages import escaped

_PARTS = {"opt": "optimization", "dev": "development", "test": "test"}
_FOLDER = re.compile(
    r"(?P<task>[^_]+)_(?P<model>.+)_shot(?P<shots>[0-9]{1,6}|N)_seed(?P<seed>[0-9]{1,18})"
)
_BEFORE = 3  # id, label, prediction


def read(path: Path, options: ImportOptions) -> dict[str, ProbabilityTable]:
    """Read one file, or the files of a folder that are named after parts."""
    if not path.is_dir():
        return {_PARTS.get(path.stem, "all"): _read_file(path, options)}
    files = {part: path / f"{stem}.txt" for stem, part in _PARTS.items()}
    tables = {part: _read_file(file, options) for part, file in files.items() if file.exists()}
    if not tables:
        raise TableError(f"{escaped(path)}: holds neither opt.txt nor test.txt; one is needed")
    if len({table.n_classes for table in tables.values()}) > 1:
        counts = ", ".join(f"{part} {table.n_classes}" for part, table in tables.items())
        raise TableError(f"{escaped(path)}: the files have different numbers of classes: {counts}")
    return tables


def _read_file(path: Path, options: ImportOptions) -> ProbabilityTable:
    frame = text_columns(path, separators=" ")
    source, ids = escaped(path), frame[0].tolist()
    probs = [
        numbers_of(frame[k].tolist(), f"p_{k - _BEFORE}", Named(source, ids=ids))
        for k in range(_BEFORE, frame.shape[1])
    ]
    if len(probs) < 2:
        raise TableError(
            f"{source}: {frame.shape[1]} fields per line; id, label, prediction and at least 2 "
            "probabilities are needed"
        )
    return build_table(
        np.stack(probs, axis=1),
        frame[1].tolist(),
        classes=None,
        ids=ids,
        provenance=_provenance(path),
        options=options,
        source=source,
    )


def _provenance(path: Path) -> Provenance:
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
