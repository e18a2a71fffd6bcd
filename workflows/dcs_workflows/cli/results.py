"""``dcs runs``, ``ui``, ``report``, ``compare``, ``rm`` and ``register``."""

from __future__ import annotations

import functools
import json
import os
import shlex
import socket
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

import dcs
import dcs_tracking
from dcs.errors import ConfigError, escaped
from dcs_tracking import results, store
from dcs_workflows.cli import options
from dcs_workflows.cli.console import conclude, console, new_table
from dcs_workflows.cli.options import argument, flag, option

if TYPE_CHECKING:
    import pandas as pd

    from dcs_tracking.records import StoredCell
    from dcs_workflows.study.storage import StoredStudy


def report(
    experiments: Annotated[list[str], argument("SWEEP...", "Names of sweeps, e.g. tune.")],
    output: Annotated[Path, option("FILE", "HTML file to write.", "--output", "-o")] = Path(
        "report.html"
    ),
    runs: Annotated[Path, option("FOLDER", "Output folder of the runs.", "--runs")] = Path(
        "dcs-runs"
    ),
    tracking_uri: options.TrackingUri = None,
    files: Annotated[
        Path | None, option("FOLDER", "Also write all tables and figures to this folder.")
    ] = None,
) -> None:
    """Write a report of sweeps: tables, figures, schemes in words, links to MLflow.

    The report is one file that needs no network. `--files` writes tables as Markdown, CSV, LaTeX
    and JSON, figures as PNG and SVG.

    Example: `dcs report quickstart -o report.html --files figures`
    """
    from dcs.io import atomic_write, write_together

    uri = store.queries.store_of(runs, tracking_uri)
    stored, title = _pooled(experiments[::-1], runs, tracking_uri), " and ".join(experiments)
    cells, archive = dcs_tracking.Cells.of(e.record for e in stored), dcs_tracking.Archive(runs)
    with console.status("writing the report"):
        link = functools.partial(store.client.run_link, uri)
        page = results.report.render_report(stored, title=title, link=link, archive=archive)
        atomic_write(output, page)
        if files is not None:
            made: dict[str, Any] = {**results.sweep_tables.table_files(cells)}
            made |= results.figures.figure_files(results.figures.overview_figures(cells))
            write_together({files / Path(name).name: made[name] for name in made})
    links = f"its links need {options.ui_command(runs, tracking_uri)}"
    console.print(f"{len(cells.records)} cells reported in {output}; {links}", style="bold")


def _pooled(sweeps: Iterable[str], runs: Path, tracking_uri: str | None) -> list[StoredCell]:
    """Return the cells of sweeps, each once, unless rows of a source differ: they have no mean."""
    found: dict[str, StoredCell] = {}
    owners: dict[str, tuple[str, str, list[Any]]] = {}
    for name in sweeps:
        for cell in options.recorded(store.queries.stored_cells, name, runs, tracking_uri):
            record, who = cell.record, cell.record.who
            # The same task may be in a file of another path.
            found[json.dumps({**record.identity, **who}, sort_keys=True)] = cell
            source = json.dumps({**who, "method": None})
            rows = [record.identity.get(part) for part in dcs_tracking.schema.DIGESTS]
            other, first, known = owners.setdefault(source, (name, record.key, rows))
            if rows != known:
                raise ConfigError(
                    f"{other} and {name}: cells {first[:8]} and {record.key[:8]} are of one table "
                    "by their names, and differ in its rows, as by held_out, limit or another "
                    "file; report sweeps alone, rename a table, or delete a cell: "
                    f"dcs rm {first[:8]}"
                )
    return list(found.values())


def ui(
    runs: options.Runs = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
    port: Annotated[int, option("N", "Local port.", min=1, max=65535)] = 5000,
) -> None:
    """Start the MLflow UI on the recorded runs, on this machine only. Ctrl-C stops it.

    Example: `dcs ui --output dcs-runs --port 5001`
    """
    uri, here = store.queries.store_of(runs, tracking_uri), f"http://127.0.0.1:{port}"
    command = store.client.ui_arguments(uri, port=port)
    with console.status("reading the runs"):
        links = store.queries.newest_links(uri, here)
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise ConfigError(f"--port {port}: in use, perhaps by another dcs ui; choose another")
    os.environ["MLFLOW_BACKEND_STORE_URI"] = uri
    # Each of its processes repeats those of its own dependencies; errors are logged all the same.
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    first = next(iter(links.values()), here)
    console.print(f"MLflow will be ready in a few seconds at {first}", style="bold")
    for name, link in [*links.items()][1:]:
        console.print(f"  {name}: {link}")
    # MLflow replaces this process, so that it receives Ctrl-C and signals directly.
    os.execv(sys.executable, command)


def runs(
    sweep: Annotated[
        str | None, argument("[SWEEP]", "Name of a sweep, e.g. tune; all by default.")
    ] = None,
    sort: Annotated[
        str | None, option("METRIC", "Sort by a metric, best first, e.g. test/cobias.")
    ] = None,
    as_json: options.AsJson = False,
    studies: Annotated[
        Path | None, option("FILE", "Copy their studies to a journal for optuna-dashboard.")
    ] = None,
    output: options.Runs = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
) -> None:
    """List the recorded cells: key, name, results, and link to MLflow.

    `--json` has all recorded metrics, as fractions.

    Example: `dcs runs quickstart --sort test/cobias`
    """
    uri = store.queries.store_of(output, tracking_uri)
    found = options.recorded(store.queries.cells, sweep, output, tracking_uri)
    if sort is not None:
        found = store.queries.best_first(found, sort)
    if studies is not None:
        from dcs_workflows.study.storage import collect_studies

        number = collect_studies(_stored_studies(output, found["cell_key"]), studies)
        console.print(f"{number:,} stud{'y' if number == 1 else 'ies'} written to {studies}")
    found = found.assign(link=[store.client.run_link(uri, row) for row in found.itertuples()])
    if as_json:
        typer.echo(found.to_json(orient="records", date_format="iso", double_precision=15))
        return
    metrics = dict.fromkeys([*store.queries.FIGURES, *([sort] if sort else [])])
    names = ["name"] if sweep else ["sweep", "name"]
    if len(found):
        _show_runs(found, names, [name for name in metrics if found[name].dtype.kind == "f"])
    count = f"{len(found):,} cell{'' if len(found) == 1 else 's'}"
    console.print(f"{count}; the links need {options.ui_command(output, tracking_uri)}")
    if left := int((found["link"] == "").sum()):
        sync = f"dcs sync {options.place_of(output, tracking_uri)}"
        console.print(f"{left:,} without a link; `{sync}` records them")


def _show_runs(found: pd.DataFrame, names: list[str], metrics: list[str]) -> None:
    """Print one line per cell; on a terminal it is a link, in a pipe the link is at its end.

    pandas lays out thousands of cells at once, for which rich takes seconds.
    """
    from dcs.evaluation.metrics import metric_of
    from dcs.evaluation.uncertainty import percent

    failed = found["status"] != "FINISHED"
    shown = found[names].assign(key=found["cell_key"].str[:8])[["key", *names]]
    shown["name"] += (" (" + found["status"].str.lower() + ")").where(failed, "")
    for name in shown:
        texts = shown[name].map(escaped)
        shown[name] = texts.str.ljust(texts.str.len().max())
    for name in metrics:
        metric = metric_of(name)
        head = metric.head if metric and name in store.queries.FIGURES else name
        shown[head] = found[name].map(percent if metric else "{:.4g}".format)
    lines = shown.to_string(index=False, justify="left").split("\n")
    for row, (link, bad) in enumerate(zip(found["link"], failed, strict=True), 1):
        linked = f"\x1b]8;;{link}\x1b\\{lines[row]}\x1b]8;;\x1b\\"
        text = linked if console.is_terminal else f"{lines[row]}  {link}"
        lines[row] = typer.style(text, fg="red") if bad else text
    typer.echo("\n".join(lines))


def compare(
    first: Annotated[str, argument("SWEEP", "Name of a sweep.")],
    second: Annotated[str, argument("SWEEP", "Name of another sweep.")],
    as_json: options.AsJson = False,
    runs: options.Runs = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
) -> None:
    """Compare two sweeps over the cells that both have.

    Prints the change of each method on each source from the first sweep to the second, tested
    over seeds. `--json` has the numbers, as fractions. MLflow compares two runs.

    Example: `dcs compare before after`
    """
    stored = (_pooled([name], runs, tracking_uri) for name in (first, second))
    sweeps = (dcs_tracking.Cells.of(cell.record for cell in own) for own in stored)
    table = results.sweep_tables.compare_sweeps(*sweeps)
    shown = new_table(*(f"{c} " if c in table.words else str(c) for c in table.text))
    for row in table.rows:
        shown.add_row(*row)
    console.print(f"{table.title}: {first} → {second}", style="bold")
    console.print(shown)
    console.print(table.about)
    rows = json.loads(table.frame.to_json(orient="records", double_precision=15))
    conclude({"sweeps": [first, second], "rows": rows})


def rm(
    name: Annotated[str, argument("SWEEP|RUN", "Name of a sweep, or a run as in register.")],
    yes: Annotated[bool, flag("--yes", "Do not ask.", "-y")] = False,
    runs: options.Runs = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
) -> None:
    """Delete a sweep or a cell: records and studies on disk, runs and models in MLflow.

    Probability tables and cells that other sweeps have are kept. MLflow keeps deleted runs until
    `mlflow gc`. Studies in a database are deleted if DCS_OPTUNA_STORAGE is set.

    Example: `dcs rm quickstart --yes`
    """
    from dcs_tracking.schema import CELL_KEY, SWEEP_KEY, tagged

    archive = dcs_tracking.Archive(runs)
    sweeps = [sweep for sweep in archive.sweeps() if sweep.experiment == name]
    record = None
    if not sweeps:
        record = options.recorded(store.queries.find_cell, name, runs, tracking_uri).record
    what = f"sweep {name}" if record is None else f"cell {record.key}"
    if not yes:
        typer.confirm(f"Delete {what} in {runs} and in MLflow?", abort=True)
    with ExitStack() as locks:
        key = record and record.key
        having = [each for each in archive.sweeps() if key in archive.keys(each.sweep_key)]
        for sweep in (*sweeps, *having):
            locks.callback(archive.lock(sweep).release)
        keys = archive.own_keys(sweeps) if record is None else [record.key]
        studies = _stored_studies(runs, keys)
        named = record.sweep if record else name
        opened = store.client.open_store(store.queries.store_of(runs, tracking_uri, named))
        experiments = [str(each.experiment_id) for each in opened.search_experiments()]
        tags = [{SWEEP_KEY: each.sweep_key} for each in sweeps] or [{CELL_KEY: keys[0]}]
        delete = functools.partial(store.queries.delete_runs, opened, experiments)
        count = sum(delete(tagged(each)) for each in tags)
        for study in studies:
            study.remove()
        for key in keys:
            archive.remove(key)
        for sweep in having:
            # Its tables in the store have the cell: `sync` writes them again.
            archive.save_sweep(sweep.model_copy(update={"status": None}))
        for sweep in sweeps:
            archive.remove_sweep(sweep)
        for sweep in (*sweeps, *having):
            (runs / "results" / f"{sweep.experiment}.csv").unlink(missing_ok=True)
    console.print(f"{what} deleted: {count} runs in MLflow, and its files in {runs}")


def _stored_studies(runs: Path, keys: Iterable[str]) -> list[StoredStudy]:
    """Return the studies of cells, which need not exist."""
    from dcs_workflows.plan import STORAGE_VARIABLE, cell_label
    from dcs_workflows.study.storage import Studies

    studies = Studies(runs.absolute(), os.environ.get(STORAGE_VARIABLE) or None)
    studies.check(connect=True)
    records = dcs_tracking.Archive(runs).load(keys, summaries=True).values()
    stored = (studies.of(record.key, cell_label(record.identity)) for record in records)
    return [*filter(None, stored)]


def register(
    run: Annotated[
        str,
        argument("RUN", "Key or run id of a cell, or a prefix; name of a run; or scheme.json."),
    ],
    name: Annotated[str, option("NAME", "New or existing registered model.")],
    alias: Annotated[str | None, option("NAME", "Alias of this version, e.g. champion.")] = None,
    runs: options.Runs = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
) -> None:
    """Register the scheme of a run as an MLflow model, and print how to serve it.

    Example: `dcs register dcs-runs/moods-dcs/scheme.json --name moods --alias champion`
    """
    store.serving.check_registered_names(name, alias)
    uri = store.queries.store_of(runs, tracking_uri)
    if run.endswith(".json"):
        scheme = dcs.CorrectionScheme.load(run)
        folder = Path(run).absolute().parent
        model_id = store.serving.log_scheme(uri, scheme, output=runs, name=folder.name)
    else:
        cell = options.recorded(store.queries.find_cell, run, runs, tracking_uri)
        model_id = store.serving.log_cell_scheme(uri, cell)
    with console.status("registering the model"):
        version = store.serving.register_model(uri, model_id, name, alias=alias)
    served = f"models:/{name}@{alias}" if alias else f"models:/{name}/{version}"
    console.print(f"version {version} of model {name!r} registered: models:/{model_id}")
    console.print(f"{store.client.pages(uri)}/models/{quote(name)}/versions/{version}")
    variable = f"MLFLOW_TRACKING_URI={shlex.quote(store.client.redact_uri(uri))}"
    serve = f"mlflow models serve -m {shlex.quote(served)} --env-manager local --port 5001"
    console.print(f"next:\n  {variable} {serve}")
