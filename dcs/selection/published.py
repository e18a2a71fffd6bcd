"""The published method: one search for every combination of a grid, chosen by a few rows."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_rows, warn_of_absent_classes
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.evaluation.objective import Objective
from dcs.schemes.corrections import CorrectionSet
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.schedule import Schedule
from dcs.seeds import derive_generator, derive_seed

if TYPE_CHECKING:
    from dcs.search.annealing import AnnealingResult

__all__ = ["PUBLISHED_GRID", "Fitted", "Trial", "fit_published"]

#: Error weight, beta, tau and D_W.
_Combination: TypeAlias = tuple[float, float, float, int]
_TERMS: Final = ("error_weight", "beta", "tau", "weight_scale")

_DEVELOPMENT: Final = 0.05


def _counts(combination: _Combination) -> bool:
    """Whether there is something to minimise, and no other combination is only a scale of it."""
    positive = [weight for weight in combination[:3] if weight > 0.0]
    return len(positive) > 1 or positive == [1.0]


#: The combinations of the public configuration, as (error weight, beta, tau, D_W). Its four rules
#: leave 304 of 320: where one term stands alone its weight is 1, since every weight of it has the
#: same optimum.
PUBLISHED_GRID: Final[tuple[_Combination, ...]] = tuple(
    filter(
        _counts,
        itertools.product(
            (0.0, 0.5, 1.0, 2.0),
            (0.5, 1.0, 2.7, 3.0, 10.0),
            (0.0, 0.2, 1.0, 5.0),
            (30, 50, 70, 90),
        ),
    )
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting that a method tried.

    Attributes
    ----------
    number : int
        Its place among the trials, from 0.
    params : mapping of str to float
        What was set.
    accuracy, cobias : float
        On development rows, 0..1.
    seconds : float
        Time of its search.
    """

    number: int
    params: Mapping[str, float]
    accuracy: float
    cobias: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """What `Method.fitted` gives back.

    Attributes
    ----------
    scheme : CorrectionScheme
        The chosen scheme.
    trials : tuple of Trial
        What was tried, in order; empty if there was nothing to choose.
    best : Trial or None
        The trial that the scheme is from.
    annealing : AnnealingResult or None
        The search that found the scheme, where it was one search.
    """

    scheme: CorrectionScheme
    trials: tuple[Trial, ...] = ()
    best: Trial | None = None
    annealing: AnnealingResult | None = None


def fit_published(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    classes: Sequence[str] | None = None,
    seed: int = 0,
    prefer: Literal["accuracy", "balance"] = "accuracy",
    accepted: int = 3,
    generated: int = 6,
    grid: Sequence[_Combination] = PUBLISHED_GRID,
    known: dict[Any, Any] | None = None,
) -> Fitted:
    """Anneal once for every combination of a grid, and choose by 5 % development rows.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices.
    classes : sequence of str, optional
        Class names, by default ``"class_0", "class_1", ...``.
    seed : int, optional
        Seed of the split, which is not stratified, and of the searches.
    prefer : {"accuracy", "balance"}, optional
        Take the highest development accuracy, ties by the lowest COBias, as the public code does;
        or the highest accuracy minus COBias.
    accepted, generated : int, optional
        As for :meth:`dcs.Schedule.published`.
    grid : sequence of tuple, optional
        Error weight, beta, tau and D_W of every search, by default the 304 of the public code.
    known : dict, optional
        As of `Method.fitted`.

    Returns
    -------
    Fitted
        With one trial per combination, in the order of the grid, and the chosen search.

    Raises
    ------
    InvalidInputError
        When an argument is not allowed or there are fewer than two rows.

    Warns
    -----
    UserWarning
        When a class has no rows.
    """
    values, indices, names = checked_rows(probs, labels, classes)
    n_rows = indices.size
    if n_rows < 2:
        raise InvalidInputError("probs has 1 row; development rows need another")
    warn_of_absent_classes(indices, names)
    known, searched = {} if known is None else known, (seed, accepted, generated, *grid)
    if searched not in known:
        known[searched] = _search_grid(values, indices, names, searched)
    trials, searches = known[searched]
    balanced = prefer == "balance"
    # Of equals the first.
    best = max(trials, key=lambda t: (t.accuracy - balanced * t.cobias, t.accuracy, -t.cobias))
    found = searches[best.number]
    provenance = {
        "method": "published",
        "seed": seed,
        "prefer": prefer,
        "moves": [accepted, generated],
        "setting": best.params,
    }
    scheme = CorrectionScheme(names, found.scheme.corrections, provenance)
    return Fitted(scheme, trials, best, found)


def _search_grid(
    values: NDArray[np.float64],
    indices: NDArray[np.int64],
    names: Sequence[str],
    searched: tuple[Any, ...],
) -> tuple[tuple[Trial, ...], list[AnnealingResult]]:
    """Anneal on 95 % of the rows for every combination, and judge on the others."""
    # The search compiles; whoever only lists methods should not wait for that.
    from dcs.search.annealing import anneal

    seed, accepted, generated, *grid = searched
    n_rows = indices.size
    shuffled = derive_generator(seed, "split").permutation(n_rows)
    outside, inside = np.split(shuffled, [max(1, round(_DEVELOPMENT * n_rows))])
    schedule = Schedule.published(inside.size, accepted=accepted, generated=generated)
    rows, labels = values[inside], indices[inside]
    trials: list[Trial] = []
    searches: list[AnnealingResult] = []
    for number, combination in enumerate(grid):
        error_weight, beta, tau, weight_scale = combination
        with warnings.catch_warnings():
            # Once is enough.
            warnings.simplefilter("ignore", UserWarning)
            search = anneal(
                rows,
                labels,
                corrections=CorrectionSet.dcs(weight_scale=weight_scale),
                objective=Objective(beta=beta, tau=tau, error_weight=error_weight),
                schedule=schedule,
                seed=derive_seed(seed, "anneal", number),
                classes=names,
            )
        judged = ClassificationMetrics.from_predictions(
            indices[outside], search.scheme.predict(values[outside]), len(names)
        )
        params = dict(zip(_TERMS, combination, strict=True))
        trials.append(Trial(number, params, judged.accuracy, judged.cobias, search.seconds))
        searches.append(search)
    return tuple(trials), searches
