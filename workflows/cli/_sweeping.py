"""What `dcs quickstart` and `dcs sweep` have in common."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import groupby
from pathlib import Path

from dcs._files import atomic_path
from tracking import CellRecord, Recorder, RecorderReport
from tracking.figures import class_accuracy_figure
from workflows.cli._console import console, new_table
from workflows.cli._live import sweep_view
from workflows.cli._results import results_table
from workflows.cli._signals import STOP
from workflows.cluster import connected
from workflows.config import SweepConfig
from workflows.estimate import estimate
from workflows.sweep import SweepPlan, plan_sweep, run_sweep, sweep_key

__all__ = ["show_plan", "sweep_and_show"]

#: The method whose class accuracies are drawn.
_DRAWN = "dcs"


def sweep_and_show(
    config: SweepConfig,
    *,
    whole: SweepConfig,
    output: Path,
    tracking_uri: str | None,
    retry_failed: bool = False,
    address: str | None = None,
) -> None:
    """Run a sweep to its end and print its tables, what was written, and what to type next.

    Parameters
    ----------
    config : SweepConfig
        What to run.
    whole : SweepConfig
        The sweep that this is all or a part of; its runs lie under one parent.
    output : pathlib.Path
        Folder for all that is written.
    tracking_uri : str or None
        The MLflow store.
    retry_failed : bool
        Whether cells that failed earlier are computed again.
    address : str or None
        The Ray cluster to run on; by default one is started on this machine.

    Raises
    ------
    SystemExit
        With code 1 if a cell failed.
    """
    clock = time.perf_counter()
    with console.status("looking at what is there already"):
        plan = plan_sweep(config, output, retry_failed=retry_failed)
    console.print(_headline(plan))
    with Recorder(
        tracking_uri,
        output=output,
        experiment=whole.name,
        sweep_key=sweep_key(whole),
        sweep_params=whole.model_dump(mode="json"),
        run_name=whole.name,
        trials=whole.tracked_trials,
        warn=lambda line: console.print(f"[yellow]{line}[/yellow]"),
    ) as recorder:
        with _joined_ray(address) if plan.has_work else nullcontext(), sweep_view() as view:
            records = run_sweep(plan, recorder, view)
        with console.status("recording in MLflow"):
            report = recorder.finish()
    _show(config.name, records, report, output=output, seconds=time.perf_counter() - clock)
    if not all(record.finished for record in records):
        raise SystemExit(1)


def show_plan(config: SweepConfig, *, output: Path, retry_failed: bool) -> None:
    """Print the cells of a sweep: what is finished, what is missing, how long that may take."""
    plan = plan_sweep(config, output, retry_failed=retry_failed)
    table = new_table("model ", "task ", "shots", "seed", "table ", "finished", "failed", "to do")
    for key, request in plan.requests.items():
        cells = plan.cells.get(key, [])
        ended = [plan.ended[cell.key] for cell in cells if cell.key in plan.ended]
        finished = sum(record.finished for record in ended)
        table.add_row(
            request.model,
            request.task,
            str(request.shots),
            str(request.seed),
            "there" if cells else "to score",
            str(finished),
            str(len(ended) - finished),
            str(len(config.methods) - len(ended)),
        )
    console.print(table)
    console.print(_headline(plan))
    rest = estimate(plan)
    console.print(
        f"to do: {rest.tables} tables to score{_duration(rest.scoring_seconds, 'one worker')}"
        f"{_duration(rest.gpu_seconds, 'GPUs') if rest.gpu_seconds else ''}, "
        f"{rest.cells} cells to tune{_duration(rest.cell_seconds, 'one CPU')}",
        soft_wrap=True,
    )


def _duration(seconds: float | None, of: str) -> str:
    if seconds is None:
        return " (how long shows once the first is done)"
    if seconds < 120:
        return f" ({seconds:.0f} s of {of})"
    return (
        f" ({seconds / 60:.0f} min of {of})"
        if seconds < 7200
        else (f" ({seconds / 3600:.1f} h of {of})")
    )


@contextmanager
def _joined_ray(address: str | None = None) -> Iterator[None]:
    """Join a Ray cluster, by default one of this machine that is stopped again, quietly."""
    with console.status("starting Ray" if address is None else f"joining Ray at {address}"):
        # Not a plain `with`: the line on the terminal is to end once Ray is there.
        joined = ExitStack()
        joined.enter_context(connected(address))
    with joined:
        # Ray has taken the signals over.
        STOP.listen()
        yield


def _headline(plan: SweepPlan) -> str:
    failed = f", {plan.n_failed} failed" if plan.n_failed else ""
    return (
        f"[bold]{plan.config.name}[/bold]: {plan.n_tables} tables, {plan.n_cells} cells; "
        f"{len(plan.ended) - plan.n_failed} cells finished earlier{failed}"
    )


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
    if len(finished) < len(records):
        console.print("add [bold]--retry-failed[/bold] to compute the failed cells again")
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
