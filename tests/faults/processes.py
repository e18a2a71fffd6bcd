"""Finding, stopping and starting processes and nodes; only our own are ever touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

DEADLINE = 300.0


def wait_for(condition: Callable[[], object], what: str, seconds: float = DEADLINE) -> Any:
    """Return the first true value of `condition`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        value = condition()
        if value:
            return value
        # Looking through all processes costs more than what most tests wait for.
        time.sleep(0.1)
    raise AssertionError(f"waited {seconds:.0f} s for {what}")


def descendants(root: int) -> list[int]:
    """Return the ids of all processes below `root`."""
    with suppress(psutil.Error):
        return [each.pid for each in psutil.Process(root).children(recursive=True)]
    return []


def title(pid: int) -> str:
    """Return the command line of a process, "" if it has ended."""
    with suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline()).strip()
    return ""


def find_workers(root: int, name: str) -> list[int]:
    """Return the Ray workers below `root` that are doing `name` just now."""
    return [pid for pid in descendants(root) if title(pid).startswith(f"ray::{name}")]


def find_worker(root: int, name: str) -> int | None:
    """Return one of :func:`find_workers`."""
    return next(iter(find_workers(root, name)), None)


def kill_worker(root: int, name: str, *, after: float = 0.2) -> int:
    """Kill a Ray worker once it has been doing `name` for some time."""

    def at_it() -> int | None:
        pid = find_worker(root, name)
        if pid is None:
            return None
        time.sleep(after)
        return pid if title(pid).startswith(f"ray::{name}") else None

    pid = wait_for(at_it, f"a worker that runs {name}")
    os.kill(pid, signal.SIGKILL)
    return int(pid)


def start_dcs(*arguments: object, first: str = "") -> subprocess.Popen[str]:
    """Start ``dcs ARGUMENTS`` in a session of its own, after some code that comes `first`."""
    # A background job of a script ignores SIGINT, and so would this process.
    listening = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{listening}\n{first}\nfrom dcs_workflows.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a command; return its code and what it said."""
    try:
        out, err = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        # The tests after this one are not to meet it.
        process.kill()
        process.communicate()
        raise
    return process.returncode, out, err


def add_node(cluster: Any, **resources: float) -> Any:
    """Return a new node that Ray knows of; without it, none is left behind."""
    # Ray's own wait ends after 30 s, in which a busy machine starts no node.
    node = cluster.add_node(wait=False, **resources)
    try:
        # By its name: the sums over the cluster still count nodes that have just gone.
        wait_for(lambda: _alive(node), "the new node")
    except BaseException:
        cluster.remove_node(node, allow_graceful=False)
        raise
    return node


def remove_node(cluster: Any, node: Any) -> None:
    """End a node as a crash does, and wait until Ray knows."""
    cluster.remove_node(node, allow_graceful=False)
    wait_for(lambda: not _alive(node), "the node to be gone")


def lose_first(cluster: Any, nodes: list[Any], name: str) -> int:
    """End the first of some nodes that does `name`; return the id of the worker lost with it.

    Which of them is the first is up to Ray.
    """

    def at_it() -> tuple[Any, int] | None:
        found = ((node, find_worker(raylet(node), name)) for node in nodes)
        return next(((node, pid) for node, pid in found if pid is not None), None)

    node, pid = wait_for(at_it, f"a node that runs {name}")
    nodes.remove(node)
    remove_node(cluster, node)
    return pid


def raylet(node: Any) -> int:
    """Return the id of the process above all others of a node."""
    return int(node.all_processes["raylet"][0].process.pid)


def _alive(node: Any) -> bool:
    import ray

    return any(n["Alive"] and n["NodeID"] == node.node_id for n in ray.nodes())


@contextmanager
def disk(folder: Path, size: str) -> Iterator[Path]:
    """Make a folder a file system of its own."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path, *, leave: int = 0) -> Path:
    """Take all room of a file system but `leave` bytes."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        file.write(bytes(shutil.disk_usage(folder).free - leave))
    return ballast
