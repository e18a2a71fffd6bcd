"""What `dcs doctor` looks at on the machine: Python, packages, variables, memory, disk."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from dcs._messages import reason

__all__ = [
    "Finding",
    "Status",
    "check_environment",
    "check_machine",
    "check_output",
    "check_packages",
    "check_python",
]

Status = Literal["ok", "warning", "failure"]

_DISTRIBUTION = "dcs-debias"
_TESTED_PYTHON = (3, 11)
#: Room on the disk: below the first nothing can be written for long, below the second a sweep not.
_NO_ROOM, _LITTLE_ROOM = 100e6, 5e9
#: Where the system keeps memory that processes share; nothing is written there.
_SHARED_MEMORY = Path("/dev/shm")  # nosec B108
_SMALL_SHARED_MEMORY = 1e9


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes
    ----------
    name : str
        What was looked at.
    status : "ok", "warning" or "failure"
        Whether it serves, may surprise, or stops the work.
    text : str
        What was found.
    fix : str
        What to do, empty where nothing need be done.
    """

    name: str
    status: Status
    text: str
    fix: str = ""


def check_python(running: tuple[int, int, int]) -> Finding:
    """Compare a Python version with the one this is tested on."""
    text = ".".join(map(str, running))
    tested = ".".join(map(str, _TESTED_PYTHON))
    if running[:2] < _TESTED_PYTHON:
        return Finding(
            "python", "failure", f"{text} is too old", f"make the environment with python{tested}"
        )
    if running[:2] > _TESTED_PYTHON:
        return Finding(
            "python",
            "warning",
            f"{text}, tested with {tested}",
            f"if something fails that should not, make the environment with python{tested}",
        )
    return Finding("python", "ok", f"{text} on {platform.platform(terse=True)}")


def check_packages(
    requirements: list[str] | None = None, installed: Callable[[str], str] = version
) -> list[Finding]:
    """Compare the installed packages with the ranges that this distribution asks for.

    Parameters
    ----------
    requirements : list of str, optional
        As in the metadata of a distribution; by default those of this one.
    installed : callable
        Gives the version of a package, or raises PackageNotFoundError.
    """
    from packaging.requirements import Requirement

    if requirements is None:
        try:
            requirements = requires(_DISTRIBUTION) or []
        except PackageNotFoundError:
            return [
                Finding(
                    "packages",
                    "failure",
                    f"{_DISTRIBUTION} is not installed here, its files are merely on the path",
                    "pip install --constraint constraints.txt --editable .",
                )
            ]
    findings = []
    met = 0
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        wanted = f"{requirement.name}{requirement.specifier}"
        try:
            found = installed(requirement.name)
        except PackageNotFoundError:
            findings.append(
                Finding(
                    "packages",
                    "failure",
                    f"{requirement.name} is not installed",
                    f"pip install '{wanted}'",
                )
            )
            continue
        if requirement.specifier.contains(found, prereleases=True):
            met += 1
        else:
            findings.append(
                Finding(
                    "packages",
                    "failure",
                    f"{requirement.name} {found} is outside of the range {requirement.specifier}",
                    f"pip install '{wanted}'",
                )
            )
    if not findings:
        findings.append(Finding("packages", "ok", f"all {met} within their ranges"))
    return [*findings, *_untested(installed)]


def _untested(installed: Callable[[str], str]) -> Iterator[Finding]:
    """Compare the engines with the tested set, which lies beside the code in a checkout."""
    path = Path(__file__).resolve().parents[1] / "constraints.txt"
    if not path.is_file():
        return
    pins = dict(
        line.split("==") for line in path.read_text(encoding="utf-8").split() if "==" in line
    )
    other = []
    for name in ("ray", "optuna", "mlflow", "numpy", "numba", "pyarrow", "torch", "transformers"):
        try:
            found = installed(name).partition("+")[0]
        except PackageNotFoundError:
            continue
        if name in pins and found.split(".")[:2] != pins[name].split(".")[:2]:
            other.append(f"{name} {found} (tested {pins[name]})")
    if other:
        yield Finding(
            "packages",
            "warning",
            f"other versions than the tested set: {', '.join(other)}",
            "if something fails that should not: pip install --constraint constraints.txt .",
        )


def check_environment(variables: Mapping[str, str]) -> list[Finding]:
    """Name environment variables that change what happens; values are not shown."""
    surprising = {
        "MLFLOW_RUN_ID": "MLflow puts new runs under that one; unset it",
        "MLFLOW_EXPERIMENT_ID": "unset it; experiments are named after sweeps",
        "MLFLOW_EXPERIMENT_NAME": "unset it; experiments are named after sweeps",
        "MLFLOW_TRACKING_URI": "commands record in --output unless --tracking-uri is given",
        "NUMBA_DISABLE_JIT": "searches take a thousand times as long; unset it",
        "PYTHONOPTIMIZE": "untested; unset it",
        "RAY_LOCAL_MODE": "untested; unset it",
    }
    findings = [
        Finding("environment", "warning", f"{name} is set", fix)
        for name, fix in surprising.items()
        if variables.get(name)
    ]
    if variables.get("RAY_ADDRESS"):
        findings.append(
            Finding(
                "environment",
                "warning",
                "RAY_ADDRESS is set",
                "dcs sweep uses it with --address auto only; unset it, or give --address auto",
            )
        )
    mode = variables.get("RAY_AUTH_MODE")
    token = variables.get("RAY_AUTH_TOKEN") or variables.get("RAY_AUTH_TOKEN_PATH")
    if mode == "disabled":
        findings.append(
            Finding(
                "environment",
                "warning",
                "RAY_AUTH_MODE=disabled: whoever reaches Ray's ports runs code as you",
                "unset it, or set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN",
            )
        )
    elif mode == "token" and not token and not (Path.home() / ".ray" / "auth_token").exists():
        findings.append(
            Finding(
                "environment",
                "warning",
                "RAY_AUTH_MODE=token without RAY_AUTH_TOKEN: no cluster lets us in",
                "set RAY_AUTH_TOKEN to the token of the cluster; this machine alone needs none",
            )
        )
    if variables.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        findings.append(
            Finding(
                "environment",
                "warning",
                "CUDA_VISIBLE_DEVICES hides all GPUs",
                "unset it if there is one to be used",
            )
        )
    return findings or [Finding("environment", "ok", "no variable that changes what happens")]


def check_machine(shared_memory: Path = _SHARED_MEMORY) -> list[Finding]:
    """Look at processors, memory, and the memory that Ray's processes share."""
    from dcs._reading import memory_bound

    text = f"{os.cpu_count()} CPUs, tables up to {memory_bound() / 2**30:.1f} GiB are read"
    findings = [Finding("machine", "ok", text)]
    if shared_memory.is_dir():
        size = shutil.disk_usage(shared_memory).total
        if size < _SMALL_SHARED_MEMORY:
            findings.append(
                Finding(
                    "machine",
                    "warning",
                    f"{shared_memory} has {size / 1e6:.0f} MB, and Ray keeps tables there",
                    "in a container: docker run --shm-size=4g",
                )
            )
    return findings


def check_output(output: Path, *, now: Callable[[], float] = time.time) -> list[Finding]:
    """See that a folder can be written to, with locks, has room, and is not of the future."""
    folder = output.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    choose = "choose another folder with --output"
    try:
        with tempfile.TemporaryDirectory(prefix=".dcs-doctor-", dir=folder) as name:
            probe = Path(name) / "probe"
            _use(probe)
            ahead = probe.stat().st_mtime - now()
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return [Finding("output", "failure", f"{output}: {reason(error)}", choose)]
    newest = max((p.stat().st_mtime for p in output.glob("cells/*.json")), default=0.0) - now()
    findings = []
    if max(ahead, newest) > 60.0:
        findings.append(
            Finding(
                "output",
                "warning",
                f"{output}: files there are {max(ahead, newest):.0f} s ahead of the clock",
                "set the clock; times in MLflow would run backwards",
            )
        )
    room = f"{usage.free / 1e9:.1f} GB free"
    if usage.free < _NO_ROOM:
        return [*findings, Finding("output", "failure", f"{output}: {room}", "make room")]
    if usage.free < _LITTLE_ROOM:
        return [*findings, Finding("output", "warning", f"{output}: {room}", "make room soon")]
    return [*findings, Finding("output", "ok", f"{output}: can be written, {room}")]


def _use(probe: Path) -> None:
    """Write, replace, flush and lock a file as the outbox and the store do."""
    from dcs._files import atomic_write_bytes

    for content in (b"a", b"b"):
        atomic_write_bytes(probe, content)
    if sys.platform != "win32":
        import fcntl

        with probe.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
