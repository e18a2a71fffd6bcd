"""Views of sweeps in progress and of their results, and of schemes on labelled rows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
from rich.table import Table

from dcs.data.splits import copied_rows
from dcs.data.table import ProbabilityTable
from dcs.evaluation.metrics import METRICS, confusion_matrix
from dcs.evaluation.uncertainty import (
    Interval,
    compare_predictions,
    design_effect,
    metric_intervals,
    percent,
    sentence_of_chance,
)
from dcs.io import atomic_write, inert
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.ensemble import inputs_of
from dcs.selection.front import FittedScheme
from dcs.selection.preference import Prefer, Preference
from dcs_tracking import CellRecord, Recorder
from dcs_tracking.records import UNCORRECTED
from dcs_tracking.results.cells import MEASURES, Cells, marked, method_title
from dcs_tracking.store.views import cell_name
from dcs_workflows.cli.console import console, duration, new_table, warn
from dcs_workflows.config.sweep import value_label
from dcs_workflows.parallel import repeating
from dcs_workflows.plan import ORIGINS, Progress, SweepPlan, counted
from dcs_workflows.sources.held_out import FITTED
from dcs_workflows.sources.joint import Rows
from dcs_workflows.sources.scored import expected_requests

#: Interval between updates of the progress, and between its lines if there is no terminal.
_SHOW_SECONDS, _LINE_SECONDS = 1.0, 30.0

#: Units of work that are shown per second.
_RATES: Final = ("prompts", "trials")


#: Numbers of rows and of failures of a sweep that are printed; files have them all.
_MOST_ROWS: Final = 20
_MOST_FAILURES: Final = 4

#: Share of the fitted rows up to which equal probabilities are chance.
_CHANCE: Final = 0.01

#: Half-width of a 95 % interval in standard errors.
_Z_95: Final = 1.96


def headline(plan: SweepPlan) -> str:
    """Return the size of a sweep and how much of it is finished, on one line."""
    failed = f", {plan.n_failed} failed" if plan.n_failed else ""
    return (
        f"{plan.config.name}: {counted(len(plan.sources), 'table')}, "
        f"{counted(plan.n_cells, 'cell')}; {counted(len(plan.ended) - plan.n_failed, 'cell')} "
        f"finished earlier{failed}"
    )


def show_plan(plan: SweepPlan) -> None:
    """Print the axes of a sweep, how much of it is finished, and what is missing."""
    requests = expected_requests(plan.missing_tables.values(), local=True)
    console.print(headline(plan), *_axes(plan), *requests, sep="\n")
    unscored = counted(len(plan.missing_tables), "table")
    missing = counted(plan.n_cells - len(plan.ended), "cell")
    console.print(f"to do: {unscored} to score, {missing} to compute")


def _axes(plan: SweepPlan) -> Iterator[str]:
    """Yield a line for each axis: its values, with numbers of cells where these are known."""
    sources = [source for own in plan.sources.values() for source in own]
    cells: dict[str, Counter[Any]] = {
        axis: Counter(getattr(each, name) for each in sources for _ in plan.variants)
        for axis, name in ORIGINS.items()
    }
    cells["methods"] = Counter(variant.method for variant in plan.variants for _ in sources)
    for axis, values in (dict.fromkeys(ORIGINS, ()) | plan.config.axis_values).items():
        counts = cells.get(axis, dict.fromkeys(values))
        named = (value_label(axis, v) + (f" ({n:,})" if n else "") for v, n in counts.items())
        yield f"  {axis}: {', '.join(named)}"


def show_results(records: Sequence[CellRecord], file: Path) -> None:
    """Write a row per cell to a file; print those of one task, or means by method, and failures.

    The lines printed do not grow with the number of cells.
    """
    cells = Cells.of(records)
    if cells.records:
        atomic_write(file, cells.frame.map(inert).to_csv(index=False))
        several = cells.frame["seed"].nunique() > 1
        shown = "mean ± sd over seeds" if several else "[95 % interval], * p < 0.05"
        title = "{task} ({model})".format_map(cells.records[0].who)
        sources, judged = (
            len({*zip(frame["task"], frame["model"], strict=True)})
            for frame in (cells.frame, cells.judged)
        )
        if sources > 1:
            unjudged = f"; {sources - judged} without labelled test rows" * (judged < sources)
            title, shown = f"{judged} tasks and models{unjudged}", "mean over these and seeds"
        console.print()
        console.print(f"{title}: % of test rows, {shown}", style="bold")
        table, uneven = _results_table(cells, means=sources > 1)
        console.print(table)
        if uneven:
            console.print(uneven, style="yellow")
    failed = [record for record in records if not record.finished]
    for record in failed[:_MOST_FAILURES]:
        console.print(f"failed {cell_name(record)}: {record.reason}", style="red")
    if failed:
        console.print(f"{len(failed)} failed, --json lists them; add --retry-failed to try again")
    console.print(f"a row per cell: {file}" if cells.records else "")


def _results_table(cells: Cells, *, means: bool) -> tuple[Table, str]:
    """Return accuracy and COBias of cells by method: of one model and task, or means of several.

    And a sentence on means that are not of the same cells, if any.

    Cells that differ in a setting, as in an ablation, have separate rows and a column for each
    such setting. Several seeds are averaged; a single one is shown with its 95 % interval. At most
    some twenty rows are shown.
    """
    axes = cells.axes
    several = not means or cells.frame["shots"].nunique() > 1
    shots = ["shots"] if several and cells.frame["shots"].notna().any() else []
    by = [*shots, "method", *(axis.name for axis in axes)]
    rows = cells.estimates(by)
    settings = (f"{axis.title} " for axis in axes)
    heads = (METRICS[measure].head for measure in MEASURES)
    table = new_table(*shots, "method ", *settings, *heads)
    for row in rows.to_dict("records")[:_MOST_ROWS]:
        method = row["method"]
        settings = (axis.short(row[axis.name]) if method in axis.methods else "" for axis in axes)
        metrics = (percent(row[f"{m}_mean"]) if means else marked(row, m) for m in MEASURES)
        named = ["" if row[name] is None else str(row[name]) for name in shots]
        style = "" if method == UNCORRECTED else "bold"
        table.add_row(*named, method_title(method), *settings, *metrics, style=style)
    if (more := len(rows) - _MOST_ROWS) > 0:
        table.caption = f"{more:,} more rows"
    return table, cells.uneven(by)


def progress_line(progress: Progress, recorder: Recorder, now: float) -> str:
    """Return the progress of a sweep on one line, with work per second and the time left.

    Parameters
    ----------
    progress : Progress
        Progress of the sweep.
    recorder : Recorder
        Its recorder.
    now : float
        Current time of :func:`time.monotonic`.
    """
    seconds, work = max(1e-9, now - progress.started), progress.work
    failed = f", {progress.cells_failed} failed" if progress.cells_failed else ""
    parts = [
        f"tables {progress.tables_done}/{progress.tables_total}, "
        f"cells {progress.cells_done}/{progress.cells_total}{failed}: {progress.running} running"
    ]
    parts += [f"{work[unit] / seconds:,.1f} {unit}/s" for unit in _RATES if work[unit]]
    recorded, waiting, stage = recorder.progress
    computed = progress.cells_done == progress.cells_total
    if waiting or computed:
        what = f"{waiting} {stage}" if waiting else stage
        parts.append(f"recording {what}")
    # Before, most of the cells that were submitted together are still to come.
    if work["cells"] > progress.running and progress.tables_done == progress.tables_total:
        seconds_per_cell = (now - progress.first_cell) / work["cells"]
        left = (progress.cells_total - progress.cells_done) * seconds_per_cell
        if recorded:
            left = max(left, waiting * seconds / recorded)
        if left or not computed:
            parts.append(f"about {duration(left)} left")
    return " · ".join(parts)


@contextmanager
def sweep_progress(progress: Progress, recorder: Recorder) -> Iterator[None]:
    """Show progress while the block runs: live on a terminal, periodic lines otherwise."""
    with console.status(progress_line(progress, recorder, time.monotonic())) as status:
        show: Callable[[str], None] = status.update if console.is_terminal else console.print
        seconds = _SHOW_SECONDS if console.is_terminal else _LINE_SECONDS
        with repeating(lambda: show(progress_line(progress, recorder, time.monotonic())), seconds):
            yield


def show_tuned(
    name: str, rows: Mapping[str, Rows], schemes: Mapping[str, CorrectionScheme]
) -> None:
    """Print the metrics of schemes on held-out rows, or why they cannot be computed."""
    fitted, held_out = rows["optimization"], rows["test"]
    labelled = int(fitted.labelled.sum())
    if labelled < fitted.n_rows:
        console.print(f"{name}: {labelled} of {fitted.n_rows} optimization rows have labels")
    if held_out.labelled.any():
        judged = held_out.only_labelled()
        show_judgement(f"{name}: % of {judged.n_rows} held-out rows", judged, schemes)
    else:
        warn(
            f"No {'held-out ' if labelled else ''}row has a label, so the effect on accuracy and "
            "COBias is unknown; label a few hundred rows and tune again."
        )


def show_judgement(title: str, rows: Rows, schemes: Mapping[str, CorrectionScheme]) -> None:
    """Print an evaluation of schemes on labelled rows: a column each, metrics and classes as rows.

    COBias is also shown without what sampling adds to it on average. Rows below accuracy and
    COBias show the changes, tested on the same rows, against the first scheme and, with more than
    two schemes, against the second.

    Parameters
    ----------
    title : str
        Line above the table.
    rows : ProbabilityTable or TableEnsemble
        Labelled rows.
    schemes : mapping of str to CorrectionScheme
        Schemes by column head, with the classes in the order of the rows.
    """
    labels, n_classes, copies = rows.labels, rows.n_classes, rows.copies
    effect = design_effect(copies)
    predictions = [scheme.predict(inputs_of(scheme, rows)) for scheme in schemes.values()]
    confusions = (confusion_matrix(labels, each, n_classes) for each in predictions)
    found = [metric_intervals(each, effect=effect) for each in confusions]
    pairs = {
        name: [
            compare_predictions(labels, before, after, n_classes, groups=copies)
            for after in predictions[k + 1 :]
        ]
        for k, (name, before) in enumerate(zip(schemes, predictions[:-1][:2], strict=False))
    }
    table = new_table(" ", *schemes, dense=True)
    for metric, about in METRICS.items():
        table.add_row(about.head, *(_figure(each.metrics[metric]) for each in found))
        if metric == "cobias":
            without = (percent(each.corrected_cobias) for each in found)
            table.add_row("  without sampling noise", *without)
        for name, own in pairs.items() if about.tested else ():
            # Each pair is shown once, in the column of the later scheme.
            changes = [""] * (len(schemes) - len(own)) + [_change(each[metric]) for each in own]
            table.add_row(f"  against {name}", *changes)
    table.add_section()
    for k, name in enumerate(rows.classes):
        table.add_row(name, *(_figure(each.class_accuracies[k]) for each in found))
    console.print(f"{title} [95 % interval]", style="bold")
    console.print(table)


def _change(found: Interval) -> str:
    return f"{100 * found.estimate:+.1f}, {sentence_of_chance(found.p)}"


def _figure(interval: Interval) -> str:
    # The accuracy of a class without rows is undefined.
    return percent(interval.estimate, interval=(interval.low, interval.high), padded=True) or "-"


def warn_of_fitted_rows(rows: ProbabilityTable, schemes: Mapping[Path, CorrectionScheme]) -> None:
    """Warn if the evaluated rows include rows that a scheme was fitted on.

    They have the same ids and probabilities, or are copies of the rows beside the scheme.
    """
    for path, scheme in schemes.items():
        share, file = scheme.share_fitted(rows), (path if path.is_dir() else path.parent) / FITTED
        fitted = ProbabilityTable.read(file) if file.exists() else None
        # Another scheme may have been copied to this folder.
        noted = scheme.provenance.get("fitted_on", {}).get("digests", ())
        if fitted is not None and fitted.digest in noted:
            groups = copied_rows(np.concatenate([rows.probs, fitted.probs]))
            copies = float((groups[rows.n_rows :] < rows.n_rows).mean())
            share = max(share, copies if copies > _CHANCE else 0.0)
        if share:
            warn(
                f"warning: about {100 * share:.0f} % of the rows that {path} was fitted on are "
                "among these; its metrics are optimistic, evaluate it on other rows"
            )


def show_front(fitted: FittedScheme, scheme: CorrectionScheme) -> None:
    """Print the points of a front that --prefer picks by name, the chosen one marked.

    The most accurate comes first. If `scheme`, the one fitted, combines tables, the point that
    corrects no class is their combination; uncorrected is the mean of the tables, as elsewhere.
    """
    plain, chosen = fitted.plain, fitted.chosen
    named = {"combined only" if scheme.inputs else "uncorrected": plain}
    named |= {name: fitted.pick(Preference(name)).chosen for name in get_args(Prefer)}
    if named["offsets"] is plain:
        # Usually other schemes are better than all that only add offsets.
        del named["offsets"]
    points = {id(point): point for point in (chosen, *named.values())}.values()
    table = new_table("--prefer ", *(each.short for each in METRICS.values()), dense=True)
    for column in table.columns[1:]:
        column.no_wrap = True
    for point in sorted(points, key=lambda point: (-point.accuracy, point.cobias)):
        names = [name for name, each in named.items() if each is point]
        effect = point.change.effect
        found = metric_intervals(np.array(point.confusion), resamples=500, effect=effect)
        margins = (_Z_95 * found.metrics[name].standard_error for name in METRICS)
        # Limits apply to the COBias that is not caused by small folds.
        estimate = replace(point.estimate, cobias=point.lasting_cobias)
        texts = (percent(getattr(estimate, name)) for name in METRICS)
        mark, style = ("→ ", "bold") if point is chosen else ("", "")
        shown = (f"{a} ±{percent(b)}" for a, b in zip(texts, margins, strict=True))
        table.add_row(mark + ", ".join(names), *shown, style=style)
    console.print(
        f"front: % of {plain.estimate.n_rows} rows, cross-validated, ± 95 %; {len(points)} of "
        f"{len(fitted.points)} points, --max-cobias and --max-accuracy-loss pick others",
        style="bold",
    )
    console.print(table)
    most = fitted.preference.max_cobias
    if most is not None and 100 * chosen.lasting_cobias > most:
        console.print(f"no point has a COBias of at most {most:g}; this has the lowest")
    if fitted.guarantee:
        console.print(fitted.guarantee)
