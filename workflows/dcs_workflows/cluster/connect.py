"""Start a local Ray cluster, or join an existing one, and place work on its nodes.

Cells never occupy a node that has GPUs. The head of a lost cluster may never answer, so a
background thread monitors the cluster.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile, gettempdir
from typing import Any

import psutil

from dcs.errors import DCSError, last_line, one_line
from dcs.plugins import start_safely
from dcs.scoring import engine_trait
from dcs_tracking.environment import DISTRIBUTION, import_folders, installed_version, own_digest
from dcs_workflows.config.scoring import ScoringSettings
from dcs_workflows.parallel import repeating

_CONNECT_SECONDS = 5.0
#: Interval between checks of the cluster, whose nodes may join and leave.
_LOOK_SECONDS = 2.0
#: A cluster without a living node for this long is lost. Ray ends a process silently when its head
#: does not answer for a minute.
_LOST_SECONDS = 30.0
#: Timeout of a test task: a busy machine starts workers slowly.
ANSWER_SECONDS = 120.0

#: Environment variables that Ray reads at import; user-specified values take precedence.
_ENVIRONMENT = {
    # How Ray sets the visible GPUs of workers that request none.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray would send metrics of every name of a task, that is of every cell, again and again, and
    # keep what it cannot send while a node is lost: hundreds of megabytes after some thousand.
    "RAY_enable_metrics_collection": "0",
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
    "give a folder of a file system that all nodes share, or, which needs none, keep studies in "
    "memory (--set optuna_storage=memory) or in a database (DCS_OPTUNA_STORAGE)"
)

#: Custom resources of a cluster that declares where work runs; see cluster.yaml. Nodes that
#: compute cells have one `dcs_cells` per CPU. The head declares the limits of autoscaling.
CELLS = "dcs_cells"
MAX_CPUS = "dcs_max_cpus"
MAX_GPUS = "dcs_max_gpus"
MAX_GPUS_PER_NODE = "dcs_max_gpus_per_node"

_NODE_ID = "ray.io/node-id"
#: Amount of `dcs_cells` that a task requests. It only selects the node; the CPU limits the number
#: of tasks. A cell that waits for trials releases its CPU but not this resource, so the amount
#: must be small: otherwise waiting cells could hold all of it and block their own trials.
_CELLS_SHARE = 0.001
#: Clusters with at most this many CPUs run one actor per CPU: an idle actor costs nothing, while
#: with fewer actors a CPU would be idle whenever cells take less time than tables.
_SMALL_CPUS = 4


class ClusterError(DCSError):
    """Raised if a Ray cluster is unreachable or incompatible with this installation."""


def _look_here(file: Path | None) -> tuple[str, bool]:
    return own_digest(), file is None or file.exists()


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
            found, seen = ray.get(answer, timeout=ANSWER_SECONDS)
        except (NodeDiedError, TaskUnschedulableError):
            continue  # A spot node that has left the cluster needs no check.
        except RayError as error:
            found, seen = last_line(error), False
        if found != own_digest():
            raise ClusterError(
                f"node {name} does not run the sources {own_digest()} of {DISTRIBUTION} "
                f"{installed_version()} as the driver does: {found}; install them on the node"
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
        if len(gettempdir()) > _LONGEST_PATH:
            # Where Ray has its sockets if no other folder is given.
            os.environ.setdefault("RAY_TMPDIR", "/tmp")  # nosec
    import ray

    if address is None and ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    folder = os.getcwd()
    # Otherwise it is the installation itself.
    if Path(folder) not in [package.parent for package in import_folders()]:
        options["runtime_env"] = {"worker_process_setup_hook": _path_without(folder)}
    with ExitStack() as stack:
        if address is None:
            _start_local(options)
        else:
            _join(address, options)
        stack.callback(ray.shutdown)
        stack.callback(_DAEMONS.clear)
        if address is not None:
            check_nodes(shared)
        yield


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


def _start_local(options: dict[str, Any]) -> None:
    import ray

    for last in (False, True):  # On a machine that is busy for a moment, a second start succeeds.
        try:
            # Always start a new cluster: after a crash Ray's address file is stale.
            ray.init(address="local", include_dashboard=False, **options)
            break
        except Exception as error:
            # Ray raises no specific type here and does not stop the processes that it has started.
            ray.shutdown()
            if last:
                raise ClusterError(
                    f"Ray did not start on this machine ({one_line(error)}), which may be short "
                    "of memory or of room for temporary files (TMPDIR), or overloaded; run the "
                    "same command again, or join a cluster with --address"
                ) from error
    for process in psutil.Process().children():
        if process.name() in ("gcs_server", "raylet"):
            _DAEMONS[process.name()] = process


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


@dataclass(frozen=True, slots=True)
class Placement:
    """Where work is scheduled on a cluster in its current state.

    Attributes
    ----------
    cells : dict
        Ray options of a task that computes a cell or its trials.
    actors : dict
        Ray options of an actor that scores prompts with at most one GPU.
    actor_slots : int
        Maximum number of such actors.
    node_gpus : tuple of int
        Numbers of GPUs of the nodes with GPUs, including nodes that autoscaling may add.
    cell_cpus : int
        Number of CPUs for cells, including those of nodes that autoscaling may add.
    shared : bool
        Whether scoring takes CPUs that cells could use.
    """

    cells: dict[str, Any]
    actors: dict[str, Any]
    actor_slots: int
    node_gpus: tuple[int, ...]
    cell_cpus: int
    shared: bool

    def scoring(self, settings: ScoringSettings) -> tuple[dict[str, Any], int]:
        """Return the Ray options of a scoring actor and the maximum number of actors.

        An actor holds as many GPUs of one node as its engine reserves. An actor that queries a
        server needs no GPU and runs where cells run; there is only one, so that the limit on
        concurrent requests holds.
        """
        if engine_trait(settings.engine, "served"):
            return {**self.cells, "num_cpus": 1, "num_gpus": 0}, 1
        share = settings.gpus
        if share is None or (not self.node_gpus and share == 1):
            return dict(self.actors), self.actor_slots
        # At least one: Ray waits for GPUs that have left the cluster to return.
        fitting = sum(gpus // share for gpus in self.node_gpus)
        return {**self.actors, "num_gpus": share}, max(1, fitting)

    def check(self, settings: ScoringSettings | None) -> None:
        """Refuse a cluster on which Ray would wait forever.

        Parameters
        ----------
        settings : ScoringSettings or None
            How prompts are scored; None if no prompts are scored.

        Raises
        ------
        DCSError
            If there are no CPUs for cells, or no node, existing or autoscaled, has the GPUs of
            a model.
        """
        if not self.cell_cpus:
            raise DCSError(
                "the cluster has no CPUs for cells; add nodes with CPUs, or start the head with "
                f"the resource {MAX_CPUS} set to the number of CPUs that autoscaling may reach"
            )
        share = (settings and settings.gpus) or 1
        most = max(self.node_gpus, default=0)
        if settings is not None and share > max(1, most):
            option = engine_trait(settings.engine, "gpu_option")
            raise DCSError(
                f"scoring.{option} {share}: no node of the cluster has more than "
                f"{most} GPUs; add nodes with {share} GPUs each, or lower it; with "
                f"autoscaling, set the resource {MAX_GPUS_PER_NODE} of the head"
            )


def place(nodes: Iterable[Mapping[str, Any]]) -> Placement:
    """Decide where cells and scoring are scheduled.

    Parameters
    ----------
    nodes : iterable of mapping
        Nodes as returned by :func:`ray.nodes`.

    Returns
    -------
    Placement
        On a cluster that declares `dcs_cells`, cells run on nodes with that resource. Otherwise
        they avoid nodes with GPUs if another node exists; a single machine does everything.
    """
    alive = [node for node in nodes if node["Alive"]]

    def amounts(resource: str, of: Iterable[Mapping[str, Any]] = alive) -> list[int]:
        return [int(node["Resources"].get(resource, 0)) for node in of]

    max_cpus, max_gpus = sum(amounts(MAX_CPUS)), sum(amounts(MAX_GPUS))
    declared = max_cpus > 0 or any(CELLS in node["Resources"] for node in alive)
    gpu_nodes = [node for node in alive if node["Resources"].get("GPU", 0) > 0]
    cpu_only = [node for node in alive if node not in gpu_nodes]

    cells: dict[str, Any] = {"num_cpus": 1}
    now = sum(amounts("CPU"))
    if declared:
        cells["resources"] = {CELLS: _CELLS_SHARE}
        now = sum(amounts(CELLS))
    elif gpu_nodes and any(amounts("CPU", cpu_only)):
        names = sorted(node["NodeID"] for node in gpu_nodes)
        cells["label_selector"] = {_NODE_ID: f"!in({','.join(names)})"}
        now = sum(amounts("CPU", cpu_only))

    cell_cpus = max(now, max_cpus)
    node_gpus = [number for number in amounts("GPU") if number]
    # If the number of GPUs per autoscaled node is not declared, assume that one node has all.
    largest = max(amounts(MAX_GPUS_PER_NODE), default=0) or max_gpus
    while (coming := min(largest, max_gpus - sum(node_gpus))) > 0:
        node_gpus.append(coming)
    gpus = sum(node_gpus)
    # Without GPUs half of the CPUs score, so that annealing can start at the same time.
    small = not gpus and cell_cpus <= _SMALL_CPUS
    cpu_slots = cell_cpus if small else cell_cpus // 2
    return Placement(
        cells=cells,
        actors={"num_cpus": 0.5 if small else 1, "num_gpus": 1 if gpus else 0}
        # Without GPUs scoring is CPU work and runs where cells run.
        | ({"resources": cells["resources"]} if declared and not gpus else {}),
        actor_slots=gpus or max(1, cpu_slots),
        node_gpus=tuple(node_gpus),
        cell_cpus=cell_cpus,
        shared=not (gpus and (declared or "label_selector" in cells)),
    )


class ClusterWatch:
    """Monitor a cluster every two seconds and detect its loss.

    Parameters
    ----------
    look : callable
        Returns the state of the cluster, or None if no node is alive. It may raise or block.
    """

    def __init__(self, look: Callable[[], Placement | None]) -> None:
        self._look = look
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
            raise gone(f"no living node, or no answer of its head, for {silent:.0f} s")
        return self._latest

    def _refresh(self) -> None:
        # Ray raises many types if the head is unreachable.
        with suppress(Exception):
            if (seen := self._look()) is not None:
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
