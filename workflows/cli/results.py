"""``dcs report``, ``table`` and ``ui``: what came of whole sweeps."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dcs.errors import ConfigError, TrackingError, escaped
from workflows.cli import options
from workflows.cli.console import console
from workflows.cli.options import Results

if TYPE_CHECKING:
    from dcs.data.table import ProbabilityTable
    from tracking.records import CellRecord


#: Opens the second address once the first answers, for five minutes at most.
_OPEN = """
import sys, time, urllib.request, webbrowser
for _ in range(600):
    try:
        urllib.request.urlopen(sys.argv[1], timeout=5).close()
    except OSError:
        time.sleep(0.5)
    else:
        webbrowser.open(sys.argv[2])
        break
"""


def report(
    experiments: Annotated[
        list[str], typer.Argument(metavar="EXPERIMENT...", help="Names of sweeps, put together.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The HTML file to write.")
    ] = Path("report.html"),
    runs: Annotated[
        Path, typer.Option("--runs", metavar="FOLDER", help="The --output of the runs.")
    ] = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
    ui: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the links find MLflow.")
    ] = None,
    files: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write all tables and figures here too."),
    ] = None,
    log: Annotated[
        bool, typer.Option("--log/--no-log", help="Keep the report in MLflow, on the sweep's run.")
    ] = True,
) -> None:
    """Write the report of sweeps: tables, figures, schemes in words, links to MLflow.

    One file that needs no network, with the paper's figures beside the measured ones where the
    paper has them; `--files` writes tables as Markdown, LaTeX, CSV and JSON, figures as PNG, SVG.

    Example: `dcs report quickstart -o report.html --files figures`
    """
    from dcs.io import atomic_write_bytes, atomic_write_text
    from tracking.results.figures import sweep_figures
    from tracking.results.report import render_report
    from tracking.results.tables import all_tables
    from tracking.store.client import redact, run_link
    from tracking.store.queries import log_report

    results = Results(runs, tracking_uri)
    uri = results.store
    # A cell that several sweeps have is one.
    found = {cell.record.key: cell for each in experiments[::-1] for cell in results.cells(each)}
    cells, title = list(found.values()), " and ".join(experiments)
    records = [cell.record for cell in cells if cell.record.finished]
    with console.status("writing the report"):
        link = functools.partial(run_link, uri, ui=ui)
        page = render_report(cells, title=title, link=link, store=redact(uri))
        atomic_write_text(output, page)
        logged = {each: log_report(uri, each, page) for each in experiments if log}
        if files is not None:
            for each in all_tables(records):
                each.write(files)
            for name, content in sweep_figures(records).items():
                atomic_write_bytes(files / Path(name).name, content)
    for experiment, run in logged.items():
        if run is not None:
            console.print(f"sweep {experiment}: {link(run.info)}")
    also = "" if files is None else f", tables and figures in {files}"
    console.print(f"{len(records)} cells reported in {output} ({len(page) / 1e6:.1f} MB){also}")
    console.print(
        f"next: open it in a browser; dcs ui --output {runs} makes its links work", style="bold"
    )


def table(
    experiment: Annotated[
        str, typer.Argument(metavar="EXPERIMENT", help="Name of the sweep: quickstart, tune, ...")
    ],
    which: Annotated[
        Literal[
            "main",
            "ablation",
            "schemes",
            "classes",
            "timing",
            "methods",
            "labels",
            "findings",
            "transfer",
        ],
        typer.Argument(help="Which table."),
    ] = "main",
    form: Annotated[
        Literal["markdown", "latex", "csv"],
        typer.Option("--format", "-f", help="How it is written."),
    ] = "markdown",
    paper: Annotated[
        bool, typer.Option("--paper/--no-paper", help="With the paper's figures where it has any.")
    ] = True,
    runs: options.Runs = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
) -> None:
    """Print a table of a sweep as the paper has it, the published figures below the measured.

    transfer judges schemes on the tables of other prompts, demonstrations and models; it reads
    these from the folder of the results.

    Example: `dcs table quickstart ablation --format latex`
    """
    from tracking.results.comparison import transfer_tables
    from tracking.results.tables import TABLES

    records = [cell.record for cell in Results(runs, tracking_uri).cells(experiment)]
    if which == "transfer":
        made = transfer_tables(records, _test_rows(records, runs))
    else:
        made = [each for each in TABLES[which](records) if each.rows]
    if not made:
        raise TrackingError(
            f"experiment {experiment!r} has no finished cells for the table {which!r}"
        )
    shown = made if paper else [each.without_paper() for each in made]
    texts: list[str] = [getattr(each, f"to_{form}")() for each in shown]
    lines = "\n".join(texts).rstrip("\n").split("\n")
    # A file gets names as they are; a terminal would turn text around, or move its cursor.
    typer.echo("\n".join(map(escaped, lines) if sys.stdout.isatty() else lines))


def _test_rows(records: Sequence[CellRecord], runs: Path) -> dict[str, ProbabilityTable]:
    """Return the stored test rows of cells of one table, by the key of the cell."""
    from dcs.data.table import ProbabilityTable
    from workflows.reproduce import stored_tables

    known: dict[str, Any] = {}
    for record in records:
        digest = record.identity["test_digest"]
        if record.finished and digest not in known:
            known[digest] = (stored_tables(record, runs) or {}).get("test")
    found = {record.key: known.get(record.identity["test_digest"]) for record in records}
    return {key: test for key, test in found.items() if isinstance(test, ProbabilityTable)}


def ui(
    runs: options.Runs = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
    port: Annotated[int, typer.Option(metavar="N", min=1, max=65535, help="On 127.0.0.1.")] = 5000,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open a browser once MLflow answers.")
    ] = True,
) -> None:
    """Open MLflow on what is recorded; it listens on this machine only. Ctrl-C ends it.

    Example: `dcs ui --output dcs-runs --port 5001`
    """
    from tracking import ui_arguments
    from tracking.store.client import redact
    from tracking.store.queries import newest_link

    uri, here = Results(runs, tracking_uri).store, f"http://127.0.0.1:{port}"
    arguments = ui_arguments(uri, port=port)
    with console.status("reading the runs"):
        link = newest_link(uri, here)
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise ConfigError(f"--port {port}: in use, perhaps by another dcs ui; choose another")
    if redact(uri) != uri:
        # Whoever is on this machine sees the arguments of a process, but not its environment.
        at = arguments.index("--backend-store-uri")
        del arguments[at : at + 2]
        os.environ["MLFLOW_BACKEND_STORE_URI"] = uri
    console.print(f"MLflow in some seconds at {link}", style="bold")
    if browser:
        # A process of its own, away from the terminal: some browsers are programs of the terminal.
        null = subprocess.DEVNULL
        opener = [sys.executable, "-c", _OPEN, f"{here}/health", link]
        subprocess.Popen(opener, stdin=null, stdout=null, stderr=null, start_new_session=True)
    # MLflow takes this process over, so that Ctrl-C and signals reach it and nothing stays behind.
    os.execv(sys.executable, arguments)
