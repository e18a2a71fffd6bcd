"""``dcs quickstart``, ``sweep`` and ``sync``: compute and record grids of cells."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcs.errors import redact
from dcs_workflows.cli import options
from dcs_workflows.cli.console import STOP, console

if TYPE_CHECKING:
    from dcs_workflows.config.sweep import SweepConfig
    from dcs_workflows.plan import SweepPlan


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
        bool,
        typer.Option("--dry-run", help="Only print the remaining work and its time."),
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Compute failed cells again.")
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Ray cluster to join: auto, 10.0.0.5:6379"),
    ] = None,
    output: options.Output = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
) -> None:
    """Run every cell of a sweep: models x tasks x shots x seeds x methods x ablations.

    Finished cells are not computed again when the command is repeated, even after it was stopped
    or the machine crashed. The command line overrides the file, the file overrides defaults.

    Example: `dcs sweep quickstart --only methods=dcs --set tuner.trials=5 --dry-run`
    """
    from dcs_workflows.cli.views import show_plan
    from dcs_workflows.config.sweep import load_config, packaged_config
    from dcs_workflows.plan import plan_sweep

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
    if dry_run:
        show_plan(plan)
    else:
        _run(plan, whole, tracking_uri, address)


def _run(plan: SweepPlan, whole: SweepConfig, uri: str | None, address: str | None) -> None:
    """Compute the missing part of a plan of the sweep `whole`; print results and next steps."""
    from dcs.scoring import check_engine
    from dcs_workflows.cli.scoring import announce
    from dcs_workflows.cli.views import headline, show_results, sweep_progress
    from dcs_workflows.cluster.connect import connected
    from dcs_workflows.cluster.sweep import run_sweep
    from dcs_workflows.plan import sweep_key
    from dcs_workflows.tables import StoredTables

    clock = time.perf_counter()
    console.print(headline(plan))
    if address is None:
        for engine in sorted({request.scoring.engine for request in plan.missing_tables.values()}):
            check_engine(engine)
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
        with ExitStack() as opened:
            if plan.has_work:
                with console.status("starting Ray" if address is None else "joining Ray"):
                    opened.enter_context(connected(address, shared=plan.shared_folder))
                STOP.listen()  # Ray has installed its own signal handlers.
            progress = opened.enter_context(sweep_progress())
            records = run_sweep(plan, recorder, progress)
        with console.status("recording in MLflow"):
            report = recorder.finish()
    for key, request in plan.missing_tables.items():
        scoring = StoredTables.under(plan.output, key).scoring
        for remark in [*scoring.remarks, *scoring.shortfall] if scoring else ():
            console.print(f"{request.label}: {remark}")
    show_results(records)
    console.print(report.message)
    if report.link is not None:
        console.print(f"sweep {whole.name}: {report.link}")
    console.print(f"written to {plan.output} in {time.perf_counter() - clock:.0f} s")
    console.print(
        f"next: dcs runs {whole.name} {options.place(plan.output, uri)} lists the cells, "
        f"{options.ui_command(plan.output, uri)} compares them",
        style="bold",
    )
    if not all(record.finished for record in records):
        raise SystemExit(1)


def sync(
    runs: options.Runs = Path("dcs-runs"),
    tracking_uri: options.NewTrackingUri = None,
    restore: Annotated[
        bool, typer.Option("--restore", help="Restore experiments that were deleted in MLflow.")
    ] = False,
) -> None:
    """Record finished cells on disk that are not in MLflow yet, each exactly once.

    Example: `dcs sync --output dcs-runs --tracking-uri http://127.0.0.1:5000`
    """
    import dcs_tracking

    with console.status("recording in MLflow"):
        reports = dcs_tracking.sync(runs, tracking_uri=tracking_uri, restore=restore)
    for report in reports:
        console.print(report.message)
        if report.link:
            console.print(report.link)
    if not reports:
        console.print(f"nothing to record: all finished cells in {runs} are recorded")
    if any(report.pending for report in reports):
        raise typer.Exit(1)
