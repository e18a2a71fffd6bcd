"""Several tables of the same rows as one: rows matched by id, probabilities combined.

Prompts, draws of demonstrations or models that answer the same rows know different things. What
makes one table of them is a calibration of all their log-probabilities, side by side; a scheme is
then fitted as on any table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.table import ProbabilityTable
from dcs.errors import TableError
from dcs.messages import listing, show
from dcs.schemes.calibration import (
    DEFAULT_FLOOR,
    Calibration,
    fit_calibration,
    fit_stack,
    mean_combination,
)
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.folds import stratified_folds

__all__ = ["TableEnsemble", "combine", "mean_of"]

Array: TypeAlias = NDArray[np.float64]

_FOLDS: Final = 5

#: Strength of the penalty of a stack towards the mean, in rows.
_RIDGE: Final = 20.0


@dataclass(frozen=True, slots=True, eq=False)
class TableEnsemble:
    """Several tables of the same rows, in the same order. Make one with :meth:`matched`.

    Attributes
    ----------
    tables : tuple of ProbabilityTable
        K tables with equal ids, labels and classes.
    names : tuple of str
        What people call each.
    """

    tables: tuple[ProbabilityTable, ...]
    names: tuple[str, ...]

    @classmethod
    def matched(cls, tables: Mapping[str, ProbabilityTable]) -> TableEnsemble:
        """Bring tables into the order of rows and classes of the first.

        Parameters
        ----------
        tables : mapping of str to ProbabilityTable
            By name, at least one.

        Raises
        ------
        TableError
            A table has other rows or classes, or another label for a row; names both tables and
            the row.
        """
        (first, base), *others = tables.items()
        found = [base]
        for name, table in others:
            if set(table.classes) != set(base.classes):
                raise TableError(
                    f"{name}: classes are {listing(table.classes)}; those of {first} are "
                    f"{listing(base.classes)}, and tables of the same rows have the same"
                )
            place = {row: index for index, row in enumerate(table.ids)}
            missing = [row for row in base.ids if row not in place]
            if missing or table.n_rows != base.n_rows:
                lacks = f"has no row with the id {show(missing[0], 40)}" if missing else "has more"
                raise TableError(
                    f"{name}: {table.n_rows} rows; {first} has {base.n_rows}, and {name} {lacks}: "
                    "give tables of the same rows, with the same ids"
                )
            # Rows and classes as those of the first.
            table = table.subset([place[row] for row in base.ids])
            columns = [table.classes.index(each) for each in base.classes]
            known = table.labelled
            labels = np.where(known, np.argsort(columns)[table.labels], -1)
            for row in np.flatnonzero(known & base.labelled & (labels != base.labels))[:1]:
                raise TableError(
                    f"{name}: the row with the id {show(base.ids[row], 40)} is labelled "
                    f"{show(base.classes[labels[row]])}, in {first} "
                    f"{show(base.classes[base.labels[row]])}; tables of the same rows have the "
                    "same labels"
                )
            # A row that has a label in one table has it in all.
            base = replace(base, labels=np.where(base.labelled, base.labels, labels))
            found.append(replace(table, probs=table.probs[:, columns], classes=base.classes))
        return cls(tuple(replace(each, labels=base.labels) for each in found), tuple(tables))

    @property
    def labels(self) -> NDArray[np.int64]:
        """True classes, [M]."""
        return self.tables[0].labels

    @property
    def classes(self) -> tuple[str, ...]:
        """N class names."""
        return self.tables[0].classes

    @property
    def n_rows(self) -> int:
        """Number of rows, M."""
        return self.tables[0].n_rows

    @property
    def probs(self) -> NDArray[np.float64]:
        """Class probabilities of all tables, [K, M, N]."""
        return np.array([table.probs for table in self.tables])

    @property
    def digest(self) -> str:
        """Hash (SHA-256, hex) of the digests of the tables."""
        return hashlib.sha256(" ".join(table.digest for table in self.tables).encode()).hexdigest()

    def subset(self, rows: ArrayLike, *, split: str | None = None) -> TableEnsemble:
        """Return some rows of every table; as :meth:`ProbabilityTable.subset`."""
        tables = tuple(table.subset(rows, split=split) for table in self.tables)
        return TableEnsemble(tables, self.names)

    def combined(self, scheme: CorrectionScheme) -> ProbabilityTable:
        """Return the one table that the combination of a scheme makes, or its only input."""
        tables = dict(zip(self.names, self.tables, strict=True))
        if scheme.combination is None:
            return tables[scheme.inputs[0]]
        probs = scheme.combination.apply([tables[name].probs for name in scheme.inputs])
        return self.tables[0].with_probs(probs)


def combine(
    ensemble: TableEnsemble, *, seed: int = 0
) -> tuple[CorrectionScheme, ProbabilityTable]:
    """Choose how tables become one, and make that one table, each row as if it were new.

    Compared by cross-validation are every table alone, the mean of the log-probabilities, and a
    linear stack of them, each calibrated, by the likelihood of the labels with all classes
    weighing alike. Without labels it is the mean.

    Parameters
    ----------
    ensemble : TableEnsemble
        The rows to fit on; those without a label are only combined.
    seed : int, optional
        Seed of the folds.

    Returns
    -------
    scheme : CorrectionScheme
        It combines and corrects nothing. Its inputs are the tables that count.
    table : ProbabilityTable
        The rows, those with a label combined by what was fitted on the other folds: a stack is
        too sure of rows that it has seen, and a scheme fitted on them would be so of its own.
    """
    probs, labelled = ensemble.probs, ensemble.labels >= 0
    schemes = [
        CorrectionScheme.identity(ensemble.classes, inputs=(name,)) for name in ensemble.names
    ]
    schemes.append(mean_of(ensemble))
    if labelled.sum() < 2:
        return schemes[-1], ensemble.combined(schemes[-1])
    labels = ensemble.labels[labelled]
    place = stratified_folds(labels, min(_FOLDS, labels.size), seed=seed)
    calibrate = partial(fit_calibration, kind="balanced", ridge=_RIDGE)
    losses = [
        _loss(_unseen(calibrate, ensemble.combined(each).probs[labelled], labels, place), labels)
        for each in schemes
    ]
    stack = partial(fit_stack, ridge=_RIDGE)
    unseen = _unseen(stack, probs[:, labelled], labels, place)
    if _loss(unseen, labels) >= min(losses):
        chosen = schemes[int(np.argmin(losses))]
        return chosen, ensemble.combined(chosen)
    chosen = replace(schemes[-1], combination=stack(probs[:, labelled], labels))
    combined = ensemble.combined(chosen).probs.copy()
    combined[labelled] = unseen
    return chosen, ensemble.tables[0].with_probs(combined)


def mean_of(ensemble: TableEnsemble) -> CorrectionScheme:
    """Return the scheme that takes the mean of the log-probabilities, and no more."""
    return CorrectionScheme.identity(
        ensemble.classes,
        inputs=ensemble.names,
        combination=mean_combination(len(ensemble.tables), len(ensemble.classes)),
    )


def _unseen(
    fit: Callable[[Array, NDArray[np.int64]], Calibration | None],
    probs: Array,
    labels: NDArray[np.int64],
    place: NDArray[np.int64],
) -> Array:
    """Return the calibrated probabilities of each row by a fit on the rows of other folds."""
    found = np.empty((labels.size, probs.shape[-1]))
    for fold in np.unique(place):
        inside = place != fold
        fitted = fit(probs[..., inside, :], labels[inside])
        assert fitted is not None
        found[~inside] = fitted.apply(probs[..., ~inside, :])
    return found


def _loss(probs: Array, labels: NDArray[np.int64]) -> float:
    """Return minus the mean log-probability of the labels, all classes weighing alike."""
    weights = 1.0 / np.bincount(labels)[labels]
    likely = np.maximum(probs[np.arange(labels.size), labels], DEFAULT_FLOOR)
    return float(-(weights * np.log(likely)).sum() / weights.sum())
