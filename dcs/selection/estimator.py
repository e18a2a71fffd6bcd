"""The scikit-learn estimator, which corrects class probabilities."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from joblib import effective_n_jobs  # type: ignore[import-untyped]
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import normalize
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from dcs.data.checks import (
    checked_rows,
    column_names,
    column_order,
    refuse_other_columns,
    refuse_other_order,
)
from dcs.data.labels import as_text
from dcs.errors import InvalidInputError, quoted, show
from dcs.selection.compare import SelectionSettings, fit_front
from dcs.selection.fitting import FEWEST_LABELS, Threads
from dcs.selection.methods import get_method
from dcs.selection.preference import Prefer, Preference


@dataclass(kw_only=True, eq=False, repr=False)
class DCSClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Correct class probabilities so that classes are predicted equally well.

    The input *is* class probabilities, ``fit(P, y)`` with P of shape [M, N], one column per class:
    those of any classifier on rows that it was not fitted on, such as
    ``cross_val_predict(classifier, X, y, method="predict_proba")``.

    Parameters
    ----------
    prefer : str, default="no-harm"
        Which point of the front to take. ``"no-harm"`` is one that is shown to cost at most a
        tenth of the COBias that it removes, in accuracy; others are ``"balance"``,
        ``"accuracy"``, ``"balanced-accuracy"``, ``"macro-f1"``, ``"weakest-class"`` and
        ``"offsets"``, see :class:`dcs.Preference`.
    max_accuracy_loss : float, optional
        Select the lowest COBias that costs at most this many points of accuracy, e.g. 0.5.
    max_cobias : float, optional
        Maximum COBias in points, if attainable, e.g. 5.
    settings : SelectionSettings, optional
        Candidates, weights of COBias and folds that are compared; its preference is not used.
    labels : array of N class labels, optional
        Class of every column of P. By default the columns of a data frame are matched to the
        classes of y by their names, with or without a common prefix; those of an array are the
        sorted classes of y, whose number must then equal the number of columns.
    n_jobs : int, optional
        Number of threads that fit folds, -1 for all processors; it does not change the result.
    random_state : int, RandomState or None, default=0
        Seed of folds and searches.

    Attributes
    ----------
    classes_ : array, shape [N]
        The classes, sorted, as scorers of scikit-learn expect.
    scheme_ : CorrectionScheme
        The fitted scheme; it can be saved and applied without scikit-learn.
    result_ : FittedScheme
        The front, with cross-validated metrics.
    n_features_in_ : int
        Number of columns of P.

    Raises
    ------
    InvalidInputError
        (a ValueError) in ``fit`` and ``predict``, if the input is not class probabilities.
    """

    prefer: Prefer = "no-harm"
    max_accuracy_loss: float | None = None
    max_cobias: float | None = None
    settings: SelectionSettings | None = None
    labels: ArrayLike | None = None
    n_jobs: int | None = None
    random_state: Any = 0

    def fit(self, X: Any, y: ArrayLike) -> DCSClassifier:  # noqa: N803
        """Fit the correction.

        Parameters
        ----------
        X : array of float, shape [M, N], or data frame
            Class probabilities; rows are normalised to sum to 1.
        y : array, shape [M]
            True classes; -1 marks unlabelled rows, unless it is in `labels` or y has only one
            other class. With fewer than two labelled rows, which requires `labels`, the
            correction is batch calibration and `result_` is None.

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
        preference = Preference(self.prefer, self.max_accuracy_loss, self.max_cobias)
        refuse_other_order(X, y=y)
        names, given = column_names(X), X
        X, targets = validate_data(  # noqa: N806
            self, X, y, dtype=np.float64, ensure_min_samples=2, ensure_min_features=2
        )
        check_classification_targets(targets)
        labels = None if self.labels is None else np.ravel(self.labels).tolist()
        values = targets.tolist()
        # If y contains only -1 and 1, both are classes: a single class could not be fitted.
        marked = -1 not in labels if labels is not None else len(set(values)) > 2
        known = np.array([not (marked and label == -1) for label in values])
        self._classes = np.unique(targets[known]) if labels is None else np.asarray(labels)
        # Scorers of scikit-learn take the columns of `predict_proba` to be sorted.
        self._sorted = np.argsort(self._classes, kind="stable")
        self.classes_ = self._classes[self._sorted]
        if self.classes_.size < 2:
            owner = "y" if self.labels is None else "labels"
            raise InvalidInputError(
                f"{owner} has the classes {quoted(self.classes_.tolist())}; must be at least 2"
            )
        indices = np.full(known.size, -1)
        indices[known] = self._to_indices(targets[known].tolist())
        classes = tuple(map(as_text, self._classes.tolist()))
        self._order = self._order_of(names, classes)
        counted = tuple(map(str, range(len(classes))))
        self._columns = (counted, classes) if names is None else (tuple(names),)
        self._refuse_other_columns(given)
        probs = self._normalise(X)
        if known.sum() < FEWEST_LABELS:
            batch = get_method("batch")
            self.result_, self.scheme_ = None, batch.fit(probs, indices, classes=classes)
            return self
        settings = replace(self.settings or SelectionSettings(), preference=preference)
        rows = checked_rows(probs, indices, classes, missing=True)
        mapper = Threads(effective_n_jobs(self.n_jobs))
        self.result_ = fit_front(*rows, settings, seed=self._draw_seed(), mapper=mapper)
        self.scheme_ = self.result_.scheme
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return corrected class probabilities, shape [M, N].

        Parameters
        ----------
        X : array of float, shape [M, N], or data frame
            See :meth:`fit`.

        Returns
        -------
        array of float64, shape [M, N]
            One column per class of `classes_`; rows sum to 1.
        """
        check_is_fitted(self)
        values = validate_data(self, X, dtype=np.float64, reset=False)
        self._refuse_other_columns(X)
        return self.scheme_.apply(self._normalise(values))[:, self._sorted]

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Return the corrected predictions, shape [M]; ties go to the first class.

        Parameters
        ----------
        X : array of float, shape [M, N], or data frame
            See :meth:`fit`.

        Returns
        -------
        array, shape [M]
            Entries of `classes_`.
        """
        chosen = self.predict_proba(X).argmax(axis=1)  # Refuses an estimator that is not fitted.
        return np.asarray(self.classes_[chosen])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags

    def _draw_seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _to_indices(self, labels: list[Any]) -> NDArray[np.int64]:
        """Convert labels to class indices."""
        order = {label: j for j, label in enumerate(self._classes.tolist())}
        unknown = [label for label in labels if label not in order]
        if unknown:
            raise InvalidInputError(
                f"y has the class {unknown[0]!r}, which is not in labels; labels must name every "
                "class as y does (for probabilities, cross_val_predict replaces the classes in y "
                "by their positions in sorted order)"
            )
        return np.array([order[label] for label in labels], dtype=np.int64)

    def _normalise(self, probs: NDArray[np.float64]) -> NDArray[np.float64]:
        check_non_negative(probs, type(self).__name__)
        n_classes = self.classes_.size
        if probs.shape[1] != n_classes:
            raise InvalidInputError(
                f"X has {probs.shape[1]} columns but there are {n_classes} classes; give class "
                "probabilities with one column per class, and labels= if classes are missing in y"
            )
        # Rows of zeros remain zero, so that the validation of probabilities names them.
        return np.asarray(normalize(probs, norm="l1")[:, self._order])

    def _refuse_other_columns(self, given: Any) -> None:
        """Refuse columns in another order than fitted, which validate_data does for text only."""
        for names in self._columns:
            refuse_other_columns(given, names, "those of the fit")

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
