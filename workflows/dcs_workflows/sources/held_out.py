"""Rows that are held out from a fit, and those that stay as they were for an earlier one."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dcs.data.splits import stratified_split
from dcs.data.table import ProbabilityTable
from dcs.errors import ConfigError, TableError, show
from dcs.prompting.tasks import SPLITS
from dcs.seeds import derive_seed
from dcs.selection.ensemble import TableEnsemble
from dcs_workflows.config.sweep import SweepConfig
from dcs_workflows.sources.joint import Rows

#: Files beside a scheme of dcs tune: the rows that it was fitted on, and those held out.
FITTED: Final = "fitted.parquet"
HELD_OUT: Final = "held_out.parquet"


def hold_out(
    tables: dict[str, Rows], config: SweepConfig, seed: int
) -> tuple[dict[str, Rows], tuple[str, ...]]:
    """Return tables of both splits; hold out labelled rows as test rows if there are none.

    Copies of a row stay together. If no row has a label, both splits contain all rows, and nothing
    is evaluated. Also returns what is to be said about rows that were divided earlier.
    """
    if "test" in tables:
        if (given := config.earlier) is not None:
            raise ConfigError(f"earlier {given}: the table has test rows already; remove one")
        return tables, ()
    table = tables["optimization"]
    labelled, others = np.flatnonzero(table.labelled), np.flatnonzero(~table.labelled)
    if labelled.size == 0:
        return {str(split): table.subset(others, split=split) for split in SPLITS}, ()
    known = table.only_labelled()
    placed, said = _placed(known, config.earlier)
    parts = stratified_split(
        known.labels,
        {"optimization": 1.0 - config.held_out, "test": config.held_out},
        seed=derive_seed(seed, "held-out"),
        groups=known.copies,
        placed=placed,
    )
    rows = {split: labelled[part] for split, part in parts.items()}
    rows["optimization"] = np.sort(np.concatenate([rows["optimization"], others]))
    return {split: table.subset(part, split=split) for split, part in rows.items()}, said


#: Share of ids of other rows up to which it is chance, as probabilities can coincide.
_MOVED: Final = 0.05


def _matched(rows: Iterable[Hashable], earlier: Iterable[Hashable]) -> dict[int, int]:
    """Return the number of the row that equals an earlier one, by the number of that."""
    places: dict[Hashable, deque[int]] = {}
    for row, name in enumerate(rows):
        places.setdefault(name, deque()).append(row)
    found = ((k, places.get(name)) for k, name in enumerate(earlier))
    return {k: same.popleft() for k, same in found if same}


def _placed(table: Rows, earlier: Path | None) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Return the part of every row of which an earlier scheme knows one, -1 for others.

    Rows are the same if they have the same id; without ids, the same probabilities, of those with
    the same label first.

    Raises
    ------
    TableError
        If few rows are the same, or the ids have been given to other rows.
    """
    if earlier is None:
        return None, ()
    files = [earlier.with_name(name) for name in (FITTED, HELD_OUT)]
    if isinstance(table, TableEnsemble) or not all(file.exists() for file in files):
        raise ConfigError(
            f"earlier {earlier}: must be a scheme of dcs tune for one table, beside its {FITTED} "
            f"and {HELD_OUT}"
        )
    kept = [ProbabilityTable.read(file).only_labelled() for file in files]
    kept = [each.with_classes(table.classes, source=str(earlier)) for each in kept]
    numbered = all(name.isdecimal() for each in (table, *kept) for name in each.ids)
    rows = [table.probs, np.concatenate([each.probs for each in kept])]
    values = [[*map(tuple, each.round(9).tolist())] for each in rows]
    if numbered:
        labels = [table.labels, np.concatenate([each.labels for each in kept])]
        same = _matched(*(zip(*each, strict=True) for each in zip(labels, values, strict=True)))
        # Labels may have been changed since.
        taken = {*same.values()}
        others = [None if row in taken else own for row, own in enumerate(values[0])]
        same |= _matched(others, [() if k in same else own for k, own in enumerate(values[1])])
    else:
        same = _matched(table.ids, [name for each in kept for name in each.ids])
        now, then = values
        there = Counter(now)
        moved = [k for k in same if now[same[k]] != then[k] and there[then[k]] == 1]
        if len(moved) > _MOVED * len(same):
            raise TableError(
                f"earlier {earlier}: {len(moved)} of its ids, such as "
                f"{show(table.ids[same[moved[0]]], 40)}, are of other rows in the table; give the "
                "rows their earlier ids"
            )
    placed = np.full(table.n_rows, -1)
    parts = np.repeat(np.arange(len(kept)), [each.n_rows for each in kept])
    placed[[*same.values()]] = parts[[*same]]
    if not numbered:
        # Unlabelled rows were fitted as well, and may have a label now.
        fitted = {*ProbabilityTable.read(files[0]).ids}
        placed[[name in fitted for name in table.ids]] = 0
    number, found = len(parts), len(same)
    if 2 * found < number:
        raise TableError(
            f"earlier {earlier}: only {found} of its {number} labelled rows are among those "
            "of the table; give a table with these rows and further ones"
        )
    line = f"{found} of {number} rows of {earlier} stay fitted or held out"
    return placed, (f"{line}; {(placed < 0).sum()} others are divided",)
