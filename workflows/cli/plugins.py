"""Packages of one's own: what is installed, listed in help, and ``dcs new-plugin``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from string import Template
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from dcs.errors import ConfigError
from dcs.io import atomic_write_text
from dcs.plugins import Group, plugin_names
from workflows.cli.console import console

__all__ = ["installed", "listing", "new_plugin"]

_TEMPLATES = Path(__file__).parents[1] / "templates"

#: Group and object of each kind of plug-in, and how it is used.
_KINDS: dict[str, tuple[Group, str, str]] = {
    "method": ("dcs.methods", "METHOD", "dcs tune TABLE --method {}"),
    "importer": ("dcs.importers", "IMPORTER", "dcs import {} FILE -o table.parquet"),
    "engine": ("dcs.engines", "Scorer", "dcs generate --engine {} --task helpdesk"),
}


def new_plugin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What people will type.")],
    kind: Annotated[
        Literal["method", "importer", "engine"], typer.Option(help="What the package brings.")
    ] = "method",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="A new folder.", show_default="dcs-NAME"
        ),
    ] = None,
) -> None:
    """Write a package that adds a method, an importer or an engine, with a test that passes.

    Example: `dcs new-plugin quotas`, then `pip install -e dcs-quotas`
    """
    group, point, usage = _KINDS[kind]
    package = f"dcs-{name}"
    module, folder = package.replace("-", "_"), output or Path(package)
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise ConfigError(f"NAME {name!r}: use small letters, digits and single hyphens")
    if name in (*(one.name for one in _built_in(group)), *plugin_names(group)):
        raise ConfigError(f"NAME {name!r}: there is such a {kind} already; choose another")
    if folder.exists():
        raise ConfigError(f"{folder}: is there already; choose another --output")
    words = {"name": name, "package": package, "module": module, "title": name.title()}
    words |= {"kind": kind, "group": group, "point": point}
    files = {"pyproject.toml": "pyproject.toml", f"{module}.py": f"{kind}.py"}
    files |= {f"tests/test_{module}.py": f"test_{kind}.py"}
    for target, template in files.items():
        text = (_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
        atomic_write_text(folder / target, Template(text).substitute(words))
    console.print(f"{folder}: {', '.join(files)}")
    console.print(f"next: pip install -e {folder}, pytest {folder}", style="bold")
    console.print(f"then: {usage.format(name)}", style="bold")


def _built_in(group: Group) -> tuple[Any, ...]:
    """Return what is built in under a group, each with a name and a summary."""
    if group == "dcs.importers":
        from dcs.data.importers import IMPORTERS

        return IMPORTERS
    if group == "dcs.methods":
        from dcs.selection.methods import BASELINES, METHODS

        return (*METHODS, *BASELINES)
    from dcs.scoring import SUMMARIES

    return tuple(SimpleNamespace(name=name, summary=text) for name, text in SUMMARIES.items())


def installed() -> Iterator[str]:
    """Import what installed packages bring, and yield what each is."""
    from dcs.data.importers import find_importer
    from dcs.scoring import engine_class
    from dcs.selection.methods import get_method

    find = {"dcs.methods": get_method, "dcs.importers": find_importer, "dcs.engines": engine_class}
    for kind, (group, *_) in _KINDS.items():
        for name in plugin_names(group):
            find[group](name)
            yield f"{kind} {name}"


def listing(head: str, group: Group, *, but: tuple[str, ...] = ()) -> type[TyperCommand]:
    """Return a command whose help ends with the names of a group, imported for that alone."""

    class ListingCommand(TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            """Write the help."""
            own = {one.name: one.summary for one in _built_in(group) if one.name not in but}
            added = dict.fromkeys(plugin_names(group), "of a package that is installed")
            refused = dict.fromkeys(
                own.keys() & added.keys(), "built in, and refused as a plug-in"
            )
            lines = [
                f"* **{_plain(name)}**: {_plain(text)}"
                for name, text in (own | added | refused).items()
            ]
            self.help = "\n\n".join((self.help or "", head, "\n".join(lines)))
            super().format_help(ctx, formatter)

    return ListingCommand


def _plain(text: str) -> str:
    """Return text as Markdown that shows it as it is."""
    return re.sub(r"([<_*\[])", r"\\\1", text.replace("`", ""))
