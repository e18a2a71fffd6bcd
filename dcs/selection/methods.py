"""The methods a table can be corrected with, one name each.

`METHODS` are those of the paper, which a study can tune. `BASELINES` are what else people use:
they are fitted in one go, and so can be the others, by :meth:`Method.fit`. All are judged alike,
saved in the same file and applied by the same code, since each can be written as a calibration
that is linear in the log-probabilities, corrections per class, or both. An installed package adds
one as an entry point of ``dcs.methods``.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_rows, warn_of_absent_classes
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics, Objective
from dcs.plugins import find_named
from dcs.schemes.calibration import (
    DEFAULT_FLOOR,
    Calibration,
    batch_calibration,
    contextual_calibration,
    fit_calibration,
    from_arrays,
    from_offset,
    prior_reweighting,
)
from dcs.schemes.corrections import CorrectionSet
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.schedule import Schedule
from dcs.seeds import derive_generator, derive_seed
from dcs.selection.cross_validation import (
    FEWEST_LABELS,
    SelectionSettings,
    fit_scheme,
    label_free_scheme,
)

if TYPE_CHECKING:
    from dcs.search.problem import AnnealingResult

_Probs: TypeAlias = NDArray[np.float64]
_Labels: TypeAlias = NDArray[np.int64]


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


#: Fits a method of a package's own: of probabilities and labels, with `classes` and `seed`.
Fitter: TypeAlias = Callable[..., CorrectionScheme]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to correct class probabilities.

    Parameters
    ----------
    name : str
        What is typed and recorded.
    title : str
        What tables and figures show.
    summary : str
        One sentence for people.
    build : callable, optional
        Gives the set of corrections to search, from the weight scale D_W. None if there is nothing
        to search: the probabilities stay as they are.
    uses_weight_scale : bool
        Whether the set depends on the weight scale, so that tuning it is worth a try.
    uses_memberships : bool
        Whether membership functions are in the set, so that there can be fewer of them.
    shares : str, optional
        The method that tries the same settings, and chooses otherwise among them.
    fitter : callable, optional
        What :meth:`fit` does; a method of a package's own needs it.
    """

    name: str
    title: str
    summary: str
    build: Callable[[int], CorrectionSet] | None = None
    uses_weight_scale: bool = False
    uses_memberships: bool = False
    shares: str | None = None
    fitter: Fitter | None = None

    @property
    def searches(self) -> bool:
        """Whether the method has corrections to choose from, so that a study can tune it."""
        return self.build is not None

    def correction_set(
        self, weight_scale: int = 30, *, memberships: int | None = None
    ) -> CorrectionSet | None:
        """Return the corrections that a search chooses from, or None if there is no search.

        Parameters
        ----------
        weight_scale : int
            Number of weights, D_W: the weights are ``i / D_W``, i = 1 .. D_W.
        memberships : int, optional
            How many of the membership functions are offered, by default all; see
            :meth:`dcs.CorrectionSet.limited`. Methods without them take no notice.
        """
        if self.build is None:
            return None
        corrections = self.build(weight_scale)
        return corrections.limited(memberships) if self.uses_memberships else corrections

    def fit(self, probs: ArrayLike, labels: ArrayLike, **options: Any) -> CorrectionScheme:
        """Fit the method on labelled probabilities, all choices included.

        Parameters
        ----------
        probs, labels, **options
            As of :meth:`fitted`.

        Returns
        -------
        CorrectionScheme
            What predicts and applies.

        Raises
        ------
        InvalidInputError
            When an argument is not allowed.
        """
        return self.fitted(probs, labels, **options).scheme

    def fitted(
        self,
        probs: ArrayLike,
        labels: ArrayLike,
        *,
        classes: Sequence[str] | None = None,
        seed: int = 0,
        content_free: ArrayLike | None = None,
        known: dict[Any, Any] | None = None,
    ) -> Fitted:
        """Fit as :meth:`fit` does, and return what was tried beside the scheme.

        Parameters
        ----------
        probs : array of float, shape [M, N]
            Class probabilities.
        labels : array of int, shape [M]
            True class indices, -1 for unlabelled rows. Methods of other packages are given the
            labelled rows alone.
        classes : sequence of str, optional
            Class names, by default ``"class_0", "class_1", ...``.
        seed : int, optional
            Seed of methods that draw at random.
        content_free : array of float, shape [N] or [K, N], optional
            Probabilities for content-free inputs; needed by contextual calibration only.
        known : dict, optional
            Give the same one, empty at first, to methods that are fitted on the same rows: what
            one tries serves those that it shares with.

        Returns
        -------
        Fitted
            The grid of ``published`` and its variants is in its trials.

        Raises
        ------
        InvalidInputError
            When an argument is not allowed.
        """
        values, indices, names = checked_rows(probs, labels, classes, missing=True)
        labelled, name = indices >= 0, self.name
        if name == "dcs" and labelled.sum() < FEWEST_LABELS:
            return Fitted(label_free_scheme(values, indices, classes=names))
        if self.searches and self in METHODS:
            settings = SelectionSettings.of_method(name)
            found = fit_scheme(values, indices, settings=settings, seed=seed, classes=names)
            return Fitted(found.scheme)
        if name not in _LABEL_FREE:
            if not labelled.any():
                raise InvalidInputError(
                    f"no row has a label, and method {name!r} needs some; dcs and batch do not"
                )
            values, indices = values[labelled], indices[labelled]
        if self.fitter is not None:
            return Fitted(self.fitter(values, indices, classes=classes, seed=seed))
        if name in _PUBLISHED:
            options = {"method": name, "known": known, **_PUBLISHED[name]}
            return fit_published(values, indices, classes=names, seed=seed, **options)
        if name not in _CALIBRATIONS:
            raise InvalidInputError(f"method {name!r} has no fitter; give it one")
        calibration = _CALIBRATIONS[name](values, indices, content_free)
        return Fitted(
            CorrectionScheme.identity(names, provenance={"method": name}, calibration=calibration)
        )


def _memberships(weight_scale: int) -> CorrectionSet:
    return CorrectionSet.furud()


#: The methods of the paper, in the order in which tables list them.
METHODS: Final = (
    Method(
        "icl", "uncorrected", "The probabilities as they are; of prompts, in-context learning."
    ),
    Method(
        "dnip",
        "DNIP",
        "One weight per class, a correction at the class level.",
        build=CorrectionSet.dnip,
        uses_weight_scale=True,
    ),
    Method(
        "furud",
        "FuRud",
        "One membership function per class, a correction at the sample level.",
        build=_memberships,
        uses_memberships=True,
    ),
    Method(
        "dcs",
        "DCS",
        "A weight or a membership function for each class, whichever serves it.",
        build=CorrectionSet.dcs,
        uses_weight_scale=True,
        uses_memberships=True,
    ),
)

#: What else people use, for comparison.
BASELINES: Final = (
    Method("batch", "Batch calibration", "Divides by the mean probability of every class."),
    Method("contextual", "Contextual calibration", "Divides by what inputs without content get."),
    Method("prior", "Prior reweighting", "Moves mean predictions to the shares of the labels."),
    Method("temperature", "Temperature scaling", "One temperature; predictions stay as they are."),
    Method("vector", "Vector scaling", "A scale and an offset of every log-probability."),
    Method("logistic", "Logistic regression", "Logistic regression on log-probabilities."),
    Method("logistic-balanced", "Balanced logistic regression", "The same, classes count alike."),
    Method("thresholds", "Thresholds", "Thresholds at which all true positive rates are alike."),
    Method("published", "Published DCS", "Schedule, grid and selection of the paper's code."),
    Method(
        "published-balanced",
        "Published DCS, balanced",
        "The same by accuracy minus COBias.",
        shares="published",
    ),
    Method("published-long", "Published DCS, long", "As published, with 50 times the moves."),
    Method(
        "published-balanced-long",
        "Published DCS, long, balanced",
        "Both of these.",
        shares="published-long",
    ),
)


def _contextual(probs: _Probs, labels: _Labels, content_free: ArrayLike | None) -> Calibration:
    if content_free is None:
        raise InvalidInputError(
            "contextual calibration needs content_free: the class probabilities of inputs "
            'without content such as "N/A"; batch calibration needs none'
        )
    return contextual_calibration(content_free)


def _regression(probs: _Probs, labels: _Labels, *, balanced: bool) -> Calibration:
    """Fit scikit-learn's logistic regression, as anybody would, on log-probabilities."""
    # What lists methods should not wait for it.
    from sklearn.linear_model import LogisticRegression

    n_classes, present = probs.shape[1], np.unique(labels)
    # What is never seen is never predicted.
    matrix, offset = np.zeros((n_classes, n_classes)), np.full(n_classes, -100.0)
    offset[present] = 0.0
    if present.size > 1:
        model = LogisticRegression(max_iter=5000, class_weight="balanced" if balanced else None)
        model.fit(np.log(np.maximum(probs, DEFAULT_FLOOR)), labels)
        # Of two classes only the logit of the second is fitted.
        fitted = present[-len(model.coef_) :]
        matrix[fitted], offset[fitted] = model.coef_, model.intercept_
    return from_arrays("logistic-balanced" if balanced else "logistic", matrix, offset)


_TARGETS: Final = 99


def _thresholds(probs: _Probs, labels: _Labels) -> Calibration:
    """One threshold per class, all at the same true positive rate, the most accurate such set."""
    # In the manner of Fairlearn's threshold optimiser: a grid of target rates, for every class the
    # threshold that meets it, and the target that serves accuracy best. A row goes to the class
    # that exceeds its threshold by the largest factor.
    levels = 1.0 - np.arange(1, _TARGETS + 1) / (_TARGETS + 1)
    cuts = np.ones((_TARGETS, probs.shape[1]))
    for j in np.unique(labels):
        cuts[:, j] = np.quantile(probs[labels == j, j], levels)
    cuts = np.maximum(cuts, DEFAULT_FLOOR)
    hits = [((probs / cut).argmax(axis=1) == labels).mean() for cut in cuts]
    return from_offset("thresholds", -np.log(cuts[np.argmax(hits)]))


#: What is fitted to unlabelled rows too, if only in part.
_LABEL_FREE: Final = ("icl", "batch", "contextual", "prior")

#: What is a calibration and nothing else, of probabilities, labels and content-free inputs.
_CALIBRATIONS: Final[
    dict[str, Callable[[_Probs, _Labels, ArrayLike | None], Calibration | None]]
] = {
    "icl": lambda probs, labels, free: None,
    "batch": lambda probs, labels, free: batch_calibration(probs),
    "contextual": _contextual,
    "prior": lambda probs, labels, free: prior_reweighting(probs, labels),
    "temperature": lambda probs, labels, free: fit_calibration(probs, labels, kind="temperature"),
    # A ridge of one row or so only keeps classes without rows finite.
    "vector": lambda probs, labels, free: fit_calibration(probs, labels, kind="vector", ridge=1.0),
    "logistic": lambda probs, labels, free: _regression(probs, labels, balanced=False),
    "logistic-balanced": lambda probs, labels, free: _regression(probs, labels, balanced=True),
    "thresholds": lambda probs, labels, free: _thresholds(probs, labels),
}

#: Error weight, beta, tau and D_W.
_Combination: TypeAlias = tuple[float, float, float, int]

#: What the public configuration tries of each.
_PUBLISHED_AXES: Final[dict[str, tuple[Any, ...]]] = {
    "error_weight": (0.0, 0.5, 1.0, 2.0),
    "beta": (0.5, 1.0, 2.7, 3.0, 10.0),
    "tau": (0.0, 0.2, 1.0, 5.0),
    "weight_scale": (30, 50, 70, 90),
}

_DEVELOPMENT: Final = 0.05


def _counts(combination: _Combination) -> bool:
    """Whether there is something to minimise, and no other combination is only a scale of it."""
    positive = [weight for weight in combination[:3] if weight > 0.0]
    return len(positive) > 1 or positive == [1.0]


#: The combinations of the public configuration, as (error weight, beta, tau, D_W). Its four rules
#: leave 304 of 320: where one term stands alone its weight is 1, since every weight of it has the
#: same optimum.
PUBLISHED_GRID: Final[tuple[_Combination, ...]] = tuple(
    filter(_counts, itertools.product(*_PUBLISHED_AXES.values()))
)

#: What the variants of the published method differ in.
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
    method : str, optional
        What the provenance of the scheme calls the method.

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
        "method": method,
        "seed": int(seed),
        "prefer": prefer,
        "moves": [accepted, generated],
        "setting": best.params,
    }
    scheme = CorrectionScheme(names, found.scheme.corrections, provenance)
    return Fitted(scheme, trials, best, found)


def _search_grid(
    values: _Probs, indices: _Labels, names: Sequence[str], searched: tuple[Any, ...]
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
        params = dict(zip(_PUBLISHED_AXES, combination, strict=True))
        trials.append(Trial(number, params, judged.accuracy, judged.cobias, search.seconds))
        searches.append(search)
    return tuple(trials), searches


def method_names(*, baselines: bool = False) -> tuple[str, ...]:
    """Return the names of the methods, in the order in which tables list them.

    Parameters
    ----------
    baselines : bool, optional
        Whether to add the names of `BASELINES`.
    """
    return tuple(method.name for method in (*METHODS, *(BASELINES if baselines else ())))


def get_method(name: str) -> Method:
    """Return the method of a name: one of the paper, a baseline, or of an installed package.

    Parameters
    ----------
    name : str
        Its name.

    Returns
    -------
    Method
        The method.

    Raises
    ------
    ConfigError
        If there is none.
    """
    own = {method.name: method for method in (*METHODS, *BASELINES)}
    return find_named("dcs.methods", name, own, Method, lacks=_lacks)


def _lacks(method: Method) -> str:
    return "" if callable(method.fitter) else "a function as its fitter"
