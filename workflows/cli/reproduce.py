"""``dcs reproduce``: a recorded cell computed again and compared to the last bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from dcs.errors import ConfigError
from dcs.io import atomic_write_text
from workflows.cli import options
from workflows.cli.console import console, new_table, share_bar
from workflows.cli.runs import RunName, find_record, link_to

if TYPE_CHECKING:
    from tracking import CellRecord
    from workflows.reproduce import Compared, Tables

__all__ = ["reproduce"]


def reproduce(
    run: RunName,
    runs: options.Runs = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
    table: Annotated[
        Path | None, typer.Option("--table", metavar="TABLE", help="What dcs tune was given.")
    ] = None,
    test: Annotated[
        Path | None, typer.Option("--test", metavar="TABLE", help="And that as --test.")
    ] = None,
    data: options.Data = None,
    rescore: Annotated[
        bool, typer.Option("--rescore", help="Score all prompts again, also if that is kept.")
    ] = False,
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
    from tracking import collect_provenance
    from tracking.store.runs import cell_name
    from workflows import reproduce as again

    record = find_record(run, runs, tracking_uri)
    console.print(f"{cell_name(record)}, {link_to(record.key, runs, tracking_uri)}")
    if requirements is not None:
        atomic_write_text(requirements, again.requirements_of(record))
        console.print(f"next: pip install --requirement {requirements}", style="bold")
        return
    software = again.compare_software(record.provenance, collect_provenance())
    _show("software", [row for row in software if not row.same])
    tables = _tables(record, runs, table=table, test=test, data=data, rescore=rescore)
    with share_bar("computing the cell again") as progress:
        now = again.recompute(record, tables, progress=progress)
    rows = [
        again.Compared(f"{split} rows", record.identity[f"{split}_digest"], part.digest)
        for split, part in tables.items()
    ]
    rows += again.compare_results(record, now)
    _show("results", [row for row in rows if not row.same or row.name.startswith("test/")])
    if different := [row.name for row in rows if not row.same]:
        console.print(f"not the same: {', '.join(different)}", style="red")
        raise typer.Exit(1)
    end = "identical" if record.finished else "failed as recorded"
    console.print(f"{end}: {len(rows)} values, {len(record.trials)} trials", style="green")


def _tables(
    record: CellRecord,
    runs: Path,
    *,
    table: Path | None,
    test: Path | None,
    data: Path | None,
    rescore: bool,
) -> Tables:
    """Return the tables: given, stored, or scored again."""
    from workflows.cli.scoring import score
    from workflows.cli.tables import HELD_OUT
    from workflows.reproduce import request_of, stored_tables
    from workflows.tables import ProbabilityStore, split_rows

    if test is not None if table is None else rescore:
        raise ConfigError("--test needs --table, and --rescore excludes it; see --help")
    if table is not None:
        members = {table.name: [table] if test is None else [table, test]}
        return split_rows(members, seed=record.identity["seed"], held_out=HELD_OUT)
    stored = stored_tables(record, runs)
    if stored is not None and not rescore:
        console.print("tables: stored, unchanged since they were scored")
        return stored
    request = request_of(record, runs)
    shards = None if rescore else request.scoring.store or str(runs / "shards")
    scoring = request.scoring.model_copy(update={"store": shards})
    texts = request.data if data is None else str(data.absolute())
    with TemporaryDirectory(prefix="dcs-") as folder:
        # Kept by the name of its request it would be taken for what the sweep has scored.
        store = ProbabilityStore(Path(folder) / "probabilities")
        score(request.model, {"again": replace(request, scoring=scoring, data=texts)}, store)
        found = store.read("again")
    console.print("tables: scored again")
    if stored is not None:
        gap = max(abs(found[name].probs - stored[name].probs).max() for name in found)
        console.print(f"largest difference from a stored probability: {gap:.1g}")
    return found


def _show(title: str, rows: list[Compared]) -> None:
    from tracking.schema import shorten

    shown = new_table(f"{title} ", "recorded ", "now ")
    for row in rows:
        pair = (f"{v:.6g}" if isinstance(v, float) else str(v) for v in (row.recorded, row.now))
        style = "" if row.same else "yellow"
        shown.add_row(row.name, *(shorten(text, 40) for text in pair), style=style)
    if rows:
        console.print(shown, soft_wrap=False)
