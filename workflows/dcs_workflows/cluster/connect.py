"""Start a local Ray cluster, or join an existing one.

The head of a lost cluster may never answer, so a background thread monitors the cluster.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory, gettempdir
from typing import Any

import psutil

from dcs.errors import DCSError, last_line, one_line
from dcs.plugins import start_safely
from dcs_tracking.environment import DISTRIBUTION, import_folders, installed_version, source_digest
from dcs_workflows.cluster.placement import Placement, place
from dcs_workflows.parallel import repeating

_CONNECT_SECONDS = 5.0
#: Interval between checks of the cluster, whose nodes may join and leave.
_LOOK_SECONDS = 2.0
#: A cluster without a living node for this long is lost. Ray ends a process silently when its head
#: does not answer for a minute.
_LOST_SECONDS = 30.0
#: Timeout of a test task: a busy machine starts workers slowly.
_ANSWER_SECONDS = 120.0

#: Environment variables that Ray reads at import; user-specified values take precedence.
_ENVIRONMENT = {
    # How Ray sets the visible GPUs of workers that request none.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray would print warnings about work that is cancelled at shutdown.
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    # Ray would print the traceback of a failed task again for each result that is not fetched.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    # Ray counts out-of-memory kills separately from crashes and retries them without limit by
    # default: a cell that fits on no node would be retried forever.
    "RAY_task_oom_retries": "3",
    # By default Ray ends the process silently if the head does not answer for a minute; the
    # driver reports the loss earlier and needs time for an orderly shutdown.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "120",
    # A start on a busy machine may take longer than 30 s, the default.
    "RAY_raylet_start_wait_time_s": "120",
    # By default, whether Ray requires authentication depends on files of earlier runs.
    "RAY_AUTH_MODE": "token",
}


#: Maximum length of the folder of Ray's sockets, whose paths the system limits to 107 bytes.
_LONGEST_PATH = 36

#: The processes of a local cluster without which Ray ends this process, by name.
_DAEMONS: dict[str, psutil.Process] = {}


#: The ways out if nodes have no common folder.
SHARED = (
    "give a folder of a file system that all nodes share, or use tables in place of prompts "
    "(--tables) with studies in a database (DCS_OPTUNA_STORAGE), which need none"
)


class ClusterError(DCSError):
    """Raised if a Ray cluster is unreachable or incompatible with this installation."""


def _look_here(file: Path | None) -> tuple[str, bool]:
    return source_digest(), file is None or file.exists()


def check_nodes(shared: Path | None = None) -> None:
    """Check that every node of the joined cluster has the driver's sources and output folder.

    Ray itself refuses other versions of Python and of Ray. Sources are compared by their hash,
    not by version: equal ones may carry the versions of different commits.

    Parameters
    ----------
    shared : path-like, optional
        A folder that must be that of the driver on every node; by default none.

    Raises
    ------
    ClusterError
        If a node has other sources, another folder, or does not answer.
    """
    if shared is None:
        _ask_nodes(None)
        return
    shared.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(prefix=".shared-", dir=shared.absolute()) as file:
        _ask_nodes(Path(file.name))


def _ask_nodes(file: Path | None) -> None:
    import ray
    from ray.exceptions import NodeDiedError, RayError, TaskUnschedulableError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, max_retries=0)(_look_here)
    answers = {
        node["NodeManagerAddress"] + "/" + node["NodeID"][:6]: ask.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(file)
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"]
    }
    for name, answer in answers.items():
        try:
            found, seen = ray.get(answer, timeout=_ANSWER_SECONDS)
        except (NodeDiedError, TaskUnschedulableError):
            continue  # A spot node that has left the cluster needs no check.
        except RayError as error:
            raise ClusterError(
                f"node {name} cannot run this installation of {DISTRIBUTION}: {last_line(error)}; "
                f"on the node run: pip install '{DISTRIBUTION}=={installed_version()}'"
            ) from error
        if found != source_digest():
            raise ClusterError(
                f"node {name} has the sources {found} of {DISTRIBUTION}, the driver has "
                f"{source_digest()}; install the same commit on both"
            )
        if not seen and file is not None:
            raise ClusterError(
                f"--output {file.parent}: not the same folder on node {name}; {SHARED}"
            )


@contextmanager
def connected(address: str | None = None, *, shared: Path | None = None) -> Iterator[None]:
    """Join a Ray cluster while the block runs.

    Parameters
    ----------
    address : str, optional
        ``auto``, or ``host:port`` of a head. By default the cluster that this process has
        already joined, or else a new local one, which is stopped at the end.
    shared : path-like, optional
        A folder that nodes of a cluster that is joined must share.

    Yields
    ------
    None
        While the block runs.

    Raises
    ------
    ClusterError
        If there is no cluster at the address, it denies access, or it runs other versions.
    """
    start_safely()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if address is None:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray

    if address is None and ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {
        "logging_level": logging.ERROR,
        "log_to_driver": False,
    }
    folder = os.getcwd()
    # Otherwise it is the installation itself.
    if Path(folder) not in [package.parent for package in import_folders()]:
        options["runtime_env"] = {"worker_process_setup_hook": _path_without(folder)}
    stack = ExitStack()
    with _silence_stderr():
        if address is None:
            stack.enter_context(_short_folder())
            _start_local(options)
        else:
            _join(address, options)
    try:
        if address is not None:
            check_nodes(shared)
        yield
    finally:
        _DAEMONS.clear()
        ray.shutdown()
        stack.close()


@contextmanager
def _short_folder() -> Iterator[None]:
    """Give Ray another folder for its sockets if the temporary folder has a long path."""
    if "RAY_TMPDIR" in os.environ or len(gettempdir()) <= _LONGEST_PATH:
        yield
        return
    # A new folder that only this user can open.
    short = "/tmp"  # nosec B108
    with TemporaryDirectory(prefix="dcs-", dir=short, ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        try:
            yield
        finally:
            del os.environ["RAY_TMPDIR"]


def _path_without(folder: str) -> Callable[[], None]:
    """Return the setup of a worker that imports nothing from a folder.

    With its first task, Ray puts the current folder of the driver first on the import path of a
    worker, where any file could replace an installed module. The function is local, so that Ray
    sends its code: to find it by name, a worker would already import from the folder.
    """

    def set_up() -> None:
        import os
        import sys
        from types import SimpleNamespace

        if folder in os.environ.get("PYTHONPATH", "").split(os.pathsep):
            return

        def find_spec(*module: object) -> None:
            while folder in sys.path:
                sys.path.remove(folder)

        # Called before any module is searched for on the path.
        sys.meta_path.insert(0, SimpleNamespace(find_spec=find_spec))

    return set_up


@contextmanager
def _silence_stderr() -> Iterator[None]:
    """Discard what Ray's compiled code prints about its own settings."""
    sys.stderr.flush()
    stderr = os.dup(2)
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    os.close(devnull)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _start_local(options: dict[str, Any]) -> None:
    import ray

    try:
        # Always start a new cluster: after a crash Ray's address file is stale.
        ray.init(address="local", include_dashboard=False, **options)
        for process in psutil.Process().children():
            if process.name() in ("gcs_server", "raylet"):
                _DAEMONS[process.name()] = process
    except Exception as error:
        # Ray raises no specific type here and does not stop the processes that it has started.
        ray.shutdown()
        raise ClusterError(
            f"Ray did not start on this machine ({one_line(error)}), which may be short of memory "
            "or overloaded; run the same command again, or join a cluster with --address"
        ) from error


def _join(address: str, options: dict[str, Any]) -> None:
    import ray

    _check_reachable(address)
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ray.exceptions.AuthenticationError) as error:
        raise ClusterError(
            f"cannot join the Ray cluster at {address!r}: {one_line(error)}; it must run the same "
            "versions as this machine, with RAY_AUTH_MODE=token "
            "and the RAY_AUTH_TOKEN that is set here"
        ) from None


def _check_reachable(address: str) -> None:
    """Check reachability with a short timeout; Ray itself would retry for minutes."""
    target = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    if target == "auto":
        return
    host, _, port = target.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:  # ValueError: no valid host name or port
        raise ClusterError(
            f"no Ray cluster at {target} ({one_line(error)}); give auto or HOST:PORT of a head "
            "that `ray start --head` has started, or omit --address to use this machine"
        ) from None


def look() -> Placement | None:
    """Return where work is scheduled on the joined cluster, or None if no node is alive."""
    import ray

    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return place(nodes) if any(node["Alive"] for node in nodes) else None


class ClusterWatch:
    """Monitor a cluster every two seconds and detect its loss.

    Parameters
    ----------
    look : callable
        Returns the state of the cluster, or None if no node is alive. It may raise or block.
    """

    def __init__(self, look: Callable[[], Placement | None]) -> None:
        self._look = look
        self._reason = "the head does not answer"
        self._latest, self._seen = self._look(), time.monotonic()

    def watching(self) -> AbstractContextManager[None]:
        """Monitor the cluster while the block runs."""
        return repeating(self._refresh, _LOOK_SECONDS)

    @property
    def latest(self) -> Placement:
        """The most recent state of the cluster.

        Raises
        ------
        ClusterError
            If no node has been alive for some time.
        """
        check_processes()
        silent = time.monotonic() - self._seen
        if self._latest is None or silent > _LOST_SECONDS:
            raise gone(f"no living node for {silent:.0f} s, {self._reason}")
        return self._latest

    def _refresh(self) -> None:
        try:
            seen = self._look()
        except Exception as error:  # Ray raises many types if the head is unreachable.
            self._reason = one_line(error)
            return
        if seen is None:
            self._reason = "all nodes have died"
        else:
            self._latest, self._seen = seen, time.monotonic()


def check_processes() -> None:
    """Check that the Ray processes which this process started are alive.

    Raises
    ------
    ClusterError
        If one has died; Ray ends this process silently some seconds later.
    """
    for name, process in _DAEMONS.items():
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            raise gone(f"its {name} on this machine has died")


def gone(reason: str) -> ClusterError:
    """Return the error for a sweep whose cluster was lost."""
    return ClusterError(
        f"the Ray cluster was lost ({reason}); finished results are saved, run the same command "
        "again to continue"
    )


def check_alive() -> None:
    """Run a test task after Ray has reported the death of a worker or a node.

    Raises
    ------
    ClusterError
        If the cluster does not complete it.
    """
    import ray

    check_processes()
    try:
        ray.get(ray.remote(num_cpus=0)(lambda: True).remote(), timeout=_ANSWER_SECONDS)
    except ray.exceptions.RayError as error:
        raise gone(last_line(error)) from error
