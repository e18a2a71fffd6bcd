"""What other packages add under a name: importers, engines and methods.

A package names what it brings as an entry point of one of `GROUPS`; docs/extending.md has a worked
example of each. Entry points and not a call of ours, because Ray's workers and the command line
have to find the same names without importing anything first. What is built in cannot be replaced:
a package that brings something of the same name is refused wherever that name is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Literal, TypeAlias, TypeVar

from dcs.errors import ConfigError, named, unknown

Group: TypeAlias = Literal["dcs.importers", "dcs.engines", "dcs.methods"]

#: What an entry point of each group is called, and has to be.
GROUPS: Final[dict[Group, tuple[str, str]]] = {
    "dcs.importers": ("format", "a dcs.data.importers.Importer"),
    "dcs.engines": ("engine", "a class that fulfils dcs.scoring.Scorer"),
    "dcs.methods": ("method", "a dcs.selection.methods.Method"),
}

_T = TypeVar("_T")


def plugin_names(group: Group) -> tuple[str, ...]:
    """Return the names that installed packages add to a group.

    Parameters
    ----------
    group : {"dcs.importers", "dcs.engines", "dcs.methods"}
        What they are.

    Returns
    -------
    tuple of str
        Sorted; nothing is imported.
    """
    return tuple(sorted({point.name for point in _points(group, tuple(sys.path))}))


@lru_cache
def _points(group: Group, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points that are installed on `path`: finding them takes a while."""
    return tuple(entry_points(group=group))


def find_named(
    group: Group,
    name: str,
    own: Mapping[str, _T],
    kind: type[_T],
    *,
    lacks: Callable[[_T], str],
) -> _T:
    """Return what is built in under a name, or import what an installed package adds under it.

    Parameters
    ----------
    group : {"dcs.importers", "dcs.engines", "dcs.methods"}
        What it is.
    name : str
        Its name.
    own : mapping of str to object
        What is built in.
    kind : type
        What an addition must be an instance of.
    lacks : callable
        Says what an addition has not got and needs; an empty text if there is nothing.

    Raises
    ------
    ConfigError
        If nothing has that name, more than one has it, or the addition cannot be imported, is
        something else, lacks something, or calls itself by another name.
    """
    points = [point for point in _points(group, tuple(sys.path)) if point.name == name]
    owners = [*(["dcs itself"] if name in own else []), *sorted(map(_origin, points))]
    if len(owners) > 1:
        raise ConfigError(
            f"{name!r} of {group} is in {' and '.join(owners)}; rename an entry point, or "
            "uninstall a package"
        )
    if name in own:
        return own[name]
    what, needed = GROUPS[group]
    if not points:
        raise unknown(what, name, (*own, *plugin_names(group)))
    point, where = points[0], f"{name!r} of {owners[0]}"
    try:
        found = point.load()
        missing = lacks(found) if isinstance(found, kind) else ""
    except Exception as error:
        # Somebody else's code, which may fail in any way.
        raise ConfigError(
            f"{where} cannot be imported ({named(error)}); repair or uninstall that package"
        ) from error
    if not isinstance(found, kind):
        fault = f"is {type(found).__name__}"
    elif missing:
        fault = f"lacks {missing}"
    elif (called := getattr(found, "name", name)) != name:
        fault = f"calls itself {called!r}, and not as its entry point"
    else:
        return found
    raise ConfigError(f"{where}: {point.value} {fault}; entry points of {group} are {needed}")


def _origin(point: EntryPoint) -> str:
    return point.value if point.dist is None else f"package {point.dist.name!r}"
