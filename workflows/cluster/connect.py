"""Ray clusters: a fresh one on this machine, one to join, one to hand a job to.

A cluster may be gone, and its head may then never answer: it is watched from a thread.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcs.errors import DCSError, last_line, one_line
from tracking.environment import DISTRIBUTION, installed_version, source_digest
from workflows.cluster.placement import Placement, place
from workflows.parallel import repeating

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_CHECK_SECONDS = 120.0
_CONNECT_SECONDS = 5.0
#: How often the cluster is looked at: nodes come and go.
_LOOK_SECONDS = 2.0
#: Without a living node for so long a cluster is gone. Ray ends a process whose head does not
#: answer for a minute, without a word.
_LOST_SECONDS = 30.0
#: A busy machine takes its time to start another worker.
_ANSWER_SECONDS = 120.0
_PATIENCE_SECONDS = 120.0
#: A head that has just been started takes no jobs for some seconds.
_AGENT_SECONDS = 60.0
_PAUSE_SECONDS = 2.0

#: Read when Ray is imported, where nothing else is set already.
_ENVIRONMENT = {
    # How workers see GPUs when they ask for none.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray complains on the terminal about work that it dropped when it was told to stop.
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    # It shows the traceback of a task that failed again for each result that nobody looks at.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    # Out-of-memory kills are counted apart from crashes, and without end unless told otherwise:
    # a cell that fits no node would be tried for ever.
    "RAY_task_oom_retries": "3",
    # A head that does not answer ends the process after a minute, without a word; the driver says
    # so before, and needs some time to end in order.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "120",
    # Otherwise Ray lets in whom it likes, depending on files of earlier runs.
    "RAY_AUTH_MODE": "token",
}


class ClusterError(DCSError):
    """A Ray cluster cannot be reached or does not fit this installation."""


class OutOfTimeError(DCSError):
    """The time budget of a sweep is used up; what is finished is kept."""


def software() -> dict[str, str]:
    """Return what this process runs, and has to be the same on every node of a cluster.

    The hash of the installed source files decides, and not their version: installed from a
    checkout, equal sources may carry the versions of different commits.
    """
    import ray

    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "ray": ray.__version__,
        f"sources of {DISTRIBUTION}": source_digest(),
    }


def check_software() -> None:
    """Ask every node of the cluster that is joined what it runs.

    Raises
    ------
    ClusterError
        A node runs something else, or does not answer.
    """
    import ray
    from ray.exceptions import NodeDiedError, RayError, TaskUnschedulableError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, max_retries=0)(software)
    answers = {
        node["NodeManagerAddress"] + "/" + node["NodeID"][:6]: ask.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote()
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"]
    }
    here = software()
    for name, answer in answers.items():
        try:
            there: dict[str, str] = ray.get(answer, timeout=_CHECK_SECONDS)
        except (NodeDiedError, TaskUnschedulableError):
            continue  # Spot nodes come and go; one that left needs no check.
        except RayError as error:
            raise ClusterError(
                f"node {name} cannot run this installation of {DISTRIBUTION}: {last_line(error)}; "
                f"on the node run: pip install '{DISTRIBUTION}=={installed_version()}'"
            ) from error
        different = [f"{k} {there[k]} (driver: {here[k]})" for k in here if there[k] != here[k]]
        if different:
            raise ClusterError(
                f"node {name} has {', '.join(different)}; install the same versions, and sources "
                "of the same commit, on both"
            )


@contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """Join a Ray cluster while the block runs.

    Parameters
    ----------
    address : str, optional
        ``auto``, or ``host:port`` of a head; by default the one that this process has joined, or
        else one of this machine alone, which is stopped again.

    Yields
    ------
    None
        While the block runs.

    Raises
    ------
    ClusterError
        There is none at the address, it does not let us in, or it runs other versions.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if address is None:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray

    if address is None and ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    with _without_greeting():
        if address is None:
            _start(options)
        else:
            _join(address, options)
    try:
        if address is not None:
            check_software()
        yield
    finally:
        ray.shutdown()


@contextmanager
def _without_greeting() -> Iterator[None]:
    """Keep off the terminal what Ray's compiled part says there about its own settings."""
    sys.stderr.flush()
    terminal = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def _start(options: dict[str, Any]) -> None:
    import ray

    try:
        # Always a new one: after a crash the file with the last one's address is stale.
        ray.init(address="local", include_dashboard=False, **options)
    except Exception as error:
        # Ray has no type of its own for this, and leaves behind what it has started.
        ray.shutdown()
        raise ClusterError(
            f"Ray did not start on this machine ({one_line(error)}); it may be short of "
            "memory or overloaded: run the same command again, or join a cluster by --address"
        ) from error


def _join(address: str, options: dict[str, Any]) -> None:
    import ray

    _check_reachable(address)
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ray.exceptions.AuthenticationError) as error:
        raise ClusterError(
            f"the Ray cluster at {address!r} cannot be joined: {one_line(error)}; it must run the "
            "versions of this machine (`dcs submit` does without), with RAY_AUTH_MODE=token and "
            "the RAY_AUTH_TOKEN that is set here"
        ) from None


def _check_reachable(address: str) -> None:
    """Fail within seconds where Ray would try for minutes."""
    place = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit():
        if place == "auto":
            return
        raise ClusterError(f"{place!r} is no address of a Ray cluster; write auto or HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:  # ValueError: no valid host name or port
        raise ClusterError(
            f"no Ray cluster at {place} ({one_line(error)}); start one with `ray start --head`, "
            "or leave --address out to use this machine"
        ) from None


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
    machines: dict[str, float] = field(default_factory=dict)


def look() -> Look | None:
    """Look at the cluster that is joined; None if no node of it lives."""
    import ray

    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    if not any(node["Alive"] for node in nodes):
        return None
    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    machines = {}
    for name, resource in (("cpus", "CPU"), ("gpus", "GPU")):
        machines[name] = there.get(resource, 0.0)
        machines[f"{name}_used"] = machines[name] - free.get(resource, 0.0)
    return Look(place(nodes), machines)


class ClusterWatch:
    """Looks at a cluster every other second, and says when it is gone.

    Parameters
    ----------
    look : callable
        Returns what the cluster is, None if no node lives; may fail, or never return.
    """

    def __init__(self, look: Callable[[], Look | None]) -> None:
        self._look = look
        self._reason = "the head does not answer"
        self._latest, self._seen = self._look(), time.monotonic()

    def watching(self) -> AbstractContextManager[None]:
        """Keep looking while the block runs."""
        return repeating(self._look_again, _LOOK_SECONDS)

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
        if self._latest is None or silent > _LOST_SECONDS:
            raise gone(f"no living node for {silent:.0f} s, {self._reason}")
        return self._latest

    def _look_again(self) -> None:
        try:
            seen = self._look()
        except Exception as error:  # Ray has many ways to say that it has no head.
            self._reason = one_line(error)
            return
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


def check_alive() -> None:
    """Have the cluster run something, after Ray has said that a worker or a node died.

    Raises
    ------
    ClusterError
        It does not.
    """
    import ray

    check_processes()
    try:
        ray.get(ray.remote(num_cpus=0)(lambda: True).remote(), timeout=_ANSWER_SECONDS)
    except ray.exceptions.RayError as error:
        raise gone(last_line(error)) from error


def open_jobs(address: str) -> JobSubmissionClient:
    """Reach the job server of a cluster.

    Raises
    ------
    ClusterError
        Nothing answers, it does not let us in, or it runs another version of Ray.
    """
    # Without a scheme Ray takes the address for that of a head, waits, and may abort the process.
    if not address.startswith(("http://", "https://")):
        raise ClusterError(f"--address {address!r} is not a URL; expected http://HOST:PORT")
    # Otherwise it depends on files of earlier runs whether Ray sends the token.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    from ray.job_submission import JobSubmissionClient

    try:
        client = JobSubmissionClient(address)
    except Exception as error:  # ConnectionError, RuntimeError, or what requests raises.
        raise ClusterError(
            f"the Ray job server at {address} cannot be used: {one_line(error)}; is the tunnel to "
            "the head open, and is ray[default] installed there?"
        ) from None
    for name in ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return client


def start_job(client: JobSubmissionClient, config: Path, options: Sequence[str]) -> str:
    """Start ``dcs sweep`` on the cluster and return the id of the job.

    Parameters
    ----------
    client : JobSubmissionClient
        From :func:`open_jobs`.
    config : pathlib.Path
        The sweep; uploaded, and nothing else.
    options : sequence of str
        Of ``dcs sweep``, without the address.

    Raises
    ------
    ClusterError
        The cluster does not take it.
    """
    command = ["dcs", "sweep", config.name, "--address", "auto", *options]
    until = time.monotonic() + _AGENT_SECONDS
    with tempfile.TemporaryDirectory(prefix="dcs-job-") as stage:
        shutil.copyfile(config, Path(stage) / config.name)
        while True:
            try:
                return client.submit_job(
                    entrypoint=shlex.join(command),
                    runtime_env={"working_dir": stage},
                    # The driver waits most of the time: it needs no CPU of its own.
                    entrypoint_num_cpus=0,
                )
            except Exception as error:
                if "No available agent" not in str(error) or time.monotonic() > until:
                    raise ClusterError(
                        f"the cluster does not take the job: {one_line(error)}"
                    ) from None
            time.sleep(_PAUSE_SECONDS)


def follow_job(client: JobSubmissionClient, job: str, write: Callable[[str], object]) -> int:
    """Pass on what a job says until it ends, over broken connections too.

    Returns
    -------
    int
        The exit code of the job; 143 if it was stopped.

    Raises
    ------
    ClusterError
        The cluster has not answered for two minutes; the job goes on.
    """
    written = 0
    answered = time.monotonic()
    while True:
        try:
            info = client.get_job_info(job)
            logs = client.get_job_logs(job)
        except Exception as error:
            if time.monotonic() - answered > _PATIENCE_SECONDS:
                raise ClusterError(
                    f"job {job} cannot be followed any longer ({one_line(error)}); it goes on: "
                    f"ray job logs --follow {job}"
                ) from error
        else:
            answered = time.monotonic()
            write(logs[written:])
            written = len(logs)
            if info.status.is_terminal():
                failed = {"SUCCEEDED": 0, "STOPPED": 143}.get(info.status.value, 1)
                return failed and (info.driver_exit_code or failed)
        time.sleep(_PAUSE_SECONDS)
