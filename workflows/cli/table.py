"""``dcs table``: a table of the paper for a sweep, on the terminal or for a document."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workflows.cli._options import TrackingUri
from workflows.cli.report import Runs

if TYPE_CHECKING:
    from tracking.records import CellRecord
    from tracking.result_tables import ResultTable

__all__ = ["register"]


class Which(StrEnum):
    """The tables there are."""

    main = "main"
    ablation = "ablation"
    schemes = "schemes"
    classes = "classes"
    timing = "timing"


class Form(StrEnum):
    """How a table is written."""

    markdown = "markdown"
    latex = "latex"
    csv = "csv"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("table")(table)


def table(
    experiment: Annotated[
        str, typer.Argument(metavar="EXPERIMENT", help="Name of the sweep: quickstart, tune, ...")
    ],
    which: Annotated[Which, typer.Argument(help="Which table.")] = Which.main,
    form: Annotated[Form, typer.Option("--format", "-f", help="How it is written.")] = (
        Form.markdown
    ),
    paper: Annotated[
        bool, typer.Option("--paper/--no-paper", help="With the paper's figures where it has any.")
    ] = True,
    runs: Runs = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
) -> None:
    """Print a table of a sweep as the paper has it, the published figures below the measured."""
    from tracking import Outbox, resolve_tracking_uri
    from tracking.stored import stored_cells

    uri = resolve_tracking_uri(tracking_uri, runs)
    records = [cell.record for cell in stored_cells(uri, experiment, outbox=Outbox(runs))]
    texts = []
    for made in _make(which, records, paper=paper):
        forms = {
            Form.markdown: made.to_markdown,
            Form.latex: made.to_latex,
            Form.csv: made.to_csv,
        }
        texts.append(forms[form]())
    typer.echo("\n".join(texts).rstrip("\n"))


def _make(which: Which, records: list[CellRecord], *, paper: bool) -> list[ResultTable]:
    from tracking.class_tables import class_accuracies_by_seed, scheme_summary
    from tracking.paper_tables import ablation_table, main_results
    from tracking.timing import timing_table

    if which is Which.classes:
        return class_accuracies_by_seed(records, paper_too=paper)
    if which is Which.schemes:
        return [scheme_summary(records, paper_too=paper)]
    if which is Which.timing:
        return [timing_table(records)]
    make = main_results if which is Which.main else ablation_table
    return [make(records, paper_too=paper)]
