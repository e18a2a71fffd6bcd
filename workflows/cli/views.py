"""Views of sweeps in progress and of their results, and of schemes on labelled rows."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Final, get_args

import numpy as np
from rich import progress
from rich.table import Table

from dcs.data.table import ProbabilityTable
from dcs.errors import last_line
from dcs.evaluation.metrics import FIGURES, confusion_matrix
from dcs.evaluation.uncertainty import (
    Interval,
    chance,
    compare_predictions,
    metric_intervals,
    percent,
    sentence_of_chance,
)
from dcs.io import atomic_write_bytes
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.ensemble import inputs_of
from dcs.selection.front import FittedScheme, FrontPoint, Prefer, Preference
from tracking import CellRecord
from tracking.records import UNCORRECTED
from tracking.results.cells import MEASURES, Cells, Estimate, grouped, method_title
from tracking.results.figures import (
    ablation_figure,
    class_accuracy_figure,
    drawn_or_none,
    figure_bytes,
)
from tracking.schema import OPTIMIZATION_SIZE
from tracking.store.runs import cell_name
from workflows.cli.console import bars, column_tables, console, duration, new_table, width_of
from workflows.cli.scoring import announce
from workflows.plan import Progress, SweepPlan, rest_of
from workflows.tables import Rows

#: Interval between progress lines if the output is not a terminal.
_LINE_SECONDS = 30.0

#: Number of cells, and share of all cells to compute, before the remaining time is estimated.
_FEWEST_TIMED: Final = 3
_SHARE_TIMED: Final = 0.1

#: Units of work that are shown per second.
_RATES: Final = ("prompts", "trials", "moves")

#: Columns of cell counts by status.
_STATES = ("cells", "finished", "failed", "to do")

#: Titles of the metrics of schemes, and short forms for narrow tables.
_TITLES: Final = ("accuracy ↑", "COBias ↓", "balanced accuracy ↑", "macro-F1 ↑", "weakest class ↑")
_SHORT_TITLES: Final = ("accuracy", "COBias", "balanced", "macro-F1", "weakest")

#: Maximum number of printed points of a front; its file has all of them.
_MAX_POINTS: Final = 9

#: Half-width of a 95 % interval in standard errors.
_Z_95: Final = 1.96

#: Significance level below which a loss of accuracy is reported.
_SIGNIFICANT: Final = 0.05


def headline(plan: SweepPlan) -> str:
    """Return the size of a sweep and how much of it is finished, on one line."""
    failed = f", {plan.n_failed} failed" if plan.n_failed else ""
    return (
        f"{plan.config.name}: {_count(plan.n_tables, 'table')}, "
        f"{_count(plan.n_cells, 'cell')}; {_count(len(plan.ended) - plan.n_failed, 'cell')} "
        f"finished earlier{failed}"
    )


def show_plan(plan: SweepPlan) -> None:
    """Print the finished and missing cells of a sweep, and estimates of the remaining time."""
    variants = plan.variants
    keys: dict[tuple[str, str], list[str]] = {}
    for key, (source, *_) in plan.sources.items():
        keys.setdefault((source.model, source.task), []).append(key)
    ended = Counter((*_group(record), record.finished) for record in plan.ended.values())
    shown = new_table("model ", "task ", "tables", "scored", *_STATES)
    for names, own in keys.items():
        cells = sum(len(plan.sources[key]) for key in own) * len(variants)
        scored = sum(key in plan.cells for key in own)
        states = _states(cells, ended[*names, True], ended[*names, False])
        shown.add_row(*names, f"{len(own):,}", f"{scored:,}", *states)
    console.print(shown)
    of_method = Counter((r.identity["method"], r.finished) for r in plan.ended.values())
    shown = new_table("method ", *_STATES)
    for method, number in Counter(variant.method for variant in variants).items():
        cells = number * plan.n_cells // len(variants)
        shown.add_row(method, *_states(cells, of_method[method, True], of_method[method, False]))
    console.print(shown)
    console.print(headline(plan))
    missing = plan.missing_tables.values()
    announce(each for each in missing if each.task not in plan.without_texts)
    kinds = (("table", "to score", "worker"), ("cell", "to compute", "CPU"))
    parts = [
        f"{_count(rest.number, noun)} {verb} ({_estimate(rest.seconds, worker)})"
        for rest, (noun, verb, worker) in zip(rest_of(plan), kinds, strict=True)
        if rest.number
    ]
    console.print(f"to do: {', '.join(parts) or 'nothing'}")


def _states(cells: int, finished: int, failed: int) -> list[str]:
    return [f"{n:,}" for n in (cells, finished, failed, cells - finished - failed)]


def _estimate(seconds: float, worker: str) -> str:
    if math.isnan(seconds):
        return "no time estimate before the first are done"
    return f"{duration(seconds)} of one {worker}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show_results(records: Sequence[CellRecord], picture: Path) -> None:
    """Print results by task and failed cells; plot the class accuracies of DCS."""
    finished = Cells.of(records)
    for (model, _), group in groupby(sorted(finished.records, key=_group), key=_group):
        cells = Cells(tuple(group))
        several = cells.frame["seed"].nunique() > 1
        shown = "mean ± sd over seeds" if several else "[95 % interval], p against uncorrected"
        console.print()
        task = cells.records[0].who["task"]
        console.print(f"{task} ({model}): % of test rows, {shown}", style="bold")
        console.print(*results_tables(cells, width=console.width))
    for record in records:
        if not record.finished:
            reason = last_line(record.error or "")
            console.print(f"failed {cell_name(record)}: {reason}", style="red")
    if len(finished.records) < len(records):
        console.print("add --retry-failed to compute the failed cells again")
    console.print()
    if finished.of_method("dcs").records:
        content = drawn_or_none(
            picture.name, lambda: figure_bytes(class_accuracy_figure(finished), "png")
        )
        if content is not None:
            atomic_write_bytes(picture, content)
            console.print(f"class accuracies before and after plotted in {picture}")


def _group(record: CellRecord) -> tuple[str, str]:
    return record.identity["model"], record.identity["task"]


def results_tables(cells: Cells, *, width: int) -> list[Table]:
    """Return accuracy, COBias and class accuracies by method, in one or more tables.

    Cells that differ in a setting, as in an ablation, have separate rows and a column for each
    such setting. Several seeds are averaged; a single one is shown with its 95 % interval and the
    p-values of a paired test against uncorrected.

    Parameters
    ----------
    cells : Cells
        Cells of one model and task.
    width : int
        Available characters. If the classes do not fit beside the rest, they become the rows of
        separate tables.
    """
    axes = cells.axes
    by = ["shots", "method", *(axis.name for axis in axes)]
    rows = cells.estimates(by)
    _, groups = grouped(cells.judged, by)
    for axis in axes:
        pairs = zip(rows["method"], rows[axis.name], strict=True)
        rows[axis.name] = [axis.short(v) if m in axis.methods else "" for m, v in pairs]
    with_shots = bool(rows["shots"].notna().any())
    tested = bool(rows["accuracy_p"].notna().any())
    accuracies = cells.classes
    classes = [str(name) for name in accuracies["class"].unique()]
    p = ["p"] if tested else []
    head = [
        *(["shots"] if with_shots else []),
        *("method ", *(axis.title for axis in axes), "accuracy ↑", *p, "COBias ↓", *p),
    ]
    table = new_table(*head, *classes)
    previous: object = None
    columns: dict[str, list[str]] = {}
    for row, (_, group) in zip(rows.to_dict("records"), groups, strict=True):
        names = [method_title(row["method"]), *(row[axis.name] for axis in axes)]
        own = accuracies[accuracies["key"].isin(group["key"])]
        # The accuracy of a class without rows is undefined.
        shares = own.groupby("class", sort=False)["after"].mean().reindex(classes)
        texts = [percent(each, digits=0) or "-" for each in shares]
        shots = [str(row["shots"])] if with_shots else []
        columns["\n".join([*(f"{each}-shot" for each in shots), *names])] = texts
        metrics = []
        for each in (Estimate.of(row, measure) for measure in MEASURES):
            metrics += [each.percent(padded=True), *([chance(each.p)] if tested else [])]
        if row["shots"] != previous and table.row_count:
            table.add_section()
        style = "" if row["method"] == UNCORRECTED else "bold"
        table.add_row(*shots, *names, *metrics, *texts, style=style)
        previous = row["shots"]
    if width_of(table) <= width:
        return [table]
    del table.columns[len(head) :]
    return [table, *column_tables("class ", classes, columns, width=width)]


def rates(progress: Progress, now: float) -> str:
    """Return work per second, the estimated time left, and the CPUs and GPUs in use.

    Parameters
    ----------
    progress : Progress
        Progress of the sweep.
    now : float
        Current time of :func:`time.monotonic`.
    """
    seconds = max(1e-9, now - progress.started)
    work, machines = progress.work, progress.machines
    parts = [f"{progress.running} running"]
    parts += [f"{work[unit] / seconds:,.1f} {unit}/s" for unit in _RATES if work[unit]]
    rest = progress.cells_total - progress.cells_done
    # The first cells wait for tables and for compilation, so their time is not representative.
    if work["cells"] > max(_FEWEST_TIMED, _SHARE_TIMED * (work["cells"] + rest)):
        each = (now - progress.first_computed) / (work["cells"] - 1)
        parts.append(f"{duration(each * rest)} left")
    for name in ("cpus", "gpus"):
        if machines.get(name):
            used = f"{machines[f'{name}_used']:.0f}/{machines[name]:.0f}"
            parts.append(f"{name[:-1].upper()}s {used}")
    return " · ".join(parts)


def progress_line(progress: Progress, now: float) -> str:
    """Return the progress of a sweep on one line."""
    failed = f", {progress.cells_failed} failed" if progress.cells_failed else ""
    return (
        f"tables {progress.tables_done}/{progress.tables_total}, "
        f"cells {progress.cells_done}/{progress.cells_total}{failed}: {rates(progress, now)}"
    )


@contextmanager
def sweep_progress() -> Iterator[Progress]:
    """Show progress while the block runs: bars on a terminal, periodic lines otherwise."""
    if not console.is_terminal:
        due = time.monotonic() + _LINE_SECONDS

        def show_line(now: Progress) -> None:
            nonlocal due
            if time.monotonic() >= due:
                due = time.monotonic() + _LINE_SECONDS
                console.print(progress_line(now, time.monotonic()))

        yield Progress(show=show_line)
        return
    note = progress.TextColumn("{task.fields[note]}")
    with bars(progress.MofNCompleteColumn(), progress.TimeElapsedColumn(), note) as shown:
        tables = shown.add_task("scoring prompts", total=None, note="")
        cells = shown.add_task("tuning cells", total=None, note="")

        def show_bars(now: Progress) -> None:
            shown.update(tables, completed=now.tables_done, total=now.tables_total)
            note = f"{now.cells_failed} failed · " if now.cells_failed else ""
            if now.cells_done < now.cells_total:
                note += rates(now, time.monotonic())
            shown.update(cells, completed=now.cells_done, total=now.cells_total, note=note)

        yield Progress(show=show_bars)


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
    elif labelled:
        console.print("No held-out row has a label, so nothing can be evaluated.", style="yellow")
    else:
        console.print(
            "No row has a label: this is batch calibration, which makes the mean probabilities of "
            "all classes equal. Its effect on accuracy and COBias is unknown without labels; "
            "label a few hundred rows and tune again.",
            style="yellow",
        )


def show_judgement(title: str, rows: Rows, schemes: Mapping[str, CorrectionScheme]) -> None:
    """Print the metrics of schemes on labelled rows side by side."""
    console.print(f"{title} [95 % interval]", style="bold")
    console.print(*judged_tables(rows, schemes, width=console.width))


def judged_tables(
    rows: Rows, schemes: Mapping[str, CorrectionScheme], *, width: int
) -> Iterator[Table]:
    """Evaluate schemes on labelled rows: a column per scheme, metrics and classes as rows.

    Rows below accuracy and COBias show the changes, tested on the same rows, against the first
    scheme and, with more than two schemes, against the second.

    Parameters
    ----------
    rows : ProbabilityTable or TableEnsemble
        Labelled rows.
    schemes : mapping of str to CorrectionScheme
        Schemes by column head, with the classes in the order of the rows.
    width : int
        Available characters. Columns that do not fit continue in another table.
    """
    against = [*schemes][: min(2, len(schemes) - 1)]
    labels, n_classes = rows.labels, rows.n_classes
    predictions = {
        name: scheme.predict(inputs_of(scheme, rows)) for name, scheme in schemes.items()
    }
    columns: dict[str, list[str]] = {}
    for name, predicted in predictions.items():
        found = metric_intervals(confusion_matrix(labels, predicted, n_classes))
        pairs = {
            reference: compare_predictions(labels, predictions[reference], predicted, n_classes)
            for reference in against
        }
        heads, texts = [], []
        for figure, title in zip(FIGURES, _TITLES, strict=True):
            heads.append(title)
            texts.append(_figure(getattr(found, figure)))
            for reference, pair in pairs.items() if figure in MEASURES else ():
                by, p = getattr(pair, figure).estimate, getattr(pair, f"{figure}_p")
                change = f"{100 * by:+.1f}, {sentence_of_chance(p)}"
                heads.append(f"  against {reference}")
                # Each pair is shown once, in the column of the later scheme.
                texts.append(change if reference in columns else "")
        columns[name] = [*texts, *map(_figure, found.class_accuracies)]
    return column_tables(" ", [*heads, *rows.classes], columns, width=width, ruled=len(heads))


def _figure(interval: Interval) -> str:
    # The accuracy of a class without rows is undefined.
    ends = interval.low, interval.high
    return percent(interval.estimate, interval=ends, padded=True) or "-"


def warn_of_fitted_rows(rows: ProbabilityTable, schemes: Mapping[str, CorrectionScheme]) -> None:
    """Warn if the evaluated rows include rows that a scheme was fitted on."""
    for name, scheme in schemes.items():
        if share := scheme.share_fitted(rows):
            console.print(
                f"warning: about {100 * share:.0f} % of the rows that {name} was fitted on are "
                "among these; its metrics are optimistic, evaluate it on other rows",
                style="yellow",
            )


def show_front(fitted: FittedScheme, *, scheme: CorrectionScheme | None = None) -> None:
    """Print at most nine different points of a front, the option that picks each, and advice.

    The points that an option picks by name come first, and of the others some at equal distances;
    the most accurate first, the chosen one marked. Points whose accuracy and COBias are printed
    alike are one row. If `scheme`, the one fitted, combines tables, the point that corrects no
    class is their combination; uncorrected is the mean of the tables, as elsewhere.
    """
    plain = "combined only" if scheme is not None and scheme.inputs else "uncorrected"
    picked = _names_of_points(fitted, plain)
    rows: dict[tuple[str, str], list[FrontPoint]] = {}
    named = [p for p in fitted.points if id(p) in picked or p is fitted.chosen]
    for point in (*named, *fitted.front):
        figures = percent(point.accuracy), percent(point.lasting_cobias)
        rows.setdefault(figures, []).append(point)
    n_named = sum(any(p is each for each in named for p in own) for own in rows.values())
    others = list(rows)[n_named:]
    room = max(0, _MAX_POINTS - n_named)
    chosen = np.linspace(0, len(others) - 1, min(room, len(others))).round().astype(int)
    kept = [*list(rows)[:n_named], *(others[int(at)] for at in chosen)]
    table = new_table("--prefer ", *_SHORT_TITLES, dense=True)
    for column in table.columns[1:]:
        column.no_wrap = True
    for own in sorted(map(rows.__getitem__, kept), key=lambda o: (-o[0].accuracy, o[0].cobias)):
        point = next((p for p in own if p is fitted.chosen), own[0])
        names = list(dict.fromkeys(name for p in own for name in picked.get(id(p), ())))
        names = names or [_limiting_option(fitted, point)]
        found = metric_intervals(np.array(point.confusion), resamples=500)
        margins = (_Z_95 * getattr(found, name).standard_error for name in FIGURES)
        # Limits apply to the COBias that is not caused by small folds.
        estimate = replace(point.estimate, cobias=point.lasting_cobias)
        texts = (percent(getattr(estimate, name)) for name in FIGURES)
        mark, style = ("→ ", "bold") if point is fitted.chosen else ("", "")
        shown = (f"{a} ±{percent(b)}" for a, b in zip(texts, margins, strict=True))
        table.add_row(mark + ", ".join(names), *shown, style=style)
    omitted = "" if len(kept) == len(rows) else f"; {len(kept)} of {len(rows)} points"
    n_rows = fitted.points[-1].estimate.n_rows
    console.print(f"front: % of {n_rows} rows, cross-validated, ± 95 %{omitted}", style="bold")
    console.print(table)
    if fitted.guarantee:
        console.print(fitted.guarantee)
    if advice := _advice(fitted):
        console.print(advice, style="yellow")


def _names_of_points(fitted: FittedScheme, plain: str) -> dict[int, list[str]]:
    """Return the names of points and the values of --prefer that pick them, by id of the point."""
    found = {id(fitted.points[-1]): [plain]}
    for name in get_args(Prefer):
        found.setdefault(id(fitted.pick(Preference(prefer=name)).chosen), []).append(name)
    return found


def _limiting_option(fitted: FittedScheme, point: FrontPoint) -> str:
    """Return the limit options that pick a point, or an empty string if there are none."""
    loss = max(each.accuracy for each in fitted.points) - point.accuracy
    low, near = (math.ceil(1000 * share) / 10 for share in (point.lasting_cobias, loss))
    options = {
        f"--max-cobias {low:g}": Preference(max_cobias=low),
        f"--max-accuracy-loss {near:g}": Preference(max_accuracy_loss=near),
        f"accuracy --max-cobias {low:g}": Preference("accuracy", max_cobias=low),
    }
    picks = (text for text, each in options.items() if fitted.pick(each).chosen is point)
    return next(picks, "")


def _advice(fitted: FittedScheme) -> str:
    """Return a sentence if no class is corrected or accuracy is lost, else an empty string."""
    chosen, plain = fitted.chosen, fitted.points[-1]
    if chosen is not plain:
        bias = chosen.lasting_cobias - plain.lasting_cobias
        price = _price(chosen.change.accuracy, bias, chosen.change.accuracy_p)
        return price and f"{price}; --prefer no-harm costs at most half a point"
    fairer = [point for point in fitted.front if point.cobias < plain.cobias]
    if not fairer:
        return "no class is corrected: no point that was tried is fairer"
    accuracy = fairer[0].accuracy - plain.accuracy
    bias = fairer[0].lasting_cobias - plain.lasting_cobias
    return (
        "no class is corrected: no point is preferred beyond noise; the next changes accuracy by "
        f"{100 * accuracy:+.1f} and COBias by {100 * bias:+.1f} points"
    )


def show_learning_curve(records: Sequence[CellRecord], method: str, path: Path) -> None:
    """Print the metrics of a method by number of labelled rows, and write the figure."""
    cells = Cells.of(records).of_method(method)
    frame = cells.estimates(("rows", "unlabelled")).sort_values(["rows", "unlabelled"])
    console.print("% of the same held-out rows by number of rows to fit on", style="bold")
    shown = new_table("labelled ", "unlabelled ", "accuracy ↑", "COBias ↓")
    for row in frame.to_dict("records"):
        metrics = (percent(row[f"{measure}_mean"]) for measure in MEASURES)
        shown.add_row(f"{row['rows']:,.0f}", f"{row['unlabelled']:,.0f}", *metrics)
    console.print(shown)
    content = drawn_or_none(
        path.name, lambda: figure_bytes(ablation_figure(cells, OPTIMIZATION_SIZE), "svg")
    )
    if content is not None:
        atomic_write_bytes(path, content)
        console.print(f"learning curve written to {path}")


def cost_of(record: CellRecord) -> str:
    """Return a warning if a scheme loses accuracy on held-out rows, else an empty string."""
    values = record.metrics
    accuracy, bias = (values[f"test/{m}"] - values[f"uncorrected/test/{m}"] for m in MEASURES)
    return _price(accuracy, bias, values["test/accuracy_p"])


def _price(accuracy: float, cobias: float, p: float) -> str:
    if accuracy >= 0.0 or p >= _SIGNIFICANT:
        return ""
    return (
        f"warning: the choice costs {-100 * accuracy:.1f} points of accuracy "
        f"({sentence_of_chance(p)}) for {100 * cobias:+.1f} points of COBias"
    )
