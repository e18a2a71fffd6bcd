"""``dcs quickstart``, ``dcs sweep`` and ``dcs sync``: a grid of cells, computed and recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workflows.cli.console import console, sweep_view
from workflows.cli.failures import STOP
from workflows.cli.options import (
    Config,
    Data,
    Engine,
    Limit,
    Models,
    Only,
    Output,
    RetryFailed,
    Runs,
    Settings,
    TrackingUri,
    Yes,
    sweep_file,
)

if TYPE_CHECKING:
    from workflows.config.sweep import SweepConfig

__all__ = ["quickstart", "sweep", "sync"]


def quickstart(
    output: Output = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
    settings: Settings = None,
) -> None:
    """Run the main job on the built-in demonstration model and tasks: a minute or two.

    A tiny language model scores two generated tasks with 1-shot and N-shot prompts and three
    seeds; ICL, DNIP, FuRud and DCS are compared on the same texts; all runs are in MLflow
    afterwards. What is finished is not computed again when the command is repeated.
    """
    from workflows.config.sweep import load_config, packaged_config

    config = load_config(packaged_config("quickstart"), sets=settings or ())
    _sweep(config, whole=config, output=output, tracking_uri=tracking_uri)


def sweep(
    config: Config,
    model: Models = None,
    data: Data = None,
    only: Only = None,
    limit: Limit = None,
    engine: Engine = None,
    settings: Settings = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what there is to do, and do nothing.")
    ] = False,
    retry_failed: RetryFailed = False,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="ADDRESS",
            help="Ray cluster to run on, e.g. auto or 10.0.0.5:6379; by default this machine.",
        ),
    ] = None,
    output: Output = Path("dcs-runs"),
    tracking_uri: TrackingUri = None,
    yes: Yes = False,
) -> None:
    """Run every cell of a sweep: models x tasks x shots x seeds x methods x ablations.

    What is finished is not computed again when the command is repeated, also after it was
    stopped or the machine went down. The command line wins over the file, the file over defaults.
    """
    from workflows.cli.overview import show_plan
    from workflows.config.sweep import load_config, narrowed

    whole = load_config(
        sweep_file(config),
        sets=settings or (),
        models=model,
        limit=limit,
        data=None if data is None else str(data.absolute()),
        scoring__engine=engine,
    )
    part = narrowed(whole, only or [])
    if dry_run:
        show_plan(part, output=output, retry_failed=retry_failed)
    else:
        _sweep(
            part,
            whole=whole,
            output=output,
            tracking_uri=tracking_uri,
            retry_failed=retry_failed,
            address=address,
            yes=yes,
        )


def _sweep(
    config: SweepConfig,
    *,
    whole: SweepConfig,
    output: Path,
    tracking_uri: str | None,
    retry_failed: bool = False,
    address: str | None = None,
    yes: bool = False,
) -> None:
    """Run a sweep, a part of `whole`, to its end and print its tables and what to type next."""
    import json
    import time

    from dcs.messages import redact
    from tracking import Recorder
    from workflows.cli.overview import headline, show_results
    from workflows.cli.scoring import announce
    from workflows.cluster.sweep import run_sweep
    from workflows.plan import plan_sweep, sweep_key
    from workflows.tables import ProbabilityStore

    clock = time.perf_counter()
    with console.status("looking at what is there already"):
        plan = plan_sweep(config, output, retry_failed=retry_failed)
    console.print(headline(plan))
    announce(plan.missing_tables.values(), yes=yes)
    with Recorder(
        tracking_uri,
        output=output,
        experiment=whole.name,
        sweep_key=sweep_key(whole),
        # The address of a server may hold a password.
        sweep_params=json.loads(redact(whole.model_dump_json())),
        run_name=whole.name,
        trials=whole.tracking.trials,
        figures=whole.tracking.figures,
        warn=lambda line: console.print(line, style="yellow"),
    ) as recorder:
        with _joined_ray(address) if plan.has_work else nullcontext(), sweep_view() as view:
            records = run_sweep(plan, recorder, view)
        with console.status("recording in MLflow"):
            report = recorder.finish()
    store = ProbabilityStore.under(output)
    for key, request in plan.missing_tables.items():
        scoring = store.scoring(key)
        for remark in scoring.remarks if scoring else ():
            console.print(f"{request.label}: {remark}")
    show_results(records, output / "figures" / f"{config.name}.png")
    console.print(report.message)
    console.print(f"written to {output} in {time.perf_counter() - clock:.0f} s")
    console.print(f"next: dcs ui --output {output} compares the runs in MLflow", style="bold")
    if not all(record.finished for record in records):
        raise SystemExit(1)


@contextmanager
def _joined_ray(address: str | None) -> Iterator[None]:
    """Join a Ray cluster, by default one of this machine that is stopped again."""
    from workflows.cluster.connect import connected

    with console.status("starting Ray" if address is None else "joining Ray"):
        # Not a plain `with`: the line on the terminal is to end once Ray is there.
        joined = ExitStack()
        joined.enter_context(connected(address))
    with joined:
        # Ray has taken the signals over.
        STOP.listen()
        yield


def sync(runs: Runs = Path("dcs-runs"), tracking_uri: TrackingUri = None) -> None:
    """Record in MLflow what is finished on disk but not recorded yet, each cell exactly once."""
    import tracking

    with console.status("recording in MLflow") as status:
        reports = tracking.sync(
            runs,
            tracking_uri=tracking_uri,
            progress=lambda done, total: status.update(f"recording in MLflow: {done} of {total}"),
        )
    for report in reports:
        console.print(report.message)
    if not reports:
        console.print(f"nothing to send: all that is finished under {runs} is recorded")
