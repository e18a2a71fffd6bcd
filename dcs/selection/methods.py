"""Correction methods, a row for each.

`METHODS` are those of the paper, which a study can tune, and common alternatives for comparison.
All are fitted by :meth:`Method.fit`, and evaluated, saved and applied in the same way, since each
is a calibration that is linear in the log-probabilities, a correction per class, or both.
Installed packages add methods as entry points of ``dcs.methods``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

from dcs.data.checks import checked_rows
from dcs.errors import InvalidInputError, quoted, show
from dcs.methods.calibrations import DROPS, SURROGATE, Labels, batch_calibration, prior_reweighting
from dcs.methods.parameters import CorrectionFamily, Hyperparameters
from dcs.plugins import find_named
from dcs.schemes.calibration import DEFAULT_FLOOR, Array, Calibration, from_arrays
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.schedule import Schedule
from dcs.selection.compare import SelectionSettings, fit_front
from dcs.selection.fitting import FEWEST_LABELS
from dcs.selection.preference import Prefer, Preference


@dataclass(frozen=True, slots=True)
class Method:
    """A way to correct class probabilities.

    Parameters
    ----------
    name : str
        Name on the command line and in records.
    title : str
        Name in tables and figures.
    fitter : callable, optional
        Fits a scheme at once to probabilities and labels, given `classes` and `seed`, where
        nothing is compared; required for methods of installed packages.
    settings : callable, optional
        Returns what a selection compares, given the number of labelled rows; None for too few.
    needs : {"labels", "rows", "nothing"}
        What the fit uses at least: labelled rows, or rows without labels. Settings that need rows
        only are batch calibration without labels, which equalises the mean probabilities of all
        classes: fair if these are about equally frequent; its effect on accuracy is unknown.
    fixed : mapping, optional
        Knobs that the method determines, if a study can tune the others; None if it tunes none.
    shares : str, optional
        Method with the same search but another selection rule.
    peer : bool
        Whether the method is for comparison only, and not of the paper.
    version : int
        Raised if its results change, so that its cells are computed again.
    """

    name: str
    title: str
    fitter: Callable[..., CorrectionScheme] | None = None
    settings: Callable[[int], SelectionSettings | None] | None = None
    needs: Literal["labels", "rows", "nothing"] = "labels"
    fixed: Mapping[str, Any] | None = field(default=None, hash=False)
    shares: str | None = None
    peer: bool = True
    version: int = 1

    def compared(self, n_labelled: int) -> SelectionSettings | None:
        """Return what is compared on so many labelled rows; None if nothing is."""
        return None if self.settings is None else self.settings(n_labelled)

    def fit(
        self,
        probs: ArrayLike,
        labels: ArrayLike,
        *,
        classes: Sequence[str] | None = None,
        seed: int = 0,
    ) -> CorrectionScheme:
        """Fit the method to class probabilities and labels, including all model selection.

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

        Returns
        -------
        CorrectionScheme
            The fitted scheme.

        Raises
        ------
        InvalidInputError
            If an argument is invalid.
        """
        values, indices, names = checked_rows(probs, labels, classes, missing=True)
        labelled = indices >= 0
        if self.needs == "labels" and not labelled.any():
            raise InvalidInputError(
                f"no row is labelled; method {self.name!r} requires labels, dcs and batch do not"
            )
        if (compared := self.compared(int(labelled.sum()))) is not None:
            return fit_front(values, indices, names, compared, seed=seed).scheme
        if self.fitter is None:
            raise InvalidInputError(f"method {self.name!r} has no fitter; specify one")
        if self.needs == "labels":
            values, indices = values[labelled], indices[labelled]
        # The matrices are small, so that multi-threaded linear algebra would only add overhead.
        with threadpool_limits(limits=1):
            scheme = self.fitter(values, indices, classes=names, seed=seed)
        if not isinstance(scheme, CorrectionScheme) or scheme.classes != names:
            found = getattr(scheme, "classes", type(scheme).__name__)
            raise InvalidInputError(
                f"method {self.name!r} returned {show(found)}; must be a CorrectionScheme "
                f"of {quoted(names)}, in this order"
            )
        return scheme


def _calibrating(
    name: str, title: str, fit: Callable[[Array, Labels], Calibration | None], **options: Any
) -> Method:
    """Return a method that is a calibration alone; None changes nothing."""

    def fitter(probs: Array, labels: Labels, *, classes: Any, seed: int) -> CorrectionScheme:
        fitted = fit(probs, labels)
        return CorrectionScheme.identity(classes, provenance={"method": name}, calibration=fitted)

    return Method(name, title, fitter, **options)


#: What the settings of all papers share: no calibration, weights ``i / D_W``, the labels alone.
_PAPERS: Final[dict[str, Any]] = {"calibration": "none", "spacing": "linear", "prior_rows": 0.0}


def _paper(name: str, title: str, corrections: CorrectionFamily) -> Method:
    """Return a method as defined in its paper: its own corrections without calibration."""
    fixed = _PAPERS | {"ridge": 10.0, "anchor": 1.0, "corrections": corrections}
    candidate = Hyperparameters(**fixed, weight_scale=30)
    settings = SelectionSettings((candidate,), betas=(0.0, 0.1, 0.2, 0.3, 0.5, 1.0), method=name)
    return Method(name, title, settings=lambda n_labelled: settings, fixed=fixed, peer=False)


#: Values of each parameter in the public configuration.
_PUBLISHED_AXES: Final[dict[str, tuple[Any, ...]]] = {
    "error_weight": (0.0, 0.5, 1.0, 2.0),
    "beta": (0.5, 1.0, 2.7, 3.0, 10.0),
    "tau": (0.0, 0.2, 1.0, 5.0),
    "weight_scale": (30, 50, 70, 90),
}

_DEVELOPMENT: Final = 0.05


def _is_distinct(combination: tuple[Any, ...]) -> bool:
    """Whether an objective is neither empty nor a rescaled duplicate of another combination."""
    positive = [weight for weight in combination[:3] if weight > 0.0]
    return len(positive) > 1 or positive == [1.0]


#: The combinations of the public configuration. Its four rules leave 304 of 320: a single term has
#: only the weight 1, since its optimum does not depend on its weight.
PUBLISHED_GRID: Final = tuple(
    dict(zip(_PUBLISHED_AXES, each, strict=True))
    for each in itertools.product(*_PUBLISHED_AXES.values())
    if _is_distinct(each)
)


def _published(
    name: str, title: str, prefer: Prefer = "accuracy", *, long: bool = False, **options: Any
) -> Method:
    """Return a method with the schedule, grid, split and selection of the paper's code."""

    def settings(n_labelled: int) -> SelectionSettings:
        n_fitted = n_labelled - max(1, round(_DEVELOPMENT * n_labelled))
        moves = (150, 300) if long else (3, 6)
        schedule = Schedule.published(n_fitted, *moves)
        shared = _PAPERS | {"corrections": "both", "schedule": schedule}
        grid = enumerate(PUBLISHED_GRID)
        candidates = tuple(Hyperparameters(**shared, **each, stream=k) for k, each in grid)
        split: Any = {"development": _DEVELOPMENT, "stratified": False}
        preference = Preference(prefer, cautious=False)
        return SelectionSettings(candidates, betas=(), **split, preference=preference, method=name)

    return Method(name, title, settings=settings, **options)


def _regression(probs: Array, labels: Labels, *, balanced: bool = False) -> Calibration:
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

_fit_surrogate: Final = partial(_PEER_SURROGATE.fit, ridge=10.0, anchor=0.0)
_fit_balanced: Final = partial(_regression, balanced=True)


def _compared(n_labelled: int) -> SelectionSettings | None:
    """Return what the default method compares: nothing if too few rows are labelled."""
    return SelectionSettings() if n_labelled >= FEWEST_LABELS else None


_BATCH: Final = _calibrating(
    "batch", "Batch calibration", lambda p, y: batch_calibration(p), needs="rows"
)

#: All methods, in the order of tables.
METHODS: Final = (
    _calibrating("icl", "uncorrected", lambda p, y: None, needs="nothing", peer=False),
    _paper("dnip", "DNIP", "weights"),
    _paper("furud", "FuRud", "memberships"),
    Method("dcs", "DCS", _BATCH.fitter, _compared, needs="rows", fixed={}, peer=False, version=3),
    _BATCH,
    _calibrating("prior", "Prior reweighting", prior_reweighting, needs="rows"),
    _calibrating("logistic", "Logistic regression", _regression, version=2),
    _calibrating("logistic-balanced", "Balanced logistic regression", _fit_balanced, version=2),
    _calibrating("drops", "DROPS", partial(_PEER_DROPS.fit, ridge=1.0, anchor=0.0), version=2),
    _calibrating("surrogate", "Smooth surrogate", _fit_surrogate, version=2),
    _published("published", "Published DCS"),
    _published("published-balanced", "Published DCS, balanced", "balance", shares="published"),
    _published("published-long", "Published DCS, long", long=True),
)


def method_names(*, peers: bool = False) -> tuple[str, ...]:
    """Return the names of the methods, in the order of tables.

    Parameters
    ----------
    peers : bool, optional
        Whether to include those that are for comparison only.
    """
    return tuple(method.name for method in METHODS if peers or not method.peer)


def get_method(name: str) -> Method:
    """Return a method by name: one of the paper, a peer, or of an installed package.

    Raises
    ------
    ConfigError
        If the method does not exist, or that of a package is invalid.
    """
    return find_named("dcs.methods", name, {each.name: each for each in METHODS}, Method)
