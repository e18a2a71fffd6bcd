"""What came of it: ``dcs report``, ``table``, ``compare``, ``register`` and ``ui``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dcs.errors import TrackingError
from dcs.io import atomic_write_bytes, atomic_write_text
from workflows.cli.console import console, new_table
from workflows.cli.options import (
    RunName,
    Runs,
    TrackingUri,
    recorded_cell,
    recorded_store,
)

if TYPE_CHECKING:
    from tracking.records import StoredCell

__all__ = ["compare", "register_model", "report", "table", "ui"]

Experiment = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="Name of the sweep: quickstart, tune, ...")
]


def report(
    experiment: Experiment,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The HTML file to write.")
    ] = Path("report.html"),
    runs: Annotated[
        Path,
        typer.Option(
            "--runs",
            metavar="FOLDER",
            help="Folder of the results, the --output of what made them.",
        ),
    ] = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
    ui: Annotated[
        str | None,
        typer.Option(
            "--ui",
            metavar="URL",
            help="Where MLflow's pages are, for the links; by default where dcs ui opens them.",
        ),
    ] = None,
    files: Annotated[
        Path | None,
        typer.Option(
            "--files",
            metavar="DIR",
            help="Also write every table (Markdown, LaTeX, CSV, JSON) and figure (PNG, SVG) here.",
        ),
    ] = None,
    log: Annotated[
        bool, typer.Option("--log/--no-log", help="Keep the report in MLflow, on the sweep's run.")
    ] = True,
) -> None:
    """Write the report of a sweep: tables, figures, schemes in words, links to MLflow.

    One file that needs no network, with the paper's figures beside the measured ones where the
    paper has them.
    """
    from tracking.results.figures import sweep_figures
    from tracking.results.report import render_report
    from tracking.results.tables import all_tables
    from tracking.store.client import redact
    from tracking.store.queries import log_report, run_link

    uri, cells = _recorded(experiment, runs, tracking_uri)
    records = [cell.record for cell in cells if cell.record.finished]
    with console.status("writing the report"):
        page = render_report(
            cells,
            title=experiment,
            link=lambda cell: run_link(uri, cell, ui=ui),
            store=redact(uri),
        )
        atomic_write_text(output, page)
        if log:
            log_report(uri, experiment, page)
        if files is not None:
            for each in all_tables(records):
                each.write(files)
            for name, content in sweep_figures(records).items():
                atomic_write_bytes(files / Path(name).name, content)
    also = "" if files is None else f", tables and figures in {files}"
    console.print(f"{len(records)} cells reported in {output} ({len(page) / 1e6:.1f} MB){also}")
    console.print(
        f"next: open it in a browser; dcs ui --output {runs} makes its links work", style="bold"
    )


def table(
    experiment: Experiment,
    which: Annotated[
        Literal["main", "ablation", "schemes", "classes", "timing", "methods"],
        typer.Argument(help="Which table."),
    ] = "main",
    form: Annotated[
        Literal["markdown", "latex", "csv"],
        typer.Option("--format", "-f", help="How it is written."),
    ] = "markdown",
    paper: Annotated[
        bool, typer.Option("--paper/--no-paper", help="With the paper's figures where it has any.")
    ] = True,
    runs: Runs = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
) -> None:
    """Print a table of a sweep as the paper has it, the published figures below the measured."""
    from tracking.results.tables import TABLES

    _, cells = _recorded(experiment, runs, tracking_uri)
    made = [each for each in TABLES[which]([cell.record for cell in cells]) if each.rows]
    if not made:
        raise TrackingError(
            f"experiment {experiment!r} has no finished cells for the table {which!r}"
        )
    shown = made if paper else [each.without_paper() for each in made]
    texts: list[str] = [getattr(each, f"to_{form}")() for each in shown]
    typer.echo("\n".join(texts).rstrip("\n"))


def _recorded(
    experiment: str, runs: Path, tracking_uri: str | None
) -> tuple[str, list[StoredCell]]:
    """Return a store's address and the cells of an experiment there."""
    from tracking import Archive
    from tracking.store.queries import stored_cells

    uri = recorded_store(runs, tracking_uri)
    with console.status("reading the runs"):
        return uri, stored_cells(uri, experiment, archive=Archive(runs))


def compare(
    first: RunName,
    second: RunName,
    runs: Runs = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
) -> None:
    """Compare two runs: what differs in them, what they reached, and their schemes in words."""
    from tracking.results.tables import compare_records
    from tracking.store.runs import cell_name

    with console.status("reading the runs"):
        cells = [recorded_cell(name, runs, tracking_uri) for name in (first, second)]
    if cells[0].key == cells[1].key:
        console.print("both names are of the same cell", style="yellow")
    for number, cell in zip("12", cells, strict=True):
        console.print(f"{number}: {cell_name(cell)} (cell {cell.key[:12]})")
    for title, rows in compare_records(*cells).items():
        shown = new_table(" ", "1 ", "2 ", "difference")
        for row in rows:
            shown.add_row(row.name, row.first, row.second, row.difference)
        console.print()
        console.print(title, style="bold")
        console.print(shown, soft_wrap=False)


def register_model(
    run: RunName,
    name: Annotated[str, typer.Option("--name", help="The model; made if there is none.")],
    alias: Annotated[
        str | None,
        typer.Option(help="A name for this version, e.g. champion."),
    ] = None,
    runs: Runs = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
) -> None:
    """Register the scheme of a run as an MLflow model, and say how to serve it."""
    from tracking import Archive
    from tracking.store.client import redact
    from tracking.store.queries import find_cell
    from tracking.store.serving import register_scheme

    uri = recorded_store(runs, tracking_uri)
    with console.status("registering"):
        cell = find_cell(uri, run, archive=Archive(runs))
        version = register_scheme(uri, cell.run_id, name, alias=alias)
    served = f"models:/{name}@{alias}" if alias else f"models:/{name}/{version}"
    console.print(f"version {version} of model {name!r} is run {cell.run_id}")
    console.print("next:")
    console.print(
        f"  MLFLOW_TRACKING_URI={redact(uri)} mlflow models serve -m {served} "
        "--env-manager local --port 5001"
    )


def ui(
    runs: Runs = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 5000,
) -> None:
    """Open MLflow on what is recorded; it listens on this machine only. Ctrl-C ends it."""
    from tracking import ui_arguments
    from tracking.store.client import redact

    uri = recorded_store(runs, tracking_uri)
    arguments = ui_arguments(uri, port=port)
    if redact(uri) != uri:
        # Whoever is on this machine sees the arguments of a process, but not its environment.
        at = arguments.index("--backend-store-uri")
        del arguments[at : at + 2]
        os.environ["MLFLOW_BACKEND_STORE_URI"] = uri
    console.print(f"MLflow at http://127.0.0.1:{port}", style="bold")
    # MLflow takes this process over, so that Ctrl-C and signals reach it and nothing stays behind.
    os.execv(sys.executable, arguments)
