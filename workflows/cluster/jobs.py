"""Handing a sweep to a cluster as a Ray job, and following it to its end."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dcs.messages import one_line
from workflows.cluster.connect import ClusterError

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

__all__ = ["follow_job", "open_jobs", "start_job"]

#: Names that are never uploaded: hidden files, which may hold keys, and what is made by running.
_EXCLUDES = (".*", "__pycache__", "*.egg-info", "dcs-runs", "mlruns", "mlartifacts", "*.db")
_PATIENCE_SECONDS = 120.0
#: A head that has just been started takes no jobs for some seconds.
_AGENT_SECONDS = 60.0
_PAUSE_SECONDS = 2.0


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
    except Exception as error:  # ConnectionError, RuntimeError, or what requests raises.
        raise ClusterError(
            f"the Ray job server at {address} cannot be used: {one_line(error)}; is the tunnel to "
            "the head open, and is ray[default] installed there?"
        ) from None
    for name in ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return client


def start_job(
    client: JobSubmissionClient,
    config: Path,
    options: Sequence[str],
    *,
    working_dir: Path | None = None,
) -> str:
    """Start ``dcs sweep`` on the cluster and return the id of the job.

    Parameters
    ----------
    client : JobSubmissionClient
        From :func:`open_jobs`.
    config : pathlib.Path
        The sweep; uploaded.
    options : sequence of str
        Of ``dcs sweep``, without the address.
    working_dir : pathlib.Path, optional
        A folder of files to upload too, hidden ones and results apart.

    Raises
    ------
    ClusterError
        The cluster does not take it, or it is more than Ray uploads (100 MiB).
    """
    command = ["dcs", "sweep", config.name, "--address", "auto", *options]
    until = time.monotonic() + _AGENT_SECONDS
    with tempfile.TemporaryDirectory(prefix="dcs-job-") as stage:
        if working_dir is not None:
            ignored = shutil.ignore_patterns(*_EXCLUDES)
            shutil.copytree(working_dir, stage, ignore=ignored, dirs_exist_ok=True)
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
