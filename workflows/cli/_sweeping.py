"""What `dcs quickstart` and `dcs sweep` have in common."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import groupby
from pathlib import Path

from dcs.io import atomic_path
from dcs.messages import last_line, redact
from tracking import CellRecord, Recorder, RecorderReport
from tracking.results.figures import class_accuracy_figure
from workflows.cli._console import console
from workflows.cli._live import sweep_view
from workflows.cli._planning import headline
from workflows.cli._results import results_table
from workflows.cli._scoring import announce_sweep
from workflows.cli._signals import STOP
from workflows.cluster.connect import connected
from workflows.cluster.driver import run_sweep
from workflows.config.sweep import SweepConfig
from workflows.config.tuner import objective_label
from workflows.plan import SweepPlan, plan_sweep, sweep_key
from workflows.tables import ProbabilityStore

__all__ = ["sweep_and_show"]

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
    yes: bool = False,
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
    yes : bool
        Whether to send requests that cost money without asking.

    Raises
    ------
    SystemExit
        With code 1 if a cell failed.
    """
    clock = time.perf_counter()
    with console.status("looking at what is there already"):
        plan = plan_sweep(config, output, retry_failed=retry_failed)
    console.print(headline(plan))
    announce_sweep(plan, yes=yes)
    with Recorder(
        tracking_uri,
        output=output,
        experiment=whole.name,
        sweep_key=sweep_key(whole),
        # The address of a store may hold a password.
        sweep_params=json.loads(redact(whole.model_dump_json())),
        run_name=whole.name,
        trials=whole.tracking.trials,
        figures=whole.tracking.figures,
        warn=lambda line: console.print(f"[yellow]{line}[/yellow]"),
    ) as recorder:
        with _joined_ray(address) if plan.has_work else nullcontext(), sweep_view() as view:
            records = run_sweep(plan, recorder, view)
        with console.status("recording in MLflow"):
            report = recorder.finish()
    for line in _remarks(plan, output):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    _show(config.name, records, report, output=output, seconds=time.perf_counter() - clock)
    if not all(record.finished for record in records):
        raise SystemExit(1)


def _remarks(plan: SweepPlan, output: Path) -> list[str]:
    """Return what the engine had to say of the tables that were missing."""
    store = ProbabilityStore.under(output)
    lines = []
    for key, request in plan.missing_tables.items():
        scoring = store.scoring(key)
        lines += [f"{request.label}: {line}" for line in (scoring.remarks if scoring else [])]
    return lines


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


def _show(
    name: str, records: list[CellRecord], report: RecorderReport, *, output: Path, seconds: float
) -> None:
    finished = [record for record in records if record.status == "FINISHED"]
    by_task = sorted(finished, key=lambda record: _group(record))
    for (model, task), group in groupby(by_task, key=_group):
        console.print()
        cells = list(group)
        several = len({record.identity["seed"] for record in cells}) > 1
        figures = "mean ± sd over seeds" if several else "[95 % interval], p against ICL"
        console.print(f"[bold]{task}[/bold] ({model}): % of test rows, {figures}")
        console.print(results_table(cells, width=console.width))
    for record in records:
        if record.status == "FAILED":
            console.print(f"[red]failed[/red] {_name(record)}: {last_line(record.error or '')}")
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


def _name(record: CellRecord) -> str:
    """Return the name of a cell; that of a poisoned one may hold settings that are not allowed."""
    identity = record.identity
    name = f"{identity['method']} {identity['task']} {identity['shots']}-shot"
    tuner = identity.get("tuner") or {}
    if tuner.get("objective", "full") != "full":
        name += f" objective {objective_label(tuner['objective'])}"
    for setting in ("weight_scale", "memberships"):
        if tuner.get(setting) is not None:
            name += f" {setting} {tuner[setting]}"
    if identity.get("optimization_size") is not None:
        name += f" {identity['optimization_size']} rows"
    return f"{name} seed {identity['seed']}"


def _group(record: CellRecord) -> tuple[str, str]:
    return record.identity["model"], record.identity["task"]
