"""What people see of a sweep while it goes and afterwards, and of schemes on labelled rows."""

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
    bootstrap_intervals,
    chance,
    compare_predictions,
    percent,
    sentence_of_chance,
)
from dcs.io import atomic_write_bytes
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.ensemble import inputs_of
from dcs.selection.front import FittedScheme, FrontPoint, Prefer, Preference
from dcs.selection.methods import get_method
from tracking import CellRecord
from tracking.results.figures import class_accuracy_figure, learning_curve_figure
from tracking.results.frames import (
    MEASURES,
    Estimate,
    cells_frame,
    classes_frame,
    estimates,
    grouped,
    learning_curve_frame,
)
from tracking.results.settings import axes_of
from tracking.results.style import figure_bytes
from tracking.store.runs import cell_name
from workflows.cli.console import bars, column_tables, console, duration, new_table, width_of
from workflows.cli.scoring import announce
from workflows.plan import Progress, SweepPlan, rest_of
from workflows.tables import Rows

#: How often a sweep tells how far it is in a file, which nobody watches.
_LINE_SECONDS = 30.0

#: Cells of a run, and their share of all it computes, that say nothing yet of the time left.
_FEWEST_TIMED: Final = 3
_SHARE_TIMED: Final = 0.1

#: What is told by the second.
_RATES: Final = ("prompts", "trials", "moves")

#: Columns of cells by how far they are.
_STATES = ("cells", "finished", "failed", "to do")

#: Heads of the figures of schemes, and the same where there is little room.
_TITLES: Final = ("accuracy ↑", "COBias ↓", "balanced accuracy ↑", "macro-F1 ↑", "weakest class ↑")
_SHORT_TITLES: Final = ("accuracy", "COBias", "balanced", "macro-F1", "weakest")

#: Lines of a front, if no more points have an option by name.
_MOST_POINTS: Final = 20

#: Standard errors to either side in which 95 % of estimates lie.
_REACH: Final = 1.96

#: A cost of which chance is less likely than this is warned of.
_SIGNIFICANT: Final = 0.05


def headline(plan: SweepPlan) -> str:
    """Return how large a sweep is and how much of it is done, on one line."""
    failed = f", {plan.n_failed} failed" if plan.n_failed else ""
    return (
        f"{plan.config.name}: {_some(plan.n_tables, 'table')}, "
        f"{_some(plan.n_cells, 'cell')}; {_some(len(plan.ended) - plan.n_failed, 'cell')} "
        f"finished earlier{failed}"
    )


def show_plan(plan: SweepPlan) -> None:
    """Print the cells of a sweep: what is finished, what is missing, how long that may take."""
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
        f"{_some(rest.number, noun)} {verb} ({_took(rest.seconds, worker)})"
        for rest, (noun, verb, worker) in zip(rest_of(plan), kinds, strict=True)
        if rest.number
    ]
    console.print(f"to do: {', '.join(parts) or 'nothing'}")


def _states(cells: int, finished: int, failed: int) -> list[str]:
    return [f"{n:,}" for n in (cells, finished, failed, cells - finished - failed)]


def _took(seconds: float, worker: str) -> str:
    if math.isnan(seconds):
        return "how long shows once the first are done"
    return f"{duration(seconds)} of one {worker}"


def _some(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show_results(records: Sequence[CellRecord], picture: Path) -> None:
    """Print the tables of a sweep, by task, and what failed; draw the class accuracies of DCS."""
    finished = [record for record in records if record.finished]
    for (model, _), group in groupby(sorted(finished, key=_group), key=_group):
        cells = list(group)
        several = len({record.identity["seed"] for record in cells}) > 1
        figures = "mean ± sd over seeds" if several else "[95 % interval], p against uncorrected"
        console.print()
        task = cells[0].who["task"]
        console.print(f"{task} ({model}): % of test rows, {figures}", style="bold")
        console.print(*results_tables(cells, width=console.width))
    for record in records:
        if not record.finished:
            reason = last_line(record.error or "")
            console.print(f"failed {cell_name(record)}: {reason}", style="red")
    if len(finished) < len(records):
        console.print("add --retry-failed to compute the failed cells again")
    console.print()
    if any(record.identity["method"] == "dcs" for record in finished):
        atomic_write_bytes(picture, figure_bytes(class_accuracy_figure(finished), "png"))
        console.print(f"class accuracies before and after drawn in {picture}")


def _group(record: CellRecord) -> tuple[str, str]:
    return record.identity["model"], record.identity["task"]


def results_tables(records: Sequence[CellRecord], *, width: int) -> list[Table]:
    """Return accuracy, COBias and class accuracies by method, on as many tables as it takes.

    Cells that differ in a setting, as those of an ablation do, have rows of their own and a
    column for each such setting. Several seeds are averaged; a single one is shown with its 95 %
    interval and the p-values of a paired test against uncorrected.

    Parameters
    ----------
    records : sequence of CellRecord
        Finished cells of one model and task, in the order of the rows wanted.
    width : int
        Characters there are. Where the classes do not fit beside the rest they are the rows of
        tables of their own.
    """
    axes = axes_of(records)
    frame = cells_frame(records)
    for axis in axes:
        pairs = zip(frame["method"], frame[axis.name], strict=True)
        frame[axis.name] = [axis.short(v) if m in axis.methods else "" for m, v in pairs]
    by = ["shots", "method", *(axis.name for axis in axes)]
    rows = estimates(frame, by)
    with_shots = bool(rows["shots"].notna().any())
    tested = bool(rows["accuracy_p"].notna().any())
    accuracies = classes_frame(records)
    classes = [str(name) for name in accuracies["class"].unique()]
    p = ["p"] if tested else []
    head = [
        *(["shots"] if with_shots else []),
        *("method ", *(axis.title for axis in axes), "accuracy ↑", *p, "COBias ↓", *p),
    ]
    table = new_table(*head, *classes)
    previous: object = None
    columns: dict[str, list[str]] = {}
    for row, (_, group) in zip(rows.to_dict("records"), grouped(frame, by)[1], strict=True):
        method = get_method(row["method"])
        names = [method.title, *(row[axis.name] for axis in axes)]
        own = accuracies[accuracies["key"].isin(group["key"])]
        # A class without rows has no accuracy.
        shares = own.groupby("class", sort=False)["after"].mean().reindex(classes)
        texts = [percent(each, digits=0) or "-" for each in shares]
        shots = [str(row["shots"])] if with_shots else []
        columns["\n".join([*(f"{each}-shot" for each in shots), *names])] = texts
        figures = []
        for each in (Estimate.of(row, measure) for measure in MEASURES):
            figures += [each.percent(padded=True), *([chance(each.p)] if tested else [])]
        if row["shots"] != previous and table.row_count:
            table.add_section()
        style = "bold" if method.searches else ""
        table.add_row(*shots, *names, *figures, *texts, style=style)
        previous = row["shots"]
    if width_of(table) <= width:
        return [table]
    del table.columns[len(head) :]
    return [table, *column_tables("class ", classes, columns, width=width)]


def rates(progress: Progress, now: float) -> str:
    """Return work per second, time left if the rest is like what was done, and machines.

    Parameters
    ----------
    progress : Progress
        How far the sweep is.
    now : float
        The time, by :func:`time.monotonic`.
    """
    seconds = max(1e-9, now - progress.started)
    work, machines = progress.work, progress.machines
    parts = [f"{progress.running} running"]
    parts += [f"{work[unit] / seconds:,.1f} {unit}/s" for unit in _RATES if work[unit]]
    rest = progress.cells_total - progress.cells_done
    # The first cells wait for tables and for code to be compiled: they say nothing of others.
    if work["cells"] > max(_FEWEST_TIMED, _SHARE_TIMED * (work["cells"] + rest)):
        each = (now - progress.first_computed) / (work["cells"] - 1)
        parts.append(f"{duration(each * rest)} left")
    for name in ("cpus", "gpus"):
        if machines.get(name):
            used = f"{machines[f'{name}_used']:.0f}/{machines[name]:.0f}"
            parts.append(f"{name[:-1].upper()}s {used}")
    return " · ".join(parts)


def progress_line(progress: Progress, now: float) -> str:
    """Return how far a sweep is, on one line."""
    failed = f", {progress.cells_failed} failed" if progress.cells_failed else ""
    return (
        f"tables {progress.tables_done}/{progress.tables_total}, "
        f"cells {progress.cells_done}/{progress.cells_total}{failed}: {rates(progress, now)}"
    )


@contextmanager
def sweep_progress() -> Iterator[Progress]:
    """Show a sweep while the block runs: bars on a terminal, a line now and then in a file."""
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
    """Print how schemes do on the held-out rows of a table, or why that cannot be told."""
    fitted, held_out = rows["optimization"], rows["test"]
    labelled = int(fitted.labelled.sum())
    if labelled < fitted.n_rows:
        console.print(f"{name}: of {fitted.n_rows} rows to fit on {labelled} have labels")
    if held_out.labelled.any():
        judged = held_out.only_labelled()
        show_judgement(f"{name}: % of {judged.n_rows} held-out rows", judged, schemes)
    elif labelled:
        console.print("No held-out row has a label: nothing can be judged.", style="yellow")
    else:
        console.print(
            "No row has a label: this is batch calibration, which makes the mean probabilities of "
            "all classes alike. What it does to accuracy and COBias nobody can tell without "
            "labels; label some hundred rows and tune again.",
            style="yellow",
        )


def show_judgement(title: str, rows: Rows, schemes: Mapping[str, CorrectionScheme]) -> None:
    """Print how schemes do on labelled rows, beside each other."""
    console.print(f"{title} [95 % interval]", style="bold")
    console.print(*judged_tables(rows, schemes, width=console.width))


def judged_tables(
    rows: Rows, schemes: Mapping[str, CorrectionScheme], *, width: int
) -> Iterator[Table]:
    """Judge schemes on labelled rows: a column for each, figures and class accuracies as rows.

    Under accuracy and COBias stand the changes, tested on the same rows, against the first scheme
    and, where there are more than two, against the second.

    Parameters
    ----------
    rows : ProbabilityTable or TableEnsemble
        The rows.
    schemes : mapping of str to CorrectionScheme
        By the heads of their columns; the classes in the order of the rows.
    width : int
        Characters there are. Columns that do not fit come on a table of their own.
    """
    against = [*schemes][: min(2, len(schemes) - 1)]
    labels, n_classes = rows.labels, rows.n_classes
    predictions = {
        name: scheme.predict(inputs_of(scheme, rows)) for name, scheme in schemes.items()
    }
    columns: dict[str, list[str]] = {}
    for name, predicted in predictions.items():
        found = bootstrap_intervals(confusion_matrix(labels, predicted, n_classes))
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
                # Of the earlier ones the column of the later one tells.
                texts.append(change if reference in columns else "")
        columns[name] = [*texts, *map(_figure, found.class_accuracies)]
    return column_tables(" ", [*heads, *rows.classes], columns, width=width, ruled=len(heads))


def _figure(interval: Interval) -> str:
    # A class without rows has no accuracy.
    ends = interval.low, interval.high
    return percent(interval.estimate, interval=ends, padded=True) or "-"


def warn_of_fitted_rows(rows: ProbabilityTable, schemes: Mapping[str, CorrectionScheme]) -> None:
    """Warn where rows to be judged on are those that a scheme was fitted on."""
    for name, scheme in schemes.items():
        if share := scheme.share_fitted(rows):
            console.print(
                f"warning: about {100 * share:.0f} % of the rows that {name} was fitted on are "
                "among these; its figures here flatter it, those that count are of other rows",
                style="yellow",
            )


def show_front(fitted: FittedScheme) -> None:
    """Print a front, a line for each point with the option that picks it, and what to mind.

    Points that no other beats are shown, those that an option picks by name, and the uncorrected
    one; the most accurate first, the chosen one marked. Of very many that have no name some are
    left out.
    """
    chosen, plain = fitted.chosen, fitted.points[-1]
    picked = _options(fitted)
    named = [p for p in fitted.points if id(p) in picked or p is chosen]
    others = [p for p in fitted.front if not any(p is each for each in named)]
    kept = others[:: 1 + len(others) // max(1, _MOST_POINTS - len(named))]
    table = new_table("--prefer ", *_SHORT_TITLES, dense=True)
    for column in table.columns[1:]:
        column.no_wrap = True
    for point in sorted((*named, *kept), key=lambda p: (-p.accuracy, p.cobias)):
        names = picked.get(id(point)) or [_limit(fitted, point)]
        found = bootstrap_intervals(np.array(point.confusion), resamples=500)
        reach = (_REACH * getattr(found, name).standard_error for name in FIGURES)
        # Limits are held against the COBias that is not due to the folds being small.
        estimate = replace(point.estimate, cobias=point.lasting_cobias)
        figures = (percent(getattr(estimate, name)) for name in FIGURES)
        mark, style = ("→ ", "bold") if point is chosen else ("", "")
        texts = (f"{a} ±{percent(b)}" for a, b in zip(figures, reach, strict=True))
        table.add_row(mark + ", ".join(names), *texts, style=style)
    some = "" if len(kept) == len(others) else f"; {len(kept)} of {len(others)} in between"
    rows = plain.estimate.n_rows
    console.print(f"front: % of {rows} rows, cross-validated, ± 95 %{some}", style="bold")
    console.print(table)
    if said := _advice(fitted):
        console.print(said, style="yellow")


def _options(fitted: FittedScheme) -> dict[int, list[str]]:
    """Return the names of points, and of what picks them, for the id of each such point."""
    found = {id(fitted.points[-1]): ["uncorrected"]}
    for name in get_args(Prefer):
        found.setdefault(id(fitted.pick(Preference(prefer=name)).chosen), []).append(name)
    return found


def _limit(fitted: FittedScheme, point: FrontPoint) -> str:
    """Return the limit that picks a point, or nothing where none does."""
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
    """Return one sentence where nothing was changed or the choice has its price, else nothing."""
    chosen, plain = fitted.chosen, fitted.points[-1]
    if chosen is not plain:
        bias = chosen.lasting_cobias - plain.lasting_cobias
        price = _price(chosen.change.accuracy, bias, chosen.change.accuracy_p)
        return price and f"{price}; --prefer no-harm costs none beyond noise"
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
    """Print what a method reaches with more and more labelled rows, and write the figure."""
    frame = learning_curve_frame(records, method=method)
    console.print("% of the same held-out rows by labelled rows", style="bold")
    shown = new_table("labelled rows ", "rows ", "accuracy ↑", "COBias ↓")
    for row in frame.sort_values(["labelled", "rows_used"]).to_dict("records"):
        figures = (percent(row[measure]) for measure in MEASURES)
        shown.add_row(f"{row['labelled']:,}", row["rows_used"], *figures)
    console.print(shown)
    figure = learning_curve_figure(records, method=method)
    atomic_write_bytes(path, figure_bytes(figure, "svg"))
    console.print(f"learning curve written to {path}")


def cost_of(record: CellRecord) -> str:
    """Return a sentence where a scheme costs accuracy on held-out rows, else nothing."""
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
