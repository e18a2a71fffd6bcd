"""Choosing a scheme by cross-validation: the default way to fit one.

Settings are judged on rows they were not fitted on; the best at every weight of COBias make a
front, and the preference picks one of its points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from dcs.data.checks import checked_rows, warn_of_absent_classes, whole_number
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics, confusion_matrix
from dcs.schemes.scheme import CorrectionScheme
from dcs.seeds import derive_seed
from dcs.selection.folds import Folds, Mapper
from dcs.selection.front import MIDDLE_BETA, FittedScheme, FrontPoint
from dcs.selection.preference import Preference
from dcs.selection.settings import CorrectionFamily, Hyperparameters, Prepared

__all__ = ["SelectionSettings", "fit_scheme"]

_BETAS: Final = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0, 2.0)

_PAPER_BETAS: Final = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)

_PAPER_FAMILIES: Final[dict[str, CorrectionFamily]] = {"dnip": "weights", "furud": "memberships"}

_CANDIDATES: Final = (
    Hyperparameters(calibration="none", corrections="both"),
    Hyperparameters(calibration="none"),
    # What others do, as it is: a search can be better than that, and otherwise must not miss it.
    Hyperparameters(calibration="batch", corrections="none"),
    Hyperparameters(calibration="prior", corrections="none"),
    Hyperparameters(calibration="vector", corrections="none"),
    Hyperparameters(calibration="logistic", corrections="none"),
    Hyperparameters(calibration="logistic"),
    Hyperparameters(calibration="balanced", corrections="none"),
    Hyperparameters(calibration="balanced"),
    # The prior is worth more rows where it is that of all rows, and labels are few.
    Hyperparameters(calibration="shrunk", prior_rows=400.0),
)

#: What needs no more than a weight per class: all there is where the rows are few.
_FRUGAL: Final = ("none", "batch")

#: A full matrix needs a number of rows per entry that tables with many classes do not have.
_MOST_LOGISTIC_CLASSES: Final = 12

#: Rows in all, and per class, below which calibrations fitted to labels are not told apart from
#: their noise.
_CALIBRATED_ROWS: Final = 1000
_CALIBRATED_CLASS_ROWS: Final = 100

#: Rows per class below which memberships, which nothing draws back, are not tried.
_MEMBERSHIP_ROWS: Final = 400


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """What cross-validation chooses from, and how.

    Parameters
    ----------
    candidates : tuple of Hyperparameters
        Settings to compare; those that search are tried with every beta. Those that would
        overfit are left out when others remain: a logistic calibration above 12 classes,
        membership functions below 400 rows per class, and all calibrations that are fitted to
        labels below 1,000 rows or 100 per class.
    betas : tuple of float
        Weights of COBias: the points of the front.
    fixed : tuple of Hyperparameters
        Settings that compete at every point as they are, with the beta that they have.
    folds : int
        Number of folds, 2 or more; fewer when there are fewer rows.
    preference : Preference
        Which point of the front becomes the scheme.
    keep_uncorrected : bool
        Whether the uncorrected probabilities stay unless correcting them is an improvement
        beyond the noise of cross-validation; see :meth:`FittedScheme.picked`.

    Raises
    ------
    InvalidInputError
        When a value is not allowed.
    """

    candidates: tuple[Hyperparameters, ...] = _CANDIDATES
    betas: tuple[float, ...] = _BETAS
    fixed: tuple[Hyperparameters, ...] = ()
    folds: int = 5
    preference: Preference = field(default_factory=Preference)
    keep_uncorrected: bool = True

    def __post_init__(self) -> None:
        if not self.candidates:
            raise InvalidInputError("candidates is empty; at least one setting is needed")
        if not self.betas:
            raise InvalidInputError("betas is empty; at least one weight of COBias is needed")
        for beta in self.betas:
            replace(self.candidates[0], beta=beta)
        whole_number(self.folds, "folds", least=2)

    @classmethod
    def of_method(cls, name: str) -> SelectionSettings:
        """Return what a method of the paper is chosen from.

        ``dnip`` and ``furud`` are what their papers made them: their own corrections, and no
        calibration. Of every other name these are the settings of the default, ``dcs``.
        """
        if name not in _PAPER_FAMILIES:
            return cls()
        setting = Hyperparameters(
            calibration="none",
            corrections=_PAPER_FAMILIES[name],
            weight_scale=30,
            spacing="linear",
            prior_rows=0.0,
            averages=0,
        )
        return cls(candidates=(setting,), betas=_PAPER_BETAS)


def fit_scheme(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    settings: SelectionSettings | None = None,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    progress: Callable[[float], None] | None = None,
    mapper: Mapper = map,
) -> FittedScheme:
    """Fit the front of schemes and choose one of them, all by cross-validation.

    For every weight of COBias (beta) the candidates are compared on rows they were not fitted on,
    and the best is fitted again on all rows: the points of the front. The preference picks one.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices, -1 for unlabelled rows. At least two rows have a label: they are
        searched and judged, while mean probabilities and what
        :func:`dcs.schemes.calibration.shrunk_calibration` learns are those of all rows.
    settings : SelectionSettings, optional
        Candidates, betas, folds and preference.
    seed : int, optional
        The same arguments give the same schemes.
    classes : sequence of str, optional
        Class names, by default ``"class_0", "class_1", ...``.
    progress : callable, optional
        Called with the share of the work done, 0..1.
    mapper : callable, optional
        Applies a function to items, in order, like the builtin ``map``: a way to fit the folds
        on several CPUs, with the same result.

    Returns
    -------
    FittedScheme
        The chosen scheme and the front it is from.

    Raises
    ------
    InvalidInputError
        When an argument is not allowed or there are fewer than two labelled rows.

    Warns
    -----
    UserWarning
        When a class has no rows.
    """
    settings = SelectionSettings() if settings is None else settings
    everything, known, names = checked_rows(probs, labels, classes, missing=True)
    folds = Folds(everything, known, settings.folds, seed)
    values, indices = folds.probs, folds.labels
    warn_of_absent_classes(indices, names)
    candidates = _usable(settings.candidates, folds)
    # By candidate, so that those that share a calibration are fitted together.
    searched = [_at(c, beta) for c in candidates for beta in settings.betas]
    grid = list(dict.fromkeys((*searched, *settings.fixed)))
    predictions = dict(
        zip(grid, folds.predictions(grid, mapper=mapper, progress=progress), strict=True)
    )
    judged = {setting: folds.metrics(p, setting) for setting, p in predictions.items()}
    prepare = lru_cache(None)(partial(Prepared.from_arguments, everything, known, classes=names))
    plain = values.argmax(axis=1).astype(np.int64)
    found: list[tuple[Hyperparameters, float]] = []
    for beta in settings.betas:
        among = (*(_at(c, beta) for c in candidates), *settings.fixed)
        best = min(among, key=lambda s: 1.0 - judged[s].accuracy + beta * judged[s].cobias)
        found.append((best, beta))
    middle, _ = min(found, key=lambda each: abs(each[1] - MIDDLE_BETA))

    def point(setting: Hyperparameters | None, beta: float) -> FrontPoint:
        predicted, estimate = plain, folds.metrics(plain)
        scheme = CorrectionScheme.identity(names)
        if setting is not None:
            prepared = prepare(kind=setting.calibration, ridge=setting.ridge)
            scheme = prepared.fit(setting, seed=derive_seed(seed, "anneal"))
            own = ClassificationMetrics.from_predictions(
                indices, scheme.predict(values), len(names)
            )
            predicted, estimate = predictions[setting], _no_better(judged[setting], own)
        confusion = confusion_matrix(indices, predicted, len(names))
        return FrontPoint(
            setting=setting,
            estimate=estimate,
            confusion=tuple(map(tuple, confusion.tolist())),
            scheme=replace(scheme, provenance=_provenance(setting, estimate, settings, seed)),
            beta=beta,
            noise=folds.noise(estimate),
            change=folds.change(plain, predicted),
            doubt=folds.change(predictions[middle], predicted).score_error,
        )

    points = [*(point(*each) for each in found), point(None, 0.0)]
    return FittedScheme.picked(
        points, settings.preference, keep_uncorrected=settings.keep_uncorrected
    )


def _at(candidate: Hyperparameters, beta: float) -> Hyperparameters:
    """Return a candidate at a weight of COBias, which counts only where there is a search."""
    return candidate if candidate.corrections == "none" else replace(candidate, beta=beta)


def _no_better(
    estimate: ClassificationMetrics, own: ClassificationMetrics
) -> ClassificationMetrics:
    """Bound an estimate by the figures of the fitted scheme on its own rows.

    Where the trade-off is nearly straight, small changes of the rows move the optimum far along
    it: the scheme fitted on all rows can lie elsewhere than those of the folds. On its own rows a
    scheme looks better than it is, never worse.
    """
    return replace(
        estimate,
        accuracy=min(estimate.accuracy, own.accuracy),
        cobias=max(estimate.cobias, own.cobias),
    )


def _usable(candidates: tuple[Hyperparameters, ...], folds: Folds) -> tuple[Hyperparameters, ...]:
    """Leave out what would overfit, unless nothing else is left."""
    n_rows, n_classes = folds.probs.shape
    fewest = max(_CALIBRATED_ROWS, _CALIBRATED_CLASS_ROWS * n_classes)
    shrunk = tuple(c for c in candidates if c.calibration == "shrunk")
    if shrunk and folds.unlabelled and n_rows < fewest:
        return shrunk
    kept = tuple(
        c
        for c in candidates
        if (c not in shrunk or folds.unlabelled)
        and not (c.calibration in ("logistic", "balanced") and n_classes > _MOST_LOGISTIC_CLASSES)
        and not (
            c.corrections in ("memberships", "both") and n_rows < _MEMBERSHIP_ROWS * n_classes
        )
        and (c.calibration in _FRUGAL or n_rows >= fewest)
    )
    return kept or candidates


def _provenance(
    setting: Hyperparameters | None,
    estimate: ClassificationMetrics,
    settings: SelectionSettings,
    seed: int,
) -> dict[str, Any]:
    origin: dict[str, Any] = {
        "method": "dcs",
        "seed": seed,
        "estimate": {
            "accuracy": estimate.accuracy,
            "cobias": estimate.cobias,
            "rows": estimate.n_rows,
            "folds": settings.folds,
        },
    }
    if setting is not None:
        values = asdict(setting)
        del values["schedule"]
        origin["setting"] = {name: v for name, v in values.items() if v is not None}
    return origin
