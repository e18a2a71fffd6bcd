"""``dcs table``: a table of the paper for a sweep, on the terminal or for a document."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workflows.cli._options import Runs, TrackingUri, recorded_store

if TYPE_CHECKING:
    from tracking.records import CellRecord
    from tracking.results.tables import ResultTable

__all__ = ["table"]


class Which(StrEnum):
    """The tables there are."""

    main = "main"
    ablation = "ablation"
    schemes = "schemes"
    classes = "classes"
    timing = "timing"


_MISSING = {
    Which.main: "no cell is finished",
    Which.ablation: "all its cells have the same settings, give a sweep objectives or axes",
    Which.schemes: "it has no finished cells of DCS",
    Which.classes: "no cell is finished",
    Which.timing: "nothing was searched in it",
}


class Form(StrEnum):
    """How a table is written."""

    markdown = "markdown"
    latex = "latex"
    csv = "csv"


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
    from dcs.errors import TrackingError
    from tracking import Archive
    from tracking.store.queries import stored_cells

    uri = recorded_store(runs, tracking_uri)
    records = [cell.record for cell in stored_cells(uri, experiment, archive=Archive(runs))]
    made = [table for table in _make(which, records, paper=paper) if table.rows]
    if not made:
        raise TrackingError(
            f"experiment {experiment!r} has nothing for the table {which.value!r}: "
            f"{_MISSING[which]}"
        )
    texts: list[str] = [getattr(table, f"to_{form.value}")() for table in made]
    typer.echo("\n".join(texts).rstrip("\n"))


def _make(which: Which, records: list[CellRecord], *, paper: bool) -> list[ResultTable]:
    from tracking.results.class_tables import class_accuracies_by_seed, scheme_summary
    from tracking.results.paper_tables import ablation_tables, main_results
    from tracking.results.timing import timing_table

    if which is Which.classes:
        return class_accuracies_by_seed(records, paper_too=paper)
    if which is Which.ablation:
        return ablation_tables(records, paper_too=paper)
    make = {
        Which.main: main_results,
        Which.schemes: scheme_summary,
        Which.timing: timing_table,
    }[which]
    return [make(records, paper_too=paper)]
