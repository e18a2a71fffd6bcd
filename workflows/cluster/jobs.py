"""Handing a sweep to a cluster as a Ray job: what is uploaded, following it, how it ended."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcs.errors import ConfigError
from dcs.messages import one_line
from workflows.cluster.connect import ClusterError

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

__all__ = ["EXCLUDES", "UPLOAD_LIMIT", "follow_job", "open_jobs", "staged", "start_job"]

#: Bytes that a job may carry along. Ray allows a hundred times that and every node fetches it;
#: models, texts and results belong on a file system that the nodes share.
UPLOAD_LIMIT = 1_000_000
#: Names that are never uploaded. Ray matches the folder itself too, as ".", which must not be hit.
EXCLUDES = (
    ".?*",
    "__pycache__",
    "*.py[cod]",
    "*.egg-info",
    "dcs-runs",
    "mlruns",
    "mlartifacts",
    "*.db",
    "*.parquet",
    "*.npz",
    "*.safetensors",
    "*.bin",
    "*.gguf",
)
_CHATTY = ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk")
_PATIENCE_SECONDS = 120.0
#: Ray waits for an agent itself whenever a job is handed in.
_AGENT_SECONDS = 60.0
_PAUSE_SECONDS = 2.0


@contextmanager
def staged(config: Path, folder: Path | None = None) -> Iterator[Path]:
    """Lay out what a job is to find in its working directory, and nothing else.

    Parameters
    ----------
    config : pathlib.Path
        The sweep; lies at the top under its own name.
    folder : pathlib.Path, optional
        Files of one's own to go along, without :data:`EXCLUDES`.

    Yields
    ------
    pathlib.Path
        A temporary folder.

    Raises
    ------
    ConfigError
        It is more than :data:`UPLOAD_LIMIT` bytes; names the largest file.
    """
    with tempfile.TemporaryDirectory(prefix="dcs-job-") as name:
        stage = Path(name)
        if folder is not None:
            _check_size([*_uploaded(folder), config])
            for source in _uploaded(folder):
                target = stage / source.relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        _check_size([config])
        shutil.copyfile(config, stage / config.name)
        yield stage


def _uploaded(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _excluded(name))
        for name in sorted(files):
            path = Path(parent) / name
            if not _excluded(name) and path.is_file():
                yield path


def _excluded(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in EXCLUDES)


def _check_size(paths: Sequence[Path]) -> None:
    sizes = {path: path.stat().st_size for path in paths}
    total = sum(sizes.values())
    if total > UPLOAD_LIMIT:
        largest = max(sizes, key=lambda path: sizes[path])
        raise ConfigError(
            f"{total / 1e6:.1f} MB would be uploaded, {UPLOAD_LIMIT / 1e6:.0f} MB is allowed; the "
            f"largest file is {largest} ({sizes[largest] / 1e6:.1f} MB): put it on a file system "
            "that the nodes share"
        )


def open_jobs(address: str) -> JobSubmissionClient:
    """Reach the job server of a cluster.

    Raises
    ------
    ClusterError
        Nothing answers, it does not let us in, or it runs another version of Ray.
    """
    # Otherwise it depends on files of earlier runs whether Ray sends the token.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    from ray.job_submission import JobSubmissionClient

    try:
        client = JobSubmissionClient(address)
    except ConnectionError as error:
        raise ClusterError(
            f"no Ray job server at {address} ({one_line(error)}); is the tunnel to the head open "
            "and was ray[default] installed there?"
        ) from None
    except Exception as error:
        # Ray raises RuntimeError for refusals and version skew, requests its own for the rest.
        raise ClusterError(f"the Ray job server at {address}: {one_line(error)}") from None
    # What is packed and where it is put is not for the terminal; each has a level of its own.
    for name in ("ray", *_CHATTY):
        logging.getLogger(name).setLevel(logging.WARNING)
    return client


def start_job(client: JobSubmissionClient, config: Path, stage: Path, options: list[str]) -> str:
    """Start ``dcs sweep`` on the cluster and return the id of the job.

    Parameters
    ----------
    client : JobSubmissionClient
        From :func:`open_jobs`.
    config : pathlib.Path
        The sweep.
    stage : pathlib.Path
        From :func:`staged`.
    options : list of str
        Of ``dcs sweep``, without the address.

    Raises
    ------
    ClusterError
        The cluster does not take it.
    """
    command = ["dcs", "sweep", config.name, "--address", "auto", *options]
    until = time.monotonic() + _AGENT_SECONDS
    while True:
        try:
            return client.submit_job(
                entrypoint=shlex.join(command),
                runtime_env={"working_dir": str(stage), "excludes": list(EXCLUDES)},
                # The driver waits most of the time: it needs no CPU of its own.
                entrypoint_num_cpus=0,
            )
        except Exception as error:
            # A head that has just been started says so for some seconds.
            starting = "No available agent" in str(error)
            if starting and time.monotonic() > until:
                raise ClusterError(
                    "the head has no agent that starts jobs; another Ray on that machine may hold "
                    "its port: start the head again with `ray start --head "
                    "--dashboard-agent-listen-port=52366 ...`"
                ) from None
            if not starting:
                raise ClusterError(
                    f"the cluster does not take the job: {one_line(error)}"
                ) from None
        time.sleep(_PAUSE_SECONDS)


def follow_job(client: JobSubmissionClient, job: str, write: Callable[[str], Any]) -> int:
    """Pass on what a job says until it ends, over broken connections too.

    Parameters
    ----------
    client : JobSubmissionClient
        From :func:`open_jobs`.
    job : str
        Its id.
    write : callable
        Takes text.

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
    lost_since: float | None = None
    while True:
        try:
            with warnings.catch_warnings():
                # Ray's own use of aiohttp.
                warnings.simplefilter("ignore", DeprecationWarning)
                written = asyncio.run(_tail(client, job, written, write))
            info = client.get_job_info(job)
            if info.status.is_terminal():
                # The connection may have broken before the last words.
                write(client.get_job_logs(job)[written:])
                return _exit_code(info)
            lost_since = None
        except Exception as error:
            lost_since = lost_since or time.monotonic()
            if time.monotonic() - lost_since > _PATIENCE_SECONDS:
                raise ClusterError(
                    f"job {job} cannot be followed any longer ({one_line(error)}); it goes on: "
                    f"ray job logs --follow {job}"
                ) from error
        time.sleep(_PAUSE_SECONDS)


async def _tail(
    client: JobSubmissionClient, job: str, written: int, write: Callable[[str], Any]
) -> int:
    """Write what comes after the first `written` characters; return the new count."""
    seen = 0
    async for text in client.tail_job_logs(job):
        new = text[max(0, written - seen) :]
        seen += len(text)
        if new:
            write(new)
            written = max(written, seen)
    return max(written, seen)


def _exit_code(info: Any) -> int:
    status = str(info.status.value)
    if status == "SUCCEEDED":
        return 0
    if status == "STOPPED":
        return 143
    code = info.driver_exit_code
    return int(code) if code else 1
