"""The format ``jsonl``: one object per line, class probabilities by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dcs import ProbabilityTable, Provenance
from dcs.data.importers import Importer, ImportOptions
from dcs.errors import TableError

JSONL = Importer(
    name="jsonl",
    summary='lines such as {"label": "a", "probs": {"a": 0.7, "b": 0.3}}, perhaps with an id',
    module="dcs_extras.importer",
    options=frozenset({"classes"}),
)


def read(path: Path, options: ImportOptions) -> dict[str, ProbabilityTable]:
    """Return the one table of the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TableError(f"{path}: cannot be read ({error})") from None
    rows = [_row(path, number, line) for number, line in enumerate(text.splitlines(), 1)]
    if not rows:
        raise TableError(f"{path}: no lines; one object per row is needed")
    classes = options.classes or tuple(rows[0]["probs"])
    for number, row in enumerate(rows, 1):
        if set(row["probs"]) != set(classes) or row["label"] not in classes:
            raise TableError(f"{path}: line {number}: other classes than {', '.join(classes)}")
    table = ProbabilityTable.from_arrays(
        [[row["probs"][name] for name in classes] for row in rows],
        [classes.index(row["label"]) for row in rows],
        classes=classes,
        ids=[row.get("id", number) for number, row in enumerate(rows)],
        provenance=Provenance(source=path.name),
        source=path,
    )
    return {"all": table}


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise TableError(f"{path}: line {number}: not JSON ({error})") from None
    if not isinstance(row, dict) or "label" not in row or not isinstance(row.get("probs"), dict):
        raise TableError(f"{path}: line {number}: label and probs are needed")
    return row
