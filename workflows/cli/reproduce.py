"""``dcs reproduce``: a recorded cell computed again and compared to the last bit."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workflows.cli._options import Data, Runs, TrackingUri, recorded_store

if TYPE_CHECKING:
    from rich.table import Table

    from tracking import CellRecord
    from workflows.reproduce import Compared, FoundTables

__all__ = ["reproduce"]

#: Metrics that are shown also where they are the same.
_SHOWN = ("test/accuracy", "test/cobias")


def reproduce(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="The run id or key of a cell, or how it begins; see dcs ui."
        ),
    ],
    runs: Runs = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
    table: Annotated[
        Path | None,
        typer.Option("--table", metavar="TABLE", help="What dcs tune was given."),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option("--test", metavar="TABLE", help="What dcs tune was given as --test."),
    ] = None,
    data: Data = None,
    rescore: Annotated[
        bool,
        typer.Option(
            "--rescore", help="Score every prompt with the model again, also if that is kept."
        ),
    ] = False,
    requirements: Annotated[
        Path | None,
        typer.Option(
            "--requirements",
            metavar="FILE",
            help="Write the packages that the run was made with as a requirements file for pip, "
            "say how to install them, and compute nothing.",
        ),
    ] = None,
) -> None:
    """Compute a recorded cell again and compare scheme, metrics and trials to the last bit.

    Says which software differs from that of the record, checks the tables (or scores them again
    if they are gone), and ends with code 0 if all is identical, 1 if something differs, 2 if it
    cannot be tried.
    """
    from tracking import collect_provenance
    from workflows.cli._console import console, share_bar
    from workflows.reproduce import (
        Compared,
        cell_of,
        compare_results,
        compare_software,
        find_record,
        recompute,
    )

    if tracking_uri is not None:
        tracking_uri = recorded_store(runs, tracking_uri)
    with console.status("reading the record"):
        record = find_record(run, runs=runs, tracking_uri=tracking_uri)
    console.print(f"[bold]{_title(record)}[/bold], cell {record.key}", soft_wrap=True)
    if not record.finished:
        console.print("[yellow]the recorded run failed; it is tried again as it was[/yellow]")
    if requirements is not None:
        _write_requirements(record, requirements)
        return
    cell_of(record)  # What cannot be computed is said before any model is loaded.
    _show_software(compare_software(record.provenance, collect_provenance()))
    tables = _tables(record, runs, table=table, test=test, data=data, rescore=rescore)
    rows = [
        Compared(f"{name} rows", digest[:12], now[:12], digest == now)
        for name, now in tables.digests.items()
        for digest in [str(record.identity.get(f"{name}_digest"))]
    ]
    with share_bar("computing the cell again") as progress:
        again = recompute(record, tables, progress=progress)
    rows += compare_results(record, again)
    different = [row.name for row in rows if not row.same]
    console.print()
    console.print(_table(r for r in rows if not r.same or r.name in _SHOWN or "/" not in r.name))
    if different:
        console.print(f"[red]not the same[/red]: {', '.join(different)}", soft_wrap=True)
        console.print(
            f"next: [bold]dcs reproduce {run} --runs {runs} --requirements FILE[/bold] for the "
            "packages of that run",
            soft_wrap=True,
        )
        raise typer.Exit(1)
    if not record.finished:
        console.print("[green]failed as recorded[/green]")
        return
    metrics = sum("/" in row.name for row in rows)
    console.print(f"[green]identical[/green], with all {metrics} metrics and {_trials(record)}")


def _title(record: CellRecord) -> str:
    who = record.identity
    shots = "" if who.get("shots") is None else f" {who['shots']}-shot"
    return f"{who['method']} {who['task']}{shots} seed {who['seed']} {who['model']}"


def _trials(record: CellRecord) -> str:
    return f"{len(record.trials)} trials" if record.trials else "no trials"


def _tables(
    record: CellRecord,
    runs: Path,
    *,
    table: Path | None,
    test: Path | None,
    data: Path | None,
    rescore: bool,
) -> FoundTables:
    from dcs.data.table import ProbabilityTable
    from dcs.errors import ConfigError
    from workflows.cli._console import console, share_bar
    from workflows.cli.tune import split_rows
    from workflows.reproduce import given_tables, request_of, scored_tables, stored_tables

    if table is not None:
        if rescore:
            raise ConfigError("--rescore and --table exclude each other; give one of them")
        parts = split_rows(ProbabilityTable.read(table), test, seed=record.identity["seed"])
        found = given_tables(record, *parts)
        console.print(f"tables: those of {table}, as recorded", soft_wrap=True)
        return found
    if test is not None:
        raise ConfigError(f"--test {test}: give --table too, as dcs tune was given it")
    stored, problems = stored_tables(record, runs)
    for problem in problems:
        console.print(f"[yellow]{problem}[/yellow]", soft_wrap=True, highlight=False)
    if stored is not None and not rescore:
        console.print("tables: stored, unchanged since they were scored")
        return stored
    request = request_of(record, runs, data=None if data is None else str(data.absolute()))
    shards = None if rescore else request.scoring.store or runs / "shards"
    with share_bar(f"scoring {request.label}") as progress:
        found = scored_tables(request, shards=shards, progress=progress)
    console.print("tables: scored again", "" if rescore else "(read where prompts are kept)")
    if gap := stored and found.largest_difference(stored):
        console.print(f"largest difference from a stored probability: {gap:.1g}")
    return found


def _write_requirements(record: CellRecord, path: Path) -> None:
    from dcs.io import atomic_write_text
    from workflows.cli._console import console
    from workflows.reproduce import commit_of, requirements_of

    atomic_write_text(path, requirements_of(record))
    python = ".".join(str(record.provenance.get("python", "3.11")).split(".")[:2])
    commit = commit_of(record)
    console.print(f"packages of that run written to {path}", soft_wrap=True)
    console.print("next:")
    for line in (
        f"git checkout {commit}" if commit else "",
        f"python{python} -m venv .venv-again",
        f".venv-again/bin/python -m pip install --requirement {path}",
        ".venv-again/bin/python -m pip install --no-deps --editable .",
    ):
        if line:
            console.print(f"  {line}", soft_wrap=True, highlight=False, markup=False)


def _show_software(rows: list[Compared]) -> None:
    from workflows.cli._console import console

    different = [row for row in rows if not row.same]
    if different:
        console.print(_table(different))
    elif rows:
        console.print("software: as recorded, in commit, sources, Python, machine and packages")
    else:
        console.print("[yellow]software: the record says nothing of it[/yellow]")


def _table(rows: Iterable[Compared]) -> Table:
    from workflows.cli._console import new_table

    table = new_table(" ", "recorded ", "now ", "same? ")
    for row in rows:
        table.add_row(
            row.name,
            row.recorded,
            row.now,
            "yes" if row.same else "no",
            style="" if row.same else "yellow",
        )
    return table
