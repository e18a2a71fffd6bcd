"""Ensembles of tables of the same rows: rows are matched by id and probabilities combined.

Different prompts, demonstrations or models provide complementary information on the same rows. A
calibration of their concatenated log-probabilities combines them into one table, on which a scheme
is fitted as usual.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.splits import copied_rows, stratified_folds
from dcs.data.table import ProbabilityTable, Provenance
from dcs.errors import TableError, quoted, show
from dcs.evaluation.uncertainty import design_effect
from dcs.methods.calibrations import fit_stack
from dcs.schemes.calibration import DEFAULT_FLOOR, Array, mean_combination
from dcs.schemes.scheme import CorrectionScheme

_FOLDS: Final = 5

#: Number of standard errors by which a stack must be better than simpler combinations.
_CLEAR: Final = 2.0

#: Provenance fields that determine the probabilities; new rows must have the same values.
_ORIGIN: Final = frozenset(
    ("model", "revision", "task", "shots", "demonstration_seed", "prompt_hash", "scorer")
)


def _first_number(table: ProbabilityTable) -> int | None:
    """Return the first id if all ids count the rows from it."""
    first = int(table.ids[0]) if table.ids[0].isdecimal() else None
    counted = () if first is None else map(str, range(first, first + table.n_rows))
    return first if tuple(table.ids) == (*counted,) else None


@dataclass(frozen=True, slots=True, eq=False)
class TableEnsemble:
    """Several tables of the same rows, in the same order; created by :meth:`matched`.

    Attributes
    ----------
    tables : tuple of ProbabilityTable
        K tables with equal ids, labels and classes.
    names : tuple of str
        Name of each table.
    """

    tables: tuple[ProbabilityTable, ...]
    names: tuple[str, ...]

    @classmethod
    def matched(cls, tables: Mapping[str, ProbabilityTable]) -> Self:
        """Match tables by id, in the order of rows and classes of the first.

        Rows that are not in all tables are dropped: a demonstration of one prompt can be a row of
        the other tables.

        Parameters
        ----------
        tables : mapping of str to ProbabilityTable
            Tables by name, at least one.

        Raises
        ------
        TableError
            If less than half of the rows of a table are in all others, if tables without ids are
            of different length, or others have ids, if ids count from different numbers, or if
            classes or labels differ; the message names the table and the row.
        """
        (first, base), *others = tables.items()
        starts = {_first_number(table) for table in tables.values()}
        numbered = starts == {0}
        readings = {name: table.provenance.reading for name, table in tables.items()}
        nameless = [name for name, own in readings.items() if own is not None and own.id is None]
        # Tables that we wrote lack demonstrations, perhaps the first rows.
        shifted = len(starts) > 1 and None not in starts and None not in readings.values()
        sizes = {table.n_rows for table in tables.values()}
        mixed = shifted or 0 < len(nameless) < len(tables)
        if len(sizes) > 1 if numbered else mixed:
            raise TableError(
                f"{quoted([*tables])}: ids of some only number their rows, which are fewer or "
                "begin at another number than others; give all the same column of ids"
            )
        shared = set(base.ids).intersection(*(table.ids for table in tables.values()))
        for name, table in tables.items():
            if 2 * len(shared) < table.n_rows:
                raise TableError(
                    f"{name}: only {len(shared)} of its {table.n_rows} rows have an id that is in "
                    f"all of {quoted([*tables])}; give tables of the same rows with the same ids"
                )
        base = base.subset([i for i, row in enumerate(base.ids) if row in shared])
        matched = [base]
        for name, table in others:
            # Reorder rows and classes as in the first table.
            positions = {row: index for index, row in enumerate(table.ids)}
            table = table.subset([positions[row] for row in base.ids])
            table = table.with_classes(base.classes, source=name)
            known, labels = table.labelled, table.labels
            for row in np.flatnonzero(known & base.labelled & (labels != base.labels))[:1]:
                raise TableError(
                    f"{name}: the row with the id {show(base.ids[row], 40)} is labelled "
                    f"{show(base.classes[labels[row]])}, but in {first} "
                    f"{show(base.classes[base.labels[row]])}; tables of the same rows must have "
                    "the same labels"
                )
            # A label in one table applies to the row in all tables.
            base = replace(base, labels=np.where(base.labelled, base.labels, labels))
            matched.append(table)
        return cls(tuple(replace(each, labels=base.labels) for each in matched), tuple(tables))

    @classmethod
    def of(cls, scheme: CorrectionScheme, tables: Sequence[tuple[str, ProbabilityTable]]) -> Self:
        """Return the input tables of a scheme, in the order of its inputs.

        Parameters
        ----------
        scheme : CorrectionScheme
            Scheme whose provenance specifies model, task and prompt of each table.
        tables : sequence of tuple
            Name of each table in error messages, and the table.

        Raises
        ------
        TableError
            If the number of tables, or model, task or prompt of a table, differ from those of the
            scheme, or the tables are not of the same rows.
        """
        names = scheme.inputs or ("table",)
        order = f"the scheme expects {len(names)} table(s), in this order: {quoted(names)}"
        if len(tables) != len(names):
            raise TableError(f"got {len(tables)} tables; {order}")
        origins = scheme.provenance.get("tables", {})
        for name, (source, table) in zip(scheme.inputs, tables, strict=False):
            actual = table.provenance.to_dict()
            for key, value in origins.get(name, {}).items():
                if key in _ORIGIN and actual.get(key, value) != value:
                    raise TableError(
                        f"{source}: {key} is {show(actual[key])}, but {show(value)} for the "
                        f"table {name!r} on which the scheme was fitted; {order}"
                    )
        ensemble = cls.matched(dict(zip(names, (table for _, table in tables), strict=True)))
        for source, table in tables:
            if missing := sorted(set(table.ids) - set(ensemble.tables[0].ids)):
                raise TableError(
                    f"{source}: the row with the id {show(missing[0], 40)} is not in all tables; "
                    "give tables of the same rows"
                )
        return ensemble

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
    def copies(self) -> NDArray[np.int64]:
        """Group of copies of every row, [M]: rows that are copies in all tables, or by text."""
        return copied_rows(np.hstack([*self.probs]), self.tables[0].groups)

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
        """Provenance fields that are equal in all tables."""
        first, *others = (asdict(table.provenance) for table in self.tables)
        common = {k: v for k, v in first.items() if all(other[k] == v for other in others)}
        return Provenance(**common)

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
        """Hashes of sampled rows of every table; see :attr:`ProbabilityTable.sample`."""
        return [row for table in self.tables for row in table.sample]

    def subset(self, rows: ArrayLike, *, split: str | None = None) -> TableEnsemble:
        """Return the selected rows of every table; see :meth:`ProbabilityTable.subset`."""
        tables = tuple(table.subset(rows, split=split) for table in self.tables)
        return TableEnsemble(tables, self.names)

    def only_labelled(self) -> TableEnsemble:
        """Return the labelled rows, or the ensemble itself if all are labelled."""
        return self if self.labelled.all() else self.subset(self.labelled)

    def combined(self, scheme: CorrectionScheme) -> ProbabilityTable:
        """Return the table combined by a scheme, or its only input."""
        if scheme.combination is None:
            return self.tables[self.names.index(scheme.inputs[0])]
        combined = scheme.combination.apply(inputs_of(scheme, self))
        return replace(self.tables[0], probs=combined, provenance=self.provenance)


def inputs_of(scheme: CorrectionScheme, rows: ProbabilityTable | TableEnsemble) -> Array:
    """Return the probabilities of rows as expected by a scheme, [M, N] or [K, M, N]."""
    if isinstance(rows, ProbabilityTable):
        return rows.probs
    probs: Array = rows.probs[[rows.names.index(name) for name in scheme.inputs]]
    return probs if scheme.combination is not None else probs[0]


def joint_digest(digests: Iterable[str]) -> str:
    """Return the digest of an ensemble from those of its tables."""
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def combine(
    ensemble: TableEnsemble, *, seed: int = 0
) -> tuple[CorrectionScheme, ProbabilityTable]:
    """Choose a combination of tables, and return the combined table of held-out predictions.

    Each table alone, the mean of the log-probabilities, and a linear stack of them are calibrated
    and compared by cross-validation, using the likelihood of the labels with all classes weighted
    equally. The stack is chosen if it is better than the best alternative by more than two
    standard errors of the difference. Without labels the mean is used.

    Parameters
    ----------
    ensemble : TableEnsemble
        Rows to fit on; unlabelled rows are only combined.
    seed : int, optional
        Seed of the folds.

    Returns
    -------
    scheme : CorrectionScheme
        Scheme with the combination and no corrections. Its inputs are the tables used.
    table : ProbabilityTable
        The combined rows. A stack combines labelled rows as fitted on the other folds, since it is
        overconfident on its own training rows, and so would be a scheme fitted on them.
    """
    probs, labelled = ensemble.probs, ensemble.labels >= 0
    schemes = [
        CorrectionScheme.identity(ensemble.classes, inputs=(name,)) for name in ensemble.names
    ]
    schemes.append(mean_of(ensemble))
    labels, copies = ensemble.labels[labelled], ensemble.copies[labelled]
    different = np.unique(copies).size
    if different < 2:
        return schemes[-1], ensemble.combined(schemes[-1])
    place = stratified_folds(labels, min(_FOLDS, different), seed=seed, groups=copies)
    single = [ensemble.combined(each).probs[None] for each in schemes]
    held_out = [_predict_folds(tables[:, labelled], labels, place) for tables in (*single, probs)]
    *losses, stack_losses = (_balanced_losses(each, labels) for each in held_out)
    best = int(np.argmin([each.mean() for each in losses]))
    gain = losses[best] - stack_losses
    if gain.mean() <= _CLEAR * gain.std() * math.sqrt(design_effect(copies) / labels.size):
        return schemes[best], ensemble.combined(schemes[best])
    chosen = replace(schemes[-1], combination=fit_stack(probs[:, labelled], labels))
    combined = ensemble.combined(chosen).probs.copy()
    combined[labelled] = held_out[-1]
    return chosen, ensemble.combined(chosen).with_probs(combined)


def mean_of(ensemble: TableEnsemble) -> CorrectionScheme:
    """Return the scheme of the mean of the log-probabilities, without corrections."""
    mean = mean_combination(len(ensemble.tables), ensemble.n_classes)
    return CorrectionScheme.identity(ensemble.classes, inputs=ensemble.names, combination=mean)


def _predict_folds(probs: Array, labels: NDArray[np.int64], place: NDArray[np.int64]) -> Array:
    """Return the stacked probabilities [M, N], each row by a stack fitted on the other folds."""
    stacked = np.empty(probs.shape[1:])
    for fold in np.unique(place):
        inside = place != fold
        outside = probs[:, ~inside]
        stack = fit_stack(probs[:, inside], labels[inside])
        stacked[~inside] = stack.apply(outside if len(outside) > 1 else outside[0])
    return stacked


def _balanced_losses(probs: Array, labels: NDArray[np.int64]) -> Array:
    """Return the log loss of each row, with all classes weighted equally."""
    weights = 1.0 / np.maximum(np.bincount(labels, minlength=probs.shape[1]), 1)
    balanced = probs * weights
    likelihoods = balanced[np.arange(labels.size), labels] / balanced.sum(axis=1)
    share = weights[labels] / weights[labels].mean()
    return np.asarray(-np.log(np.maximum(likelihoods, DEFAULT_FLOOR)) * share)
