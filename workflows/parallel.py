"""One function over many items, in order: here, or as Ray tasks with the same results.

And what worker processes need beside: one thread each, and a heartbeat.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

# Brings a library of its own, which can only be held to one thread once it is loaded.
import scipy.linalg  # noqa: F401
from threadpoolctl import threadpool_limits

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


class Pulse:
    """Hears from the worker processes of a sweep; made a Ray actor by the driver."""

    def __init__(self) -> None:
        self._heard: dict[tuple[str, int], float] = {}
        self._asked = time.monotonic()

    def beat(self, node: str, pid: int) -> None:
        """Note that a process of a node runs."""
        self._heard[node, pid] = time.monotonic()

    def silent(self, seconds: float) -> list[tuple[str, int]]:
        """Return, and forget, the node and the id of processes not heard of for so long."""
        now = time.monotonic()
        if now - self._asked > 0.75 * seconds:
            # This process was asleep itself; what it was told meanwhile is still to be read.
            self._heard = dict.fromkeys(self._heard, now)
        self._asked = now
        found = [worker for worker, heard in self._heard.items() if now - heard > seconds]
        for worker in found:
            del self._heard[worker]
        return found


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How a worker process says that it runs, which a stopped one does not.

    Attributes
    ----------
    pulse : ray.actor.ActorHandle
        Of a :class:`Pulse`.
    seconds : float
        Between two beats.
    """

    pulse: Any
    seconds: float

    def keep(self) -> None:
        """Beat from now on, until this process ends or is given another heartbeat."""
        global _pulse
        if self.pulse != _pulse:
            _pulse = self.pulse
            threading.Thread(target=self._beat, name="dcs-heartbeat", daemon=True).start()

    def _beat(self) -> None:
        import ray

        node, pid = ray.get_runtime_context().get_node_id(), os.getpid()
        while self.pulse == _pulse:
            self.pulse.beat.remote(node, pid)
            time.sleep(self.seconds)


#: Whom this process tells that it runs: that of the last sweep where it works for several.
_pulse: Any = None

#: A worker that is not heard of for so long does not run: compiled code lets others run beside it.
_SILENT_SECONDS = 120.0


class StoppedWorkers:
    """Ends workers of a sweep that do not run though their node does: Ray then repeats their work.

    Attributes
    ----------
    heartbeat : Heartbeat
        What the workers are given.
    """

    def __init__(self) -> None:
        import ray

        pulse = ray.remote(num_cpus=0, max_restarts=-1)(Pulse).remote()
        self.heartbeat = Heartbeat(pulse, _SILENT_SECONDS / 6)
        self._end = ray.remote(num_cpus=0, max_retries=0)(_end_worker)
        self._next_look = 0.0
        # What is asked of others: who is silent, and to end those.
        self._looks: list[Any] = []
        self._ends: dict[Any, str] = {}

    def ended(self) -> Iterator[str]:
        """Yield a line for each that was ended since this was last called; waits for nothing."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if not self._looks and time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + self.heartbeat.seconds
            self._looks.append(self.heartbeat.pulse.silent.remote(_SILENT_SECONDS))
        asked = [*self._looks, *self._ends]
        done, _ = ray.wait(asked, num_returns=len(asked), timeout=0) if asked else ([], [])
        for answer in done:
            # It may be lost with its node, as the worker is then.
            with suppress(ray.exceptions.RayError):
                if answer in self._ends:
                    if ray.get(answer):
                        yield self._ends[answer]
                    continue
                for node, pid in ray.get(answer):
                    there = NodeAffinitySchedulingStrategy(node, soft=False)
                    self._ends[self._end.options(scheduling_strategy=there).remote(pid)] = (
                        f"worker {pid} on node {node[:6]} did not run for {_SILENT_SECONDS:.0f} s "
                        "and was ended; what it was at is done again"
                    )
        self._looks = [answer for answer in self._looks if answer not in done]
        self._ends = {answer: said for answer, said in self._ends.items() if answer not in done}


def _end_worker(pid: int) -> bool:
    """End a worker of Ray on this node; False for one that has ended by itself."""
    with suppress(OSError):
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


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
    heartbeat : Heartbeat or None
        Of the processes that run them.
    """

    width: int
    options: dict[str, Any] = field(default_factory=dict)
    heartbeat: Heartbeat | None = None

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
                    taken.append(task.remote(shared, item, self.heartbeat))
                    running.add(taken[-1])
                if not running:
                    return
                done, _ = ray.wait(list(running), num_returns=1)
                running.difference_update(done)
        finally:
            # The caller has stopped asking, or an item failed: the others are of no use.
            for reference in running:
                ray.cancel(reference, force=False)


def ray_mapper(
    *, width: int, options: dict[str, Any] | None = None, heartbeat: Heartbeat | None = None
) -> Mapper:
    """Return the mapper that keeps `width` Ray tasks at work, or :func:`in_process` for one."""
    return RayMapper(width, options or {}, heartbeat) if width > 1 else in_process


def _apply(function: Callable[[T], R], item: T, heartbeat: Heartbeat | None) -> R:
    """Run on a worker; Ray has put `function` in place of its reference."""
    if heartbeat is not None:
        heartbeat.keep()
    return function(item)
