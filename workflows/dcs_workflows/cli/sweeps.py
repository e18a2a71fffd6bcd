"""``dcs generate``, ``tasks``, ``quickstart``, ``sweep`` and ``sync``: models and sweeps."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dcs_tracking
from dcs.errors import ConfigError
from dcs_workflows.cli import options
from dcs_workflows.cli.console import STOP, conclude, console, new_table, progress_bar
from dcs_workflows.cli.options import argument, flag, option

if TYPE_CHECKING:
    from dcs import ProbabilityTable
    from dcs_workflows.config.sweep import SweepConfig
    from dcs_workflows.plan import Budget, SweepPlan
    from dcs_workflows.sources.scored import StoredTables, TableRequest

tasks = typer.Typer(help="List the tasks, or show a prompt.", invoke_without_command=True)


def generate(
    task: Annotated[
        list[str], option("TASK", "Name (see dcs tasks) or YAML; repeatable.", "--task")
    ],
    model: options.Models = None,
    data: options.Data = None,
    shots: Annotated[str, option("K,...", "Demonstrations: 0, 1, 5 or N (one per class).")] = "1",
    seeds: Annotated[str, option("S,...", "Demonstration seeds.")] = "0",
    output: options.Output = Path("dcs-runs"),
    limit: options.Limit = None,
    engine: options.EngineName = None,
    settings: options.Settings = None,
) -> None:
    """Score prompts with a model and write an optimization and a test table per prompt.

    Every prompt is scored once: a stopped run continues where it stopped, and existing tables,
    including those of sweeps, are reused. The API key of a server is read from OPENAI_API_KEY.

    Example: `dcs generate --task helpdesk --model tiny_lm --shots 1,N --limit 100`
    """
    from dcs_workflows.config.sweep import PromptsConfig, configured
    from dcs_workflows.sources.scored import expected_requests, table_requests

    config = configured(
        PromptsConfig,
        sets=settings,
        models=model,
        tasks=task,
        shots=shots.split(","),
        seeds=seeds.split(","),
        data=None if data is None else str(data.absolute()),
        limit=limit,
        scoring__engine=engine,
    )
    folders = {each: output / "tables" / table_name(each) for each in table_requests(config)}
    known = dict[Any, Any]()
    stored = {each: each.stored(output, known) for each in folders}
    missing = {own.key: each for each, own in stored.items() if not own.complete}
    for line in expected_requests(missing.values()):
        console.print(line)
    scored = sum(
        score(name, {key: each for key, each in missing.items() if each.model == name}, output)
        for name in dict.fromkeys(request.model for request in missing.values())
    )
    for request, own in stored.items():
        tables = own.read()
        if _holds_others(folders[request], tables):
            # Tables of other settings stay, and are not replaced.
            folders[request] = folders[request].with_name(f"{folders[request].name}-{own.key[:8]}")
        for split, table in tables.items():
            table.write(folders[request] / f"{split}.parquet")
        earlier = "" if own.key in missing else " (scored earlier)"
        console.print(f"{folders[request]}{earlier}")
        _show_remarks(request, own)
    console.print(
        f"{2 * len(stored)} tables written in {time.perf_counter() - console.started:.1f} s, "
        f"{scored} prompts scored"
    )
    console.print(f"next: dcs tune {quote(str(next(iter(folders.values()))))}", style="bold")


def _holds_others(folder: Path, tables: Mapping[str, ProbabilityTable]) -> bool:
    """Return whether a folder has tables with other numbers, of which no row is missing."""
    from dcs import ProbabilityTable

    files = {split: folder / f"{split}.parquet" for split in tables}
    old = {split: ProbabilityTable.read(file) for split, file in files.items() if file.exists()}
    lacking = any(table.provenance.missing_rows for table in old.values())
    return not lacking and any(old[split].digest != tables[split].digest for split in old)


def table_name(request: TableRequest) -> str:
    """Return a readable folder name for the tables of a request."""
    from dcs.prompting.files import get_task

    model = Path(request.model).name if Path(request.model).exists() else request.model
    task = get_task(request.task, request.data).name
    safe = re.sub(r"[^\w.-]+", "-", model)
    return f"{task}_{safe}_shot{request.shots}_seed{request.seed}"


def score(model: str, missing: dict[str, TableRequest], output: Path) -> int:
    """Score requests, by key, with one model; return the number of prompts not in the cache."""
    from dcs_workflows.cluster.scoring import ScoringActor, TableScoring
    from dcs_workflows.sources.scored import StoredTables

    tables = [TableScoring(key, request) for key, request in missing.items()]
    actor = ScoringActor(model, output / "shards", tables[0].request.scoring)
    total, scored = sum(table.n_prompts for table in tables), 0
    with closing(actor):
        with console.status("loading the model"):
            info = actor.load()
        with progress_bar("scoring prompts", total) as progress:
            for table in tables:
                for shard in table.left:
                    prompts = table.prompts.prompts(shard)
                    table.add(shard, actor.score(prompts, lambda n: progress(advance=n)), actor)
                scored += table.store(StoredTables(output, table.key), info).scored
    return scored


def _show_remarks(request: TableRequest, stored: StoredTables) -> None:
    """Print what the engine says of the scoring of tables, and which of their rows are missing."""
    if (scoring := stored.scoring) is not None:
        for line in (*scoring.remarks, *scoring.shortfall):
            console.print(f"{request.label}: {line}")


@tasks.callback()
def list_tasks(context: typer.Context) -> None:
    """List the tasks."""
    if context.invoked_subcommand is not None:
        return
    from dcs.prompting.files import DESCRIBED, PACKAGED, get_task
    from dcs.prompting.tasks import SPLITS

    table = new_table("task ", "classes ", "optimization", "test", "about ")
    for name in (*PACKAGED, *DESCRIBED):
        task = get_task(name)
        sizes = dict(task.file.sizes)
        if name in PACKAGED:
            sizes = {split: len(task.examples(split)) for split in SPLITS}
        counts = (str(sizes.get(split, "?")) for split in SPLITS)
        table.add_row(name, ", ".join(task.classes), *counts, task.file.title or task.file.name)
    console.print(table)
    console.print(
        f"{', '.join(DESCRIBED)} have no texts included: set their folder with "
        "--data FOLDER; NAME@published selects the prompt as the published code renders it; "
        "for your own task, use the path of its YAML file"
    )
    console.print("next: dcs tasks show NAME --shots N prints a prompt", style="bold")


@tasks.command()
def show(
    name: Annotated[str, argument("TASK", "Name of a task (see dcs tasks), or a YAML file.")],
    shots: Annotated[str, option("K", "Demonstrations: 0, 1, 5, ... or N, one per class.")] = "1",
    seed: Annotated[int, option("N", "Demonstration seed.", min=0)] = 0,
    data: options.Data = None,
    model: Annotated[str, option("MODEL", "Model that reads the prompt.")] = "tiny_lm",
    settings: options.Settings = None,
) -> None:
    """Print a prompt exactly as the model reads it, its tokens and the tokens of the labels.

    A model with a chat template receives the turns of a conversation; --set
    scoring.prompt=completion shows the plain text. Only the tokenizer of the model is loaded.

    Example: `dcs tasks show reviews --shots N --model gpt2`
    """
    from dcs.prompting.files import get_task
    from dcs.prompting.tasks import parse_shots
    from dcs.scoring.generation import PromptSet
    from dcs.scoring.labels import read_label_words
    from dcs.scoring.models import load_tokenizer
    from dcs_workflows.config.sweep import PromptsConfig, configured

    config = configured(PromptsConfig, sets=settings, models=[model], tasks=[name])
    chosen = PromptSet.select(get_task(name, data), shots=parse_shots(shots), seed=seed, limit=1)
    prefix, (*_, query), words = chosen.prompts()
    tokenizer = load_tokenizer(model, config.scoring.prompt)
    (prompt,), space = tokenizer.render(prefix, [query])
    (ids,) = tokenizer.encode([prompt])
    typer.echo(prompt)
    console.print(
        "",
        f"prompt: {'plain text' if tokenizer.template is None else 'chat'}",
        f"label words: {', '.join(words)}",
        f"demonstrations: {', '.join(e.id for e in chosen.demonstrations.examples) or 'none'}",
        f"number of tokens: {len(ids)}",
        sep="\n",
    )
    pieces = (tokenizer.describe(token).replace("\n", "\\n") for token in ids)
    typer.echo(f"tokens of {model}:\n{'|'.join(pieces)}")
    words = [space + word for word in words]
    found, rule = read_label_words(tokenizer, prompt, words, config.scoring.label_rule)
    shown = (" ".join(repr(tokenizer.describe(token)) for token in word) for word in found)
    console.print(f"label tokens ({rule}): {', '.join(shown)}")


def quickstart(
    output: options.Output = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
    settings: options.Settings = None,
) -> None:
    """Run a small sweep on the built-in demonstration model and tasks in a few minutes.

    A tiny language model scores two generated tasks with 1-shot prompts and two seeds;
    uncorrected, DNIP, FuRud and DCS are compared on the same texts; all runs are recorded in
    MLflow. Finished cells are not computed again when the command is repeated.

    Example: `dcs quickstart --output dcs-runs`, then `dcs runs quickstart`
    """
    from dcs_workflows.config.sweep import packaged_config

    # Not a file of this name in the current folder.
    config = packaged_config("quickstart")
    sweep(config, settings=settings, output=output, tracking_uri=tracking_uri)


def sweep(
    config: Annotated[
        Path, argument("CONFIG.yaml", "Sweep file, or a packaged sweep: quickstart")
    ],
    tables: Annotated[
        list[str] | None, option("PATH", "Tables to use instead of prompts; repeatable.")
    ] = None,
    model: options.Models = None,
    data: options.Data = None,
    only: Annotated[
        list[str] | None, option("AXIS=VALUE,...", "Restrict the cells: tasks=trec,rte")
    ] = None,
    limit: options.Limit = None,
    settings: options.Settings = None,
    dry_run: Annotated[
        bool, flag("--dry-run", "Only print the axes and the remaining work.")
    ] = False,
    retry_failed: Annotated[bool, flag("--retry-failed", "Compute failed cells again.")] = False,
    address: Annotated[
        str | None, option("ADDRESS", "Ray cluster to join: auto, 10.0.0.5:6379")
    ] = None,
    budget: Annotated[
        list[str] | None,
        option("KEY=NUMBER", "Stop after hours=, requests= or tokens= (to models); repeatable."),
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
    from dcs.io import validated
    from dcs_workflows.cli.views import show_plan
    from dcs_workflows.config.sweep import load_config, packaged_config
    from dcs_workflows.plan import Budget, plan_sweep
    from dcs_workflows.study.storage import Studies

    given = options.named_values("--budget", budget, example="hours=2")
    limits = validated(Budget, given, source="--budget", error=ConfigError)
    packaged = not config.suffix and not config.is_file()
    whole = load_config(
        packaged_config(str(config)) if packaged else config,
        sets=settings,
        tables=tables,
        models=model,
        limit=limit,
        data=None if data is None else str(data.absolute()),
    )
    with console.status("checking existing results"):
        plan = plan_sweep(whole, output, only=only or (), retry_failed=retry_failed)
        Studies(plan.output, plan.study_storage).check()
    if not dry_run:
        _run(plan, whole, limits, uri=tracking_uri, address=address)
        return
    show_plan(plan)
    missing = {"tables": len(plan.missing_tables), "cells": plan.n_cells - len(plan.ended)}
    counts = {"tables": len(plan.sources), "cells": plan.n_cells, "failed": plan.n_failed}
    conclude({"sweep": plan.config.name, **counts, "missing": missing})


def _run(
    plan: SweepPlan, whole: SweepConfig, budget: Budget, *, uri: str | None, address: str | None
) -> None:
    """Compute the missing part of a plan of the sweep `whole`; print results and next steps."""
    from dcs_workflows.cli.views import headline, show_results, sweep_progress
    from dcs_workflows.cluster.connect import connected
    from dcs_workflows.cluster.sweep import run_sweep
    from dcs_workflows.plan import BudgetSpentError, Progress, sweep_key
    from dcs_workflows.sources.scored import StoredTables, expected_requests

    def recorded() -> list[dcs_tracking.CellRecord]:
        """Return all cells of the sweep, of which the plan may be a part."""
        return [*archive.load(archive.keys(recorder.sweep_key), summaries=True).values()]

    console.print(headline(plan), *expected_requests(plan.missing_tables.values()), sep="\n")
    with options.recording(
        uri,
        whole,
        params={},
        output=plan.output,
        sweep_key=sweep_key(whole),
        varies=plan.varies,
        run_name=whole.name,
    ) as recorder:
        archive = recorder.archive
        progress = Progress()
        with ExitStack() as opened:
            if plan.has_work:
                with console.status("starting Ray" if address is None else "joining Ray"):
                    # For the journals of studies; tables and records come back to the driver.
                    shared = plan.output if plan.study_storage is None else None
                    opened.enter_context(connected(address, shared=shared))
                STOP.listen()  # Ray has installed its own signal handlers.
            opened.enter_context(sweep_progress(progress, recorder))
            try:
                records, spent = run_sweep(plan, recorder, progress, budget), ""
            except BudgetSpentError as error:
                records, spent = recorded(), str(error)
        failures = {each.key: each.reason for each in records if not each.finished}
        for key, request in plan.missing_tables.items():
            _show_remarks(request, StoredTables(plan.output, key))
        if spent:
            console.print(spent, style="yellow")
        else:
            file = plan.output / "results" / f"{whole.name}.csv"
            show_results(recorded() if plan.part else records, file)
        del records  # The recorder reads them again, for the tables of the sweep.
        with sweep_progress(progress, recorder):
            report = recorder.finish("KILLED" if spent else "FINISHED")
    options.show_report(report, f"sweep {whole.name}:")
    console.print(f"written to {plan.output} in {time.perf_counter() - console.started:.0f} s")
    console.print(
        f"next: dcs runs {whole.name} {options.place_of(plan.output, uri)} lists the cells, "
        f"{options.ui_command(plan.output, uri)} compares them",
        style="bold",
    )
    summary = {
        "sweep": whole.name,
        "tables": len(plan.sources),
        "cells": plan.n_cells,
        "computed": progress.work["cells"],
        "failures": failures,
        **asdict(report),
        "output": plan.output.absolute(),
    }
    conclude(summary, failed=failures, pending=not report.complete, stopped=spent)


def sync(
    runs: options.Runs = Path("dcs-runs"),
    tracking_uri: options.NewTrackingUri = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Record finished cells on disk that are not in MLflow yet, each exactly once.

    The exit code is 3 if some are still not recorded.

    Example: `dcs sync --output dcs-runs --tracking-uri http://127.0.0.1:5000`
    """
    with console.status("recording in MLflow"):
        reports = dcs_tracking.sync(runs, tracking_uri=tracking_uri)
    for report in reports:
        options.show_report(report, "sweep:")
    if not reports:
        console.print(f"nothing to record: all finished cells in {runs} are recorded")
    summary = {"sweeps": [asdict(report) for report in reports]}
    conclude(summary, pending=not all(report.complete for report in reports))
