"""Validated inputs and results of a search, and the evaluation of its solutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_rows, warn_of_absent_classes
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import Objective, confusion_matrix
from dcs.schemes.corrections import CorrectionSet
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.kernels.table import MOST_CLASSES, Table, make_table

#: Default corrections and objective of all searches.
DEFAULT_CORRECTIONS: Final = CorrectionSet.dcs()
DEFAULT_OBJECTIVE: Final = Objective()


@dataclass(frozen=True, slots=True)
class AnnealingResult:
    """Result of a search.

    Attributes
    ----------
    z : float
        ``objective.value`` of the confusion matrix of `scheme` on the rows of the search.
    scheme : CorrectionScheme
        The best scheme.
    indices : tuple of int
        The best scheme as indices into the set of corrections, one per class.
    initial_z : float
        Z of the uncorrected predictions.
    evaluations : int
        Number of candidate solutions evaluated.
    seconds : float
        Wall-clock time of the search.
    """

    z: float
    scheme: CorrectionScheme
    indices: tuple[int, ...]
    initial_z: float
    evaluations: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Problem:
    """Validated arguments of a search and the arrays that the kernels read.

    Labels are of shape [M], or [C, M] if every row counts with C labels.
    """

    probs: NDArray[np.float64]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    corrections: CorrectionSet
    objective: Objective
    table: Table = field(init=False)

    def __post_init__(self) -> None:
        table = make_table(self.probs, self.labels, self.corrections, self.objective)
        object.__setattr__(self, "table", table)

    @classmethod
    def from_arguments(
        cls,
        probs: ArrayLike,
        labels: ArrayLike,
        corrections: CorrectionSet,
        objective: Objective,
        classes: Sequence[str] | None,
    ) -> Problem:
        """Validate the arguments common to all searches; warn about classes without rows."""
        values, indices, names = checked_rows(probs, labels, classes)
        if len(names) > MOST_CLASSES:
            raise InvalidInputError(f"probs: at most {MOST_CLASSES} classes, got {len(names)}")
        warn_of_absent_classes(indices, names)
        return cls(values, indices, names, corrections, objective)

    @property
    def n_classes(self) -> int:
        """The number of classes N."""
        return len(self.classes)

    def scheme(self, choice: NDArray[np.int64]) -> CorrectionScheme:
        """Return the scheme of a choice, one correction index per class."""
        return CorrectionScheme(self.classes, tuple(self.corrections[int(k)] for k in choice))

    def z_of(self, scheme: CorrectionScheme) -> float:
        """Return Z of a scheme, computed from its predictions with NumPy."""
        labels = self.labels.ravel()
        predictions = np.resize(scheme.predict(self.probs), labels.size)
        return self.objective.value(confusion_matrix(labels, predictions, self.n_classes))

    def result(
        self, choice: NDArray[np.int64], *, evaluations: int, seconds: float
    ) -> AnnealingResult:
        """Return the result of a choice, with Z recomputed from its predictions."""
        scheme = self.scheme(choice)
        return AnnealingResult(
            z=self.z_of(scheme),
            scheme=scheme,
            indices=tuple(choice.tolist()),
            initial_z=self.z_of(CorrectionScheme.identity(self.classes)),
            evaluations=evaluations,
            seconds=seconds,
        )
