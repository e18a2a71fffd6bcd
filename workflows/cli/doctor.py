"""``dcs doctor``: versions, disk, MLflow, GPUs and Ray, each tried by using it.

A check says what it found, and raises DCSError with what to do where something does not work.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import distributions, requires
from pathlib import Path
from typing import Annotated

import typer

from dcs.errors import DCSError
from dcs.io import atomic_write_bytes
from dcs.messages import last_line, named, reason, redact
from workflows.cli import options
from workflows.cli.console import console
from workflows.cli.plugins import installed

__all__ = ["doctor"]

_LEAST_ROOM = 1e9
_RAY_SECONDS = 90.0
_RAY_TASK = """
from workflows.cluster.connect import connected
with connected():
    import ray
    ray.get(ray.remote(lambda: None).remote())
"""


def doctor(
    output: options.Output = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
    quick: Annotated[bool, typer.Option("--quick", help="Do not look at GPUs and Ray.")] = False,
) -> None:
    """Check versions, disk, MLflow, plug-ins, GPUs and Ray by using them, and say what to do.

    Exit code 1 if one of them fails. Nothing is changed.

    Example: `dcs doctor --quick --tracking-uri http://127.0.0.1:5000`
    """
    checks: dict[str, Callable[[], str]] = {
        "versions": check_versions,
        "disk": lambda: check_disk(output),
        "mlflow": lambda: check_store(tracking_uri, output),
        "plug-ins": lambda: ", ".join(installed()) or "none installed",
    }
    if not quick:
        checks |= {"gpu": check_gpu, "ray": check_ray}
    healthy = True
    for name, check in checks.items():
        passed, text = result_of(check)
        healthy &= passed
        sign, style = ("ok", "green") if passed else ("failure", "red")
        console.print(f"{sign} {name}: {text}", style=style)
    if not healthy:
        raise SystemExit(1)


def result_of(check: Callable[[], str]) -> tuple[bool, str]:
    """Return whether a check passes, and on one line what it found."""
    try:
        return True, check()
    except DCSError as error:
        return False, redact(str(error))
    except Exception as error:  # A broken installation; the other checks still tell more.
        return False, redact(named(error))


def check_versions(requirements: list[str] | None = None) -> str:
    """Compare the installed packages with `requirements`, by default those of this one."""
    from packaging.requirements import Requirement

    wrong = []
    for wanted in map(Requirement, requirements or requires("dcs-debias") or []):
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            found = next((each.version for each in distributions(name=wanted.name)), "none")
            if found == "none" or not wanted.specifier.contains(found, prereleases=True):
                wrong.append(f"{wanted.name}{wanted.specifier} (found {found})")
    if wrong:
        raise DCSError(f"needed: {', '.join(wrong)}; pip install --constraint constraints.txt .")
    return f"Python {platform.python_version()}, all packages within their ranges"


def check_disk(output: Path) -> str:
    """Write to the folder of the results, or to where it would be made, and leave nothing."""
    folder = output.absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryDirectory(prefix=".dcs-doctor-", dir=folder) as name:
            atomic_write_bytes(Path(name) / "probe", b"x")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise DCSError(f"{output}: {reason(error)}; choose another --output") from None
    if free < _LEAST_ROOM:
        raise DCSError(f"{output}: only {free / 1e6:.0f} MB free; make room")
    return f"{output}: writable, {free / 1e9:.1f} GB free"


def check_store(tracking_uri: str | None, output: Path) -> str:
    """Open the MLflow store that runs would be recorded in, without making one."""
    from tracking import resolve_tracking_uri
    from tracking.store.client import open_client

    uri = resolve_tracking_uri(tracking_uri, output)
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        return f"{uri}: made by the first run"
    return f"{redact(uri)}: {len(open_client(uri).search_experiments())} experiments"


def check_gpu() -> str:
    """Add on each GPU that torch names."""
    import torch

    names = []
    for index in range(torch.cuda.device_count()):
        names.append(torch.cuda.get_device_properties(index).name)
        try:
            torch.ones(8, device=f"cuda:{index}").sum().item()
        except RuntimeError as error:
            raise DCSError(
                f"cuda:{index} ({names[-1]}): {reason(error)}; see what else uses it "
                "(nvidia-smi), or hide it with CUDA_VISIBLE_DEVICES"
            ) from None
    if not names and Path("/proc/driver/nvidia/version").exists():
        return f"none that torch {torch.__version__} can use; install the build for your CUDA"
    return ", ".join(names) or "none; models run on the CPU"


def check_ray() -> str:
    """Start Ray in a process of its own, run a task and stop it."""
    command = [sys.executable, "-c", _RAY_TASK]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=_RAY_SECONDS, check=True)
    except subprocess.SubprocessError as error:
        said = last_line(getattr(error, "stderr", None) or str(error))
        raise DCSError(f"{said}; see /tmp/ray/session_latest/logs") from None
    return "starts and runs a task"
