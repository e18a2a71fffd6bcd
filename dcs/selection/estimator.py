"""The scikit-learn estimator: corrects class probabilities or the output of a classifier."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
from joblib import effective_n_jobs  # type: ignore[import-untyped]
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils import check_random_state, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    check_non_negative,
    column_or_1d,
    validate_data,
)
from threadpoolctl import threadpool_limits

from dcs.data.checks import column_names, column_order
from dcs.errors import InvalidInputError, check_choice, quoted, show
from dcs.schemes.calibration import CalibrationKind
from dcs.selection.cross_validation import (
    FEWEST_LABELS,
    SelectionSettings,
    Threads,
    fit_scheme,
    label_free_scheme,
    stratified_folds,
)
from dcs.selection.front import Preference
from dcs.selection.settings import Hyperparameters


class DCSClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Correct class probabilities so that classes are predicted equally well.

    Without `estimator`, the input *is* class probabilities: ``fit(P, y)`` with P of shape [M, N],
    one column per class. With `estimator`, the input is that of the classifier, which is fitted;
    the correction is fitted on its cross-validated ``predict_proba``.

    Parameters
    ----------
    estimator : classifier with ``predict_proba``, optional
        Classifier to correct. None if the input is class probabilities. Wrap a fitted classifier
        in ``sklearn.frozen.FrozenEstimator`` to avoid refitting it, and use held-out rows.
    prefer : str, default="no-harm"
        Which point of the front to take. ``"no-harm"`` is the lowest COBias that is shown to
        cost at most 0.5 points of accuracy; others are ``"balance"``, ``"accuracy"``,
        ``"balanced-accuracy"``, ``"macro-f1"``, ``"weakest-class"`` and ``"offsets"``, see
        :class:`dcs.Preference`.
    max_accuracy_loss : float, optional
        Select the lowest COBias that costs at most this many points of accuracy, e.g. 0.5.
    max_cobias : float, optional
        Maximum COBias in points, if attainable, e.g. 5.
    beta : float, optional
        Fixed weight of COBias, for instance for ``GridSearchCV``. By default, several are compared
        by cross-validation.
    calibration : str, default="auto"
        Calibration before the correction, one of :func:`dcs.schemes.calibration.fit_calibration`;
        "auto" selects it by cross-validation.
    folds : int, default=5
        Number of cross-validation folds.
    labels : array of N class labels, optional
        Class of every column of P. By default the columns of a data frame are matched to the
        classes of y by their names, with or without a common prefix; those of an array are the
        sorted classes of y, whose number must then equal the number of columns.
    n_jobs : int, optional
        Number of threads that fit folds, -1 for all processors; it does not change the result. The
        classifier itself uses one thread, or its own setting.
    random_state : int, RandomState or None, default=0
        Seed of folds and searches.

    Attributes
    ----------
    classes_ : array, shape [N]
        The classes.
    scheme_ : CorrectionScheme
        The fitted scheme; it can be saved and applied without scikit-learn.
    result_ : FittedScheme
        The front, with cross-validated metrics.
    estimator_ : classifier
        The fitted `estimator`, if specified.
    n_features_in_ : int
        Number of features of the input.

    Raises
    ------
    InvalidInputError
        (a ValueError) in ``fit`` and ``predict``, if the input is not class probabilities.
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        prefer: str = "no-harm",
        max_accuracy_loss: float | None = None,
        max_cobias: float | None = None,
        beta: float | None = None,
        calibration: str = "auto",
        folds: int = 5,
        labels: ArrayLike | None = None,
        n_jobs: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.estimator = estimator
        self.prefer = prefer
        self.max_accuracy_loss = max_accuracy_loss
        self.max_cobias = max_cobias
        self.beta = beta
        self.calibration = calibration
        self.folds = folds
        self.labels = labels
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: ArrayLike) -> DCSClassifier:  # noqa: N803
        """Fit the correction, and the classifier if specified.

        Parameters
        ----------
        X : array of float, shape [M, N], or the input of `estimator`
            Class probabilities; rows are normalised to sum to 1.
        y : array, shape [M]
            True classes; -1 marks unlabelled rows, unless it is in `labels` or y has only one
            other class. The classifier is fitted to the labelled rows, the correction to all.
            With fewer than two labelled rows, which requires `labels`, the correction is batch
            calibration and `result_` is None.

        Returns
        -------
        DCSClassifier
            The fitted estimator.

        Raises
        ------
        InvalidInputError
            If there are too few rows or classes, X is not class probabilities, or y has a class
            that is not in `labels`.
        """
        settings = self._make_settings()
        seed = self._draw_seed()
        names = column_names(X) if self.estimator is None else None
        if self.estimator is None:
            X, y = validate_data(  # noqa: N806
                self, X, y, dtype=np.float64, ensure_min_samples=2, ensure_min_features=2
            )
        else:
            validate_data(self, X, y, skip_check_array=True)
            X = indexable(X)[0]  # noqa: N806
            count = X.shape[0] if hasattr(X, "shape") else len(X)
            if count < 2:
                raise InvalidInputError(
                    f"Found array with {count} sample(s); a minimum of 2 is required"
                )
        check_classification_targets(y)
        targets = column_or_1d(y, warn=True)
        check_consistent_length(X, targets)
        values = targets.tolist()
        labels = None if self.labels is None else np.asarray(self.labels).tolist()
        # If y contains only -1 and 1, both are classes: a single class could not be fitted.
        marked = -1 not in labels if labels is not None else len(set(values)) > 2
        known = np.array([not (marked and label == -1) for label in values])
        self.classes_ = np.unique(targets[known]) if labels is None else np.asarray(labels)
        if self.classes_.size < 2:
            owner = "y" if self.labels is None else "labels"
            raise InvalidInputError(
                f"{owner} has the classes {quoted(self.classes_.tolist())}; must be at least 2"
            )
        indices = np.full(known.size, -1)
        indices[known] = self._to_indices(targets[known].tolist(), "y")
        classes = tuple(f"{label}" for label in self.classes_.tolist())
        self._order = self._order_of(names, classes)
        if self.estimator is None:
            probs = self._normalise(X)
        else:
            rows = np.flatnonzero(known)
            self.estimator_ = clone(self.estimator).fit(_take_rows(X, rows), targets[known])
            probs = self._predict_held_out(X, targets, indices, seed)
        if known.sum() < FEWEST_LABELS:
            self.result_, self.scheme_ = None, label_free_scheme(probs, indices, classes=classes)
            return self
        # The matrices are small, so that multi-threaded linear algebra would only add overhead.
        with threadpool_limits(limits=1):
            self.result_ = fit_scheme(
                probs,
                indices,
                settings=settings,
                seed=seed,
                classes=classes,
                mapper=Threads(effective_n_jobs(self.n_jobs)),
            )
        self.scheme_ = self.result_.scheme
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return corrected class probabilities, shape [M, N].

        Parameters
        ----------
        X : array of float, shape [M, N], or the input of `estimator`
            See :meth:`fit`.

        Returns
        -------
        array of float64, shape [M, N]
            One column per class of `classes_`; rows sum to 1.
        """
        check_is_fitted(self)
        if self.estimator is None:
            X = validate_data(self, X, dtype=np.float64, reset=False)  # noqa: N806
            return self.scheme_.apply(self._normalise(X))
        return self.scheme_.apply(self._predict_aligned(self.estimator_, X))

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Return the corrected predictions, shape [M]; ties go to the first class.

        Parameters
        ----------
        X : array of float, shape [M, N], or the input of `estimator`
            See :meth:`fit`.

        Returns
        -------
        array, shape [M]
            Entries of `classes_`.
        """
        check_is_fitted(self)
        chosen: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return chosen

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self.estimator is None:
            tags.input_tags.positive_only = True
        else:
            tags.input_tags = self.estimator.__sklearn_tags__().input_tags
        return tags

    def _make_settings(self) -> SelectionSettings:
        settings = SelectionSettings(
            folds=self.folds,
            preference=Preference(
                self.prefer,  # type: ignore[arg-type]
                self.max_accuracy_loss,
                self.max_cobias,
            ),
        )
        if self.labels is not None and np.ndim(self.labels) != 1:
            raise InvalidInputError(f"labels {show(self.labels)}: must be a list of classes")
        if self.beta is not None:
            settings = replace(settings, betas=(float(self.beta),))
        check_choice("calibration", self.calibration, ("auto", *get_args(CalibrationKind)))
        if self.calibration != "auto":
            setting = Hyperparameters(calibration=self.calibration)  # type: ignore[arg-type]
            settings = replace(settings, candidates=(setting,))
        return settings

    def _draw_seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _to_indices(self, labels: list[Any], owner: str) -> NDArray[np.int64]:
        """Convert labels to class indices."""
        order = {label: j for j, label in enumerate(self.classes_.tolist())}
        unknown = [label for label in labels if label not in order]
        if unknown:
            raise InvalidInputError(
                f"{owner} has the class {unknown[0]!r}, which is not in labels; labels must name "
                "every class"
            )
        return np.array([order[label] for label in labels], dtype=np.int64)

    def _normalise(self, probs: NDArray[np.float64]) -> NDArray[np.float64]:
        check_non_negative(probs, type(self).__name__)
        n_classes = self.classes_.size
        if probs.shape[1] != n_classes:
            raise InvalidInputError(
                f"X has {probs.shape[1]} columns but there are {n_classes} classes; give class "
                "probabilities with one column per class (and labels= if classes are missing in "
                "y), or a classifier as estimator="
            )
        totals = probs.sum(axis=1, keepdims=True)
        # Rows of zeros remain zero, so that the validation of probabilities names them.
        normalised: NDArray[np.float64] = probs / np.where(totals > 0.0, totals, 1.0)
        return normalised[:, self._order]

    def _order_of(self, names: list[str] | None, classes: tuple[str, ...]) -> Any:
        """Return the order of the columns that puts them in that of the classes."""
        if names is None:
            return slice(None)
        order = column_order(names, classes, "labels=")
        if self.labels is not None and order != sorted(order):
            raise InvalidInputError(
                f"labels {show(list(classes))} are in another order than the columns of X, "
                f"{quoted(names)}; leave labels= out, or reorder the columns"
            )
        return order

    def _predict_held_out(self, X: Any, y: Any, indices: Any, seed: int) -> NDArray[np.float64]:  # noqa: N803
        """Return the probabilities of the classifier; those of labelled rows are held-out."""
        known = np.flatnonzero(indices >= 0)
        folds = min(self.folds, known.size)
        place = stratified_folds(indices[known], folds, seed=seed)
        probs = self._predict_aligned(self.estimator_, X)
        if folds < 2:
            return probs
        for fold in range(folds):
            inside, outside = known[place != fold], known[place == fold]
            model = clone(self.estimator).fit(_take_rows(X, inside), y[inside])
            probs[outside] = self._predict_aligned(model, _take_rows(X, outside))
        return probs

    def _predict_aligned(self, model: Any, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return ``predict_proba`` with one column per class of `classes_`."""
        values = np.asarray(model.predict_proba(X), dtype=np.float64)
        probs = np.zeros((values.shape[0], self.classes_.size))
        probs[:, self._to_indices(model.classes_.tolist(), "the classifier")] = values
        return probs


def _take_rows(X: Any, rows: NDArray[np.intp]) -> Any:
    """Return rows of anything that ``sklearn.utils.indexable`` returns."""
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    return X[rows] if hasattr(X, "shape") else [X[row] for row in rows]
