"""Simulated annealing over correction schemes (section "Simulated Annealing for Solving DCS")."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from filelock import FileLock
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_rows, warn_of_absent_classes, whole_number
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import Objective, confusion_matrix
from dcs.schemes.corrections import CorrectionSet, Weight
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.kernels import TOLERANCE, Table, cool, descend, make_state, make_table, randomise
from dcs.search.schedule import Schedule

#: Tables of the kernels hold class indices in 16 bits.
_MOST_CLASSES: Final = 2**15 - 1

#: Defaults of `anneal`.
DEFAULT_CORRECTIONS: Final = CorrectionSet.dcs()
DEFAULT_OBJECTIVE: Final = Objective()
DEFAULT_SCHEDULE: Final = Schedule()


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
        if len(names) > _MOST_CLASSES:
            raise InvalidInputError(f"probs: at most {_MOST_CLASSES} classes, got {len(names)}")
        warn_of_absent_classes(indices, names)
        return cls(values, indices, names, corrections, objective)

    def scheme(self, choice: NDArray[np.int64]) -> CorrectionScheme:
        """Return the scheme of a choice, one correction index per class."""
        return CorrectionScheme(self.classes, tuple(self.corrections[int(k)] for k in choice))

    def z_of(self, scheme: CorrectionScheme) -> float:
        """Return Z of a scheme, computed from its predictions with NumPy."""
        labels = self.labels.ravel()
        predictions = np.resize(scheme.predict(self.probs), labels.size)
        return self.objective.value(confusion_matrix(labels, predictions, len(self.classes)))

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


def anneal(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    corrections: CorrectionSet = DEFAULT_CORRECTIONS,
    objective: Objective = DEFAULT_OBJECTIVE,
    schedule: Schedule = DEFAULT_SCHEDULE,
    seed: int = 0,
    classes: Sequence[str] | None = None,
) -> AnnealingResult:
    """Search for the correction scheme that minimises Z.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities. Never written to; may be read-only.
    labels : array of int, shape [M]
        True class indices, ``0 .. N - 1``.
    corrections : CorrectionSet, optional
        Corrections to choose from, by default ``CorrectionSet.dcs(weight_scale=30)``.
    objective : Objective, optional
        Objective to minimise, by default ``Objective(beta=1.0, tau=0.2)``.
    schedule : Schedule, optional
        Annealing schedule, by default ``Schedule()``.
    seed : int, optional
        Seed of the random number generator, 0 or more. The same arguments give the same result,
        regardless of the load or the number of processors.
    classes : sequence of str, optional
        Class names for the scheme, by default ``"class_0", "class_1", ...``.

    Returns
    -------
    AnnealingResult
        Best scheme, its Z, and the cost of the search.

    Raises
    ------
    InvalidInputError
        If an argument is invalid; the message names the argument, row, class and value.

    Warns
    -----
    UserWarning
        If a class has no rows: it is left out of COBias and PMI.
    """
    started = time.perf_counter()
    problem = Problem.from_arguments(probs, labels, corrections, objective, classes)
    choice, evaluations = cooled(problem, schedule, seed=seed)
    return problem.result(choice, evaluations=evaluations, seconds=time.perf_counter() - started)


def cooled(problem: Problem, schedule: Schedule, *, seed: int) -> tuple[NDArray[np.int64], int]:
    """Return the best choice of all coolings, and the number of evaluations."""
    table = problem.table
    state = make_state(table)
    seeds = np.random.SeedSequence(whole_number(seed, "seed", least=0))
    streams = seeds.generate_state(schedule.restarts, np.uint64).astype(np.uint64)
    temperatures = schedule.temperatures()
    limits = schedule.limits(len(problem.classes))
    # Unchanged probabilities, by weights if requested and possible.
    start, one = problem.corrections.identity, Weight(1.0)
    if schedule.start == "weight-one" and one in problem.corrections:
        start = problem.corrections.corrections.index(one)
    choice = np.full(len(problem.classes), start)
    best_choice, found = choice.copy(), choice.copy()
    best = np.inf
    evaluations = 0
    for r in range(schedule.restarts):
        if r > 0 and evaluations >= schedule.budget:
            break
        stream = streams[r : r + 1]
        reheating = schedule.reheat and r % 2 == 1
        if reheating:
            choice[:] = best_choice
        elif r > 0:
            randomise(stream, choice, len(problem.corrections))
        cooling = temperatures[temperatures.size // 2 :] if reheating else temperatures
        kind = schedule.count_worse, schedule.moves == "heat-bath"
        with _compiled_once():
            z, n_evaluated = cool(table, state, stream, cooling, limits, *kind, choice, found)
        evaluations += n_evaluated
        if schedule.descend:
            z, n_evaluated = descend(table, state, found)
            evaluations += n_evaluated
        if z < best - TOLERANCE:
            best = z
            best_choice[:] = found
    return best_choice, evaluations


def compile_search() -> None:
    """Compile searches, or load what another process has compiled.

    The first search of an installation takes some twenty seconds longer than the others.
    """
    anneal([[0.6, 0.4], [0.4, 0.6]], [0, 1], schedule=Schedule(restarts=1))


@contextmanager
def _compiled_once() -> Iterator[None]:
    """Let one process of a machine compile, while the others wait for what it saves."""
    kept = cool.stats.cache_path  # type: ignore[attr-defined]
    if cool.signatures or kept is None:  # type: ignore[attr-defined]
        yield
        return
    folder = Path(kept)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "search.lock"):
        yield
