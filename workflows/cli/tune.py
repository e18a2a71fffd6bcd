"""``dcs tune``: fairer class accuracies from a probability table of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dcs.evaluation.formatting import sentence_of_chance
from workflows.cli._options import Output, Seed, TrackingUri

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dcs.data.table import ProbabilityTable
    from tracking import CellRecord
    from workflows.config.tuner import TunerSettings

__all__ = ["HELD_OUT", "split_rows", "tune"]

#: Share of the rows that is held out for the final figures when no test table is given.
HELD_OUT = 0.3
#: Most classes that an exhaustive search can cope with.
MOST_CERTIFIED = 4

_CHOICE, _SEARCH = "What you want", "What is searched"


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
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_SEARCH,
            help="dcs, dnip (weights only), furud (memberships only), or a baseline: batch, "
            "prior, temperature, vector, logistic, logistic-balanced, thresholds, published.",
        ),
    ] = "dcs",
    protocol: Annotated[
        Literal["front", "paper"],
        typer.Option(
            rich_help_panel=_SEARCH,
            help="front: cross-validated front of accuracy and COBias. paper: an Optuna study "
            "judged on 5 % development rows.",
        ),
    ] = "front",
    trials: Annotated[
        int | None,
        typer.Option(
            min=0,
            rich_help_panel=_SEARCH,
            help="Settings for Optuna to try: with front beside the standard ones [default: 0], "
            "with paper all there are [default: 30].",
            show_default=False,
        ),
    ] = None,
    objective: Annotated[
        Literal["full", "err", "err+pmi", "err+cobias"],
        typer.Option(
            rich_help_panel=_SEARCH,
            help="Terms of Z to search for: those named are weighed, others left out.",
        ),
    ] = "full",
    beta: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            rich_help_panel=_SEARCH,
            help="Fixed weight of COBias; tau is 0 unless given.",
        ),
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            rich_help_panel=_SEARCH,
            help="Fixed weight of PMI; beta is 0 unless given.",
        ),
    ] = None,
    weight_scale: Annotated[
        int | None,
        typer.Option(
            metavar="D_W",
            rich_help_panel=_SEARCH,
            help="Number of weights, in place of tuning it.",
        ),
    ] = None,
    memberships: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            rich_help_panel=_SEARCH,
            help="How many membership functions are offered, coarse first.",
        ),
    ] = None,
    prefer: Annotated[
        Literal["balance", "accuracy", "knee"],
        typer.Option(
            rich_help_panel=_CHOICE,
            help="Point of the front: balance has the best accuracy minus COBias, accuracy the "
            "best accuracy, knee lies where the price of fairness starts to rise.",
        ),
    ] = "balance",
    max_accuracy_loss: Annotated[
        float | None,
        typer.Option(
            metavar="POINTS",
            rich_help_panel=_CHOICE,
            help="The fairest scheme at most so far below the best accuracy.",
        ),
    ] = None,
    max_cobias: Annotated[
        float | None,
        typer.Option(
            metavar="POINTS",
            rich_help_panel=_CHOICE,
            help="The most accurate scheme with at most this COBias.",
        ),
    ] = None,
    certify: Annotated[
        bool,
        typer.Option(
            "--certify",
            rich_help_panel=_SEARCH,
            help="With paper: prove by exhaustive search how near the optimum is, up to "
            f"{MOST_CERTIFIED} classes.",
        ),
    ] = False,
    seed: Seed = 0,
    output: Output = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
) -> None:
    """Find the correction scheme of a probability table, judge it on held-out rows, keep it.

    Schemes are searched by simulated annealing and chosen among on rows they have not seen. The
    chosen one is written to OUTPUT/scheme.json, all that was tried to MLflow.
    """
    from dcs.data.table import ProbabilityTable
    from dcs.io import content_key
    from dcs.schemes.scheme import CorrectionScheme
    from tracking import Recorder
    from workflows.cli._console import console, share_bar
    from workflows.cli._results import results_table
    from workflows.config.tuner import checked_settings
    from workflows.tuning.cell import table_cells, tune_cells

    settings = checked_settings(
        protocol=protocol,
        trials=trials if trials is not None else 30 if protocol == "paper" else 0,
        objective=_objective(objective, beta, tau),
        weight_scale=weight_scale,
        memberships=memberships,
        prefer=prefer,
        max_accuracy_loss=max_accuracy_loss,
        max_cobias=max_cobias,
    )
    whole = ProbabilityTable.read(table)
    _check(method, protocol, whole, table=table, certify=certify)
    optimization, held_out = split_rows(whole, test, seed=seed)
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
        sweep_params={
            "table": table.name,
            "method": method,
            "seed": seed,
            **settings.model_dump(),
        },
        run_name=table.stem,
        warn=lambda line: console.print(f"[yellow]{line}[/yellow]"),
    ) as recorder:
        with share_bar(f"tuning {method}") as progress:
            records = tune_cells(
                cells, optimization, held_out, sweep="tune", output=output, progress=progress
            )
        for record in records:
            recorder.record(record)
        with console.status("recording in MLflow"):
            report = recorder.finish()

    scheme = CorrectionScheme.from_dict(records[-1].scheme)
    path = output / "scheme.json"
    scheme.save(path)
    proof = ""
    if certify:
        with console.status("searching exhaustively"):
            proof = _proof(optimization, records[-1], method=method, settings=settings)
    console.print()
    console.print(
        f"[bold]{table.name}[/bold]: % of {held_out.n_rows} held-out rows [95 % interval], "
        "p against ICL"
    )
    console.print(results_table(records, width=console.width))
    console.print(_change(records), soft_wrap=True, highlight=False)
    console.print()
    for sentence in scheme.explain():
        console.print(f"  {sentence}", highlight=False, markup=False, soft_wrap=True)
    if proof:
        console.print(f"  {proof}", soft_wrap=True)
    console.print()
    console.print(report.message, soft_wrap=True)
    console.print(f"scheme written to {path}", soft_wrap=True)
    console.print(
        f"next: [bold]dcs apply {path} {test or table} -o corrected.parquet[/bold], "
        f"or [bold]dcs ui --output {output}[/bold]",
        soft_wrap=True,
    )


def _objective(name: str, beta: float | None, tau: float | None) -> str | dict[str, float]:
    from dcs.errors import ConfigError

    if beta is None and tau is None:
        return name
    if name != "full":
        raise ConfigError(
            f"--objective {name} weighs its terms itself; leave it out to fix them by --beta "
            "and --tau"
        )
    return {"beta": beta or 0.0, "tau": tau or 0.0}


def _change(records: Sequence[CellRecord]) -> str:
    """Say what the last record changes against the uncorrected rows, and whether by chance."""
    figures = records[-1].metrics
    parts = []
    for name, title in (("accuracy", "accuracy"), ("cobias", "COBias")):
        by = 100 * (figures[f"test/{name}"] - figures[f"uncorrected/test/{name}"])
        chance = sentence_of_chance(figures[f"test/{name}_p"])
        parts.append(f"{title} {by:+.1f} points ({chance})")
    return f"against ICL, paired on the same rows: {', '.join(parts)}"


def _check(
    method: str, protocol: str, whole: ProbabilityTable, *, table: Path, certify: bool
) -> None:
    from dcs.errors import ConfigError
    from dcs.selection.methods import get_method

    searches = get_method(method).searches
    if method in ("icl", "contextual"):
        reason = "nothing to tune there" if method == "icl" else "it needs content-free inputs"
        raise ConfigError(
            f"--method {method}: {reason}; choose dcs, dnip, furud or another baseline"
        )
    if certify and (protocol != "paper" or not searches):
        raise ConfigError(
            "--certify proves the one search of --protocol paper with dcs, dnip or furud; add "
            "--protocol paper, or leave --certify out"
        )
    if certify and whole.n_classes > MOST_CERTIFIED:
        raise ConfigError(
            f"--certify: {table} has {whole.n_classes} classes, and exhaustive search takes "
            f"minutes up to {MOST_CERTIFIED}, years beyond; leave --certify out"
        )


def _proof(
    optimization: ProbabilityTable, record: CellRecord, *, method: str, settings: TunerSettings
) -> str:
    from dcs.selection.methods import get_method
    from workflows.tuning.paper import certify

    gap = certify(optimization, get_method(method), record, settings=settings)
    return f"Z {record.metrics['opt/z']:.6f} on its rows: {gap:.2e} above the proven optimum"


def split_rows(
    table: ProbabilityTable, test: Path | None, *, seed: int
) -> tuple[ProbabilityTable, ProbabilityTable]:
    """Return the rows to tune on and those for the final figures: of `test`, or held out."""
    from dcs.data.splits import stratified_split
    from dcs.data.table import ProbabilityTable
    from dcs.errors import TableError
    from dcs.seeds import derive_seed

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
