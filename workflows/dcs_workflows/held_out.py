"""The rows of a table that are held out, also when rows were added to it."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcs.data.splits import copied_rows, stratified_split
from dcs.data.table import ProbabilityTable
from dcs.errors import ConfigError, TableError
from dcs.seeds import derive_seed
from dcs.selection.ensemble import TableEnsemble

#: A table, or an ensemble of tables of the same rows.
Rows: TypeAlias = ProbabilityTable | TableEnsemble

#: Files beside a scheme of dcs tune: the rows that it was fitted on, and those held out.
FITTED: Final = "fitted.parquet"
HELD_OUT: Final = "held_out.parquet"


def hold_out(
    tables: dict[str, Rows], *, seed: int, share: float, earlier: Path | None = None
) -> tuple[dict[str, Rows], tuple[str, ...]]:
    """Return tables of both splits; hold out labelled rows as test rows if there are none.

    Copies of a row stay together. If no row has a label, both splits contain all rows, and nothing
    is evaluated. Also returns what is to be said about rows that were divided earlier.
    """
    if "test" in tables:
        if earlier is not None:
            raise ConfigError(f"earlier {earlier}: the table has test rows already; remove one")
        return tables, ()
    table = tables["optimization"]
    labelled, others = np.flatnonzero(table.labelled), np.flatnonzero(~table.labelled)
    if labelled.size == 0:
        splits = ("optimization", "test")
        return {split: table.subset(others, split=split) for split in splits}, ()
    probs = table.probs if table.probs.ndim == 2 else np.concatenate([*table.probs], axis=1)
    placed: NDArray[np.int64] | None = None
    said: tuple[str, ...] = ()
    if earlier is not None:
        placed, line = _placed(table.subset(labelled), earlier)
        said = (line,)
    parts = stratified_split(
        table.labels[labelled],
        {"optimization": 1.0 - share, "test": share},
        seed=derive_seed(seed, "held-out"),
        groups=copied_rows(probs[labelled], table.groups[labelled]),
        placed=placed,
    )
    rows = {split: labelled[part] for split, part in parts.items()}
    rows["optimization"] = np.sort(np.concatenate([rows["optimization"], others]))
    return {split: table.subset(part, split=split) for split, part in rows.items()}, said


def _placed(table: Rows, earlier: Path) -> tuple[NDArray[np.int64], str]:
    """Return the part of every row of which an earlier scheme knows one, -1 for others.

    Rows are the same if they have the same id; without ids, the same label and probabilities.
    """
    files = [earlier.with_name(name) for name in (FITTED, HELD_OUT)]
    if isinstance(table, TableEnsemble) or not all(file.exists() for file in files):
        raise ConfigError(
            f"earlier {earlier}: must be a scheme of dcs tune for one table, beside its {FITTED} "
            f"and {HELD_OUT}"
        )
    kept = [ProbabilityTable.read(file).only_labelled() for file in files]
    kept = [each.with_classes(table.classes, source=str(earlier)) for each in kept]
    numbered = all(name.isdecimal() for each in (table, *kept) for name in each.ids)

    def names(rows: ProbabilityTable) -> list[Any]:
        if not numbered:
            return list(rows.ids)
        values = rows.probs.round(9).tolist()
        return [(label, *row) for label, row in zip(rows.labels.tolist(), values, strict=True)]

    positions: dict[Any, deque[int]] = {}
    for row, name in enumerate(names(table)):
        positions.setdefault(name, deque()).append(row)
    placed = np.full(table.n_rows, -1)
    for part, rows in enumerate(kept):
        for name in names(rows):
            if same := positions.get(name):
                placed[same.popleft()] = part
    number, found = sum(rows.n_rows for rows in kept), int((placed >= 0).sum())
    if 2 * found < number:
        raise TableError(
            f"earlier {earlier}: only {found} of its {number} rows are in the table; give a table "
            "with these rows and further ones"
        )
    return placed, (
        f"{found} of {number} rows of {earlier} stay fitted or held out; {table.n_rows - found} "
        "others are divided"
    )
