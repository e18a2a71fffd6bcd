"""Threads of this process: a limit of those of linear algebra, and one that repeats work."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

# Loads its own BLAS, whose threads can be limited only after it is loaded.
import scipy.linalg  # noqa: F401
from threadpoolctl import threadpool_limits


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit linear algebra to the calling thread. Also a decorator.

    Several threads sum in another order, which changes the last bits, so that tables and figures
    would depend on the number of CPUs. Ray reserves one CPU for a cell or an actor; the others
    compute other cells. Torch is limited too if it has already been imported. Finding the loaded
    libraries takes some milliseconds, so this surrounds cells and tasks rather than single fits.
    """
    torch = sys.modules.get("torch")
    with threadpool_limits(limits=1), ExitStack() as stack:
        if torch is not None:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
        yield


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
