"""A map over Ray tasks, with the results and the order of one in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from workflows.parallel import Mapper, in_process

__all__ = ["RayMapper", "ray_mapper"]

T = TypeVar("T")
R = TypeVar("R")

#: A task whose worker dies (out of memory, a lost node) is tried again so often.
_RETRIES = 3

#: Finished results that may wait for an earlier one, as a multiple of the tasks at work. Without
#: a bound a slow first item would have all others wait in memory.
_AHEAD = 4


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
