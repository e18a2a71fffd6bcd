"""DCS as its public code has it: that schedule, that grid, that split and that selection."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from dcs.data.checks import checked_rows, warn_of_absent_classes
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.evaluation.objective import Objective
from dcs.schemes.corrections import CorrectionSet
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.annealing import AnnealingResult, Schedule, anneal
from dcs.seeds import derive_generator, derive_seed
from dcs.selection.front import Fitted, Prefer, Preference, Trial, choose

__all__ = ["PUBLISHED_GRID", "fit_published"]

#: Error weight, beta, tau and D_W.
_Combination: TypeAlias = tuple[float, float, float, int]

_DEVELOPMENT: Final = 0.05


def _counts(combination: _Combination) -> bool:
    """Whether there is something to minimise, and no other combination is only a scale of it."""
    positive = [weight for weight in combination[:3] if weight > 0.0]
    return len(positive) > 1 or positive == [1.0]


#: The combinations of the public configuration, as (error weight, beta, tau, D_W). Of the 320 its
#: four rules leave 304: with fewer than two terms the weight of the other is 1, for no other
#: weight of it has another optimum.
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


def fit_published(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    classes: Sequence[str] | None = None,
    seed: int = 0,
    prefer: Prefer = "accuracy",
    accepted: int = 3,
    generated: int = 6,
    grid: Sequence[_Combination] = PUBLISHED_GRID,
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
    shuffled = derive_generator(seed, "split").permutation(n_rows)
    outside, inside = np.split(shuffled, [max(1, round(_DEVELOPMENT * n_rows))])
    schedule = Schedule.published(inside.size, accepted=accepted, generated=generated)
    trials: list[Trial] = []
    searches: list[AnnealingResult] = []
    for number, (error_weight, beta, tau, weight_scale) in enumerate(grid):
        with warnings.catch_warnings():
            # Once is enough.
            warnings.simplefilter("ignore", UserWarning)
            search = anneal(
                values[inside],
                indices[inside],
                corrections=CorrectionSet.dcs(weight_scale=weight_scale),
                objective=Objective(beta=beta, tau=tau, error_weight=error_weight),
                schedule=schedule,
                seed=derive_seed(seed, "anneal", number),
                classes=names,
            )
        judged = ClassificationMetrics.from_predictions(
            indices[outside], search.scheme.predict(values[outside]), len(names)
        )
        params = {
            "error_weight": error_weight,
            "beta": beta,
            "tau": tau,
            "weight_scale": weight_scale,
        }
        trials.append(Trial(number, params, judged.accuracy, judged.cobias, search.seconds))
        searches.append(search)
    best = choose(trials, Preference(prefer=prefer))
    found = searches[best.number]
    provenance = {"method": "published", "seed": seed, "prefer": prefer, "setting": best.params}
    scheme = CorrectionScheme(names, found.scheme.corrections, provenance)
    return Fitted(scheme, tuple(trials), best, found)
