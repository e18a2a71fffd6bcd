"""Several tables of the same rows as one: rows matched by id, probabilities combined.

Prompts, draws of demonstrations or models that answer the same rows know different things. What
makes one table of them is a calibration of all their log-probabilities, side by side; a scheme is
then fitted as on any table.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.table import ProbabilityTable, Provenance
from dcs.errors import TableError, listing, show
from dcs.schemes.calibration import DEFAULT_FLOOR, fit_stack, mean_combination
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.cross_validation import stratified_folds

Array: TypeAlias = NDArray[np.float64]

_FOLDS: Final = 5

#: Standard errors by which a stack must be better than what is simpler.
_CLEAR: Final = 2.0

#: What makes the probabilities of a table; new rows must have the same.
_ORIGIN: Final = frozenset(
    ("model", "revision", "task", "shots", "demonstration_seed", "prompt_hash", "scorer")
)


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

        Rows that are not in all tables are left out: what one prompt shows as a demonstration is
        a row of others.

        Parameters
        ----------
        tables : mapping of str to ProbabilityTable
            By name, at least one.

        Raises
        ------
        TableError
            Less than half of the rows of a table are in all others, it has other classes, or
            another label for a row; names the table and the row.
        """
        (first, base), *others = tables.items()
        everywhere = set(base.ids).intersection(*(table.ids for table in tables.values()))
        for name, table in tables.items():
            if 2 * len(everywhere) < table.n_rows:
                raise TableError(
                    f"{name}: of its {table.n_rows} rows {len(everywhere)} have an id that is in "
                    f"{listing([*tables])} alike; give tables of the same rows, with the same ids"
                )
        base = base.subset([i for i, row in enumerate(base.ids) if row in everywhere])
        found = [base]
        for name, table in others:
            if set(table.classes) != set(base.classes):
                raise TableError(
                    f"{name}: classes are {listing(table.classes)}; those of {first} are "
                    f"{listing(base.classes)}, and tables of the same rows have the same"
                )
            # Rows and classes as those of the first.
            place = {row: index for index, row in enumerate(table.ids)}
            table = table.subset([place[row] for row in base.ids])
            table = table.with_classes(base.classes)
            known, labels = table.labelled, table.labels
            for row in np.flatnonzero(known & base.labelled & (labels != base.labels))[:1]:
                raise TableError(
                    f"{name}: the row with the id {show(base.ids[row], 40)} is labelled "
                    f"{show(base.classes[labels[row]])}, in {first} "
                    f"{show(base.classes[base.labels[row]])}; tables of the same rows have the "
                    "same labels"
                )
            # A row that has a label in one table has it in all.
            base = replace(base, labels=np.where(base.labelled, base.labels, labels))
            found.append(table)
        return cls(tuple(replace(each, labels=base.labels) for each in found), tuple(tables))

    @classmethod
    def of(
        cls, scheme: CorrectionScheme, tables: Sequence[tuple[str, ProbabilityTable]]
    ) -> TableEnsemble:
        """Return the tables that a scheme takes, in the order of its inputs.

        Parameters
        ----------
        scheme : CorrectionScheme
            Its provenance says of which model, task and prompt each table was.
        tables : sequence of tuple
            What messages call each table, and the table.

        Raises
        ------
        TableError
            There are more or fewer, one is of another model, task or prompt, or they are not of
            the same rows.
        """
        order = f"the scheme takes {listing(scheme.inputs)}, in this order"
        if len(tables) != max(1, len(scheme.inputs)):
            raise TableError(
                f"{len(tables)} tables given; the scheme takes one"
                if not scheme.inputs
                else f"{len(tables)} tables given; {order}"
            )
        origins = scheme.provenance.get("tables", {})
        for name, (source, table) in zip(scheme.inputs, tables, strict=False):
            now = table.provenance.to_dict()
            for key, value in origins.get(name, {}).items():
                if key in _ORIGIN and now.get(key, value) != value:
                    raise TableError(
                        f"{source}: {key} is {show(now[key])}, that of the table {name!r} the "
                        f"scheme was fitted on is {show(value)}; {order}"
                    )
        names = scheme.inputs or ("table",)
        found = cls.matched(dict(zip(names, (table for _, table in tables), strict=True)))
        for source, table in tables:
            if missing := sorted(set(table.ids) - set(found.tables[0].ids)):
                raise TableError(
                    f"{source}: the row with the id {show(missing[0], 40)} is not in all tables; "
                    "give tables of the same rows"
                )
        return found

    @property
    def labels(self) -> NDArray[np.int64]:
        """True classes, [M]."""
        return self.tables[0].labels

    @property
    def classes(self) -> tuple[str, ...]:
        """N class names."""
        return self.tables[0].classes

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Whether each row has a label, [M]."""
        return self.tables[0].labelled

    @property
    def n_rows(self) -> int:
        """Number of rows, M."""
        return self.tables[0].n_rows

    @property
    def n_classes(self) -> int:
        """Number of classes, N."""
        return self.tables[0].n_classes

    @property
    def provenance(self) -> Provenance:
        """What the provenances of all tables agree in."""
        first, *others = (asdict(table.provenance) for table in self.tables)
        agreed = {k: v for k, v in first.items() if all(other[k] == v for other in others)}
        return Provenance(**agreed)

    @property
    def probs(self) -> NDArray[np.float64]:
        """Class probabilities of all tables, [K, M, N]."""
        return np.array([table.probs for table in self.tables])

    @property
    def digest(self) -> str:
        """Hash (SHA-256, hex) of the digests of the tables."""
        return joint_digest(table.digest for table in self.tables)

    @property
    def sample(self) -> list[str]:
        """Hashes of some rows of every table, as :attr:`ProbabilityTable.sample`."""
        return [row for table in self.tables for row in table.sample]

    def row_hashes(self) -> list[str]:
        """Return a hash of every row of every table."""
        return [row for table in self.tables for row in table.row_hashes()]

    def subset(self, rows: ArrayLike, *, split: str | None = None) -> TableEnsemble:
        """Return some rows of every table; as :meth:`ProbabilityTable.subset`."""
        tables = tuple(table.subset(rows, split=split) for table in self.tables)
        return TableEnsemble(tables, self.names)

    def only_labelled(self) -> TableEnsemble:
        """Return the rows that have labels, itself if all do."""
        return self if self.labelled.all() else self.subset(self.labelled)

    def combined(self, scheme: CorrectionScheme) -> ProbabilityTable:
        """Return the one table that the combination of a scheme makes, or its only input."""
        probs = inputs_of(scheme, self)
        if scheme.combination is None:
            return self.tables[self.names.index(scheme.inputs[0])]
        combined = scheme.combination.apply(probs)
        return replace(self.tables[0], probs=combined, provenance=self.provenance)


def inputs_of(scheme: CorrectionScheme, rows: ProbabilityTable | TableEnsemble) -> Array:
    """Return the probabilities of rows as a scheme takes them, [M, N] or [K, M, N]."""
    if isinstance(rows, ProbabilityTable):
        return rows.probs
    found: Array = rows.probs[[rows.names.index(name) for name in scheme.inputs]]
    return found if scheme.combination is not None else found[0]


def joint_digest(digests: Iterable[str]) -> str:
    """Return the digest of an ensemble from those of its tables."""
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def combine(
    ensemble: TableEnsemble, *, seed: int = 0
) -> tuple[CorrectionScheme, ProbabilityTable]:
    """Choose how tables become one, and make that one table, each row as if it were new.

    Compared by cross-validation are every table alone, the mean of the log-probabilities, and a
    linear stack of them, each calibrated, by the likelihood of the labels if all classes were as
    frequent. The stack is taken where it is better than the best of the others by more than two
    standard errors of the difference. Without labels it is the mean.

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
    ones = [ensemble.combined(each).probs[None] for each in schemes]
    unseen = [_unseen(tables[:, labelled], labels, place) for tables in (*ones, probs)]
    *losses, of_stack = (_losses(each, labels) for each in unseen)
    best = int(np.argmin([each.mean() for each in losses]))
    gain = losses[best] - of_stack
    if gain.mean() <= _CLEAR * gain.std() / math.sqrt(labels.size):
        return schemes[best], ensemble.combined(schemes[best])
    chosen = replace(schemes[-1], combination=fit_stack(probs[:, labelled], labels))
    combined = ensemble.combined(chosen).probs.copy()
    combined[labelled] = unseen[-1]
    return chosen, ensemble.combined(chosen).with_probs(combined)


def mean_of(ensemble: TableEnsemble) -> CorrectionScheme:
    """Return the scheme that takes the mean of the log-probabilities, and no more."""
    mean = mean_combination(len(ensemble.tables), ensemble.n_classes)
    return CorrectionScheme.identity(ensemble.classes, inputs=ensemble.names, combination=mean)


def _unseen(probs: Array, labels: NDArray[np.int64], place: NDArray[np.int64]) -> Array:
    """Return the stacked probabilities [M, N] of each row by a fit on the rows of other folds."""
    found = np.empty(probs.shape[1:])
    for fold in np.unique(place):
        inside = place != fold
        outside = probs[:, ~inside]
        stack = fit_stack(probs[:, inside], labels[inside])
        found[~inside] = stack.apply(outside if len(outside) > 1 else outside[0])
    return found


def _losses(probs: Array, labels: NDArray[np.int64]) -> Array:
    """Return minus the log-probability of each label, weighted as if classes were as frequent."""
    weights = 1.0 / np.maximum(np.bincount(labels, minlength=probs.shape[1]), 1)
    balanced = probs * weights
    likely = balanced[np.arange(labels.size), labels] / balanced.sum(axis=1)
    share = weights[labels] / weights[labels].mean()
    losses: Array = -np.log(np.maximum(likely, DEFAULT_FLOOR)) * share
    return losses
