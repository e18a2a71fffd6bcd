"""One function over many items, in order, wherever they are computed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

# Brings a library of its own, which can only be held to one thread once it is loaded.
import scipy.linalg  # noqa: F401
from threadpoolctl import threadpool_limits

__all__ = ["Mapper", "in_process", "one_thread"]

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def one_thread() -> Iterator[None]:
    """Have linear algebra run on the calling thread alone.

    With several threads sums are taken in another order and come out another in their last bits,
    so that tables and figures would depend on the number of CPUs. Also a decorator. Ray counts
    one CPU for a cell or an actor; the others are busy with other cells. Torch is held to it if
    it has been imported before.
    """
    torch = sys.modules.get("torch")
    with threadpool_limits(limits=1):
        if torch is None:
            yield
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


class Mapper(Protocol):
    """A way to apply a function to items.

    Results come in the order of the items. Item ``n + ahead`` is taken from `items` only after
    result ``n`` has been yielded and the next one asked for: so items may be made from earlier
    results, and come out the same however many of them are computed at once.
    """

    def __call__(
        self,
        function: Callable[[T], R],
        items: Iterable[T],
        /,
        *,
        ahead: int | None = None,
    ) -> Iterator[R]:
        """Yield ``function(item)`` for every item.

        Parameters
        ----------
        function : callable
            Has to be picklable, and its results too. Arrays that it holds are read-only where it
            runs.
        items : iterable
            Taken one by one, as there is room for them.
        ahead : int, optional
            At most so many items are taken before their results; None leaves it to the mapper.
        """
        ...


def in_process(
    function: Callable[[T], R], items: Iterable[T], /, *, ahead: int | None = None
) -> Iterator[R]:
    """Compute one item after the other, here."""
    return map(function, items)
