"""One function over many items, in order: here, or as Ray tasks with the same results."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, TypeVar

# Brings a library of its own, which can only be held to one thread once it is loaded.
import scipy.linalg  # noqa: F401
from threadpoolctl import threadpool_limits

__all__ = ["Mapper", "RayMapper", "in_process", "one_thread", "ray_mapper"]

T = TypeVar("T")
R = TypeVar("R")

#: A task whose worker dies (out of memory, a lost node) is tried again so often.
_RETRIES = 3

#: Finished results that may wait for an earlier one, as a multiple of the tasks at work. Without
#: a bound a slow first item would have all others wait in memory.
_AHEAD = 4


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


@dataclass(frozen=True, slots=True)
class RayMapper:
    """Computes items as Ray tasks, from a driver or from inside another task.

    A task that waits for others gives its CPU back to Ray, so that cells which fan out cannot
    block each other: what they wait for needs nothing that they hold.

    Attributes
    ----------
    width : int
        Tasks at once.
    options : dict
        Ray's options of each task, such as where it may run.
    """

    width: int
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(
        self,
        function: Callable[[T], R],
        items: Iterable[T],
        /,
        *,
        ahead: int | None = None,
    ) -> Iterator[R]:
        """Yield ``function(item)`` for every item; the :class:`Mapper` protocol.

        The function, with the tables that it holds, is put into Ray's object store once.
        """
        import ray
        from ray.exceptions import RayTaskError

        most = _AHEAD * self.width if ahead is None else ahead
        shared = ray.put(function)
        task: Any = ray.remote(max_retries=_RETRIES)(_apply).options(**self.options)
        source = iter(items)
        running: set[Any] = set()
        taken: deque[Any] = deque()
        try:
            while True:
                while taken and taken[0] not in running:
                    try:
                        result: R = ray.get(taken.popleft())
                    except RayTaskError as error:
                        # As in this process: the caller sees the error that was raised.
                        raise error.cause from error
                    yield result
                for item in islice(source, min(self.width - len(running), most - len(taken))):
                    taken.append(task.remote(shared, item))
                    running.add(taken[-1])
                if not running:
                    return
                done, _ = ray.wait(list(running), num_returns=1)
                running.difference_update(done)
        finally:
            # The caller has stopped asking, or an item failed: the others are of no use.
            for reference in running:
                ray.cancel(reference, force=False)


def ray_mapper(*, width: int, options: dict[str, Any] | None = None) -> Mapper:
    """Return the mapper that keeps `width` Ray tasks at work, or :func:`in_process` for one."""
    return RayMapper(width, options or {}) if width > 1 else in_process


def _apply(function: Callable[[T], R], item: T) -> R:
    """Run on a worker; Ray has put `function` in place of its reference."""
    return function(item)
