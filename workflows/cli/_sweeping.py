"""What `dcs quickstart` and `dcs sweep` have in common."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import groupby
from pathlib import Path

from dcs._files import atomic_path
from tracking import CellRecord, Recorder, RecorderReport
from tracking.figures import class_accuracy_figure
from workflows.cli._console import console, sweep_bars
from workflows.cli._results import results_table
from workflows.cli._signals import STOP
from workflows.config import SweepConfig
from workflows.sweep import plan_sweep, run_sweep, sweep_key

__all__ = ["sweep_and_show"]

#: The method whose class accuracies are drawn.
_DRAWN = "dcs"


def sweep_and_show(config: SweepConfig, *, output: Path, tracking_uri: str | None) -> None:
    """Run a sweep to its end and print its tables, what was written, and what to type next."""
    clock = time.perf_counter()
    with console.status("looking at what is there already"):
        plan = plan_sweep(config, output)
    console.print(
        f"[bold]{config.name}[/bold]: {plan.n_tables} tables, {plan.n_cells} cells; "
        f"{len(plan.finished)} cells finished earlier"
    )
    with Recorder(
        tracking_uri,
        output=output,
        experiment=config.name,
        sweep_key=sweep_key(config),
        sweep_params=config.model_dump(mode="json"),
        run_name=config.name,
        trials=config.tracked_trials,
        warn=lambda line: console.print(f"[yellow]{line}[/yellow]"),
    ) as recorder:
        with local_ray() if plan.has_work else nullcontext(), sweep_bars() as bars:
            records = run_sweep(plan, recorder, bars)
        with console.status("recording in MLflow"):
            report = recorder.finish()
    _show(config.name, records, report, output=output, seconds=time.perf_counter() - clock)


@contextmanager
def local_ray() -> Iterator[None]:
    """Start Ray on this machine and stop it again, quietly."""
    import logging
    import os

    # Read when Ray is imported: how workers see GPUs when they ask for none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray complains on the terminal about work that it dropped when it was told to stop.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    with console.status("starting Ray"):
        import ray

        ray.init(
            address="local",
            include_dashboard=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
        STOP.listen()
    try:
        yield
    finally:
        ray.shutdown()


def _show(
    name: str, records: list[CellRecord], report: RecorderReport, *, output: Path, seconds: float
) -> None:
    finished = [record for record in records if record.status == "FINISHED"]
    by_task = sorted(finished, key=lambda record: _group(record))
    for (model, task), group in groupby(by_task, key=_group):
        console.print()
        console.print(f"[bold]{task}[/bold] ({model}): % of test rows, mean ± sd over seeds")
        console.print(results_table(list(group), width=console.width))
    for record in records:
        if record.status == "FAILED":
            identity = record.identity
            last = (record.error or "").strip().splitlines()[-1]
            console.print(
                f"[red]failed[/red] {identity['method']} {identity['task']} "
                f"{identity['shots']}-shot seed {identity['seed']}: {last}"
            )
    console.print()
    if any(record.identity["method"] == _DRAWN for record in finished):
        picture = output / "figures" / f"{name}.png"
        with atomic_path(picture) as temporary:
            class_accuracy_figure(finished, method=_DRAWN).savefig(temporary, format="png")
        console.print(f"class accuracies before and after drawn in {picture}", soft_wrap=True)
    console.print(report.message, soft_wrap=True)
    console.print(f"written to {output} in {seconds:.0f} s", soft_wrap=True)
    console.print(f"next: [bold]dcs ui --output {output}[/bold] compares the runs in MLflow")


def _group(record: CellRecord) -> tuple[str, str]:
    return record.identity["model"], record.identity["task"]
