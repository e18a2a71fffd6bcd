"""Plug-ins of other packages: engines and methods.

A package declares its plug-ins as entry points of one of `GROUPS`; docs/extending.md has an
example of each. There is no registration function, because Ray workers and the command line must
find the same names without importing the package first. Built-ins cannot be replaced: a name that
is defined more than once is an error wherever it is used.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

from dcs.errors import ConfigError, DCSError, named, unknown

Group: TypeAlias = Literal["dcs.engines", "dcs.methods"]

#: What an entry point of each group is called in messages, and the type it must have.
GROUPS: Final[dict[Group, tuple[str, str]]] = {
    "dcs.engines": ("engine", "a class that fulfils dcs.scoring.Scorer"),
    "dcs.methods": ("method", "a dcs.selection.methods.Method"),
}

_T = TypeVar("_T")


def start_safely() -> None:
    """Let the processes that this one starts import nothing from the current folder.

    ``python -m`` puts it first on the import path, where any file could replace an installed
    module: of the processes, and of those that they start.
    """
    os.environ["PYTHONSAFEPATH"] = "1"


@lru_cache
def _entry_points(group: Group, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points installed on `path`; cached, since scanning packages is slow."""
    return tuple(entry_points(group=group))


def _points(group: Group, name: str) -> list[EntryPoint]:
    return [point for point in _entry_points(group, tuple(sys.path)) if point.name == name]


def plugin_version(group: Group, name: str) -> str | None:
    """Return what identifies the code of a plug-in; None for a built-in.

    Parameters
    ----------
    group : {"dcs.engines", "dcs.methods"}
        Group of entry points.
    name : str
        Name of the plug-in.

    Returns
    -------
    str or None
        Version of its package, and a digest of the sources of the module or package in which it
        is, whose version may stay the same while it is edited.
    """
    for point in _points(group, name):
        found = find_spec(point.module.partition(".")[0])
        places = found and (found.submodule_search_locations or [str(found.origin)])
        version = point.dist.version if point.dist else "unknown"
        return f"{version} {source_digest(*map(Path, places or ()))}"
    return None


@contextmanager
def naming_plugin(group: Group, name: str) -> Iterator[None]:
    """Let an error that a plug-in raises name it."""
    try:
        yield
    except DCSError:
        raise
    except Exception as error:
        for point in _points(group, name):
            what = f"{GROUPS[group][0]} {name!r} of {_describe_origin(point)}"
            raise ConfigError(f"{what} failed: {named(error)}") from error
        raise


def source_digest(*places: Path) -> str:
    """Return a short hash of the source files of modules and packages."""
    digest = hashlib.sha256()
    for place in places:
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(path.relative_to(place.parent).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def find_named(group: Group, name: str, own: Mapping[str, _T], kind: type[_T]) -> _T:
    """Return the built-in of a given name, or import the plug-in of that name.

    Parameters
    ----------
    group : {"dcs.engines", "dcs.methods"}
        Group of entry points.
    name : str
        Name of the built-in or plug-in.
    own : mapping of str to object
        Built-ins by name.
    kind : type
        Type that a plug-in must be an instance of.

    Raises
    ------
    ConfigError
        If the name does not exist or is not unique, or the plug-in cannot be imported, is of
        another type, or has another name than its entry point.
    """
    points = _points(group, name)
    owners = [*(["dcs itself"] if name in own else []), *sorted(map(_describe_origin, points))]
    if len(owners) > 1:
        both = " and ".join(owners)
        raise ConfigError(f"{name!r} of {group} is defined by {both}; uninstall one package")
    if name in own:
        return own[name]
    what, needed = GROUPS[group]
    if not points:
        installed = {each.name for each in _entry_points(group, tuple(sys.path))}
        raise unknown(what, name, (*own, *sorted(installed)))
    point, where = points[0], f"{name!r} of {owners[0]}"
    try:
        found = point.load()
    except Exception as error:
        # Third-party code may raise anything.
        raise ConfigError(
            f"{where} cannot be imported ({named(error)}); repair or uninstall that package"
        ) from error
    if not isinstance(found, kind):
        fault = f"is {type(found).__name__}"
    elif (called := getattr(found, "name", name)) != name:
        fault = f"is named {called!r}, unlike its entry point"
    else:
        return found
    raise ConfigError(f"{where}: {point.value} {fault}; {group} entry points must be {needed}")


def _describe_origin(point: EntryPoint) -> str:
    return point.value if point.dist is None else f"package {point.dist.name!r}"
