"""``dcs runs``, ``ui``, ``report``, ``table``, ``compare``, ``reproduce`` and ``register``."""

from __future__ import annotations

import functools
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import typer
from rich.style import Style
from rich.text import Text

from dcs.errors import ConfigError, TrackingError, escaped
from workflows.cli import options
from workflows.cli.console import console, new_table, progress_bar, width_of
from workflows.cli.options import Results

if TYPE_CHECKING:
    import pandas as pd

    from dcs.data.table import ProbabilityTable
    from tracking import CellRecord
    from workflows.reproduce import Compared

_HEADS = {"test/accuracy": "accuracy ↑", "test/cobias": "COBias ↓"}

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
    from tracking.results.figures import figure_files, overview_figures
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
        figures = overview_figures(records)
        page = render_report(cells, figures, title=title, link=link, store=redact(uri))
        atomic_write_text(output, page)
        logged = {each: log_report(uri, each, page) for each in experiments if log}
        if files is not None:
            for each in all_tables(records):
                each.write(files)
            for name, content in figure_files(figures).items():
                atomic_write_bytes(files / Path(name).name, content)
    for experiment, run in logged.items():
        if run is not None:
            console.print(f"sweep {experiment}: {link(run.info)}")
    also = "" if files is None else f", tables and figures in {files}"
    console.print(f"{len(records)} cells reported in {output} ({len(page) / 1e6:.1f} MB){also}")
    console.print(
        f"next: open it in a browser; {options.ui_command(runs, tracking_uri)} makes its links "
        "work",
        style="bold",
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
    texts: list[str] = [getattr(each, f"to_{form}")() for each in made]
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
    from tracking.store.client import run_link

    uri = Results(output, tracking_uri).store
    with console.status("reading the runs"):
        found = queries.matching(queries.cells(uri, sweep), where or ())
    if sort is not None:
        found = queries.best_first(found, sort)
    found = found.assign(link=[run_link(uri, row) for row in found.itertuples()])
    if as_json:
        typer.echo(
            found.to_json(orient="records", indent=2, date_format="iso", double_precision=15)
        )
        return
    metrics = dict.fromkeys([*_HEADS, *([sort] if sort else [])])
    names = ["name"] if sweep else ["sweep", "name"]
    if len(found):
        _show_runs(found, names, [name for name in metrics if found[name].dtype.kind == "f"])
    number = f"{len(found):,} cell{'' if len(found) == 1 else 's'}"
    console.print(f"{number}; {options.ui_command(output, tracking_uri)} makes the links work")


def _show_runs(found: pd.DataFrame, names: list[str], metrics: list[str]) -> None:
    """Print a line for each cell, with its link where that fits or nobody reads along."""
    from dcs.evaluation.uncertainty import percent
    from tracking.store.queries import is_share

    heads = (*(f"{name} " for name in names), *(_HEADS.get(m, m) for m in metrics))
    shown = new_table("key ", *heads, "link ")
    for row in found.to_dict("records"):
        failed = row["status"] != "FINISHED"
        row["name"] += f" ({row['status'].lower()})" if failed else ""
        figures = {m: "" if isnan(row[m]) else f"{row[m]:.4g}" for m in metrics}
        figures |= {m: percent(row[m]) for m in metrics if is_share(m)}
        key = Text(row["cell_key"][:8], Style(link=row["link"]))
        cells = (*(row[name] for name in names), *figures.values(), row["link"])
        shown.add_row(key, *cells, style="red" if failed else "")
    width = console.width
    if not console.is_terminal:
        console.width = max(width, width_of(shown))
    elif width_of(shown) > width:
        del shown.columns[-1]
    console.print(shown)
    console.width = width


def compare(
    first: options.RunName,
    second: options.RunName,
    runs: options.Runs = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
) -> None:
    """Compare two runs: what differs in them, what they reached, and their schemes in words.

    Example: `dcs compare 1f0c 'best:test/cobias<5'`
    """
    from tracking.results.tables import compare_records
    from tracking.store.runs import cell_name

    results = Results(runs, tracking_uri)
    cells = results.record(first), results.record(second)
    names = [cell_name(cell) for cell in cells]
    if cells[0].key == cells[1].key:
        console.print("both names are of the same cell", style="yellow")
    for title, rows in compare_records(*cells).items():
        shown = new_table(" ", *(f"{head} " for head in _told_apart(names)))
        for row in rows:
            shown.add_row(*row)
        console.print(title, style="bold")
        console.print(shown)
    for cell, name in zip(cells, names, strict=True):
        console.print(f"{name}, {results.link(cell.key)}")


def _told_apart(names: list[str]) -> list[str]:
    """Return what each of two names has and the other has not, or both whole."""
    first, second = (name.split() for name in names)
    own = [word for word in first if word not in second], [w for w in second if w not in first]
    return [" ".join(words) for words in own] if all(own) else names


def register(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="As of `dcs compare`, or the scheme.json of a fit of your own."
        ),
    ],
    name: Annotated[str, typer.Option(metavar="NAME", help="The model, or a new one.")],
    alias: Annotated[
        str | None, typer.Option(metavar="NAME", help="What this version is called: champion")
    ] = None,
    runs: options.Runs = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
) -> None:
    """Register the scheme of a run as an MLflow model, and say how to serve it.

    Example: `dcs register dcs-runs/moods-dcs/scheme.json --name moods --alias champion`
    """
    import dcs
    from tracking import resolve_tracking_uri
    from tracking.store.client import pages, redact
    from tracking.store.serving import log_scheme, register_scheme

    if run.endswith(".json"):
        scheme = dcs.CorrectionScheme.load(run)
        uri = resolve_tracking_uri(tracking_uri, runs)
        run_id = log_scheme(uri, scheme, output=runs, name=Path(run).absolute().parent.name)
    else:
        results = Results(runs, tracking_uri)
        uri, run_id = results.store, results.cell(run).run_id
    with console.status("registering"):
        version = register_scheme(uri, run_id, name, alias=alias)
    served = f"models:/{name}@{alias}" if alias else f"models:/{name}/{version}"
    console.print(f"version {version} of model {name!r} is run {run_id}")
    console.print(f"{pages(uri)}/models/{quote(name)}/versions/{version}")
    console.print("next:")
    console.print(
        f"  MLFLOW_TRACKING_URI={shlex.quote(redact(uri))} mlflow models serve "
        f"-m {shlex.quote(served)} "
        "--env-manager local --port 5001"
    )


def reproduce(
    run: options.RunName,
    runs: options.Runs = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
    table: Annotated[
        list[Path] | None,
        typer.Option(metavar="TABLE", help="What dcs tune was given; repeatable."),
    ] = None,
    test: Annotated[
        list[Path] | None, typer.Option(metavar="TABLE", help="And that as --test; repeatable.")
    ] = None,
    unlabelled: Annotated[
        list[Path] | None,
        typer.Option(metavar="TABLE", help="And that as --unlabelled; repeatable."),
    ] = None,
    requirements: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Only write the packages of the run, for pip."),
    ] = None,
) -> None:
    """Compute a recorded cell again and compare scheme, metrics and trials to the last bit.

    Says which software differs from that of the record. Exit code 0 if all is identical, 1 if
    something differs, 2 if it cannot be tried.

    Example: `dcs reproduce best:method=dcs --table my.parquet`
    """
    from dcs.io import atomic_write_text
    from tracking import collect_provenance
    from tracking.store.runs import cell_name
    from workflows import reproduce as again

    results = Results(runs, tracking_uri)
    record = results.record(run)
    console.print(f"{cell_name(record)}, {results.link(record.key)}")
    if requirements is not None:
        atomic_write_text(requirements, again.requirements_of(record))
        console.print(
            f"next: pip install --requirement {shlex.quote(str(requirements))}", style="bold"
        )
        return
    software = again.compare_software(record.provenance, collect_provenance())
    _show_compared("software", [row for row in software if not row.same])
    given = [each or () for each in (table, test, unlabelled)]
    tables = (
        again.tuned_tables(record, *given) if any(given) else again.stored_tables(record, runs)
    )
    if tables is None:
        raise TrackingError(
            f"cell {record.key}: its tables are not in {runs}; give the table that dcs tune was "
            "given with --table, or run its sweep again, which scores what is missing"
        )
    with progress_bar("computing the cell again") as progress:
        now = again.recompute(record, tables, progress=lambda share: progress(completed=share))
    rows = again.compare_results(record, now)
    _show_compared("results", [r for r in rows if not r.same or r.name.startswith("test/")])
    if different := [row.name for row in rows if not row.same]:
        console.print(f"not the same: {', '.join(different)}", style="red")
        raise typer.Exit(1)
    end = "identical" if record.finished else "failed as recorded"
    console.print(f"{end}: {len(rows)} values, {len(record.trials)} trials", style="green")


def _show_compared(title: str, rows: list[Compared]) -> None:
    from tracking.schema import shorten

    shown = new_table(f"{title} ", "recorded ", "now ")
    for row in rows:
        pair = (f"{v:.6g}" if isinstance(v, float) else str(v) for v in (row.recorded, row.now))
        style = "" if row.same else "yellow"
        shown.add_row(row.name, *(shorten(text, 40) for text in pair), style=style)
    if rows:
        console.print(shown)
