"""The methods a table can be corrected with, one name each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dcs._files import suggest
from dcs._table_checks import show
from dcs.corrections import CorrectionSet
from dcs.errors import ConfigError

__all__ = ["METHODS", "Method", "get_method", "method_names"]


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
    """

    name: str
    title: str
    summary: str
    build: Callable[[int], CorrectionSet] | None = None
    uses_weight_scale: bool = False

    @property
    def searches(self) -> bool:
        """Whether the method has corrections to choose from."""
        return self.build is not None

    def correction_set(self, weight_scale: int = 30) -> CorrectionSet | None:
        """Return the corrections that a search chooses from, or None if there is no search.

        Parameters
        ----------
        weight_scale : int
            Number of weights, D_W: the weights are ``i / D_W``, i = 1 .. D_W.
        """
        return None if self.build is None else self.build(weight_scale)


def _weights(weight_scale: int) -> CorrectionSet:
    return CorrectionSet.dnip(weight_scale=weight_scale)


def _memberships(weight_scale: int) -> CorrectionSet:
    return CorrectionSet.furud()


def _both(weight_scale: int) -> CorrectionSet:
    return CorrectionSet.dcs(weight_scale=weight_scale)


METHODS: tuple[Method, ...] = (
    Method(
        name="icl",
        title="ICL",
        summary="In-context learning as it is: the probabilities are not corrected.",
    ),
    Method(
        name="dnip",
        title="DNIP",
        summary="One weight per class, a correction at the class level.",
        build=_weights,
        uses_weight_scale=True,
    ),
    Method(
        name="furud",
        title="FuRud",
        summary="One membership function per class, a correction at the sample level.",
        build=_memberships,
    ),
    Method(
        name="dcs",
        title="DCS",
        summary="A weight or a membership function for each class, whichever serves it.",
        build=_both,
        uses_weight_scale=True,
    ),
)
"""All methods, in the order in which tables list them."""


def method_names() -> tuple[str, ...]:
    """Return the names of all methods, in the order in which tables list them."""
    return tuple(method.name for method in METHODS)


def get_method(name: str) -> Method:
    """Return the method of a name.

    Raises
    ------
    ConfigError
        If there is none.
    """
    for method in METHODS:
        if method.name == name:
            return method
    names = method_names()
    raise ConfigError(
        f"unknown method {show(name)}{suggest(name, names)}; allowed: {', '.join(names)}"
    )
