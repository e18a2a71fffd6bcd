"""``dcs store``: the prompts that have been scored."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dcs.scoring.cache import ShardStore

__all__ = ["group"]

group = typer.Typer(help="Look after the prompts that have been scored.", no_args_is_help=True)

Place = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="PLACE",
        help="The store: a folder, or a URL such as s3://bucket/dcs.",
    ),
]
_PLACE = "dcs-runs/shards"


@group.command()
def ls(store: Place = _PLACE) -> None:
    """List the groups: prompts that differ in the query alone."""
    from workflows.cli._console import console, new_table

    place = _opened(store)
    groups = place.groups()
    table = new_table("group ", "model ", "scorer ", "prompts", "shards", "KiB", "written ")
    for info in groups:
        revision = str(info.settings.get("revision") or "")
        table.add_row(
            info.key[:12],
            " ".join(part for part in (info.settings.get("_model"), revision[:16]) if part),
            str(info.settings.get("scorer", "")),
            str(info.rows),
            str(info.shards),
            f"{info.size / 1024:.0f}",
            _when(info.modified),
        )
    console.print(table)
    console.print(
        f"{len(groups)} groups, {sum(info.rows for info in groups)} prompts in {place.url}",
        highlight=False,
        soft_wrap=True,
    )


@group.command()
def show(
    name: Annotated[
        str, typer.Argument(metavar="GROUP", help="Name of a group, or how it begins.")
    ],
    store: Place = _PLACE,
) -> None:
    """Print what decides the probabilities of a group, prompt and label words included."""
    import json

    info = _opened(store).info(name)
    settings = dict(info.settings)
    prefix = settings.pop("prefix", "")
    typer.echo(f"group {info.key}: {info.rows} prompts in {info.shards} shards")
    typer.echo(json.dumps(settings, indent=1, ensure_ascii=False))
    typer.echo(f"the prompts begin with:\n{prefix}")


@group.command()
def verify(store: Place = _PLACE) -> None:
    """Check every file against its hash; exit code 1 if one is damaged."""
    from workflows.cli._console import console

    place = _opened(store)
    with console.status("checking"):
        problems = place.verify()
    for line in problems:
        typer.echo(line)
    typer.echo(f"{len(problems)} damaged files in {place.url}")
    if problems:
        typer.echo(
            "next: dcs store gc removes damaged shards; their prompts are scored again when needed"
        )
        raise typer.Exit(1)


@group.command()
def gc(
    store: Place = _PLACE,
    older_than: Annotated[
        float | None,
        typer.Option(
            min=0.0, metavar="DAYS", help="Also groups last written to so many days ago."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="GROUP", help="Also this group; repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Remove half-written and damaged files, and shards that others cover."""
    place = _opened(store)
    removed = place.collect(
        older_than=None if older_than is None else older_than * 86400.0,
        keys=only or (),
        dry_run=dry_run,
    )
    for name in removed:
        typer.echo(name)
    typer.echo(f"{len(removed)} files {'would be ' if dry_run else ''}removed from {place.url}")


def _opened(store: str) -> ShardStore:
    """Return a store that is there: an empty answer for a mistyped folder would mislead."""
    from dcs.errors import ConfigError
    from dcs.scoring.cache import ShardStore

    if "://" not in store and not Path(store).is_dir():
        raise ConfigError(
            f"--store {store}: no such folder; dcs generate and dcs sweep make one, by default "
            "shards in their --output"
        )
    return ShardStore(store)


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M") if seconds else "?"
