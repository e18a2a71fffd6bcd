"""Where a result comes from: source revision, package versions, platform."""

from __future__ import annotations

import getpass
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = (
    "dcs-debias",
    "numpy",
    "numba",
    "pyarrow",
    "torch",
    "transformers",
    "vllm",
    "ray",
    "optuna",
    "mlflow",
)


def collect_provenance(**extra: Any) -> dict[str, Any]:
    """Return what a record should say about the software that made it.

    Parameters
    ----------
    **extra
        Added as it is, for example ``seeds={"split": 1, "annealing": 2}``.

    Returns
    -------
    dict
        ``git_commit`` (None outside a checkout), ``python``, ``platform``, ``packages``, and
        `extra`.
    """
    return {
        "git_commit": git_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": dict(_versions()),
        **extra,
    }


@cache
def git_commit() -> str | None:
    """Return the revision of the checkout this package runs from, or None."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    try:
        result = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None


@cache
def user_name() -> str:
    """Return the name of the user, or ``unknown`` where the system has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown"


@cache
def _versions() -> Mapping[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
