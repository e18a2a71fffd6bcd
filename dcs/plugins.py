"""What other packages add under a name: importers, engines and methods.

A package names what it brings as an entry point of one of `GROUPS`; docs/extending.md has a worked
example of each. Entry points and not a call of ours, because Ray's workers and the command line
have to find the same names without importing anything first. What is built in cannot be replaced:
a package that brings something of the same name is refused wherever that name is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Literal, TypeAlias, TypeVar

from dcs.errors import ConfigError
from dcs.messages import named

__all__ = ["GROUPS", "Group", "find_plugin", "plugin_names", "refuse_shadow"]

Group: TypeAlias = Literal["dcs.importers", "dcs.engines", "dcs.methods"]

#: What an entry point of each group has to be.
GROUPS: Final[dict[Group, str]] = {
    "dcs.importers": "a dcs.data.importers.Importer",
    "dcs.engines": "a class that fulfils dcs.scoring.Scorer",
    "dcs.methods": "a dcs.selection.methods.Method",
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
    return tuple(sorted({point.name for point in entry_points(group=group)}))


def refuse_shadow(group: Group, name: str) -> None:
    """Refuse what an installed package adds under the name of something built in.

    Parameters
    ----------
    group : {"dcs.importers", "dcs.engines", "dcs.methods"}
        What it is.
    name : str
        The name, which is built in.

    Raises
    ------
    ConfigError
        If there is such a package; names it.
    """
    for point in _points(group, tuple(sys.path)):
        if point.name == name:
            raise ConfigError(
                f"{name!r} is built in, and {_origin(point)} adds another to {group}; rename its "
                "entry point, or uninstall that package"
            )


@lru_cache
def _points(group: Group, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points that are installed on `path`: finding them takes a while."""
    return tuple(entry_points(group=group))


def find_plugin(
    group: Group,
    name: str,
    kind: type[_T],
    *,
    lacks: Callable[[_T], Sequence[str]] = lambda found: (),
) -> _T | None:
    """Import what an installed package adds under a name.

    Parameters
    ----------
    group : {"dcs.importers", "dcs.engines", "dcs.methods"}
        What it is.
    name : str
        Its name.
    kind : type
        What it must be an instance of.
    lacks : callable, optional
        Returns what it has not got and needs, in words.

    Returns
    -------
    object or None
        None if no installed package has it.

    Raises
    ------
    ConfigError
        If it cannot be imported, is something else, lacks something, calls itself by another
        name, or two packages have one of that name.
    """
    points = tuple(entry_points(group=group, name=name))
    if not points:
        return None
    if len(points) > 1:
        raise ConfigError(
            f"{name!r} is in {' and in '.join(sorted(map(_origin, points)))}; uninstall one"
        )
    point = points[0]
    try:
        found = point.load()
        missing = lacks(found) if isinstance(found, kind) else ()
    except Exception as error:
        # Somebody else's code, which may fail in any way.
        raise ConfigError(
            f"{name!r} of {_origin(point)} cannot be imported ({named(error)}); "
            "repair or uninstall that package"
        ) from error
    if not isinstance(found, kind):
        raise ConfigError(
            f"{name!r} of {_origin(point)}: {point.value} is {type(found).__name__}; entry points "
            f"of {group} are {GROUPS[group]}"
        )
    if missing:
        raise ConfigError(
            f"{name!r} of {_origin(point)}: {point.value} lacks {' and '.join(missing)}; entry "
            f"points of {group} are {GROUPS[group]}"
        )
    own = getattr(found, "name", name)
    if own != name:
        raise ConfigError(f"{name!r} of {_origin(point)} calls itself {own!r}; use one name")
    return found


def _origin(point: EntryPoint) -> str:
    return point.value if point.dist is None else f"package {point.dist.name!r}"
