"""Annealing schedules, separate from the kernels so that settings load without compiling them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dcs.data.checks import finite_number, whole_number
from dcs.errors import InvalidInputError, check_choice

Moves = Literal["metropolis", "heat-bath"]
Start = Literal["dont-change", "weight-one"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Annealing schedule.

    Temperatures are on the scale of the normalised objective Z, independent of the number of rows.

    Parameters
    ----------
    initial_temperature, final_temperature : float
        First and last temperature of a cooling, ``0 < final <= initial``.
    cooling_rate : float
        Factor from one temperature to the next, in the open interval (0, 1).
    lambda1 : float
        Number of accepted moves per class that ends a temperature, greater than 0.
    lambda2 : float
        Number of generated moves per class that ends a temperature, greater than 0.
    per_class : bool
        Whether lambda1 and lambda2 are multiplied by the number of classes, as in the paper, or
        are numbers of moves.
    count_worse : bool
        Whether accepted moves to a worse solution count towards lambda1.
    start : {"dont-change", "weight-one"}
        Start of the first cooling: unchanged probabilities, represented by Don't Change or, if the
        corrections contain it, by the weight 1.
    restarts : int
        Maximum number of coolings, 1 or more, of which the best solution is returned. All but the
        first start from random solutions.
    moves : {"heat-bath", "metropolis"}
        How a solution is perturbed. ``"metropolis"`` follows the paper: one class takes another
        random correction, which the Metropolis criterion accepts or rejects. ``"heat-bath"``
        evaluates all corrections of one class and draws one from their Boltzmann distribution. It
        counts as accepted if Z changes, and cooling ends early if no move changes Z.
    descend : bool
        Whether every cooling ends with a coordinate descent, which takes the best correction of
        each class in turn until none improves Z.
    reheat : bool
        Whether every second cooling starts from the best solution so far at the middle of the
        temperatures, instead of from a random solution at the initial temperature.
    budget : int
        Number of evaluated candidate solutions after which no further cooling starts, 1 or more.
        The first cooling always runs. The default takes about 0.9 s for 10,000 rows.

    Raises
    ------
    InvalidInputError
        If a value is out of range.
    """

    initial_temperature: float = 0.05
    final_temperature: float = 0.00005
    cooling_rate: float = 0.7
    lambda1: float = 3.0
    lambda2: float = 6.0
    per_class: bool = True
    count_worse: bool = True
    start: Start = "dont-change"
    restarts: int = 1000
    moves: Moves = "heat-bath"
    descend: bool = True
    reheat: bool = True
    budget: int = 850_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value, name = getattr(self, field.name), f"schedule {field.name}"
            if field.name in ("restarts", "budget"):
                whole_number(value, name, least=1)
            elif isinstance(field.default, float):
                object.__setattr__(self, field.name, finite_number(value, name, positive=True))
        most = self.initial_temperature
        finite_number(self.final_temperature, "schedule final_temperature", most=most)
        if self.cooling_rate >= 1.0:
            raise InvalidInputError(f"schedule cooling_rate {self.cooling_rate}: must be below 1")
        check_choice("schedule moves", self.moves, get_args(Moves))
        check_choice("schedule start", self.start, get_args(Start))

    @classmethod
    def published(cls, n_rows: int, accepted: int = 3, generated: int = 6) -> Schedule:
        """Return the schedule of the published code for `n_rows` rows.

        The code minimises M * Z, from the temperature 200,000 down to 200 at the rate 0.95: 135
        temperatures of at most `generated` moves. A temperature also ends after `accepted` moves,
        independent of the number of classes, of which only improving and equal ones count. The
        start is the weight 1 for every class. The paper itself gives the initial temperature and
        the rate, and starts from Don't Change.

        Parameters
        ----------
        n_rows : int
            Number of optimization rows M, 1 or more.
        accepted, generated : int, optional
            Numbers of moves that end a temperature, by default as configured in the code; its
            instructions suggest 150 and 300 for large runs.

        Returns
        -------
        Schedule
            The schedule.

        Raises
        ------
        InvalidInputError
            If there are no rows.
        """
        whole_number(n_rows, "n_rows", least=1)
        return cls(
            initial_temperature=200_000 / n_rows,
            final_temperature=200 / n_rows,
            cooling_rate=0.95,
            lambda1=accepted,
            lambda2=generated,
            per_class=False,
            count_worse=False,
            start="weight-one",
            restarts=1,
            moves="metropolis",
            descend=False,
            reheat=False,
        )

    def temperatures(self) -> NDArray[np.float64]:
        """Return the temperatures of one cooling, decreasing from initial to final.

        Returns
        -------
        array of float64
            Temperatures on the scale of Z.
        """
        span = math.log(self.final_temperature / self.initial_temperature)
        steps = math.floor(span / math.log(self.cooling_rate) + 1e-9) + 1
        return self.initial_temperature * self.cooling_rate ** np.arange(steps, dtype=np.float64)

    def limits(self, n_classes: int) -> NDArray[np.int64]:
        """Return the numbers of accepted and of generated moves that end a temperature.

        Parameters
        ----------
        n_classes : int
            Number of classes N.

        Returns
        -------
        array of int64, shape [2]
            Accepted and generated moves, at least 1 each.
        """
        factor = n_classes if self.per_class else 1
        moves = [round(self.lambda1 * factor), round(self.lambda2 * factor)]
        return np.maximum(np.array(moves, dtype=np.int64), 1)
