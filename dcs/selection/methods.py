"""Correction methods by name.

`METHODS` are those of the paper, which a study can tune. `BASELINES` are common alternatives for
comparison. All are fitted by :meth:`Method.fit`, and evaluated, saved and applied in the same way,
since each is a calibration that is linear in the log-probabilities, a correction per class, or
both. Installed packages add methods as entry points of ``dcs.methods``.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_rows, warn_of_absent_classes
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics, Objective
from dcs.methods.calibrations.free import batch_calibration, prior_reweighting
from dcs.methods.calibrations.maps import DROPS, SURROGATE, fit_map
from dcs.plugins import find_named
from dcs.schemes.calibration import DEFAULT_FLOOR, Calibration, from_arrays
from dcs.schemes.corrections import CorrectionSet
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.schedule import Schedule
from dcs.seeds import derive_generator, derive_seed
from dcs.selection.compare import (
    FEWEST_LABELS,
    SelectionSettings,
    fit_rows,
    label_free_scheme,
)

if TYPE_CHECKING:
    from dcs.search.problem import AnnealingResult

_Probs: TypeAlias = NDArray[np.float64]
_Labels: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting evaluated by a method.

    Attributes
    ----------
    params : mapping of str to float
        Parameters of the trial.
    accuracy, cobias : float
        Metrics on the development rows, 0..1.
    search : AnnealingResult
        The search.
    """

    params: Mapping[str, float]
    accuracy: float
    cobias: float
    search: AnnealingResult


@dataclass(frozen=True, slots=True)
class Fitted:
    """Result of `Method.fitted`.

    Attributes
    ----------
    scheme : CorrectionScheme
        The chosen scheme.
    trials : tuple of Trial
        All trials in order; empty for methods without trials.
    best : Trial or None
        The trial that produced the scheme.
    """

    scheme: CorrectionScheme
    trials: tuple[Trial, ...] = ()
    best: Trial | None = None


#: Fits a method of an installed package to probabilities and labels, given `classes` and `seed`.
Fitter: TypeAlias = Callable[..., CorrectionScheme]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to correct class probabilities.

    Parameters
    ----------
    name : str
        Name on the command line and in records.
    title : str
        Name in tables and figures.
    searches : bool
        Whether the method searches for corrections, so that a study can tune it.
    uses_weight_scale : bool
        Whether the set depends on the weight scale, which can then be tuned.
    uses_memberships : bool
        Whether the set has membership functions, whose number can then be limited.
    shares : str, optional
        Method with the same trials but another selection rule.
    fitter : callable, optional
        Implementation of :meth:`fit`; required for methods of installed packages.
    """

    name: str
    title: str
    searches: bool = False
    uses_weight_scale: bool = False
    uses_memberships: bool = False
    shares: str | None = None
    fitter: Fitter | None = None

    def fit(self, probs: ArrayLike, labels: ArrayLike, **options: Any) -> CorrectionScheme:
        """Fit the method to class probabilities and labels, including all model selection.

        Parameters
        ----------
        probs, labels, **options
            See :meth:`fitted`.

        Returns
        -------
        CorrectionScheme
            The fitted scheme.

        Raises
        ------
        InvalidInputError
            If an argument is invalid.
        """
        return self.fitted(probs, labels, **options).scheme

    def fitted(
        self,
        probs: ArrayLike,
        labels: ArrayLike,
        *,
        classes: Sequence[str] | None = None,
        seed: int = 0,
        known: dict[Any, Any] | None = None,
    ) -> Fitted:
        """Fit the method as :meth:`fit` does, and also return the trials.

        Parameters
        ----------
        probs : array of float, shape [M, N]
            Class probabilities.
        labels : array of int, shape [M]
            True class indices, -1 for unlabelled rows. Methods of installed packages receive
            only the labelled rows.
        classes : sequence of str, optional
            Class names, by default ``"class_0", "class_1", ...``.
        seed : int, optional
            Seed of randomised methods.
        known : dict, optional
            Cache of trials, initially empty. Pass the same dictionary to all methods fitted on the
            same rows, so that methods with the same trials run them only once.

        Returns
        -------
        Fitted
            The scheme and, for ``published`` and its variants, the trials of the grid.

        Raises
        ------
        InvalidInputError
            If an argument is invalid.
        """
        values, indices, names = checked_rows(probs, labels, classes, missing=True)
        labelled, name = indices >= 0, self.name
        if name == "dcs" and labelled.sum() < FEWEST_LABELS:
            return Fitted(label_free_scheme(values, indices, classes=names))
        if self.searches and self in METHODS:
            settings = SelectionSettings.of_method(name)
            found = fit_rows(values, indices, names, settings=settings, seed=seed)
            return Fitted(found.scheme)
        if name not in _LABEL_FREE:
            if not labelled.any():
                raise InvalidInputError(
                    f"no row is labelled; method {name!r} requires labels, dcs and batch do not"
                )
            values, indices = values[labelled], indices[labelled]
        if self.fitter is not None:
            return Fitted(self.fitter(values, indices, classes=classes, seed=seed))
        if name in _PUBLISHED:
            options = {"method": name, "known": known, **_PUBLISHED[name]}
            return fit_published(values, indices, classes=names, seed=seed, **options)
        if name not in _CALIBRATIONS:
            raise InvalidInputError(f"method {name!r} has no fitter; specify one")
        calibration = _CALIBRATIONS[name](values, indices)
        return Fitted(
            CorrectionScheme.identity(names, provenance={"method": name}, calibration=calibration)
        )


#: Methods of the paper, in the order of tables.
METHODS: Final = (
    Method("icl", "uncorrected"),
    Method("dnip", "DNIP", searches=True, uses_weight_scale=True),
    Method("furud", "FuRud", searches=True, uses_memberships=True),
    Method("dcs", "DCS", searches=True, uses_weight_scale=True, uses_memberships=True),
)

#: Common alternatives for comparison. Those that begin with ``published`` have the schedule, grid
#: and selection of the paper's code.
BASELINES: Final = (
    Method("batch", "Batch calibration"),
    Method("prior", "Prior reweighting"),
    Method("logistic", "Logistic regression"),
    Method("logistic-balanced", "Balanced logistic regression"),
    Method("drops", "DROPS"),
    Method("surrogate", "Smooth surrogate"),
    Method("published", "Published DCS"),
    Method("published-balanced", "Published DCS, balanced", shares="published"),
    Method("published-long", "Published DCS, long"),
    Method("published-balanced-long", "Published DCS, long, balanced", shares="published-long"),
)


def _regression(probs: _Probs, labels: _Labels, *, balanced: bool) -> Calibration:
    """Fit the logistic regression of scikit-learn, with its defaults, to log-probabilities."""
    # Import lazily: listing methods should not import scikit-learn.
    from sklearn.linear_model import LogisticRegression

    n_classes, present = probs.shape[1], np.unique(labels)
    # Classes without rows are never predicted.
    matrix, offset = np.zeros((n_classes, n_classes)), np.full(n_classes, -100.0)
    offset[present] = 0.0
    if present.size > 1:
        model = LogisticRegression(max_iter=5000, class_weight="balanced" if balanced else None)
        model.fit(np.log(np.maximum(probs, DEFAULT_FLOOR)), labels)
        # With two classes, only the logit of the second is fitted.
        fitted = present[-len(model.coef_) :]
        matrix[fitted], offset[fitted] = model.coef_, model.intercept_
    return from_arrays("logistic-balanced" if balanced else "logistic", matrix, offset)


#: The peers of the default are fitted to all rows, until they converge.
_PEER_DROPS: Final = replace(DROPS, steps=100, most_rows=None)
_PEER_SURROGATE: Final = replace(SURROGATE, steps=30, most_rows=None)


#: Methods whose fit uses unlabelled rows, at least in part.
_LABEL_FREE: Final = ("icl", "batch", "prior")

#: Methods that are only a calibration.
_CALIBRATIONS: Final[dict[str, Callable[[_Probs, _Labels], Calibration | None]]] = {
    "icl": lambda probs, labels: None,
    "batch": lambda probs, labels: batch_calibration(probs),
    "prior": prior_reweighting,
    "logistic": lambda probs, labels: _regression(probs, labels, balanced=False),
    "logistic-balanced": lambda probs, labels: _regression(probs, labels, balanced=True),
    "drops": lambda probs, labels: fit_map(probs, labels, _PEER_DROPS, ridge=1.0),
    "surrogate": lambda probs, labels: fit_map(probs, labels, _PEER_SURROGATE, ridge=10.0),
}

#: Error weight, beta, tau and D_W.
_Combination: TypeAlias = tuple[float, float, float, int]

#: Values of each parameter in the public configuration.
_PUBLISHED_AXES: Final[dict[str, tuple[Any, ...]]] = {
    "error_weight": (0.0, 0.5, 1.0, 2.0),
    "beta": (0.5, 1.0, 2.7, 3.0, 10.0),
    "tau": (0.0, 0.2, 1.0, 5.0),
    "weight_scale": (30, 50, 70, 90),
}

_DEVELOPMENT: Final = 0.05


def _is_distinct(combination: _Combination) -> bool:
    """Whether an objective is neither empty nor a rescaled duplicate of another combination."""
    positive = [weight for weight in combination[:3] if weight > 0.0]
    return len(positive) > 1 or positive == [1.0]


#: The combinations of the public configuration, as (error weight, beta, tau, D_W). Its four rules
#: leave 304 of 320: a single term has only the weight 1, since its optimum does not depend on its
#: weight.
PUBLISHED_GRID: Final[tuple[_Combination, ...]] = tuple(
    filter(_is_distinct, itertools.product(*_PUBLISHED_AXES.values()))
)

#: Options of the variants of the published method.
_PUBLISHED: Final[dict[str, dict[str, Any]]] = {
    "published": {},
    "published-balanced": {"prefer": "balance"},
    "published-long": {"accepted": 150, "generated": 300},
    "published-balanced-long": {"prefer": "balance", "accepted": 150, "generated": 300},
}


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
    method: str = "published",
) -> Fitted:
    """Anneal once per combination of a grid, and select by 5 % development rows.

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
        Select by the highest development accuracy, with ties broken by the lowest COBias, as in
        the public code; or by the highest accuracy minus COBias.
    accepted, generated : int, optional
        See :meth:`dcs.Schedule.published`.
    grid : sequence of tuple, optional
        Error weight, beta, tau and D_W of every search, by default the 304 of the public code.
    known : dict, optional
        Cache of trials, see :meth:`Method.fitted`.
    method : str, optional
        Name of the method in the provenance of the scheme.

    Returns
    -------
    Fitted
        One trial per combination, in the order of the grid, and the selected search.

    Raises
    ------
    InvalidInputError
        If an argument is invalid.

    Warns
    -----
    UserWarning
        If a class has no rows.
    """
    values, indices, names = checked_rows(probs, labels, classes)
    warn_of_absent_classes(indices, names)
    known, searched = {} if known is None else known, (seed, accepted, generated, *grid)
    if searched not in known:
        known[searched] = _search_grid(values, indices, names, searched)
    trials = known[searched]
    balanced = prefer == "balance"
    # Remaining ties are broken by the first trial.
    best = max(trials, key=lambda t: (t.accuracy - balanced * t.cobias, t.accuracy, -t.cobias))
    provenance = {
        "method": method,
        "seed": int(seed),
        "prefer": prefer,
        "moves": [accepted, generated],
        "setting": best.params,
    }
    scheme = CorrectionScheme(names, best.search.scheme.corrections, provenance)
    return Fitted(scheme, trials, best)


def _search_grid(
    values: _Probs, indices: _Labels, names: Sequence[str], searched: tuple[Any, ...]
) -> tuple[Trial, ...]:
    """Anneal on 95 % of the rows for every combination, and evaluate on the others."""
    # Import lazily: compiling the search should not delay listing methods.
    from dcs.search.annealing import anneal

    seed, accepted, generated, *grid = searched
    n_rows = indices.size
    shuffled = derive_generator(seed, "split").permutation(n_rows)
    outside, inside = np.split(shuffled, [max(1, round(_DEVELOPMENT * n_rows))])
    schedule = Schedule.published(inside.size, accepted=accepted, generated=generated)
    rows, labels = values[inside], indices[inside]
    trials: list[Trial] = []
    for number, combination in enumerate(grid):
        error_weight, beta, tau, weight_scale = combination
        with warnings.catch_warnings():
            # fit_published has already warned of classes without rows.
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
        params = dict(zip(_PUBLISHED_AXES, combination, strict=True))
        trials.append(Trial(params, judged.accuracy, judged.cobias, search))
    return tuple(trials)


def method_names(*, baselines: bool = False) -> tuple[str, ...]:
    """Return the names of the methods, in the order of tables.

    Parameters
    ----------
    baselines : bool, optional
        Whether to include `BASELINES`.
    """
    return tuple(method.name for method in (*METHODS, *(BASELINES if baselines else ())))


def get_method(name: str) -> Method:
    """Return a method by name: one of the paper, a baseline, or of an installed package.

    Raises
    ------
    ConfigError
        If the method does not exist, or that of a package is invalid.
    """
    own = {method.name: method for method in (*METHODS, *BASELINES)}
    return find_named("dcs.methods", name, own, Method)
