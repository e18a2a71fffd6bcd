"""Ordered maps in this process or over Ray tasks, with the same results.

Also the thread limit and the heartbeat of worker processes.
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

# Loads its own BLAS, whose threads can be limited only after it is loaded.
import scipy.linalg  # noqa: F401
from threadpoolctl import threadpool_limits

_log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

#: A worker process: node id and process id.
Worker: TypeAlias = tuple[str, int]

#: Maximum number of retries of a task whose worker died (out of memory, lost node).
_RETRIES = 3

#: Maximum number of tasks ahead of the next result, as a multiple of the running tasks. Without a
#: limit a slow first item would keep all other results in memory.
_AHEAD = 4


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit linear algebra to the calling thread. Also a decorator.

    Several threads sum in another order, which changes the last bits, so that tables and figures
    would depend on the number of CPUs. Ray reserves one CPU for a cell or an actor; the others
    compute other cells. Torch is limited too if it has already been imported.
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


class Pulse:
    """The times of the last heartbeats of worker processes, on the clock of this process."""

    def __init__(self) -> None:
        self._last_beats: dict[Worker, float] = {}
        self._last_call = time.monotonic()

    def silent(self, beaten: Iterable[Worker], seconds: float) -> list[Worker]:
        """Return and remove the processes without a heartbeat for the given time.

        Parameters
        ----------
        beaten : iterable of (str, int)
            Processes with a heartbeat since the last call.
        seconds : float
            Time without a heartbeat.
        """
        now = time.monotonic()
        if now - self._last_call > 0.75 * seconds:
            # This process was suspended or Ray's head unreachable, and maybe the workers too.
            self._last_beats = dict.fromkeys(self._last_beats, now)
        self._last_call = now
        self._last_beats |= dict.fromkeys(beaten, now)
        found = [worker for worker, beat in self._last_beats.items() if now - beat > seconds]
        for worker in found:
            del self._last_beats[worker]
        return found


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Periodic sign of life of a worker process, which a stopped process does not send.

    Each beat writes a key to the key-value store at Ray's head, which the driver collects. An
    actor that receives beats would need one more process per sweep.

    Attributes
    ----------
    sweep : str
        Prefix of the keys of a sweep.
    seconds : float
        Interval between two beats.
    """

    sweep: str
    seconds: float

    def keep(self) -> None:
        """Start beating, until this process ends or starts another heartbeat."""
        global _current_sweep
        if self.sweep != _current_sweep:
            _current_sweep = self.sweep
            threading.Thread(target=self._beat, name="dcs-heartbeat", daemon=True).start()

    def _beat(self) -> None:
        import ray
        from ray.experimental.internal_kv import _internal_kv_put

        key = f"{self.sweep}/{ray.get_runtime_context().get_node_id()}/{os.getpid()}"
        while self.sweep == _current_sweep:
            try:
                _internal_kv_put(key, b"")
            except Exception:  # The head may be temporarily unreachable.
                _log.debug("a heartbeat could not be sent", exc_info=True)
            time.sleep(self.seconds)

    def collect(self) -> list[Worker]:
        """Return the processes with a heartbeat since the last call."""
        from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_list

        keys = _internal_kv_list(self.sweep)
        # A beat between these two calls is lost; its worker is noticed at the next beat.
        _internal_kv_del(self.sweep, del_by_prefix=True)
        workers = [key.decode().rsplit("/", 2)[1:] for key in keys]
        return [(node, int(pid)) for node, pid in workers]


#: The sweep of the current heartbeat: the most recent one if this process works for several.
_current_sweep = ""

#: A worker without a heartbeat for this long is stopped: compiled code does not block the thread.
_SILENT_SECONDS = 120.0


class StoppedWorkers:
    """Kill stopped workers of a sweep on living nodes, so that Ray retries their work.

    Attributes
    ----------
    heartbeat : Heartbeat
        Heartbeat for the workers.
    ended : collections.deque of str
        One message per killed worker.
    """

    def __init__(self) -> None:
        self.heartbeat = Heartbeat(f"dcs-{secrets.token_hex(8)}", _SILENT_SECONDS / 6)
        self.ended: deque[str] = deque()
        self._pulse = Pulse()

    def watching(self) -> AbstractContextManager[None]:
        """Monitor the workers while the block runs."""
        return repeating(self._kill_silent, self.heartbeat.seconds)

    def _kill_silent(self) -> None:
        try:
            for node, pid in self._pulse.silent(self.heartbeat.collect(), _SILENT_SECONDS):
                self._kill(node, pid)
        except Exception:  # The head may be temporarily unreachable.
            _log.debug("heartbeats could not be collected", exc_info=True)

    def _kill(self, node: str, pid: int) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        affinity = NodeAffinitySchedulingStrategy(node, soft=False)
        task: Any = ray.remote(num_cpus=0, max_retries=0)(_kill_worker)
        answer = task.options(scheduling_strategy=affinity).remote(pid)
        # If the node is lost, so is the worker.
        with suppress(ray.exceptions.RayError):
            if ray.get(answer, timeout=_SILENT_SECONDS):
                self.ended.append(
                    f"worker {pid} on node {node[:6]} did not run for {_SILENT_SECONDS:.0f} s "
                    "and was killed; its work is retried"
                )


def _kill_worker(pid: int) -> bool:
    """Kill a Ray worker on this node; return False if it has already ended."""
    with suppress(OSError):
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


#: Applies a function to items, here or remotely. Function, items and results must be picklable;
#: arrays that the function holds are read-only where it runs. Results are yielded in the order of
#: the items. At most `ahead` items (default: chosen by the mapper) are taken before their results:
#: item ``n + ahead`` only after result ``n`` has been yielded and the next one requested. So items
#: may depend on earlier results, and do not depend on how many are computed in parallel.
Mapper: TypeAlias = Callable[..., Iterator[Any]]


def in_process(
    function: Callable[[T], R], items: Iterable[T], /, *, ahead: int | None = None
) -> Iterator[R]:
    """Compute the items one after the other in this process."""
    return map(function, items)


@dataclass(frozen=True, slots=True)
class RayMapper:
    """Compute items as Ray tasks, from a driver or from inside another task.

    A task that waits for others releases its CPU to Ray, so that cells with parallel trials cannot
    block each other.

    Attributes
    ----------
    width : int
        Maximum number of parallel tasks; with 1, items are computed in the calling process.
    options : dict
        Ray options of each task, for example where it may run.
    heartbeat : Heartbeat or None
        Heartbeat of the worker processes.
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

        The function and the tables that it holds are put into Ray's object store once.
        """
        import ray
        from ray.exceptions import RayTaskError

        if self.width == 1:
            yield from map(function, items)
            return
        limit = _AHEAD * self.width if ahead is None else ahead
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
                        # Raise the original error, as in this process.
                        raise error.cause from error
                    yield result
                for item in islice(source, min(self.width - len(running), limit - len(taken))):
                    taken.append(task.remote(shared, item, self.heartbeat))
                    running.add(taken[-1])
                if not running:
                    return
                done, _ = ray.wait(list(running), num_returns=1)
                running.difference_update(done)
        finally:
            # The caller stopped iterating, or an item failed: the other results are not needed.
            for reference in running:
                ray.cancel(reference, force=False)


def _apply(function: Callable[[T], R], item: T, heartbeat: Heartbeat | None) -> R:
    """Run on a worker; Ray has replaced the reference of `function` by its value."""
    if heartbeat is not None:
        heartbeat.keep()
    return function(item)
