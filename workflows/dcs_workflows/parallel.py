"""Ordered maps in this process or over Ray tasks, with the same results.

Also the thread limit of worker processes.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

# Loads its own BLAS, whose threads can be limited only after it is loaded.
import scipy.linalg  # noqa: F401
from threadpoolctl import threadpool_limits

T = TypeVar("T")
R = TypeVar("R")

#: Maximum number of retries of a task whose worker died (out of memory, lost node).
_RETRIES = 3

#: Maximum number of tasks ahead of the next result, as a multiple of the parallel tasks. Without a
#: limit a slow first item would keep all other results in memory.
_AHEAD = 2


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit linear algebra to the calling thread. Also a decorator.

    Several threads sum in another order, which changes the last bits, so that tables and figures
    would depend on the number of CPUs. Ray reserves one CPU for a cell or an actor; the others
    compute other cells. Torch is limited too if it has already been imported. Finding the loaded
    libraries takes some milliseconds, so this surrounds cells and tasks rather than single fits.
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


@contextmanager
def repeating(work: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call `work` periodically from a thread while the block runs; a call may block forever."""
    stopped = threading.Event()

    def repeat() -> None:
        while not stopped.wait(seconds):
            work()

    threading.Thread(target=repeat, name="dcs-repeating", daemon=True).start()
    try:
        yield
    finally:
        stopped.set()


@dataclass(frozen=True, slots=True)
class RayMapper:
    """Compute items as Ray tasks, from a driver or from inside another task.

    A task that waits for others releases its CPU to Ray, so that cells with parallel trials cannot
    block each other.

    Attributes
    ----------
    width : int
        Number of tasks to keep running; with 1, items are computed in the calling process.
    options : dict
        Ray options of each task, for example where it may run.
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
        """Yield ``function(item)`` for every item; see :data:`dcs.selection.fitting.Mapper`.

        The function and the tables that it holds are put into Ray's object store once.
        """
        if self.width == 1:
            yield from map(function, items)
            return
        import ray
        from ray.exceptions import RayTaskError

        limit = _AHEAD * self.width if ahead is None else ahead
        shared = ray.put(function)
        task: Any = ray.remote(max_retries=_RETRIES)(_apply).options(**self.options)
        source, running = iter(items), deque[Any]()
        try:
            while True:
                more = islice(source, limit - len(running))
                running.extend(task.remote(shared, item) for item in more)
                if not running:
                    return
                yield ray.get(running.popleft())
        except RayTaskError as error:
            # Raise the original error, as in this process.
            raise error.cause from error
        finally:
            # The caller stopped iterating, or an item failed: the other results are not needed.
            for reference in running:
                ray.cancel(reference, force=False)


#: Computes items one after the other in this process.
IN_PROCESS = RayMapper(1)


def _apply(function: Callable[[T], R], item: T) -> R:
    """Run on a worker; Ray has replaced the reference of `function` by its value."""
    with one_thread():
        return function(item)
