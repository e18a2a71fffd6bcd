"""One thread for what must come out the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

__all__ = ["one_thread"]


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
