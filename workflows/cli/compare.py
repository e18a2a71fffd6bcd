"""``dcs compare``: two cells side by side in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workflows.cli._options import Runs, TrackingUri, recorded_store

if TYPE_CHECKING:
    from rich.table import Table

    from tracking.results.comparison import ComparedRow

__all__ = ["compare"]

_RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run id or a cell key, or how it begins; the report and dcs ui list them.",
    ),
]


def compare(
    first: _RunName,
    second: _RunName,
    runs: Runs = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
) -> None:
    """Compare two runs: what differs in them, what they reached, and their schemes in words."""
    from tracking import Archive
    from tracking.results.comparison import compare_records
    from tracking.store.queries import find_cell
    from workflows.cli._console import console

    uri = recorded_store(runs, tracking_uri)
    archive = Archive(runs)
    with console.status("reading the runs"):
        cells = [find_cell(uri, name, archive=archive) for name in (first, second)]
    comparison = compare_records(*(cell.record for cell in cells))
    names = [cell.run_id[:8] for cell in cells]
    if cells[0].run_id == cells[1].run_id:
        console.print("[yellow]both names are of the same run[/yellow]")
    for title, rows in (
        ("Settings that differ", comparison.settings),
        ("Results", comparison.results),
        ("Class accuracies, % of test rows", comparison.classes),
        ("Schemes", comparison.schemes),
    ):
        if rows:
            console.print()
            console.print(f"[bold]{title}[/bold]")
            console.print(_table(names, rows))


def _table(names: list[str], rows: tuple[ComparedRow, ...]) -> Table:
    from rich.text import Text

    from workflows.cli._console import new_table

    # Only figures have a difference; words are read from the left.
    figures = any(row.difference for row in rows)
    heads = names if figures else [f"{name} " for name in names]
    table = new_table(" ", *heads, *(["difference"] if figures else []))
    for row in rows:
        style = {True: "green", False: "red", None: ""}[row.better]
        table.add_row(
            row.name,
            row.first,
            row.second,
            *([Text(row.difference, style=style)] if figures else []),
        )
    return table
