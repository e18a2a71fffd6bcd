"""``dcs runs``: what was run, and the cell that a person names."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.style import Style
from rich.text import Text

from dcs.errors import DCSError
from dcs.evaluation.formatting import percent
from workflows.cli import options
from workflows.cli.console import console, new_table, width_of

if TYPE_CHECKING:
    import pandas as pd

    from tracking import CellRecord
    from tracking.records import StoredCell

__all__ = ["RunName", "find_cell", "find_record", "link_to", "runs"]

RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A cell key or run id, or how it begins; the name of a run; or the best one, e.g. "
        "best:test/cobias<5. `dcs runs` lists them.",
    ),
]

_HEADS = {"test/accuracy": "accuracy ↑", "test/cobias": "COBias ↓"}


def runs(
    sweep: Annotated[
        str | None,
        typer.Argument(metavar="[SWEEP]", help="Name of a sweep, e.g. tune; by default all."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="Only such cells: method=dcs, or 'test/cobias<5' (in percent); repeatable.",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(metavar="METRIC", help="Best first by a metric, e.g. test/cobias."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with every metric as it is recorded.")
    ] = False,
    output: options.Runs = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
) -> None:
    """List the cells that are recorded: key, name, result, and the link to MLflow.

    Example: `dcs runs quickstart --where method=dcs --sort test/cobias`
    """
    from tracking.store import queries

    uri = options.recorded_store(output, tracking_uri)
    with console.status("reading the runs"):
        found = queries.matching(queries.cells(uri, sweep), where or ())
    if sort is not None:
        found = queries.best_first(found, sort)
    found = found.assign(link=[queries.run_link(uri, row) for row in found.itertuples()])
    if as_json:
        typer.echo(
            found.to_json(orient="records", indent=2, date_format="iso", double_precision=15)
        )
        return
    metrics = dict.fromkeys([*_HEADS, *([sort] if sort else [])])
    names = ["name"] if sweep else ["sweep", "name"]
    if len(found):
        _show(found, names, [name for name in metrics if found[name].dtype.kind == "f"])
    number = f"{len(found):,} cell{'' if len(found) == 1 else 's'}"
    console.print(f"{number}; dcs ui --output {output} makes the links work")


def _show(found: pd.DataFrame, names: list[str], metrics: list[str]) -> None:
    """Print a line for each cell, with its link where that fits or nobody reads along."""
    from tracking.store.queries import is_share

    head = ["key ", *(f"{name} " for name in names), *(_HEADS.get(m, m) for m in metrics)]
    narrow, wide = new_table(*head), new_table(*head, "link ")
    for row in found.to_dict("records"):
        failed = row["status"] != "FINISHED"
        row["name"] += f" ({row['status'].lower()})" if failed else ""
        figures = {m: "" if isnan(row[m]) else f"{row[m]:.4g}" for m in metrics}
        figures |= {m: percent(row[m]) for m in metrics if is_share(m)}
        cells = [Text(row["cell_key"][:8], Style(link=row["link"])), *(row[n] for n in names)]
        for table, more in ((narrow, []), (wide, [row["link"]])):
            table.add_row(*cells, *figures.values(), *more, style="red" if failed else "")
    width, own = console.width, width_of(wide)
    if not console.is_terminal:
        console.width = own
    console.print(wide if own <= console.width else narrow, soft_wrap=False)
    console.width = width


def find_cell(name: str, folder: Path, tracking_uri: str | None) -> StoredCell:
    """Return the cell of a `RunName` and its run in the store; raises as `queries.find_cell`."""
    from tracking import Archive
    from tracking.store.queries import find_cell as find

    uri = options.recorded_store(folder, tracking_uri)
    with console.status("reading the runs"):
        return find(uri, name, archive=Archive(folder))


def find_record(name: str, folder: Path, tracking_uri: str | None) -> CellRecord:
    """Return the cell of a `RunName`, from the disk alone where its key is of a file there."""
    from tracking import Archive

    archive = Archive(folder)
    paths = archive.cells.glob("[!.]*.json")
    if len(keys := [path.stem for path in paths if path.stem.startswith(name)]) == 1:
        return archive.read(keys[0])
    return find_cell(name, folder, tracking_uri).record


def link_to(key: str, folder: Path, tracking_uri: str | None) -> str:
    """Return a cell's key and link for people, without the link while it is in no store."""
    from tracking.store.queries import run_link

    try:
        cell = find_cell(key, folder, tracking_uri)
        return f"cell {key[:8]}: {run_link(options.recorded_store(folder, tracking_uri), cell)}"
    except DCSError:
        return f"cell {key[:8]}"
