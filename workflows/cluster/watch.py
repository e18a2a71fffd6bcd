"""Looking at a cluster that may be gone: from a thread, since its head may never answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from dcs.messages import last_line, one_line
from workflows.cluster.connect import ClusterError
from workflows.cluster.placement import Placement, place

__all__ = ["ClusterWatch", "Look", "check_alive", "gone", "look"]

#: How often the cluster is looked at: nodes come and go.
_LOOK_SECONDS = 2.0
#: Without a living node for so long a cluster is gone. Ray ends a process whose head does not
#: answer for a minute, without a word.
_LOST_SECONDS = 30.0
#: A busy machine takes its time to start another worker.
_ANSWER_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Look:
    """What a cluster is at a moment.

    Attributes
    ----------
    placement : Placement
        How work is put on it.
    machines : dict of str to float
        What is at work and what there is: ``cpus_used``, ``cpus``, ``gpus_used``, ``gpus``.
    """

    placement: Placement
    machines: dict[str, float] = field(default_factory=lambda: _machines({}, {}))


def look() -> Look | None:
    """Look at the cluster that is joined; None if no node of it lives."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    if not any(node["Alive"] for node in nodes):
        return None
    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    return Look(place(nodes), _machines(there, free))


def _machines(there: dict[str, float], free: dict[str, float]) -> dict[str, float]:
    cpus, gpus = there.get("CPU", 0.0), there.get("GPU", 0.0)
    used = {"cpus_used": cpus - free.get("CPU", 0.0), "gpus_used": gpus - free.get("GPU", 0.0)}
    return {"cpus": cpus, "gpus": gpus, **used}


class ClusterWatch:
    """Looks at a cluster every other second, and says when it is gone.

    Parameters
    ----------
    look : callable
        Returns what the cluster is, None if no node lives; may fail, or never return.
    lost_seconds : float
        How long a cluster may be without a living node.
    """

    def __init__(
        self, look: Callable[[], Look | None], *, lost_seconds: float = _LOST_SECONDS
    ) -> None:
        self._look, self._lost_seconds = look, lost_seconds
        self._reason = "the head does not answer"
        self._latest, self._seen = self._look(), time.monotonic()
        self._ended = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep looking while the block runs."""
        threading.Thread(target=self._run, name="dcs-watch", daemon=True).start()
        try:
            yield
        finally:
            # Not waited for: it may be in a call that never returns.
            self._ended.set()

    @property
    def latest(self) -> Look:
        """What the cluster was when it was last looked at.

        Raises
        ------
        ClusterError
            No node of it has been alive for some time.
        """
        check_processes()
        silent = time.monotonic() - self._seen
        if self._latest is None or silent > self._lost_seconds:
            raise gone(f"no living node for {silent:.0f} s, {self._reason}")
        return self._latest

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            try:
                seen = self._look()
            except Exception as error:  # Ray has many ways to say that it has no head.
                self._reason = one_line(error)
                continue
            if seen is None:
                self._reason = "all have died"
            else:
                self._latest, self._seen = seen, time.monotonic()


def check_processes() -> None:
    """See that what Ray has started here lives, where it was started here.

    Raises
    ------
    ClusterError
        It does not: Ray ends this process some seconds later, without a word.
    """
    # Ray has no public name for this.
    from ray._private.worker import _global_node as node

    dead: list[tuple[str, Any]] = [] if node is None else node.dead_processes()
    for name, _ in dead:
        if name in ("gcs_server", "raylet"):
            raise gone(f"its {name} on this machine has died")


def gone(reason: str) -> ClusterError:
    """Return the error that ends a sweep whose cluster is gone."""
    return ClusterError(
        f"the Ray cluster is gone ({reason}); what is finished is kept, run the same command "
        "again to go on"
    )


def _answer() -> bool:
    return True


def check_alive() -> None:
    """Have the cluster run something, after Ray has said that a worker or a node died.

    Raises
    ------
    ClusterError
        It does not.
    """
    check_processes()
    try:
        ray.get(ray.remote(num_cpus=0)(_answer).remote(), timeout=_ANSWER_SECONDS)
    except RayError as error:
        raise gone(last_line(error)) from error
