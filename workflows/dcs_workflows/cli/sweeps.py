"""``dcs quickstart``, ``sweep`` and ``sync``: compute and record grids of cells."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcs.errors import last_line, redact
from dcs_workflows.cli import options
from dcs_workflows.cli.console import STOP, conclude, console, direct_output

if TYPE_CHECKING:
    from dcs_workflows.config.sweep import SweepConfig
    from dcs_workflows.plan import Budget, SweepPlan


def quickstart(
    output: options.Output = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
    settings: options.Settings = None,
) -> None:
    """Run a small sweep on the built-in demonstration model and tasks in about a minute.

    A tiny language model scores two generated tasks with 1-shot prompts and two seeds;
    uncorrected, DNIP, FuRud and DCS are compared on the same texts; all runs are recorded in
    MLflow. Finished cells are not computed again when the command is repeated.

    Example: `dcs quickstart --output dcs-runs`, then `dcs runs quickstart`
    """
    from dcs_workflows.config.sweep import packaged_config

    quick = packaged_config("quickstart")
    sweep(quick, settings=settings, output=output, tracking_uri=tracking_uri)


def sweep(
    config: Annotated[
        Path,
        typer.Argument(metavar="CONFIG.yaml", help="Sweep file, or a packaged sweep: quickstart"),
    ],
    tables: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Tables to use instead of prompts; repeatable."),
    ] = None,
    model: options.Models = None,
    data: options.Data = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="AXIS=VALUE,...", help="Restrict the cells: tasks=trec,rte"),
    ] = None,
    limit: options.Limit = None,
    settings: options.Settings = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the axes and the remaining work.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Compute failed cells again.")
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Ray cluster to join: auto, 10.0.0.5:6379"),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=NUMBER",
            help="Stop after hours=, requests= or tokens= (to models); repeatable.",
        ),
    ] = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    output: options.Output = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
) -> None:
    """Run every cell of a sweep: models x tasks x shots x seeds x methods x ablations.

    Finished cells are not computed again when the command is repeated, even after it was stopped
    or the machine crashed. The command line overrides the file, the file overrides defaults. The
    exit code is 0 if all cells are finished and recorded, 1 if some failed, 3 if all are on disk
    but not all in MLflow, which `dcs sync` mends, and 4 if the budget was spent before the end.

    Example: `dcs sweep quickstart --only methods=dcs --set tuner.trials=5 --dry-run`
    """
    from dcs_workflows.cli.views import show_plan
    from dcs_workflows.cluster.sweep import check_plan
    from dcs_workflows.config.sweep import load_config, packaged_config
    from dcs_workflows.plan import Budget, plan_sweep

    direct_output(as_json=as_json, quiet=quiet)
    limits = Budget.of(budget or ())
    packaged = not config.suffix and not config.is_file()
    whole = load_config(
        packaged_config(str(config)) if packaged else config,
        sets=settings or (),
        tables=tables,
        models=model,
        limit=limit,
        data=None if data is None else str(data.absolute()),
    )
    with console.status("checking existing results"):
        plan = plan_sweep(whole, output, only=only or (), retry_failed=retry_failed)
        check_plan(plan)
    if not dry_run:
        _run(plan, whole, limits, uri=tracking_uri, address=address, as_json=as_json)
        return
    show_plan(plan)
    missing = {"tables": len(plan.missing_tables), "cells": plan.n_cells - len(plan.ended)}
    counts = {"tables": plan.n_tables, "cells": plan.n_cells, "failed": plan.n_failed}
    conclude({"sweep": plan.config.name, **counts, "missing": missing}, as_json=as_json)


def _run(
    plan: SweepPlan,
    whole: SweepConfig,
    budget: Budget,
    *,
    uri: str | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Compute the missing part of a plan of the sweep `whole`; print results and next steps."""
    from dcs_workflows.cli.scoring import announce
    from dcs_workflows.cli.views import headline, show_results, sweep_progress
    from dcs_workflows.cluster.connect import connected
    from dcs_workflows.cluster.sweep import run_sweep
    from dcs_workflows.plan import BudgetSpentError, Progress, sweep_key
    from dcs_workflows.tables import StoredTables

    console.print(headline(plan))
    announce(plan.missing_tables.values())
    with options.recording(
        uri,
        output=plan.output,
        tracking=whole.tracking,
        experiment=whole.name,
        sweep_key=sweep_key(whole),
        # Server addresses may contain a password. A sweep of tables has no prompts.
        sweep_params=json.loads(
            redact(
                whole.model_dump_json(
                    exclude={"models", "tasks", "shots"} if whole.tables else None
                )
            )
        ),
        varies=plan.varies,
        run_name=whole.name,
    ) as recorder:
        progress = Progress(
            recording=lambda: (recorder.recorded, recorder.pending, recorder.stage)
        )
        with ExitStack() as opened:
            if plan.has_work:
                with console.status("starting Ray" if address is None else "joining Ray"):
                    opened.enter_context(connected(address, shared=plan.shared_folder))
                STOP.listen()  # Ray has installed its own signal handlers.
            opened.enter_context(sweep_progress(progress))
            try:
                records, spent = run_sweep(plan, recorder, progress, budget), ""
            except BudgetSpentError as error:
                records, spent = [], str(error)
        with sweep_progress(progress):
            report = recorder.finish("KILLED" if spent else "FINISHED")
    for key, request in plan.missing_tables.items():
        scoring = StoredTables.under(plan.output, key).scoring
        for remark in [*scoring.remarks, *scoring.shortfall] if scoring else ():
            console.print(f"{request.label}: {remark}")
    if spent:
        console.print(spent, style="yellow")
    else:
        show_results(records, plan.output / "results" / f"{whole.name}.csv")
    console.print(report.message)
    if report.address is not None:
        console.print(f"sweep {whole.name}: {report.address}")
    console.print(f"written to {plan.output} in {time.perf_counter() - console.started:.0f} s")
    console.print(
        f"next: dcs runs {whole.name} {options.place(plan.output, uri)} lists the cells, "
        f"{options.ui_command(plan.output, uri)} compares them",
        style="bold",
    )
    failures = {each.key: last_line(each.error or "") for each in records if not each.finished}
    summary = {
        "sweep": whole.name,
        "tables": plan.n_tables,
        "cells": plan.n_cells,
        "computed": progress.work["cells"],
        "failures": failures,
        **asdict(report),
        "output": plan.output.absolute(),
    }
    conclude(summary, as_json=as_json, failed=failures, pending=not report.complete, stopped=spent)


def sync(
    runs: options.Runs = Path("dcs-runs"),
    tracking_uri: options.NewTrackingUri = None,
    restore: Annotated[
        bool, typer.Option("--restore", help="Restore experiments that were deleted in MLflow.")
    ] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Record finished cells on disk that are not in MLflow yet, each exactly once.

    The exit code is 3 if some are still not recorded.

    Example: `dcs sync --output dcs-runs --tracking-uri http://127.0.0.1:5000`
    """
    import dcs_tracking

    direct_output(as_json=as_json, quiet=quiet)
    with console.status("recording in MLflow"):
        reports = dcs_tracking.sync(runs, tracking_uri=tracking_uri, restore=restore)
    for report in reports:
        console.print(report.message)
        if report.address:
            console.print(report.address)
    if not reports:
        console.print(f"nothing to record: all finished cells in {runs} are recorded")
    summary = {"sweeps": [asdict(report) for report in reports]}
    pending = not all(report.complete for report in reports)
    conclude(summary, as_json=as_json, pending=pending)
