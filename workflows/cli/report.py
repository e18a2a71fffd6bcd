"""``dcs report``: a sweep as one HTML file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workflows.cli._options import TrackingUri, recorded_store

if TYPE_CHECKING:
    from dcs.data.table import ProbabilityTable
    from tracking import CellRecord

__all__ = ["report", "table_finder"]


def report(
    experiment: Annotated[
        str, typer.Argument(metavar="EXPERIMENT", help="Name of the sweep: quickstart, tune, ...")
    ],
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
            show_default=False,
        ),
    ] = None,
    files: Annotated[
        Path | None,
        typer.Option(
            "--files",
            metavar="DIR",
            help="Also write every table (Markdown, LaTeX, CSV, JSON) and figure (PNG, SVG) here.",
            show_default=False,
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
    from dcs.io import atomic_write_text
    from tracking import Archive
    from tracking.results.report import render_report
    from tracking.store.client import redact
    from tracking.store.queries import log_report, run_link, stored_cells
    from workflows.cli._console import console

    uri = recorded_store(runs, tracking_uri)
    with console.status("reading the runs"):
        cells = stored_cells(uri, experiment, archive=Archive(runs))
    with console.status("drawing"):
        page = render_report(
            cells,
            title=experiment,
            link=lambda cell: run_link(uri, cell, ui=ui),
            store=redact(uri),
            tables=table_finder(runs),
        )
        atomic_write_text(output, page)
        if files is not None:
            _write_files(files, [cell.record for cell in cells])
    if log:
        with console.status("recording the report"):
            log_report(uri, experiment, page)
    finished = sum(cell.record.finished for cell in cells)
    console.print(f"{finished} cells reported in {output} ({len(page) / 1e6:.1f} MB)")
    if files is not None:
        console.print(f"tables and figures written to {files}")
    console.print(
        f"next: open it in a browser; [bold]dcs ui --output {runs}[/bold] makes its links work",
        soft_wrap=True,
    )


def table_finder(runs: Path) -> Callable[[str], ProbabilityTable | None]:
    """Return what finds a probability table of an output folder by its digest.

    The folder is searched when the first table is asked for, and each file read once.
    """
    from dcs.data.table import ProbabilityTable
    from dcs.errors import TableError

    files = iter(sorted((runs / "probabilities").glob("**/*.parquet")))
    known: dict[str, ProbabilityTable] = {}

    def find(digest: str) -> ProbabilityTable | None:
        while digest not in known:
            path = next(files, None)
            if path is None:
                return None
            try:
                table = ProbabilityTable.read(path)
            except TableError:
                continue  # Then the drawing has no histogram; the report is not about files.
            known[table.digest] = table
        return known[digest]

    return find


def _write_files(folder: Path, records: list[CellRecord]) -> None:
    from tracking.results.figures import overview_figures, save_figure
    from tracking.results.summary import all_tables

    for table in all_tables(records):
        table.write(folder)
    for name, (_, figure) in overview_figures(records).items():
        save_figure(figure, folder, name)
