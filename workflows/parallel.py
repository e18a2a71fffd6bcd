"""One function over many items, in order: here, or as Ray tasks with the same results.

And what worker processes need beside: one thread each, and a heartbeat.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

# Brings a library of its own, which can only be held to one thread once it is loaded.
import scipy.linalg  # noqa: F401
from threadpoolctl import threadpool_limits

_log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

#: A worker process: its node and its id.
Worker: TypeAlias = tuple[str, int]

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


@contextmanager
def repeating(work: Callable[[], object], seconds: float) -> Iterator[None]:
    """Do something again and again while the block runs, from a thread: it may never return."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            work()

    threading.Thread(target=repeat, name="dcs-repeating", daemon=True).start()
    try:
        yield
    finally:
        over.set()


class Pulse:
    """When the worker processes of a sweep were last heard of, by the clock of this one."""

    def __init__(self) -> None:
        self._heard: dict[Worker, float] = {}
        self._asked = time.monotonic()

    def silent(self, beaten: Iterable[Worker], seconds: float) -> list[Worker]:
        """Return, and forget, the processes not heard of for so long.

        Parameters
        ----------
        beaten : iterable of (str, int)
            Node and id of those that have been heard of since this was last called.
        seconds : float
            For how long.
        """
        now = time.monotonic()
        if now - self._asked > 0.75 * seconds:
            # This process was asleep or Ray's head away; workers may have been as well.
            self._heard = dict.fromkeys(self._heard, now)
        self._asked = now
        self._heard |= dict.fromkeys(beaten, now)
        found = [worker for worker, heard in self._heard.items() if now - heard > seconds]
        for worker in found:
            del self._heard[worker]
        return found


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How a worker process says that it runs, which a stopped one does not.

    It leaves a key at Ray's head, in the store in which Ray itself keeps functions and settings;
    the driver collects the keys. An actor to send beats to would be a process more per sweep.

    Attributes
    ----------
    sweep : str
        What the keys of a sweep begin with.
    seconds : float
        Between two beats.
    """

    sweep: str
    seconds: float

    def keep(self) -> None:
        """Beat from now on, until this process ends or is given another heartbeat."""
        global _beating_for
        if self.sweep != _beating_for:
            _beating_for = self.sweep
            threading.Thread(target=self._beat, name="dcs-heartbeat", daemon=True).start()

    def _beat(self) -> None:
        import ray
        from ray.experimental.internal_kv import _internal_kv_put

        key = f"{self.sweep}/{ray.get_runtime_context().get_node_id()}/{os.getpid()}"
        while self.sweep == _beating_for:
            try:
                _internal_kv_put(key, b"")
            except Exception:  # The head may be away for a while.
                _log.debug("a heartbeat was not heard", exc_info=True)
            time.sleep(self.seconds)

    def collect(self) -> list[Worker]:
        """Return the node and the id of the processes that have beaten since the last call."""
        from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_list

        keys = _internal_kv_list(self.sweep)
        # What beats between these two lines is heard at its next beat.
        _internal_kv_del(self.sweep, del_by_prefix=True)
        workers = [key.decode().rsplit("/", 2)[1:] for key in keys]
        return [(node, int(pid)) for node, pid in workers]


#: The sweep for which this process tells that it runs: the last one where it works for several.
_beating_for = ""

#: A worker that is not heard of for so long does not run: compiled code lets others run beside it.
_SILENT_SECONDS = 120.0


class StoppedWorkers:
    """Ends workers of a sweep that do not run though their node does: Ray then repeats their work.

    Attributes
    ----------
    heartbeat : Heartbeat
        What the workers are given.
    ended : collections.deque of str
        A line for each that was ended.
    """

    def __init__(self) -> None:
        self.heartbeat = Heartbeat(f"dcs-{secrets.token_hex(8)}", _SILENT_SECONDS / 6)
        self.ended: deque[str] = deque()
        self._pulse = Pulse()

    def watching(self) -> AbstractContextManager[None]:
        """Keep looking while the block runs."""
        return repeating(self._end_silent, self.heartbeat.seconds)

    def _end_silent(self) -> None:
        try:
            for node, pid in self._pulse.silent(self.heartbeat.collect(), _SILENT_SECONDS):
                self._end(node, pid)
        except Exception:  # As in a beat.
            _log.debug("heartbeats could not be collected", exc_info=True)

    def _end(self, node: str, pid: int) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node, soft=False)
        end: Any = ray.remote(num_cpus=0, max_retries=0)(_end_worker)
        answer = end.options(scheduling_strategy=there).remote(pid)
        # The node may be lost, as the worker is then.
        with suppress(ray.exceptions.RayError):
            if ray.get(answer, timeout=_SILENT_SECONDS):
                self.ended.append(
                    f"worker {pid} on node {node[:6]} did not run for {_SILENT_SECONDS:.0f} s "
                    "and was ended; what it was at is done again"
                )


def _end_worker(pid: int) -> bool:
    """End a worker of Ray on this node; False for one that has ended by itself."""
    with suppress(OSError):
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


#: Applies a function to items, here or elsewhere. Both have to be picklable, and the results too;
#: arrays that the function holds are read-only where it runs. Results come in the order of the
#: items, of which no more than `ahead` (None leaves it to the mapper) are taken before their
#: results: item ``n + ahead`` only after result ``n`` has been yielded and the next one asked for.
#: So items may be made from earlier results, and come out the same however many of them are
#: computed at once.
Mapper: TypeAlias = Callable[..., Iterator[Any]]


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
        Tasks at once; with a single one it is computed where it is asked for.
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
        """Yield ``function(item)`` for every item; see :data:`Mapper`.

        The function, with the tables that it holds, is put into Ray's object store once.
        """
        import ray
        from ray.exceptions import RayTaskError

        if self.width == 1:
            yield from map(function, items)
            return
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


def _apply(function: Callable[[T], R], item: T, heartbeat: Heartbeat | None) -> R:
    """Run on a worker; Ray has put `function` in place of its reference."""
    if heartbeat is not None:
        heartbeat.keep()
    return function(item)
