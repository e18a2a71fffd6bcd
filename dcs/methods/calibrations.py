"""Calibrations that can be fitted, by name.

Each is one object with everything that settings, samplers, and pages need to know of it. Those
that labels determine are linear maps of log-probabilities, with a ridge in rows. Their logits are
::

    anchor * (log p - log mean p) + features @ coefficients

where the features are the standardised log-probabilities, these and their products in pairs, or a
constant only. The ridge pulls the coefficients to 0, that is, the map towards batch calibration
(anchor 1) or uniform probabilities (anchor 0). It counts in rows: 10 rows of evidence for no
change, however many rows there are, so that regularisation fades smoothly as rows increase.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcs.data.splits import stratified_choice
from dcs.schemes.apply import Array, softmax, terms_of
from dcs.schemes.calibration import DEFAULT_FLOOR, Calibration, from_arrays, mean_combination

Labels: TypeAlias = NDArray[np.int64]

#: Number of classes up to which maps have products, whose number grows with the square.
MOST_PRODUCT_CLASSES: Final = 10

#: The offsets have a tenth of the ridge.
_OFFSET_RIDGE: Final = 0.1

#: Temperatures of the predictions of the surrogate, and difference of class accuracies below which
#: COBias is smoothed, squared. Its penalty is smaller, since its loss is bounded.
_TEMPERATURES: Final = (0.5, 0.25)
_SMOOTHING: Final = 1e-3
_SURROGATE_RIDGE: Final = 0.1

#: Limit of rows times entries of a matrix, for many classes.
_MOST_PRODUCTS: Final = 20_000_000

_DROPS_STEPS: Final = 200
_DROPS_RATE: Final = 0.3

#: Decimals of coefficients: the optimiser's BLAS adds in an order that depends on the processor,
#: which changes much later digits and must not change predictions.
DIGITS: Final = 6

#: Steps of the optimiser of a stack.
_STACK_STEPS: Final = 100

#: Features with a smaller spread carry no information.
_LEAST_SPREAD: Final = 1e-6

_Loss: TypeAlias = Callable[[Array], tuple[float, Array]]


@dataclass(frozen=True)
class FittedCalibration(ABC):
    """A calibration that can be fitted to labelled rows.

    Parameters
    ----------
    name : str
        Name in settings and schemes.
    needs_labels : bool
        Whether labels determine it. Its output is then a posterior under equal class shares.
    adds_offsets : bool
        Whether it only adds an offset to the log-probability of each class.
    version : int
        Raised if its results change, so that cells that use it are computed again.
    """

    name: str
    needs_labels: bool = True
    adds_offsets: bool = False
    version: int = 1

    @abstractmethod
    def fit(
        self, probs: Array, labels: Labels, *, ridge: float, anchor: float
    ) -> Calibration | None:
        """Fit the calibration; None if it changes nothing.

        Parameters
        ----------
        probs : array of float, shape [M, N]
            Class probabilities of all rows, the mean of which may be used.
        labels : array of int, shape [M]
            True class indices, -1 for rows whose labels are missing or must not be used.
        ridge : float
            Strength of the penalty, in rows.
        anchor : float
            Share of the batch-calibrated log-probabilities towards which the penalty shrinks, 0
            for uniform probabilities.
        """


def batch_calibration(probs: Array) -> Calibration:
    """Divide by the mean probability of each class over the rows; labels are not needed.

    Source: batch calibration, Zhou et al. 2024, arXiv 2309.17249.
    """
    return from_arrays("batch", np.eye(probs.shape[1]), -log_means(probs))


def prior_reweighting(probs: Array, labels: Labels) -> Calibration:
    """Multiply each class by its label frequency divided by its mean probability.

    Adjusts the share of each class in the mean prediction to its share of the labels. One row is
    added to each class, so that a class without rows has a positive weight. The mean prediction
    includes unlabelled rows (-1).
    """
    shares = smooth_shares(labels[labels >= 0], probs.shape[1])
    return from_arrays("prior", np.eye(shares.size), np.log(shares) - log_means(probs))


def smooth_shares(labels: Labels, n_classes: int) -> Array:
    """Return the share of each class in the labels, with one row added to each."""
    counts = np.bincount(labels, minlength=n_classes) + 1.0
    return np.asarray(counts / counts.sum())


def log_means(probs: Array) -> Array:
    """Return the logarithms of the mean probabilities of the classes."""
    return np.asarray(np.log(np.maximum(probs.mean(axis=0), DEFAULT_FLOOR)))


@dataclass(frozen=True)
class LabelFree(FittedCalibration):
    """A calibration that labels do not determine.

    Parameters
    ----------
    make : callable
        Returns it for the probabilities of all rows.
    """

    needs_labels: bool = False
    adds_offsets: bool = True
    make: Callable[[Array], Calibration | None] = field(kw_only=True)

    def fit(
        self, probs: Array, labels: Labels, *, ridge: float, anchor: float
    ) -> Calibration | None:
        """Fit the calibration to all rows; see :class:`FittedCalibration`."""
        return self.make(probs)


@dataclass(frozen=True)
class LinearMap(FittedCalibration):
    """A linear map of log-probabilities; see the module.

    Parameters
    ----------
    name, needs_labels, adds_offsets
        See :class:`FittedCalibration`.
    terms : {"offsets", "logarithms", "products"}
        Features. Products are left out above 10 classes.
    loss : {"balanced", "surrogate", "worst-class"}
        Cross-entropy with equal weight of all classes; followed by steps on a smooth surrogate of
        the error rate plus COBias; or plain cross-entropy, followed by class weights for the best
        worst class accuracy.
    steps : int
        Steps of the optimiser for each loss.
    most_rows : int, optional
        Number of rows beyond which only some are used, since more hardly change a map; fewer above
        70 classes, half as many at least.
    """

    terms: Literal["offsets", "logarithms", "products"] = "logarithms"
    loss: Literal["balanced", "surrogate", "worst-class"] = "balanced"
    steps: int = 18
    most_rows: int | None = 4000

    def fit(self, probs: Array, labels: Labels, *, ridge: float, anchor: float) -> Calibration:
        """Fit the map; see :class:`FittedCalibration`."""
        logs = np.log(np.maximum(probs, DEFAULT_FLOOR))
        n = logs.shape[1]
        products = self.terms == "products" and n <= MOST_PRODUCT_CLASSES
        centre, centring = np.eye(n) - 1.0 / n, _centring(n, products=products)
        terms = terms_of(logs - logs.mean(axis=1, keepdims=True), products)
        if self.terms == "offsets":
            centre, anchor = np.eye(n), 1.0
            terms, centring = terms[:, :0], centring[:0]
        basis = _Basis(terms)
        start = np.vstack([anchor * centre, -anchor * log_means(probs) @ centre])
        rows = np.flatnonzero(labels >= 0)
        strength = ridge / rows.size
        if self.most_rows is not None:
            most = min(self.most_rows, max(self.most_rows // 2, _MOST_PRODUCTS // n**2))
            rows = rows[stratified_choice(labels[rows], min(most, rows.size), seed=0)]
        features = basis.features(terms[rows])
        first = logs[rows] @ start[:-1] + start[-1]
        balanced = self.loss != "worst-class"
        problem = _Problem(features, first, labels[rows], strength, balanced=balanced)
        found = problem.minimise(problem.likelihood, problem.zero, self.steps)
        if self.loss == "surrogate":
            for temperature in _TEMPERATURES:
                found = problem.minimise(problem.surrogate(temperature), found, self.steps)
        coefficients = problem.turn @ found
        if self.loss == "worst-class":
            logits = first + features @ coefficients
            coefficients[-1] += _worst_class_offset(logits, problem.labels)
        own, added = basis.unscaled(coefficients)
        matrix = centring.T @ own
        matrix[:n] += start[:-1]
        offset = start[-1] + coefficients[-1] - added
        matrix, offset = matrix.T.round(DIGITS), (offset - offset.mean()).round(DIGITS)
        return from_arrays(self.name, matrix, offset, products=products)


#: The smooth counterpart of the annealing search; compare Menon et al. 2021 (arXiv 2007.07314) for
#: its start, and Cotter et al. 2019 (arXiv 1809.04198) for surrogates of rate constraints.
SURROGATE: Final = LinearMap("surrogate", terms="products", loss="surrogate")
#: Distributionally robust post-hoc classifiers, Wei et al. 2023, arXiv 2309.08825.
DROPS: Final = LinearMap("drops", loss="worst-class")

#: Every calibration of a setting but the mixture, which is made of these; in the order of pages.
CALIBRATIONS: Final[dict[str, FittedCalibration]] = {
    each.name: each
    for each in (
        LabelFree("none", make=lambda probs: None),
        LabelFree("batch", make=batch_calibration),
        LinearMap("offsets", adds_offsets=True, terms="offsets"),
        LinearMap("linear"),
        LinearMap("products", terms="products"),
        SURROGATE,
        DROPS,
    )
}


def _centring(n: int, *, products: bool) -> Array:
    """Return centred log-probabilities, and their products, as sums of plain ones, [P, P]."""
    centring = np.eye(n) - 1.0 / n
    if not products:
        return centring
    first, second = np.triu_indices(n)
    pairs = np.einsum("pa,pb->pab", centring[first], centring[second])
    pairs += pairs.transpose(0, 2, 1) * (1.0 - np.eye(n))
    # Imported here, because calibrations are mostly applied, not fitted.
    from scipy.linalg import block_diag

    return np.asarray(block_diag(centring, pairs[:, first, second]))


class _Basis:
    """How terms [M, P] are standardised."""

    def __init__(self, terms: Array) -> None:
        spreads = terms.std(axis=0)
        self.means = terms.mean(axis=0)
        self.scales = np.where(spreads > _LEAST_SPREAD, spreads, np.inf)

    def features(self, terms: Array) -> Array:
        """Return the features [M, P + 1], the last of which is constant."""
        return np.column_stack([(terms - self.means) / self.scales, np.ones(len(terms))])

    def unscaled(self, coefficients: Array) -> tuple[Array, Array]:
        """Return the coefficients [P, N] of the terms as they are, and what their means add."""
        own = coefficients[:-1] / self.scales[:, None]
        return own, self.means @ own


class _Problem:
    """Losses of coefficients in coordinates of similar curvature, of which few steps suffice."""

    def __init__(
        self, features: Array, start: Array, labels: Labels, strength: float, *, balanced: bool
    ) -> None:
        n_rows, width = features.shape
        weights = np.ones(n_rows)
        if balanced:
            counts = np.bincount(labels)
            weights = n_rows / (np.count_nonzero(counts) * counts[labels])
        ridges = np.full(width, strength)
        ridges[-1] *= _OFFSET_RIDGE
        curvature = (features * weights[:, None]).T @ features / (4.0 * n_rows) + np.diag(ridges)
        curvature += 1e-9 * np.trace(curvature) * np.eye(width)
        # From coordinates to coefficients, [P + 1, P + 1], and the penalty in the coordinates.
        self.turn = np.linalg.inv(np.linalg.cholesky(curvature)).T
        self.penalty = self.turn.T @ (ridges[:, None] * self.turn)
        self.design = features @ self.turn
        self.start, self.labels, self.weights = start, labels, weights
        #: No change, [P + 1, N].
        self.zero = np.zeros((width, start.shape[1]))

    def minimise(self, loss: _Loss, start: Array, steps: int) -> Array:
        """Return the coordinates after at most some steps of L-BFGS."""
        # Imported here, because calibrations are mostly applied, not fitted.
        from scipy.optimize import minimize

        def flat(x: Array) -> tuple[float, Array]:
            value, slope = loss(x.reshape(start.shape))
            return value, slope.ravel()

        options = {"maxiter": steps}
        found = minimize(flat, start.ravel(), jac=True, method="L-BFGS-B", options=options)
        return np.asarray(found.x.reshape(start.shape))

    def likelihood(self, x: Array) -> tuple[float, Array]:
        """Return the weighted cross-entropy and its gradient."""
        residual = softmax(self.start + self.design @ x)
        rows = np.arange(self.labels.size)
        own = np.maximum(residual[rows, self.labels], 1e-300)
        loss = -float((self.weights * np.log(own)).mean())
        residual[rows, self.labels] -= 1.0
        residual *= (self.weights / rows.size)[:, None]
        pull = self.penalty @ x
        return loss + 0.5 * float((x * pull).sum()), self.design.T @ residual + pull

    def surrogate(self, temperature: float) -> _Loss:
        """Return a smooth error rate plus COBias, of predictions at a temperature."""
        n_rows, n = self.labels.size, self.start.shape[1]
        counts = np.bincount(self.labels, minlength=n)
        present = np.flatnonzero(counts)
        pairs = max(1.0, present.size * (present.size - 1) / 2)
        rows = np.arange(n_rows)

        def loss(x: Array) -> tuple[float, Array]:
            soft = softmax((self.start + self.design @ x) / temperature)
            right = soft[rows, self.labels]
            accuracies = np.bincount(self.labels, right, n)[present] / counts[present]
            gaps = accuracies[:, None] - accuracies
            distances = np.sqrt(gaps**2 + _SMOOTHING)
            value = 1.0 - float(right.mean()) + float(np.triu(distances, 1).sum()) / pairs
            slope = np.full(n, -1.0 / n_rows)
            slope[present] += (gaps / distances).sum(axis=1) / pairs / counts[present]
            own = slope[self.labels] * right / temperature
            residual = -soft * own[:, None]
            residual[rows, self.labels] += own
            pull = _SURROGATE_RIDGE * (self.penalty @ x)
            return value + 0.5 * float((x * pull).sum()), self.design.T @ residual + pull

        return loss


def _worst_class_offset(logits: Array, labels: Labels) -> Array:
    """Return the class offsets with the highest worst class accuracy of exponentiated steps."""
    n = logits.shape[1]
    counts = np.bincount(labels, minlength=n)
    present = counts > 0
    prior = np.log(np.maximum(counts, 1) / labels.size)
    weights, best, offset = np.zeros(n), -1.0, np.zeros(n)
    for _ in range(_DROPS_STEPS):
        right = (logits + weights - prior).argmax(axis=1) == labels
        accuracies = np.bincount(labels, right, n)[present] / counts[present]
        if accuracies.min() > best:
            best, offset = accuracies.min(), weights - prior
        weights[present] += _DROPS_RATE * (accuracies.mean() - accuracies)
    return np.asarray(offset)


def fit_stack(probs: Array, labels: Labels, *, ridge: float = 20.0) -> Calibration:
    """Fit a linear stack that combines K tables of the same rows into one.

    Maximum likelihood with equal weight of all classes, so that rare classes influence the weights
    of the tables; the class shares of the labels are then restored. The penalty shrinks towards
    the mean of the log-probabilities.

    Parameters
    ----------
    probs : array of float, shape [K, M, N]
        Class probabilities of each table.
    labels : array of int, shape [M]
        True class indices.
    ridge : float, optional
        Strength of the penalty in rows, 0 or more.
    """
    n_tables, _, n = probs.shape
    logs = np.log(np.maximum(np.hstack([*probs]), DEFAULT_FLOOR))
    basis = _Basis(logs)
    features = basis.features(logs)
    mean: Array = np.array(mean_combination(n_tables, n).matrix).T
    problem = _Problem(features, logs @ mean, labels, ridge / labels.size, balanced=True)
    coefficients = problem.turn @ problem.minimise(problem.likelihood, problem.zero, _STACK_STEPS)
    own, added = basis.unscaled(coefficients)
    offset = coefficients[-1] - added + np.log(smooth_shares(labels, n))
    return from_arrays("stack", (mean + own).T.round(DIGITS), offset.round(DIGITS))
