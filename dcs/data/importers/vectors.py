"""The published vectors: lines ``id label prediction p_0 ... p_{N-1}``.

A folder ``<task>_<model>_shot<k>_seed<s>`` holds ``opt.txt`` and ``test.txt``; its name gives the
provenance, where the task is what stands before the first underscore.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from dcs.data.importers.common import PARTS, ImportOptions, build_table, text_lines
from dcs.data.table import ProbabilityTable, Provenance
from dcs.errors import TableError
from dcs.messages import escaped, show

_FOLDER = re.compile(
    r"(?P<task>[^_]+)_(?P<model>.+)_shot(?P<shots>[0-9]{1,6}|N)_seed(?P<seed>[0-9]{1,18})"
)
_BEFORE = 3  # id, label, prediction


def read(path: Path, options: ImportOptions) -> dict[str, ProbabilityTable]:
    """Read one file, or the files of a folder that are named after parts."""
    if not os.path.isdir(path):
        return {PARTS.get(path.stem, "all"): _read_file(path, options)}
    found = {part: path / f"{stem}.txt" for stem, part in PARTS.items()}
    found = {part: file for part, file in found.items() if os.path.exists(file)}
    if not found:
        raise TableError(f"{escaped(path)}: holds neither opt.txt nor test.txt; one is needed")
    tables = {part: _read_file(file, options) for part, file in found.items()}
    counts = {part: table.n_classes for part, table in tables.items()}
    if len(set(counts.values())) > 1:
        raise TableError(
            f"{escaped(path)}: the files have different numbers of classes: "
            f"{', '.join(f'{found[part].name} {count}' for part, count in counts.items())}"
        )
    return tables


def _read_file(path: Path, options: ImportOptions) -> ProbabilityTable:
    source = escaped(path)
    ids: list[str] = []
    labels: list[str] = []
    rows: list[list[float]] = []
    for number, line in text_lines(path):
        fields = line.split()
        if len(fields) < _BEFORE + 2:
            raise TableError(
                f"{source}: line {number} has {len(fields)} fields; "
                "id, label, prediction and at least 2 probabilities are needed"
            )
        if rows and len(fields) - _BEFORE != len(rows[0]):
            raise TableError(
                f"{source}: line {number} has {len(fields) - _BEFORE} probabilities, the lines "
                f"before it have {len(rows[0])}; every line needs as many"
            )
        ids.append(fields[0])
        labels.append(fields[1])
        rows.append(
            [_number(field, k, number, source) for k, field in enumerate(fields[_BEFORE:])]
        )
    if not rows:
        raise TableError(f"{source}: no lines; `id label prediction p_0 p_1 ...` are needed")
    return build_table(
        np.array(rows),
        labels,
        classes=None,
        ids=ids,
        provenance=_provenance(path),
        options=options,
        source=source,
    )


def _number(field: str, k: int, line: int, source: str) -> float:
    try:
        return float(field)
    except ValueError:
        raise TableError(
            f"{source}: line {line}: p_{k} is {show(field)}; a number is needed"
        ) from None


def _provenance(path: Path) -> Provenance:
    split = PARTS.get(path.stem)
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
