"""Provenance of results: sources, package versions, platform."""

from __future__ import annotations

import getpass
import platform
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dcs import plugins

DISTRIBUTION = "dcs-debias"
_SOURCES = ("dcs", "dcs_tracking", "dcs_workflows")
_NUMERICAL = ("numpy", "scipy", "numba", "scikit-learn", "pandas", "pyarrow")
_ENGINES = ("torch", "transformers", "tokenizers", "vllm")
#: Packages that may affect results.
_PACKAGES = (*_NUMERICAL, *_ENGINES, "ray", "optuna", "mlflow")


def collect_provenance(**extra: Any) -> dict[str, Any]:
    """Return the provenance of a record: the software that computes it.

    Parameters
    ----------
    **extra
        Added unchanged, for example ``seeds={"split": 1, "annealing": 2}``.

    Returns
    -------
    dict
        ``sources`` (hash of the source files), ``python``, ``platform``, ``packages``
        (versions of those installed that may affect results), and `extra`.
    """
    return {
        "sources": own_digest(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {DISTRIBUTION: installed_version(), **_versions()},
        **extra,
    }


def installed_version() -> str:
    """Return the version of this package, or ``not installed``."""
    return _versions().get(DISTRIBUTION, "not installed")


@cache
def import_folders() -> tuple[Path, ...]:
    """Return the folders of the packages: side by side if installed, apart in a checkout."""
    specs = (find_spec(name) for name in _SOURCES)
    return tuple(Path(spec.origin).parent.resolve() for spec in specs if spec and spec.origin)


@cache
def own_digest() -> str:
    """Return a short hash of the installed source files of this package."""
    return plugins.source_digest(*import_folders())


@cache
def _versions() -> Mapping[str, str]:
    found = {}
    for name in (DISTRIBUTION, *_PACKAGES):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@cache
def user_name() -> str:
    """Return the name of the user, or ``unknown`` if the system has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
