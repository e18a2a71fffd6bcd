"""Joining a Ray cluster: a fresh one on this machine or one that runs, and whether it fits us."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dcs.errors import DCSError
from dcs.messages import last_line, one_line
from tracking.environment import DISTRIBUTION, installed_version, source_digest

__all__ = [
    "ClusterError",
    "Software",
    "check_software",
    "connected",
    "software",
    "software_mismatch",
]

#: Out-of-memory kills are counted apart from crashes, and without end unless told otherwise: a
#: cell that fits no node would be tried for ever.
_OUT_OF_MEMORY_RETRIES = "3"
_CHECK_SECONDS = 120.0
_CONNECT_SECONDS = 5.0


class ClusterError(DCSError):
    """A Ray cluster cannot be reached or does not fit this installation."""


@dataclass(frozen=True, slots=True)
class Software:
    """What has to be the same on every node of a cluster.

    Attributes
    ----------
    python : str
        Version without the patch level.
    ray, dcs : str
        Versions.
    sources : str
        Hash of the installed source files. It decides, and not the version `dcs`: installed from
        a checkout, equal sources may carry the versions of different commits.
    """

    python: str
    ray: str
    dcs: str
    sources: str


def software() -> Software:
    """Return what this process runs."""
    import ray

    return Software(
        python=".".join(platform.python_version_tuple()[:2]),
        ray=ray.__version__,
        dcs=installed_version(),
        sources=source_digest(),
    )


def software_mismatch(here: Software, nodes: Mapping[str, Software]) -> str | None:
    """Say on one line what differs between this process and the nodes, and what to do.

    Parameters
    ----------
    here : Software
        Of the driver.
    nodes : mapping of str to Software
        By the name of the node.

    Returns
    -------
    str or None
        None if all agree.
    """
    for node, there in nodes.items():
        if there.python != here.python:
            return (
                f"node {node} runs Python {there.python}, the driver {here.python}; make the "
                f"environment there with python{here.python}"
            )
        if there.ray != here.ray:
            return (
                f"node {node} runs ray {there.ray}, the driver {here.ray}; on the node run: "
                f"pip install 'ray[default]=={here.ray}'"
            )
        if there.sources != here.sources:
            return (
                f"node {node} has {DISTRIBUTION} {there.dcs} (sources {there.sources}), the "
                f"driver {here.dcs} (sources {here.sources}); install the same version or commit "
                "on both"
            )
    return None


def check_software() -> None:
    """Ask every node of the cluster that is joined what it runs.

    Raises
    ------
    ClusterError
        A node runs something else, or does not answer.
    """
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    ask = ray.remote(num_cpus=0, max_retries=0)(software)
    answers = {
        node["NodeManagerAddress"] + "/" + node["NodeID"][:6]: ask.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote()
        for node in nodes
    }
    found: dict[str, Software] = {}
    for name, answer in answers.items():
        try:
            found[name] = ray.get(answer, timeout=_CHECK_SECONDS)
        except ray.exceptions.NodeDiedError:
            continue  # Spot nodes come and go; one that left needs no check.
        except ray.exceptions.TaskUnschedulableError:
            continue
        except RayError as error:
            raise ClusterError(
                f"node {name} cannot run this installation of {DISTRIBUTION}: {last_line(error)}; "
                f"on the node run: pip install '{DISTRIBUTION}=={installed_version()}'"
            ) from error
    mismatch = software_mismatch(software(), found)
    if mismatch is not None:
        raise ClusterError(mismatch)


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
    _prepare_environment(local=address is None)
    import logging

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


def _prepare_environment(*, local: bool) -> None:
    # Read when Ray is imported: how workers see GPUs when they ask for none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray complains on the terminal about work that it dropped when it was told to stop.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    # It shows the traceback of a task that failed again for each result that nobody looks at.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    os.environ.setdefault("RAY_task_oom_retries", _OUT_OF_MEMORY_RETRIES)
    # Otherwise Ray lets in whom it likes, depending on files of earlier runs.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if local:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


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


def _start(options: Mapping[str, Any]) -> None:
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


def _join(address: str, options: Mapping[str, Any]) -> None:
    import ray

    _check_reachable(address)
    try:
        ray.init(address=address, **options)
    except ConnectionError as error:
        raise ClusterError(
            f"no Ray cluster at {address!r} ({one_line(error)}); start one with `ray start "
            "--head`, or leave --address out to use this machine"
        ) from None
    except RuntimeError as error:
        text = one_line(error)
        if "Version mismatch" in text or "version mismatch" in text:
            raise ClusterError(
                f"the cluster at {address!r} runs other versions: {text}; here, run: "
                "pip install with the versions of the cluster, or submit with `dcs submit`, "
                "which runs on the cluster itself"
            ) from None
        raise ClusterError(f"the Ray cluster at {address!r} cannot be joined: {text}") from None
    except ray.exceptions.AuthenticationError as error:
        raise ClusterError(
            f"the Ray cluster at {address!r} does not let us in ({one_line(error)}); set "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the token of the cluster"
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
    except OSError as error:
        raise ClusterError(
            f"no Ray cluster at {place} ({one_line(error)}); start one with `ray start --head`, "
            "or leave --address out to use this machine"
        ) from None
