"""``dcs tune``: fairer class accuracies from a probability table of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workflows.cli._options import Output, Seed, TrackingUri

if TYPE_CHECKING:
    from dcs.probabilities import ProbabilityTable

__all__ = ["HELD_OUT", "register"]

#: Share of the rows that is held out for the final figures when no test table is given.
HELD_OUT = 0.3
#: Most classes that an exhaustive search can cope with.
MOST_CERTIFIED = 4


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tune")(tune)


def tune(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="Probability table (see dcs import).")
    ],
    test: Annotated[
        Path | None,
        typer.Option(
            "--test",
            metavar="TABLE",
            help=f"Table for the final figures; by default {HELD_OUT:.0%} of TABLE is held out.",
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="dcs, dnip (weights only) or furud.")] = "dcs",
    trials: Annotated[int, typer.Option(min=1, help="Hyperparameter settings to try.")] = 30,
    certify: Annotated[
        bool,
        typer.Option(
            "--certify",
            help="Prove by exhaustive search how near the optimum is: up to 4 classes.",
        ),
    ] = False,
    seed: Seed = 0,
    output: Output = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
) -> None:
    """Find the correction scheme of a probability table, judge it on held-out rows, keep it.

    Optuna tries hyperparameters, simulated annealing finds a scheme for each, development rows
    choose among them. The scheme is written to OUTPUT/scheme.json, the runs to MLflow.
    """
    from dcs.errors import ConfigError
    from dcs.methods import get_method
    from dcs.probabilities import ProbabilityTable
    from dcs.scheme import CorrectionScheme
    from tracking import Recorder
    from workflows.cells import content_key
    from workflows.cli._console import console, trial_bar
    from workflows.cli._results import results_table
    from workflows.config import TunerSettings
    from workflows.tables import table_cells, tune_cells
    from workflows.tune import certify as prove

    settings = TunerSettings(trials=trials)
    chosen = get_method(method)
    if not chosen.searches:
        raise ConfigError(f"--method {method}: nothing to tune there; choose dcs, dnip or furud")
    whole = ProbabilityTable.read(table)
    if certify and whole.n_classes > MOST_CERTIFIED:
        raise ConfigError(
            f"--certify: {table} has {whole.n_classes} classes, and exhaustive search takes "
            f"minutes up to {MOST_CERTIFIED}, years beyond; leave --certify out"
        )
    optimization, held_out = _split(whole, test, seed=seed)
    cells = table_cells(
        optimization,
        held_out,
        name=table.stem,
        methods=("icl", method),
        tuner=settings,
        seed=seed,
    )
    with Recorder(
        tracking_uri,
        output=output,
        experiment="tune",
        sweep_key=content_key({"cells": [cell.key for cell in cells]}),
        sweep_params={"table": table.name, "method": method, "trials": trials, "seed": seed},
        run_name=table.stem,
        warn=lambda line: console.print(f"[yellow]{line}[/yellow]"),
    ) as recorder:
        with trial_bar(f"tuning {method}", total=trials) as progress:
            records = tune_cells(
                cells,
                optimization,
                held_out,
                sweep="tune",
                output=output,
                on_trial=lambda _: progress.advance(progress.task_ids[0]),
            )
            progress.update(progress.task_ids[0], completed=trials)
        for record in records:
            recorder.record(record)
        with console.status("recording in MLflow"):
            report = recorder.finish()

    scheme = CorrectionScheme.from_dict(records[-1].scheme)
    path = output / "scheme.json"
    scheme.save(path)
    gap = None
    if certify:
        with console.status("searching exhaustively"):
            gap = prove(optimization, chosen, records[-1], settings=settings)
    console.print()
    console.print(f"[bold]{table.name}[/bold]: % of {held_out.n_rows} held-out rows")
    console.print(results_table(records, width=console.width))
    console.print()
    for sentence in scheme.explain():
        console.print(f"  {sentence}", highlight=False, soft_wrap=True)
    if gap is not None:
        z = records[-1].metrics["opt/z"]
        console.print(f"  Z {z:.6f} on its rows: {gap:.2e} above the proven optimum")
    console.print()
    console.print(report.message, soft_wrap=True)
    console.print(f"scheme written to {path}", soft_wrap=True)
    console.print(
        f"next: [bold]dcs apply {path} {test or table} -o corrected.parquet[/bold], "
        f"or [bold]dcs ui --output {output}[/bold]",
        soft_wrap=True,
    )


def _split(
    table: ProbabilityTable, test: Path | None, *, seed: int
) -> tuple[ProbabilityTable, ProbabilityTable]:
    from dcs.errors import TableError
    from dcs.probabilities import ProbabilityTable
    from dcs.seeds import derive_seed
    from dcs.splits import stratified_split

    if test is None:
        parts = stratified_split(
            table.labels,
            {"optimization": 1.0 - HELD_OUT, "test": HELD_OUT},
            seed=derive_seed(seed, "held-out"),
        )
        return (
            table.subset(parts["optimization"], split="optimization"),
            table.subset(parts["test"], split="test"),
        )
    held_out = ProbabilityTable.read(test)
    if held_out.classes != table.classes:
        raise TableError(
            f"{test}: classes are {', '.join(held_out.classes)}; those of the table to tune are "
            f"{', '.join(table.classes)}, and both must be the same in the same order"
        )
    return table, held_out
