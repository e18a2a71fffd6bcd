"""What a search is given, checked, and what it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_rows, warn_of_absent_classes
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import confusion_matrix
from dcs.evaluation.objective import Objective
from dcs.schemes.corrections import CorrectionSet
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.kernels.table import MOST_CLASSES, Table, make_table

__all__ = [
    "DEFAULT_CORRECTIONS",
    "DEFAULT_OBJECTIVE",
    "AnnealingResult",
    "Problem",
    "TracePoint",
]

#: What a search chooses from, and what it minimises, when not told otherwise.
DEFAULT_CORRECTIONS: Final = CorrectionSet.dcs(weight_scale=30)
DEFAULT_OBJECTIVE: Final = Objective(beta=1.0, tau=0.2)


@dataclass(frozen=True, slots=True)
class TracePoint:
    """What a search looked like when it left a temperature.

    Attributes
    ----------
    temperature : float
        The temperature.
    current, best : float
        Z of the current solution, and the best Z of the search so far.
    acceptance : float
        Share of generated moves that were accepted at this temperature.
    """

    temperature: float
    current: float
    best: float
    acceptance: float


@dataclass(frozen=True, slots=True)
class AnnealingResult:
    """What a search found.

    Attributes
    ----------
    z : float
        ``objective.value`` of the confusion matrix that `scheme` has on the searched rows.
    scheme : CorrectionScheme
        The best scheme.
    indices : tuple of int
        The same as indices into the set of corrections, one per class.
    initial_z : float
        Z of the uncorrected predictions.
    evaluations : int
        Candidate solutions judged.
    seconds : float
        Wall-clock time of the search.
    trace : tuple of TracePoint
        One point per temperature, all coolings in order; empty for an exhaustive search.
    """

    z: float
    scheme: CorrectionScheme
    indices: tuple[int, ...]
    initial_z: float
    evaluations: int
    seconds: float
    trace: tuple[TracePoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """Checked arguments of a search, laid out for the kernels."""

    probs: NDArray[np.float64]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    corrections: CorrectionSet
    objective: Objective
    table: Table

    @classmethod
    def from_arguments(
        cls,
        probs: ArrayLike,
        labels: ArrayLike,
        corrections: CorrectionSet,
        objective: Objective,
        classes: Sequence[str] | None,
    ) -> Problem:
        """Check the arguments that all searches share; warn of classes without rows."""
        values, indices, names = checked_rows(probs, labels, classes)
        if len(names) > MOST_CLASSES:
            raise InvalidInputError(f"probs has {len(names)} classes; at most {MOST_CLASSES} work")
        if not isinstance(corrections, CorrectionSet):
            raise InvalidInputError(f"corrections is {corrections!r}; a CorrectionSet is needed")
        if not isinstance(objective, Objective):
            raise InvalidInputError(f"objective is {objective!r}; an Objective is needed")
        warn_of_absent_classes(indices, names)
        table = make_table(values, indices, corrections, objective)
        return cls(values, indices, names, corrections, objective, table)

    @property
    def n_classes(self) -> int:
        """The number of classes N."""
        return len(self.classes)

    def z_of(self, scheme: CorrectionScheme) -> float:
        """Return Z of a scheme, from its predictions and in NumPy."""
        predictions = scheme.predict(self.probs)
        return self.objective.value(confusion_matrix(self.labels, predictions, self.n_classes))

    def result(
        self,
        choice: NDArray[np.int64],
        *,
        evaluations: int,
        seconds: float,
        trace: tuple[TracePoint, ...] = (),
    ) -> AnnealingResult:
        """Return the result for the chosen corrections, with Z judged anew."""
        indices = tuple(int(k) for k in choice)
        scheme = CorrectionScheme(self.classes, tuple(self.corrections[k] for k in indices))
        return AnnealingResult(
            z=self.z_of(scheme),
            scheme=scheme,
            indices=indices,
            initial_z=self.z_of(CorrectionScheme.identity(self.classes)),
            evaluations=evaluations,
            seconds=seconds,
            trace=trace,
        )
