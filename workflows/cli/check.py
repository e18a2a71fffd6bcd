"""``dcs check``: whether rows are still like those that a scheme was fitted on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import dcs
from dcs.errors import SchemeError
from workflows.cli import options
from workflows.cli.console import console, new_table
from workflows.cli.runs import find_cell
from workflows.cli.tables import inputs_from

if TYPE_CHECKING:
    from dcs.evaluation.drift import Drift


def check(
    scheme: Annotated[Path, typer.Argument(metavar="SCHEME", help="scheme.json of dcs tune.")],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="TABLE...",
            help="Probability table of new rows, labelled or not; for a scheme of several tables "
            "as many, in the order it was tuned with.",
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all comparisons as JSON instead.")
    ] = False,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="Also keep them as metrics drift/... of this run, such as that of a served "
            "model; named as `dcs register` takes it.",
        ),
    ] = None,
    runs: options.Runs = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
) -> None:
    """Say whether new rows have drifted from those that a scheme was fitted on.

    Compared are the shares of true and of predicted classes, the confidence, and the mean
    probability of every class. The exit code is 1 if something has drifted, and 0 if nothing has.

    Example: dcs check dcs-runs/my-dcs/scheme.json new.parquet
    """
    from dcs.evaluation.drift import compare_rows
    from dcs.evaluation.formatting import chance
    from tracking.store.serving import log_drift

    fitted = dcs.CorrectionScheme.load(scheme)
    references = fitted.provenance.get("reference")
    if not isinstance(references, dict) or not references:
        raise SchemeError(
            f"{scheme}: says nothing of the rows it was fitted on; tune it again with this version"
        )
    rows = inputs_from(fitted, files)
    found: dict[str, list[Drift]] = {}
    for name, table in zip(rows.names, rows.tables, strict=True):
        reference = references.get(name if fitted.inputs else "", {})
        found[name] = compare_rows(reference, table.with_classes(fitted.classes))
    if run is not None:
        distances = {
            f"{name}/{each.subject}".lstrip("/"): each.distance
            for name, some in found.items()
            for each in some
        }
        uri = options.recorded_store(runs, tracking_uri)
        log_drift(uri, find_cell(run, runs, tracking_uri).run_id, distances)
    drifted = [each for some in found.values() for each in some if each.drifted]
    if as_json:
        plain = {
            name: [asdict(each) | {"drifted": each.drifted} for each in some]
            for name, some in found.items()
        }
        typer.echo(json.dumps({"drifted": bool(drifted), "tables": plain}, indent=1))
    else:
        for name, some in found.items():
            shown = new_table(f"{name} ", "moved, points", "p", " ")
            for each in some:
                verdict = _largest(each, fitted.classes) if each.drifted else ""
                shown.add_row(each.subject, f"{100 * each.distance:.1f}", chance(each.p), verdict)
            console.print(shown, soft_wrap=False)
        if drifted:
            subjects = ", ".join(dict.fromkeys(each.subject for each in drifted))
            console.print(
                f"drifted: {subjects}; the scheme may no longer fit, tune again with such rows",
                style="yellow",
            )
        else:
            console.print("nothing has drifted from the rows it was fitted on", style="green")
    if drifted:
        raise typer.Exit(1)


def _largest(drift: Drift, classes: Sequence[str]) -> str:
    """Say what moved most, in percent of the rows."""
    k = max(range(len(drift.now)), key=lambda k: abs(drift.now[k] - drift.before[k]))
    names = {"confidence": [f"tenth {k + 1}" for k in range(len(drift.now))]}
    name = names.get(drift.subject, classes)[k] if len(drift.now) > 1 else ""
    return f"{name} {100 * drift.before[k]:.1f} -> {100 * drift.now[k]:.1f} %".strip()
