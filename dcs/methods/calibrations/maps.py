"""Linear maps of log-probabilities, fitted to labels with a ridge in rows.

The logits of a map are ::

    anchor * (log p - log mean p) + features @ coefficients

where the features are the standardised log-probabilities, these and their products in pairs, or a
constant only. The ridge pulls the coefficients to 0, that is, the map towards batch calibration
(anchor 1) or uniform probabilities (anchor 0). It counts in rows: 10 rows of evidence for no
change, however many rows there are, so that regularisation fades smoothly as rows increase.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from dcs.methods.calibrations.base import FittedCalibration, Labels, log_means, smooth_shares
from dcs.schemes.apply import softmax, terms_of
from dcs.schemes.calibration import (
    DEFAULT_FLOOR,
    Array,
    Calibration,
    from_arrays,
    mean_combination,
)

Terms: TypeAlias = Literal["offsets", "logarithms", "products"]

MOST_PRODUCT_CLASSES: Final = 10
"""Number of classes up to which maps have products, whose number grows with the square."""

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
_DIGITS: Final = 6

#: Steps of the optimiser of a stack.
_STACK_STEPS: Final = 100

#: Features with a smaller spread carry no information.
_LEAST_SPREAD: Final = 1e-6

_Loss: TypeAlias = Callable[[Array], tuple[float, Array]]


@dataclass(frozen=True)
class LinearMap(FittedCalibration):
    """A linear map of log-probabilities; see the module.

    Parameters
    ----------
    name, needs_labels, adds_offsets
        See :class:`dcs.methods.calibrations.base.FittedCalibration`.
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

    terms: Terms = "logarithms"
    loss: Literal["balanced", "surrogate", "worst-class"] = "balanced"
    steps: int = 18
    most_rows: int | None = 4000

    def fit(self, probs: Array, labels: Labels, *, ridge: float, anchor: float) -> Calibration:
        """Fit the map; see :class:`dcs.methods.calibrations.base.FittedCalibration`."""
        logs = np.log(np.maximum(probs, DEFAULT_FLOOR))
        n = logs.shape[1]
        basis = _Basis.of(logs, products=self.terms == "products" and n <= MOST_PRODUCT_CLASSES)
        centre = np.eye(n) - 1.0 / n
        if self.terms == "offsets":
            centre, anchor = np.eye(n), 1.0
        start = np.vstack([anchor * centre, -anchor * log_means(probs) @ centre])
        rows = np.flatnonzero(labels >= 0)
        strength = ridge / rows.size
        most = rows.size
        if self.most_rows is not None:
            most = min(self.most_rows, max(self.most_rows // 2, _MOST_PRODUCTS // n**2))
        if rows.size > most:
            rows = rows[np.linspace(0, rows.size - 1, most).astype(np.int64)]
        features = basis.features(logs[rows])
        if self.terms == "offsets":
            features = features[:, -1:]
        first = logs[rows] @ start[:-1] + start[-1]
        balanced = self.loss != "worst-class"
        problem = _Problem.of(features, first, labels[rows], strength, balanced=balanced)
        found = problem.minimise(problem.likelihood, problem.zero, self.steps)
        if self.loss == "surrogate":
            for temperature in _TEMPERATURES:
                found = problem.minimise(problem.surrogate(temperature), found, self.steps)
        coefficients = problem.turn @ found
        if self.loss == "worst-class":
            coefficients[-1] += _worst_class_offset(
                first + features @ coefficients, problem.labels
            )
        if self.terms == "offsets":
            coefficients = np.vstack([np.zeros((n, n)), coefficients])
        return basis.calibration(self.name, coefficients, start)


OFFSETS: Final = LinearMap("offsets", adds_offsets=True, terms="offsets")
LINEAR: Final = LinearMap("linear")
PRODUCTS: Final = LinearMap("products", terms="products")
#: The smooth counterpart of the annealing search; compare Menon et al. 2021 (arXiv 2007.07314) for
#: its start, and Cotter et al. 2019 (arXiv 1809.04198) for surrogates of rate constraints.
SURROGATE: Final = LinearMap("surrogate", terms="products", loss="surrogate")
#: Distributionally robust post-hoc classifiers, Wei et al. 2023, arXiv 2309.08825.
DROPS: Final = LinearMap("drops", loss="worst-class")

MAPS: Final = (OFFSETS, LINEAR, PRODUCTS, SURROGATE, DROPS)
"""The maps, in the order of pages."""


@dataclass(frozen=True, slots=True)
class _Basis:
    """Standardised features of log-probabilities, and their meaning as a calibration."""

    means: Array
    scales: Array
    #: Centred log-probabilities, and their products, as sums of plain ones, [P, P].
    centring: Array
    products: bool

    @classmethod
    def of(cls, logs: Array, *, products: bool) -> _Basis:
        n = logs.shape[1]
        centring = np.eye(n) - 1.0 / n
        if products:
            first, second = np.triu_indices(n)
            pairs = np.einsum("pa,pb->pab", centring[first], centring[second])
            pairs += pairs.transpose(0, 2, 1) * (1.0 - np.eye(n))
            own = pairs[:, first, second]
            centring = np.block(
                [
                    [centring, np.zeros((n, own.shape[1]))],
                    [np.zeros((own.shape[0], n)), own],
                ]
            )
        terms = terms_of(logs - logs.mean(axis=1, keepdims=True), products)
        spreads = terms.std(axis=0)
        scales = np.where(spreads > _LEAST_SPREAD, spreads, np.inf)
        return cls(terms.mean(axis=0), scales, centring, products)

    def features(self, logs: Array) -> Array:
        """Return the features [M, P + 1], the last of which is constant."""
        terms = terms_of(logs - logs.mean(axis=1, keepdims=True), self.products)
        return np.column_stack([(terms - self.means) / self.scales, np.ones(len(logs))])

    def calibration(self, name: str, coefficients: Array, start: Array) -> Calibration:
        """Return the calibration with these coefficients [P + 1, N] added to `start`."""
        scaled = coefficients[:-1] / self.scales[:, None]
        matrix = self.centring.T @ scaled
        n = start.shape[1]
        matrix[:n] += start[:-1]
        offset = start[-1] + coefficients[-1] - self.means @ scaled
        offset -= offset.mean()
        matrix, offset = matrix.T.round(_DIGITS), offset.round(_DIGITS)
        return from_arrays(name, matrix, offset, products=self.products)


@dataclass(frozen=True, slots=True)
class _Problem:
    """Losses of coefficients in coordinates of similar curvature, of which few steps suffice."""

    design: Array
    start: Array
    labels: Labels
    weights: Array
    #: From coordinates to coefficients, [P + 1, P + 1], and the penalty in the coordinates.
    turn: Array
    penalty: Array

    @classmethod
    def of(
        cls, features: Array, start: Array, labels: Labels, strength: float, *, balanced: bool
    ) -> _Problem:
        n_rows, width = features.shape
        weights = np.ones(n_rows)
        if balanced:
            counts = np.bincount(labels)
            weights = n_rows / (np.count_nonzero(counts) * counts[labels])
        ridges = np.full(width, strength)
        ridges[-1] *= _OFFSET_RIDGE
        curvature = (features * weights[:, None]).T @ features / (4.0 * n_rows) + np.diag(ridges)
        curvature += 1e-9 * np.trace(curvature) * np.eye(width)
        turn = np.linalg.inv(np.linalg.cholesky(curvature)).T
        penalty = turn.T @ (ridges[:, None] * turn)
        return cls(features @ turn, start, labels, weights, turn, penalty)

    @property
    def zero(self) -> Array:
        """No change, [P + 1, N]."""
        return np.zeros((self.design.shape[1], self.start.shape[1]))

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
    means, spreads = logs.mean(axis=0), logs.std(axis=0)
    scales = np.where(spreads > _LEAST_SPREAD, spreads, np.inf)
    features = np.column_stack([(logs - means) / scales, np.ones(len(logs))])
    mean: Array = np.array(mean_combination(n_tables, n).matrix).T
    problem = _Problem.of(features, logs @ mean, labels, ridge / labels.size, balanced=True)
    coefficients = problem.turn @ problem.minimise(problem.likelihood, problem.zero, _STACK_STEPS)
    scaled = coefficients[:-1] / scales[:, None]
    offset = coefficients[-1] - means @ scaled + np.log(smooth_shares(labels, n))
    return from_arrays("stack", (mean + scaled).T.round(_DIGITS), offset.round(_DIGITS))
