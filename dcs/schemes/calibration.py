"""Calibrations: transformations of class probabilities that are linear in their logarithms.

All calibrations have the form ::

    calibrated = softmax(matrix @ log(max(probabilities, floor)) + offset)

Some set the offset only, others the full matrix, or a wider one of the logarithms and their
products; :mod:`dcs.methods.calibrations` fits them. A correction
scheme may apply one before its corrections. For K tables of the same rows the logarithms are
concatenated by columns, and a wider matrix combines them into one table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import checked_probabilities, finite_number
from dcs.errors import InvalidInputError, quoted
from dcs.schemes.apply import Step, calibrated, logits

Array: TypeAlias = NDArray[np.float64]

#: Smaller probabilities are replaced by this value, because zero has no finite logarithm.
DEFAULT_FLOOR: Final = 1e-6

#: Limit of coefficients: above all fitted values, and sums of products with logarithms are finite.
_MAX_COEFFICIENT: Final = 1e9


@dataclass(frozen=True, slots=True)
class Calibration:
    """Transformation of class probabilities that is linear in their logarithms.

    Parameters
    ----------
    name : str
        Name of the method, e.g. ``"linear"``.
    matrix : tuple of tuple of float
        N x P; row j gives the calibrated logit of class j. P is the number of terms, or K * N to
        combine K tables of the same rows.
    offset : tuple of float
        N offsets of the logits.
    floor : float, optional
        Smaller probabilities are replaced by this value, ``0 < floor <= 0.01``.
    products : bool, optional
        Whether the logarithms are followed by their products in pairs, squares included.

    Raises
    ------
    InvalidInputError
        If shapes do not match, or a value is not finite or out of range.
    """

    name: str
    matrix: tuple[tuple[float, ...], ...]
    offset: tuple[float, ...]
    floor: float = DEFAULT_FLOOR
    products: bool = False
    #: The same as arrays.
    step: Step = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        subject = f"calibration {self.name!r}"
        floor = finite_number(self.floor, f"{subject}: floor", positive=True, most=0.01)
        try:
            matrix, offset = np.array(self.matrix, np.float64), np.array(self.offset, np.float64)
        except ValueError as error:
            raise InvalidInputError(f"{subject}: matrix: rows have different lengths") from error
        square = offset.ndim == 1 and matrix.ndim == 2 and len(matrix) == offset.size > 0
        n = offset.size if square else 0
        width = n * (n + 3) // 2 if self.products else n
        tables = matrix.shape[1] / width if width else 0.0
        if tables < 1 or (tables != 1 and self.products) or tables % 1:
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
        step = Step(np.ascontiguousarray(matrix.T), offset, floor, self.products)
        object.__setattr__(self, "step", step)

    @property
    def n_classes(self) -> int:
        """The number of classes N."""
        return len(self.offset)

    @property
    def n_tables(self) -> int:
        """The number of tables K."""
        return 1 if self.products else len(self.matrix[0]) // len(self.offset)

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

    def logits(self, values: Array) -> Array:
        """Return the calibrated logits [M, N] of valid probabilities, without checking them."""
        return logits(values, self.step)

    def checked(self, probs: ArrayLike) -> Array:
        """Return valid probabilities, those of K tables side by side; see :meth:`apply`."""
        if self.n_tables == 1:
            return checked_probabilities(probs, n_classes=self.n_classes)
        given = list(probs)  # type: ignore[arg-type]
        shapes = list(dict.fromkeys(map(np.shape, given)))
        if len(given) != self.n_tables or len(shapes) != 1 or len(shapes[0]) != 2:
            raise InvalidInputError(
                f"probs: expected {self.n_tables} arrays [rows, classes], one per table, all "
                f"of the same rows, got {len(given)} of shapes {quoted([*map(str, shapes)])}"
            )
        return np.hstack([checked_probabilities(p, n_classes=self.n_classes) for p in given])

    def to_dict(self) -> dict[str, Any]:
        """Return the representation in scheme files."""
        lists = {"matrix": [list(row) for row in self.matrix], "offset": list(self.offset)}
        own = {"products": True} if self.products else {}
        return {"name": self.name, **lists, "floor": self.floor, **own}


def from_arrays(name: str, matrix: Array, offset: Array, *, products: bool = False) -> Calibration:
    """Return the calibration with a matrix [N, N] or wider and an offset [N]."""
    return Calibration(name, matrix.tolist(), offset.tolist(), products=products)


def mean_combination(n_tables: int, n_classes: int) -> Calibration:
    """Return the calibration that averages the log-probabilities of K tables."""
    matrix = np.tile(np.eye(n_classes) / n_tables, n_tables)
    return from_arrays("mean", matrix, np.zeros(n_classes))
