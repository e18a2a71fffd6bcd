"""Calibrations: transformations of class probabilities that are linear in their logarithms.

All calibrations have the form ::

    calibrated = softmax(matrix @ log(max(probabilities, floor)) + offset)

Batch calibration and class-prior reweighting set the offset, vector scaling the diagonal, logistic
regression the full matrix; a surrogate may add the products of the logarithms, another of the
bases of `dcs.schemes.apply`. A correction scheme
may apply one before its corrections. For K tables of the same rows the logarithms are concatenated
by columns, and a wider matrix combines them into one table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import (
    checked_labels,
    checked_probabilities,
    checked_rows,
    finite_number,
)
from dcs.errors import InvalidInputError, check_choice, quoted
from dcs.schemes.apply import BASES, Step, calibrated, softmax
from dcs.schemes.apply import product as _product

Array: TypeAlias = NDArray[np.float64]

#: Kinds of calibrations for `fit_calibration`.
CalibrationKind: TypeAlias = Literal[
    "none", "batch", "prior", "vector", "logistic", "balanced", "shrunk", "surrogate"
]

#: Smaller probabilities are replaced by this value, because zero has no finite logarithm.
DEFAULT_FLOOR: Final = 1e-4

#: Limit of coefficients: above all fitted values, and sums of products with logarithms are finite.
_MAX_COEFFICIENT: Final = 1e9


@dataclass(frozen=True, slots=True)
class Calibration:
    """Transformation of class probabilities that is linear in their logarithms.

    Parameters
    ----------
    name : str
        Name of the method, e.g. ``"vector"``.
    matrix : tuple of tuple of float
        N x P; row j gives the calibrated logit of class j. P is the number of terms of the basis,
        or K * N to combine K tables of the same rows.
    offset : tuple of float
        N offsets of the logits.
    floor : float, optional
        Smaller probabilities are replaced by this value, ``0 < floor <= 0.01``.
    basis : {"logs", "products"}, optional
        Terms of the logits: the logarithms, or these followed by their products in pairs, squares
        included.

    Raises
    ------
    InvalidInputError
        If shapes do not match, or a value is not finite or out of range.
    """

    name: str
    matrix: tuple[tuple[float, ...], ...]
    offset: tuple[float, ...]
    floor: float = DEFAULT_FLOOR
    basis: str = "logs"
    #: The same as arrays.
    step: Step = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        subject = f"calibration {self.name!r}"
        check_choice(f"{subject}: basis", self.basis, BASES)
        floor = finite_number(self.floor, f"{subject}: floor", positive=True, most=0.01)
        try:
            matrix, offset = np.array(self.matrix, np.float64), np.array(self.offset, np.float64)
        except ValueError as error:
            raise InvalidInputError(f"{subject}: matrix: rows have different lengths") from error
        square = offset.ndim == 1 and matrix.ndim == 2 and len(matrix) == offset.size > 0
        width = BASES[self.basis](np.ones((1, offset.size))).shape[1] if square else 0
        tables = matrix.shape[1] / width if width else 0.0
        if tables < 1 or (tables != 1 and self.basis != "logs") or tables % 1:
            raise InvalidInputError(
                f"{subject}: matrix has shape {matrix.shape} and offset {offset.shape}; expected "
                f"[N, {width or 'N'}] (or [N, K * N] logarithms of K tables) and [N]"
            )
        if not (np.abs(np.append(matrix, offset)) <= _MAX_COEFFICIENT).all():
            raise InvalidInputError(
                f"{subject}: matrix and offset must be finite and at most {_MAX_COEFFICIENT:.0e}"
            )
        object.__setattr__(self, "matrix", tuple(map(tuple, matrix.tolist())))
        object.__setattr__(self, "offset", tuple(offset.tolist()))
        object.__setattr__(self, "floor", floor)
        step = Step(np.ascontiguousarray(matrix.T), offset, floor, self.basis)
        object.__setattr__(self, "step", step)

    @property
    def n_classes(self) -> int:
        """The number of classes N."""
        return len(self.offset)

    @property
    def n_tables(self) -> int:
        """The number of tables K."""
        return len(self.matrix[0]) // len(self.offset) if self.basis == "logs" else 1

    def apply(self, probs: ArrayLike) -> Array:
        """Return calibrated probabilities, shape [M, N]; every row sums to 1.

        Parameters
        ----------
        probs : array of float, shape [M, N]
            Class probabilities; for K tables, K such arrays of the same rows.

        Raises
        ------
        InvalidInputError
            If a value is not a probability, or the number of classes or tables differs.
        """
        return calibrated(self.checked(probs), self.step)

    def checked(self, probs: ArrayLike) -> Array:
        """Return valid probabilities, those of K tables side by side; see :meth:`apply`."""
        if self.n_tables == 1:
            return checked_probabilities(probs, n_classes=self.n_classes)
        return side_by_side(probs, n_tables=self.n_tables, n_classes=self.n_classes)

    def to_dict(self) -> dict[str, Any]:
        """Return the representation in scheme files."""
        lists = {"matrix": [list(row) for row in self.matrix], "offset": list(self.offset)}
        # The first versions of the format had two bases and no names.
        named: dict[str, Any] = {"logs": {}, "products": {"products": True}}
        own = named.get(self.basis, {"basis": self.basis})
        return {"name": self.name, **lists, "floor": self.floor, **own}


def from_offset(name: str, offset: Array) -> Calibration:
    """Return the calibration that only adds `offset` [N] to the logarithms."""
    return from_arrays(name, np.eye(offset.size), offset)


def from_arrays(name: str, matrix: Array, offset: Array, *, basis: str = "logs") -> Calibration:
    """Return the calibration with a matrix [N, N] or wider and an offset [N]."""
    rows, offsets = tuple(map(tuple, matrix.tolist())), tuple(offset.tolist())
    return Calibration(name, rows, offsets, basis=basis)


def side_by_side(
    probs: ArrayLike, *, n_tables: int | None = None, n_classes: int | None = None
) -> Array:
    """Concatenate the class probabilities of K tables of the same rows, [M, N], to [M, K * N].

    Raises
    ------
    InvalidInputError
        If a value is not a probability, or rows, classes or the number of tables differ.
    """
    given = list(probs)  # type: ignore[arg-type]
    shapes = list(dict.fromkeys(map(np.shape, given)))
    if len(shapes) != 1 or len(shapes[0]) != 2 or n_tables not in (None, len(given)):
        raise InvalidInputError(
            f"probs: expected {n_tables or 'K'} arrays [rows, classes], one per table and all of "
            f"the same rows, got {len(given)} of shapes {quoted([*map(str, shapes)])}"
        )
    tables = [checked_probabilities(each, n_classes=n_classes) for each in given]
    return np.hstack(tables)


def mean_combination(n_tables: int, n_classes: int) -> Calibration:
    """Return the calibration that averages the log-probabilities of K tables."""
    matrix = np.tile(np.eye(n_classes) / n_tables, n_tables)
    return from_arrays("mean", matrix, np.zeros(n_classes))


def fit_stack(probs: ArrayLike, labels: ArrayLike, *, ridge: float = 20.0) -> Calibration:
    """Fit a linear stack that combines K tables of the same rows into one.

    Maximum likelihood with equal weight of all classes, as ``"balanced"`` of
    :func:`fit_calibration`, so that rare classes influence the weights of the tables; the class
    shares of the labels are then restored. The penalty shrinks towards the mean of the
    log-probabilities.

    Parameters
    ----------
    probs : K arrays of float, shape [M, N]
        Class probabilities of each table.
    labels : array of int, shape [M]
        True class indices.
    ridge : float, optional
        Strength of the penalty, 0 or more.

    Raises
    ------
    InvalidInputError
        If an argument is invalid.
    """
    values = side_by_side(probs)
    n_tables, _, n_classes = np.shape(probs)
    indices = checked_labels(labels, n_rows=len(values), n_classes=n_classes)
    ridge = finite_number(ridge, "ridge", least=0.0)
    mean: Array = np.array(mean_combination(n_tables, n_classes).matrix)
    fitted = _fit("balanced", values, indices, mean, ridge)
    offset = np.array(fitted.offset) + np.log(_smooth_shares(indices, n_classes))
    return from_arrays("stack", np.array(fitted.matrix), offset.round(_DIGITS))


def batch_calibration(probs: ArrayLike) -> Calibration:
    """Divide by the mean probability of each class over the rows; labels are not needed.

    Source: batch calibration, Zhou et al. 2024, arXiv 2309.17249.
    """
    return from_offset("batch", -_log_means(checked_probabilities(probs)))


def prior_reweighting(probs: ArrayLike, labels: ArrayLike) -> Calibration:
    """Multiply each class by its label frequency divided by its mean probability.

    Adjusts the share of each class in the mean prediction to its share of the labels. One row is
    added to each class, so that a class without rows has a positive weight. The mean prediction
    includes unlabelled rows (-1).
    """
    values, indices, names = checked_rows(probs, labels, missing=True)
    shares = _smooth_shares(indices[indices >= 0], len(names))
    return from_offset("prior", np.log(shares) - _log_means(values))


def _smooth_shares(labels: NDArray[np.int64], n_classes: int) -> Array:
    """Return the share of each class in the labels, with one row added to each."""
    counts = np.bincount(labels, minlength=n_classes) + 1.0
    return np.asarray(counts / counts.sum())


def _log_means(probs: Array) -> Array:
    return np.asarray(np.log(np.maximum(probs.mean(axis=0), DEFAULT_FLOOR)))


def fit_calibration(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    kind: CalibrationKind,
    ridge: float = 10.0,
    beta: float = 1.0,
) -> Calibration | None:
    """Fit a calibration by maximum likelihood, with an L2 penalty towards the identity.

    Minimises ``-sum log q(label) + ridge / 2 * |matrix - I|^2 + ridge / 20 * |offset|^2``: with
    few rows the probabilities hardly change, with many the penalty has no effect.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices, -1 for unlabelled rows; mean probabilities are those of all rows.
    kind : {"none", "batch", "prior", "vector", "logistic", "balanced", "shrunk", "surrogate"}
        No calibration, division by the mean probabilities, adjustment to the shares of the
        labels, a scale and an offset per class, the full matrix and an offset, the same with equal
        weight of all classes, or the latter shrunk towards ``"batch"``; see
        :func:`shrunk_calibration` and :func:`surrogate_calibration`.
    ridge : float, optional
        Strength of the penalty, 0 or more; only used by ``"vector"``, ``"logistic"`` and
        ``"balanced"``.
    beta : float, optional
        Weight of COBias; only used by ``"surrogate"``.

    Returns
    -------
    Calibration or None
        None for the kind ``"none"``.

    Raises
    ------
    InvalidInputError
        If an argument is invalid.
    """
    values, indices, names = checked_rows(probs, labels, missing=True)
    ridge = finite_number(ridge, "ridge", least=0.0)
    check_choice("calibration", kind, get_args(CalibrationKind))
    if kind == "none":
        return None
    if kind in _USING_ALL_ROWS:
        return _USING_ALL_ROWS[kind](values, indices)
    labelled = indices >= 0
    if not labelled.any():
        raise InvalidInputError(f"no row has a label; calibration {kind!r} requires labels")
    if kind == "surrogate":
        return surrogate_calibration(values[labelled], indices[labelled], beta=beta)
    return _fit(kind, values[labelled], indices[labelled], np.eye(len(names)), ridge)


def _fit(
    kind: CalibrationKind,
    values: Array,
    labels: NDArray[np.int64],
    start: Array,
    ridge: float,
) -> Calibration:
    """Fit a calibration of probabilities [M, K * N], starting from the matrix `start`."""
    logs = np.log(np.maximum(values, DEFAULT_FLOOR))
    row_weights = _balance(labels) if kind == "balanced" else np.ones(labels.size)
    space = _space(kind, logs, row_weights, ridge)
    departure = _minimise_loss(logs, _product(logs, start.T), labels, row_weights, space)
    matrix = start + departure[:-1].T
    return from_arrays(kind, matrix.round(_DIGITS), departure[-1].round(_DIGITS))


def _balance(labels: NDArray[np.int64]) -> Array:
    """Return row weights [M] with mean 1 that give all classes the same total weight."""
    counts = np.bincount(labels)
    return np.asarray(labels.size / (np.count_nonzero(counts) * counts[labels]))


#: With fewer labelled rows any fit is worse than batch calibration, however strongly shrunk: they
#: only serve to decide between batch calibration and no correction.
FEWEST_FITTED: Final = 20

#: Strength of the prior of batch calibration in labelled rows, for the offset and for the matrix;
#: and the value that is divided by the number of labelled rows to give the strength if larger.
_OFFSET_ROWS: Final = 30.0
_MATRIX_ROWS: Final = 200.0
_FEW_ROWS: Final = 4500.0
#: Number of classes for which these strengths hold; with more classes they increase.
_PRIOR_CLASSES: Final = 4


def shrunk_calibration(probs: ArrayLike, labels: ArrayLike) -> Calibration:
    """Fit balanced logistic regression shrunk towards batch calibration.

    The penalty is the mean square, over all rows, of the change of the batch-calibrated logits.
    Labels are thus weighed against a fixed number of rows of prior evidence, independent of the
    scale of the probabilities: with fewer than 20 labels the result is batch calibration, with 30
    it hardly differs, with thousands it is the regression.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices, -1 for unlabelled rows.

    Notes
    -----
    With L labelled rows of up to four classes the prior is worth ``max(30, 4500 / L)`` rows
    for changes of the offset and ``max(200, 4500 / L)`` for changes of the matrix; with more
    classes it is worth the same number of rows per class. Few labels count less than
    proportionally, because COBias grows with the error of an offset, not with its square.
    """
    values, indices, names = checked_rows(probs, labels, missing=True)
    batch, n, labelled = batch_calibration(values), len(names), indices >= 0
    n_labelled = int(labelled.sum())
    if n_labelled < FEWEST_FITTED:
        return batch
    # Only differences of logits matter: they are centred in each row.
    centre = np.eye(n) - 1.0 / n
    start = np.vstack([centre, _product(np.array([batch.offset]), centre)])
    logs = np.log(np.maximum(values, DEFAULT_FLOOR))
    logits = _product(np.column_stack([logs, np.ones(indices.size)]), start)
    # Coordinates with mean 0 and variance 1 over all rows, in which the penalty is a plain ridge.
    means = logits.mean(axis=0)
    moments = _moments(logits - means, logits - means) / indices.size
    turn = np.eye(n + 1)
    turn[:n, :n] = np.linalg.inv(np.linalg.cholesky(moments + _ADDED_VARIANCE * np.eye(n))).T
    turn[n, :n] = -_product(means[None], turn[:n, :n])
    per_class = max(1.0, n / _PRIOR_CLASSES)
    few = _FEW_ROWS * per_class**2 / n_labelled
    offset_rows, matrix_rows = (max(m * per_class, few) for m in (_OFFSET_ROWS, _MATRIX_ROWS))
    space = _Space(np.diag(np.append(np.full(n, matrix_rows), offset_rows)), turn)
    known, start_logits = indices[labelled], logits[labelled]
    departure = _minimise_loss(start_logits, start_logits, known, _balance(known), space)
    fitted = _product(start, np.eye(n) + departure[:-1])
    fitted[-1] += departure[-1]
    return from_arrays("shrunk", fitted[:-1].T.round(_DIGITS), fitted[-1].round(_DIGITS))


#: Number of classes up to which a surrogate has products of logarithms.
_MOST_PRODUCT_CLASSES: Final = 10

#: Temperatures of the predictions of a surrogate, steps of the optimiser at each, L2 penalty, and
#: difference of class accuracies below which COBias is smoothed, squared.
_SURROGATE_TEMPERATURES: Final = (1.0, 0.5, 0.25)
_SURROGATE_STEPS: Final = 30
_SURROGATE_PENALTY: Final = 1e-3
_SURROGATE_SMOOTHING: Final = 1e-3


def surrogate_calibration(
    probs: ArrayLike, labels: ArrayLike, *, beta: float = 1.0
) -> Calibration:
    """Minimise a smooth surrogate of the error rate plus `beta` times COBias.

    The class accuracies are those of softmax predictions, which approach the predicted classes as
    the temperature is lowered, and absolute differences are smoothed. The logits are linear in
    the log-probabilities and, up to 10 classes, their products. L-BFGS starts from logistic
    regression with equal weight of all classes.

    Parameters
    ----------
    probs : array of float, shape [M, N]
        Class probabilities.
    labels : array of int, shape [M]
        True class indices.
    beta : float, optional
        Weight of COBias, 0 or more.

    Raises
    ------
    InvalidInputError
        If an argument is invalid.

    Notes
    -----
    The smooth counterpart of the annealing search; compare Menon et al. 2021 (arXiv 2007.07314)
    for its start, and Cotter et al. 2019 (arXiv 1809.04198) for surrogates of rate constraints.
    """
    # Imported here, because calibrations are mostly applied, not fitted.
    from scipy.optimize import minimize

    values, indices, names = checked_rows(probs, labels)
    beta = finite_number(beta, "beta", least=0.0)
    n_rows, n = indices.size, len(names)
    basis = "products" if n <= _MOST_PRODUCT_CLASSES else "logs"
    terms = BASES[basis](np.maximum(values, DEFAULT_FLOOR))
    means, scales = terms.mean(axis=0), terms.std(axis=0)
    # Terms that hardly vary carry no information.
    scales = np.where(scales > _TOLERANCE, scales, np.inf)
    design = np.column_stack([(terms - means) / scales, np.ones(n_rows)])
    rows, counts = np.arange(n_rows), np.bincount(indices, minlength=n)
    present = np.flatnonzero(counts)
    balance, pairs = _balance(indices), max(1.0, present.size * (present.size - 1) / 2)

    def predict(x: Array, temperature: float) -> Array:
        return softmax(design @ x.reshape(-1, n) / temperature)

    def penalised(loss: float, residual: Array, x: Array) -> tuple[float, Array]:
        slope = (design.T @ residual).ravel() + _SURROGATE_PENALTY * x
        return loss + 0.5 * _SURROGATE_PENALTY * float(x @ x), slope

    def likelihood(x: Array) -> tuple[float, Array]:
        residual = predict(x, 1.0)
        loss = -float((balance * np.log(np.maximum(residual[rows, indices], 1e-300))).mean())
        residual[rows, indices] -= 1.0
        return penalised(loss, residual * (balance / n_rows)[:, None], x)

    def surrogate(x: Array, temperature: float) -> tuple[float, Array]:
        soft = predict(x, temperature)
        right = soft[rows, indices]
        accuracies = np.bincount(indices, right, n)[present] / counts[present]
        gaps = accuracies[:, None] - accuracies
        distances = np.sqrt(gaps**2 + _SURROGATE_SMOOTHING)
        loss = 1.0 - float(right.mean()) + beta * float(np.triu(distances, 1).sum()) / pairs
        pull = np.full(n, -1.0 / n_rows)
        pull[present] += beta * (gaps / distances).sum(axis=1) / pairs / counts[present]
        weights = pull[indices] * right / temperature
        residual = -soft * weights[:, None]
        residual[rows, indices] += weights
        return penalised(loss, residual, x)

    options = {"maxiter": _SURROGATE_STEPS}
    zero = np.zeros(design.shape[1] * n)
    x = minimize(likelihood, zero, jac=True, method="L-BFGS-B", options=options).x
    for temperature in _SURROGATE_TEMPERATURES:
        arguments = {"args": (temperature,), "jac": True, "options": options}
        x = minimize(surrogate, x, method="L-BFGS-B", **arguments).x
    coefficients = x.reshape(-1, n)
    matrix = coefficients[:-1] / scales[:, None]
    offset = coefficients[-1] - means @ matrix
    # Logits of the lowest temperature, at which the predictions were fitted.
    matrix, offset = matrix.T / temperature, offset / temperature
    return from_arrays("surrogate", matrix.round(_DIGITS), offset.round(_DIGITS), basis=basis)


#: Calibrations that also use unlabelled rows.
_USING_ALL_ROWS: Final[dict[str, Callable[[Array, NDArray[np.int64]], Calibration]]] = {
    "batch": lambda probs, labels: batch_calibration(probs),
    "prior": prior_reweighting,
    "shrunk": shrunk_calibration,
}

#: Decimals of coefficients: the optimiser's BLAS adds in an order that depends on the processor,
#: which changes much later digits and must not change predictions.
_DIGITS: Final = 6

#: Convergence threshold of the largest entry of the gradient of the mean loss.
_TOLERANCE: Final = 1e-6

#: Minimum curvature relative to the largest, for directions without any, e.g. constant columns.
_MIN_CURVATURE: Final = 1e-9

#: Added to the variance in every direction, because it may be zero.
_ADDED_VARIANCE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class _Space:
    """Coordinates and penalty of the departure of a calibration from its start.

    A departure is an array [P + 1, N] with P = K * N: the change of the transposed matrix, then
    the offset.
    """

    #: Matrix of the quadratic penalty in the coordinates, [P + 1, P + 1].
    penalty: Array
    #: Map from coordinates to the rows of a departure, [P + 1, P + 1].
    turn: Array
    #: Projection to the nearest allowed departure.
    project: Callable[[Array], Array] = lambda departure: departure


def _space(kind: CalibrationKind, logs: Array, row_weights: Array, ridge: float) -> _Space:
    n_rows, n = logs.shape
    # The ridge of the offset is a tenth.
    ridges = np.append(np.full(n, ridge), ridge / 10)
    if kind == "vector":
        scales = np.eye(n + 1, n)
        scales[n] = 1.0
        return _Space(np.diag(ridges), np.eye(n + 1), lambda departure: departure * scales)
    # Use coordinates in which the curvature of the loss is similar in all directions. The
    # log-probabilities of a confident model are large and correlated: otherwise hundreds of steps
    # would not reach the optimum. The curvature is at most half the second moments of the features
    # plus the ridge (Böhning, 1992); with its Cholesky factor L, the coordinates are the columns
    # of L^-T.
    features = np.column_stack([logs, np.ones(n_rows)])
    curvature = _moments(features, features * row_weights[:, None]) / 2 + np.diag(ridges)
    curvature += _MIN_CURVATURE * curvature.max() * np.eye(n + 1)
    turn = np.linalg.inv(np.linalg.cholesky(curvature)).T * math.sqrt(n_rows)
    return _Space(_product(turn.T, ridges[:, None] * turn), turn)


def _minimise_loss(
    logs: Array, start: Array, labels: NDArray[np.int64], row_weights: Array, space: _Space
) -> Array:
    """Return the departure that minimises ``-sum w log q(label)`` plus half the ridge."""
    # Imported here, because calibrations are mostly applied, not fitted.
    from scipy.optimize import minimize

    from dcs.schemes.likelihood import weighted_loss

    n_rows, shape = labels.size, (len(space.turn), start.shape[1])
    design = _product(np.column_stack([logs, np.ones(n_rows)]), space.turn)
    slope = np.empty(shape)

    def loss(x: Array) -> tuple[float, Array]:
        departure = space.project(x.reshape(shape))
        value = weighted_loss(design, start, departure, labels, row_weights, slope)
        pull = _product(space.penalty, departure)
        value += 0.5 * float((departure * pull).sum())
        return value / n_rows, space.project(slope + pull).ravel() / n_rows

    options = {"gtol": _TOLERANCE, "ftol": 0.0, "maxiter": 1000}
    zero = np.zeros(math.prod(shape))
    found = minimize(loss, zero, jac=True, method="L-BFGS-B", options=options)
    return _product(space.turn, space.project(found.x.reshape(shape)))


def _moments(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``a.T @ b`` of [M, K] and [M, N], in the order of the rows; see :func:`_product`."""
    return np.array([(column[:, None] * b).sum(axis=0) for column in a.T])
