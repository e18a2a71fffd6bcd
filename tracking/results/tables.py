"""The tables of a sweep, pivots of the frames of its cells, and two cells side by side."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from dcs.evaluation.formatting import chance, percent
from dcs.schemes.scheme import CorrectionScheme
from tracking import schema
from tracking.records import CellRecord
from tracking.results import frames, settings
from tracking.results.comparison import method_tables
from tracking.results.formats import (
    KINDS,
    ResultTable,
    RowKind,
    filled,
    to_markdown,
    to_mlflow_json,
)
from tracking.results.frames import MEASURES, Estimate, cells_frame, estimates, grouped, is_missing
from tracking.results.paper import (
    AVERAGES,
    paper_beside,
    paper_rows,
    paper_task,
    task_rank,
    task_title,
)
from tracking.results.settings import OBJECTIVE

if TYPE_CHECKING:
    import pandas as pd

#: Values of a column that rows differ by, in order, and how one is shown.
_Rows: TypeAlias = "Mapping[str, tuple[Sequence[Any], Callable[[Any], str]]]"

__all__ = [
    "TABLES",
    "ComparedRow",
    "ablation_tables",
    "all_tables",
    "class_accuracies_by_seed",
    "compare_records",
    "difference",
    "leaderboard",
    "leaderboard_markdown",
    "leaderboard_metrics",
    "main_results",
    "scheme_summary",
    "table_files",
    "timing_table",
]

_GROUP: Final = ("model", "task", "shots", "method", "setting")
_PROMPT: Final = ("model", "task", "shots")
LEADERBOARD_COLUMNS: Final = (*_GROUP, "seeds", *frames.MEASURE_COLUMNS)

_HEADS: Final = {"accuracy": "Acc", "cobias": "COBias"}
_WEAKEST: Final = "weakest class by seed, % before → after"
_CORRECTIONS: Final = ("weights", "memberships", "unchanged")
TERMS: Final = (
    "The objective is a sum of terms: Z_err is the error rate, Z_cobias the COBias, Z_pmi what "
    "predictions and labels share (pointwise mutual information), negated; full has all three."
)
_SCHEMES_NOTE: Final = (
    "Classes with each kind of correction, mean over seeds; unchanged: weight 1 or Don't Change, "
    "which the paper does not count apart. Ratio of memberships to weights, from unrounded "
    "counts. (M): a membership corrects the weakest class."
)
_TIMES_NOTE: Final = (
    "Moves, outer loops (temperatures) and seconds are those of the annealing run whose scheme "
    "was chosen; 'to tune' is the time of all that was tried. N·D is the number of classes times "
    "the number of corrections to choose from. Of the paper: mean (range) over its tasks."
)


def leaderboard(records: Iterable[CellRecord]) -> pd.DataFrame:
    """Return accuracy and COBias on the test split per model, task, shots and method.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells; failed ones and those without test metrics are left out.

    Returns
    -------
    pandas.DataFrame
        Columns ``model``, ``task``, ``shots``, ``method``, ``setting`` (what cells of a method
        have differently, in words; mostly nothing), ``seeds`` (number of cells),
        ``accuracy_mean``, ``accuracy_std``, ``accuracy_low``, ``accuracy_high``,
        ``accuracy_p``, and the same of ``cobias``; fractions, not percent. The standard
        deviation is the sample's (``n - 1``), NaN for one seed; the ends of the 95 % interval
        and the chance of no difference to uncorrected on the same rows are of one seed, NaN for
        several.
    """
    return estimates(_measured(cells_frame(records)), _GROUP)[[*LEADERBOARD_COLUMNS]]


def leaderboard_markdown(frame: pd.DataFrame) -> str:
    """Return a `leaderboard` in percent, as a Markdown table and a line that explains it.

    Several seeds have ``mean ± deviation``, one has ``figure [95 % interval]`` and p-values.
    """
    if frame.empty:
        return "No finished cells.\n"
    text = frame[[*_GROUP]].map(_text)
    if not frame["setting"].any():
        text = text.drop(columns="setting")
    words = tuple(map(str, text))
    text["seeds"] = frame["seeds"].map(str)
    shown = {"accuracy %": _estimates_of(frame, "accuracy")}
    shown["COBias %"] = _estimates_of(frame, "cobias")
    for head, own in shown.items():
        text[head] = [each.percent() for each in own]
        if frame["accuracy_p"].notna().any():
            text[f"p {head}"] = [chance(each.p) for each in own]
    text = text.rename(columns=lambda name: "p" if name.startswith("p ") else name)
    note = frames.notes_of(chain(*shown.values()), tested=frames.P_VALUES)
    table = to_markdown(text, words=words)
    return f"{table}\n{note}\n" if note else table


def leaderboard_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Return the means of a `leaderboard` by name: ``accuracy/trec/DCS``.

    What its rows have in common, and what they do not have, is left out of the names.
    """
    several = [name for name in ("model", "setting", "shots") if frame[name].nunique() > 1]
    forms: dict[str, Callable[[Any], str]] = {
        **dict.fromkeys((*several, "task"), _text),
        **({"shots": frames.shots_text} if "shots" in several else {}),
        "method": frames.method_title,
    }
    return {
        "/".join(
            [measure, *filter(None, (form(row[name]) for name, form in forms.items()))]
        ): value
        for measure in MEASURES
        for row in frame.to_dict("records")
        if not is_missing(value := row[f"{measure}_mean"])
    }


def main_results(records: Iterable[CellRecord]) -> ResultTable:
    """Return accuracy and COBias per task with averages (paper, main results).

    Parameters
    ----------
    records : iterable of CellRecord
        Cells of any models, tasks, shots, methods and seeds; failed ones are left out, and so
        are those that an ablation only compares with: see `ablation_tables`.

    Returns
    -------
    ResultTable
        A row per model, shots and method; in percent, mean and standard deviation over seeds.
        An average is the mean of task means, over the tasks that there are.
    """
    cells = frames.finished_cells(records)
    axes = settings.axes_of(cells)
    cells = settings.main_cells(cells)
    tried = ", ".join(axis.words(axis.main) for axis in axes)
    note = f"Of the settings tried: {tried}; the others are in the tables of ablations."
    methods = list(dict.fromkeys(cell.identity.get("method") for cell in cells))
    return _task_table(
        cells,
        {"method": (methods, frames.method_title)},
        published="paper_results",
        name="main_results",
        title="Main results: accuracy and COBias on the test rows, %",
        note=note if axes else "",
    )


def ablation_tables(records: Iterable[CellRecord]) -> list[ResultTable]:
    """Return a table for each setting in which cells of a method differ.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells. In each table the other settings are those of the main results.

    Returns
    -------
    list of ResultTable
        ``objective_ablation`` first: DCS by the terms of its objective (paper, Section 4.4), with
        arrows for the change from uncorrected; empty if all cells have the same settings.
    """
    cells = frames.finished_cells(records)
    tables = []
    for axis in settings.axes_of(cells):
        own = [cell for cell in settings.main_cells(cells, but=(axis.name,)) if axis.varies(cell)]
        of_axis: _Rows = {axis.name: (axis.in_order, axis.short)}
        of_methods: _Rows = {"method": (axis.methods, frames.method_title)}
        named = f"{axis.name}_ablation"
        if axis.name == OBJECTIVE:
            of_dcs = [cell for cell in own if cell.identity.get("method") == "dcs"]
            if of_dcs:
                title = "Ablation of the objective: DCS on the test rows, %"
                tables.append(
                    _task_table(
                        of_dcs,
                        of_axis,
                        published="paper_ablation",
                        name=named,
                        title=title,
                        note=TERMS,
                    )
                )
            if axis.methods == ("dcs",):
                continue
            named = f"{axis.name}_by_method"
        title = f"Ablation by {axis.title}: accuracy and COBias on the test rows, %"
        tables.append(_task_table(own, {**of_methods, **of_axis}, name=named, title=title))
    return tables


def _task_table(
    cells: Sequence[CellRecord],
    rows: _Rows,
    *,
    published: Literal["paper_results", "paper_ablation"] | None = None,
    name: str,
    title: str,
    note: str = "",
) -> ResultTable:
    """Lay out accuracy and COBias: a row per model, shots and `rows`, a column per task.

    `rows` gives the values of each column that rows differ by, in order, and how they are shown;
    `published` is the paper's data file.
    """
    import pandas as pd

    of_terms = published == "paper_ablation"
    by = ["model", "shots", *rows]
    tidy = estimates(_measured(cells_frame(cells)), [*by, "terms", "task"]).assign(whole=True)
    tasks = sorted(tidy["task"].unique(), key=task_rank)
    means = [] if of_terms else _averages_of(tidy, [*by, "terms"])
    tidy = pd.concat([tidy, *means], ignore_index=True)
    columns = [*(own["task"].iloc[0] for own in means if len(own)), *tasks]
    order = {
        "model": list(tidy["model"].unique()),
        "shots": sorted(tidy["shots"].unique(), key=frames.shots_rank),
        **{column: list(values) for column, (values, _) in rows.items()},
        "task": columns,
    }
    tidy = tidy.sort_values(
        list(order),
        key=lambda column: column.map(order[str(column.name)].index),
        ignore_index=True,
    )
    tidy = _with_paper(tidy, published)
    seen = Counter(map(task_title, columns))
    shown = {measure: _estimates_of(tidy, measure) for measure in MEASURES}
    long: list[pd.DataFrame] = []
    heads: list[str] = []
    for measure, own in shown.items():
        head = {task: f"{_HEADS[measure]} {_column_title(task, seen)}" for task in columns}
        heads += head.values()
        ours = [each.marked() for each in own]
        theirs = list(map(percent, tidy[f"paper_{measure}"], tidy[f"paper_{measure}_sd"]))
        if of_terms:
            ours = list(map(_arrow, ours, tidy[f"{measure}_change"]))
            theirs = list(map(_arrow, theirs, tidy[f"paper_{measure}_change"]))
        long.append(
            tidy[[*by, "as_paper"]].assign(
                column=tidy["task"].map(head),
                measured=ours,
                paper=theirs,
                difference=_gaps(tidy[f"{measure}_mean"], tidy[f"paper_{measure}"]),
            )
        )
    titles = {
        "model": _text,
        "shots": _text,
        **{column: title for column, (_, title) in rows.items()},
    }
    text, kinds = _compared(pd.concat(long), titles, heads, marked=by[-1])
    text = filled(text.rename(columns=lambda name: name.replace("_", " ") if name in by else name))
    numbers = [*by, "task", "seeds", *frames.MEASURE_COLUMNS]
    if "paper" in kinds:
        for m in MEASURES:
            tidy[f"{m}_difference"] = tidy[f"{m}_mean"] - tidy[f"paper_{m}"]
        numbers += [f"paper_{m}" for m in MEASURES] + [f"{m}_difference" for m in MEASURES]
    return ResultTable(
        name=name,
        title=title,
        frame=tidy[numbers],
        text=text,
        words=tuple(text.columns.difference(heads, sort=False)),
        kinds=kinds,
        sections=2,
        about=" ".join(filter(None, (frames.notes_of(chain(*shown.values())), note))),
    )


def _compared(
    long: pd.DataFrame,
    titles: Mapping[str, Callable[[Any], str]],
    columns: Sequence[str],
    *,
    marked: str,
) -> tuple[pd.DataFrame, tuple[RowKind, ...]]:
    """Return the text of a table: ours, and below it the paper's and the difference.

    `long` has a row per row and column of the table: the keys of `titles`, which give their text,
    ``column``, a text of each kind, and ``as_paper``, whether our figure was chosen as the
    paper's. The key `marked` says what is not ours.
    """
    import pandas as pd

    lines: list[dict[Any, str]] = []
    kinds: list[RowKind] = []
    keys, groups = grouped(long, list(titles))
    for key, (_, group) in zip(keys.to_dict("records"), groups, strict=True):
        head = {name: title_of(key[name]) for name, title_of in titles.items()}
        dagger = "" if group["as_paper"].all() else "†"
        names = {"measured": head[marked], "paper": f"{head[marked]}, paper{dagger}"}
        for kind in KINDS if (group["paper"] != "").any() else KINDS[:1]:
            figures = dict(zip(group["column"], group[kind], strict=True))
            lines.append({**head, marked: names.get(kind, kind), **figures})
            kinds.append(kind)
    return pd.DataFrame(lines, columns=[*titles, *columns]).fillna(""), tuple(kinds)


def _gaps(ours: Iterable[float], theirs: Iterable[float]) -> list[str]:
    return [difference(100 * a, 100 * b) for a, b in zip(ours, theirs, strict=True)]


def _arrow(text: str, change: float) -> str:
    """Add a change from uncorrected as the paper prints it: ``81.5 ↑12.9``."""
    if not text or is_missing(change):
        return text
    return f"{text} {'↑' if change >= 0 else '↓'}{100 * abs(change):.1f}"


def _averages_of(tidy: pd.DataFrame, by: Sequence[str]) -> list[pd.DataFrame]:
    """Return the averages that say more than a single task does, of the rows that have them."""
    averages = []
    tasks = list(tidy["task"].unique())
    for name, published in AVERAGES.items():
        own = [t for t in tasks if name == "average_all" or paper_task(t) in published]
        if len(own) < 2:
            continue
        means, groups = grouped(tidy[tidy["task"].isin(own)], by)
        means["seeds"] = groups["seeds"].min()
        means["as_paper"] = groups["as_paper"].all()
        for measure in MEASURES:
            means[f"{measure}_mean"] = groups[f"{measure}_mean"].mean()
        # An average over other tasks than in the row above it would mislead, and one over some
        # of the paper's tasks is not the one that the paper prints.
        whole = sorted(published) == sorted(filter(None, map(paper_task, own)))
        averages.append(means[groups.size() == len(own)].assign(task=name, whole=whole))
    return averages


def _with_paper(tidy: pd.DataFrame, published: str | None) -> pd.DataFrame:
    """Add the paper's figures, as fractions, where it has a row's model, prompt and task."""
    figures = [f"{measure}{more}" for measure in MEASURES for more in ("", "_sd")]
    if published is None:
        return tidy.assign(**{f"paper_{figure}": math.nan for figure in figures})
    keys = tidy.assign(task=tidy["task"].where(tidy["whole"], None))
    if published == "paper_ablation":
        column = OBJECTIVE
        keys[OBJECTIVE] = tidy["terms"]
    else:
        column = "method"
        # Its cells had all terms of the objective.
        keys["method"] = (
            tidy["method"].replace({"published": "dcs"}).where(tidy["terms"] == "full")
        )
    theirs = paper_beside(published, keys, columns=["shots", column], figures=figures)
    tidy = tidy.join(theirs.add_prefix("paper_") / 100)
    if published == "paper_ablation":
        plain = paper_beside(
            "paper_results",
            keys.assign(method="icl"),
            columns=["shots", "method"],
            figures=list(MEASURES),
        )
        for measure in MEASURES:
            tidy[f"paper_{measure}_change"] = tidy[f"paper_{measure}"] - plain[measure] / 100
    return tidy


def scheme_summary(records: Iterable[CellRecord], *, method: str = "dcs") -> ResultTable:
    """Return how many classes get weights and how many memberships (paper, scheme table).

    Parameters
    ----------
    records : iterable of CellRecord
        Cells; those of other methods are left out, and those of ablations.
    method : str
        The method whose schemes are counted.

    Returns
    -------
    ResultTable
        A row per model, task and shots: classes with a weight, with a membership and unchanged,
        averaged over seeds; ratio of memberships to weights; memberships in each seed's run; and
        the weakest class of each seed before and after correction, marked with M where a
        membership corrects it.
    """
    import pandas as pd

    cells = frames.main_finished(records, method=method)
    tidy = _schemes_of(cells)
    keys, groups = grouped(tidy, _PROMPT)
    long = [
        {**where, "as_paper": group["as_paper"].all(), "column": column}
        | dict(zip(KINDS, texts, strict=True))
        for where, (_, group) in zip(keys.to_dict("records"), groups, strict=True)
        for column, texts in _scheme_texts(where, group).items()
    ]
    columns = ["classes", *_CORRECTIONS, "ratio", "memberships by seed", _WEAKEST]
    text, kinds = _compared(
        pd.DataFrame(long, columns=[*_PROMPT, "as_paper", "column", *KINDS]),
        {"model": _text, "task": task_title, "shots": _text},
        columns,
        marked="task",
    )
    return ResultTable(
        name="schemes",
        title=f"Correction schemes of {frames.method_title(method)}: weights against memberships",
        frame=tidy.drop(columns="as_paper"),
        text=filled(text),
        words=(*_PROMPT, "memberships by seed", _WEAKEST),
        kinds=kinds,
        about=_SCHEMES_NOTE,
    )


def _scheme_texts(
    where: Mapping[Any, Any], group: pd.DataFrame
) -> dict[str, tuple[str, str, str]]:
    """Return what the columns say of the schemes of a prompt: ours, the paper's, difference."""
    means = group[[*_CORRECTIONS]].mean()
    ratio = means["memberships"] / means["weights"] if means["weights"] else math.nan
    theirs: dict[Any, Any] = next(iter(paper_rows("paper_schemes", **where)), {})
    texts = {"classes": (f"{means.sum():.0f}", theirs.get("classes", ""), "")}
    for name, value in means.items():
        figure = float(theirs.get(name, math.nan))
        texts[str(name)] = f"{value:.1f}", theirs.get(name, ""), difference(value, figure)
    by_seed = theirs.get("memberships_by_seed", "")
    counts = [int(count) for count in by_seed.split("/") if count]
    weights = int(theirs.get("classes", 0)) * len(counts) - sum(counts)
    published = sum(counts) / weights if weights else math.nan
    texts["ratio"] = (
        "-" if is_missing(ratio) else f"{ratio:.2f}",
        f"{published:.2f}" if counts else "",
        difference(ratio, published, digits=2),
    )
    texts["memberships by seed"] = "/".join(map(str, group["memberships"])), by_seed, ""
    known = group.dropna(subset="weakest_class").to_dict("records")
    weakest = paper_rows("paper_weakest_classes", **where)
    texts[_WEAKEST] = (
        "; ".join(map(_weakest_text, known)),
        "; ".join(
            _weakest_text({**row, "weakest_class": row["class"], "weakest_kind": "membership"})
            for row in weakest
        ),
        "",
    )
    return texts


def _schemes_of(cells: Sequence[CellRecord]) -> pd.DataFrame:
    """Return a row per cell: its kinds of corrections, and what becomes of its weakest class."""
    corrections = frames.corrections_frame(cells)
    # Weight 1 and Don't Change.
    same = (corrections[["a", "b", "c"]] == [0.0, 1.0, 1.0]).all(axis=1)
    same |= corrections["value"] == 1.0
    corrections["kind"] = corrections["kind"].mask(same, "unchanged")
    kinds = corrections.groupby(["key", "kind"]).size().unstack(fill_value=0)
    kinds = kinds.reindex(columns=["weight", "membership", "unchanged"], fill_value=0)
    kinds.columns = [*_CORRECTIONS]
    classes = frames.classes_frame(cells).dropna(subset="before")
    weakest = classes.loc[classes.groupby("key")["before"].idxmin()]
    weakest = weakest.merge(corrections[["key", "class", "kind"]], on=["key", "class"], how="left")
    weakest = weakest.rename(columns={"class": "weakest_class", "kind": "weakest_kind"})
    about = cells_frame(cells)[["key", *_PROMPT, "seed", "as_paper"]]
    figures = ["weakest_class", "weakest_kind", "before", "after"]
    tidy = about.merge(kinds, on="key").merge(weakest[["key", *figures]], on="key", how="left")
    return tidy.drop(columns="key")


def _weakest_text(row: Mapping[Any, Any]) -> str:
    mark = " (M)" if row["weakest_kind"] == "membership" else ""
    before, after = (percent(float(row[when]), digits=0) for when in ("before", "after"))
    return f"{row['seed']}: {row['weakest_class']}{mark} {before} → {after}"


def class_accuracies_by_seed(records: Iterable[CellRecord]) -> list[ResultTable]:
    """Return the class accuracies of every seed (paper, DDI table), one table per task.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells; those of ablations are left out.

    Returns
    -------
    list of ResultTable
        One per task: a row per model, shots, method and seed; in percent, with the change of
        accuracy and COBias from uncorrected.
    """
    by_task: dict[Any, list[CellRecord]] = {}
    for cell in frames.main_finished(records):
        if cell.class_accuracies:
            classes = map(str, cell.class_accuracies["class"])
            by_task.setdefault((cell.who["task"], *classes), []).append(cell)
    return [_class_table(task, classes, cells) for (task, *classes), cells in by_task.items()]


def _class_table(task: Any, classes: Sequence[str], cells: Sequence[CellRecord]) -> ResultTable:
    import pandas as pd

    by = ["model", "shots", "method", "seed"]
    totals = estimates(cells_frame(cells), by)
    totals.loc[totals["method"] == "icl", [f"{m}_change" for m in MEASURES]] = math.nan
    shown = {measure: _estimates_of(totals, measure) for measure in MEASURES}
    changes = {
        f"Δ {_HEADS[m]}": _gaps(totals[f"{m}_change"], [0.0] * len(totals)) for m in MEASURES
    }
    texts = {_HEADS[m]: [each.marked() for each in own] for m, own in shown.items()}
    texts |= {head: own for head, own in changes.items() if any(own)}
    long = [
        totals[[*by, "as_paper"]].assign(column=head, measured=own, paper="", difference="")
        for head, own in texts.items()
    ]
    tidy = frames.classes_frame(cells).merge(totals[[*by, "as_paper"]], on=by)
    tidy["paper_accuracy"] = paper_beside(
        "paper_class_accuracies",
        tidy.assign(**{"class": tidy["class"].str.capitalize()}),
        columns=["shots", "seed", "method", "class"],
        figures=["accuracy"],
    )["accuracy"].div(100)
    # A class may be called like another column.
    heads = {name: f"class {name}" if name in {*by, *texts} else name for name in classes}
    after = [Estimate.of_class(row) for row in tidy.to_dict("records")]
    long.append(
        tidy[[*by, "as_paper"]].assign(
            column=tidy["class"].map(heads),
            measured=[each.percent(coarse=True) for each in after],
            paper=list(map(percent, tidy["paper_accuracy"])),
            difference=_gaps(tidy["after"], tidy["paper_accuracy"]),
        )
    )
    titles: dict[str, Callable[[Any], str]] = {"model": _text, "shots": _text}
    titles |= {"method": frames.method_title, "seed": str}
    columns = [*texts, *heads.values()]
    text, kinds = _compared(pd.concat(long), titles, columns, marked="method")
    tidy = tidy.rename(columns={"after": "accuracy", "after_low": "low", "after_high": "high"})
    numbers = ["model", "task", *by[1:], "class", "accuracy", "low", "high"]
    numbers += ["paper_accuracy"] if "paper" in kinds else []
    stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in str(task))
    return ResultTable(
        name=f"class_accuracies_{stem}",
        title=f"Class accuracies of {task_title(task)} by seed, % of test rows",
        frame=tidy[numbers],
        text=text,
        words=tuple(by),
        kinds=kinds,
        sections=2,
        about=frames.notes_of([*chain(*shown.values()), *after]),
    )


def timing_table(records: Iterable[CellRecord]) -> ResultTable:
    """Return the time of one annealing run against the size of its search (paper, Figure 3).

    Parameters
    ----------
    records : iterable of CellRecord
        Cells; a row for each model, task, shots and method, and for each setting tried.
    """
    import pandas as pd

    frame = cells_frame(records)
    frame = frame[frame["tuning_seconds"].notna() & frame["search_space"].notna()]
    keys, groups = grouped(frame, _GROUP)
    figures = groups.agg(
        seeds=("key", "size"),
        classes=("classes", "first"),
        rows=("rows", "first"),
        search_space=("search_space", "mean"),
        smallest=("search_space", "min"),
        largest=("search_space", "max"),
        moves=("opt/evaluations", "mean"),
        temperatures=("temperatures", "mean"),
        seconds=("opt/seconds", "mean"),
        seconds_std=("opt/seconds", "std"),
        tuning_seconds=("tuning_seconds", "mean"),
        tuning_seconds_std=("tuning_seconds", "std"),
    )
    tidy = keys.join(figures)
    lines = [
        (
            *(_text(row["model"]), task_title(row["task"]), _text(row["shots"])),
            ", ".join(filter(None, (frames.method_title(row["method"]), row["setting"]))),
            f"{row['classes']:.0f}",
            _count(row["rows"]),
            "-".join(dict.fromkeys(f"{row[end]:.0f}" for end in ("smallest", "largest"))),
            *(_count(row[name]) for name in ("moves", "temperatures")),
            *(_seconds(row[name], row[f"{name}_std"]) for name in ("seconds", "tuning_seconds")),
        )
        for row in tidy.to_dict("records")
    ]
    kinds: list[RowKind] = ["measured"] * len(lines)
    for model in tidy.loc[tidy["method"] == "dcs", "model"].unique():
        for own in paper_rows("paper_annealing_time", model=model):
            seconds = f"{own['seconds_mean']} ({own['seconds_min']} to {own['seconds_max']})"
            head = (_text(model), "all seven", "", "DCS, paper")
            loops = f"≤ {own['outer_loops_max']}"
            lines.append((*head, "", "", f"{own['corrections']}·N", "", loops, seconds, ""))
            kinds.append("paper")
    words = ("model", "task", "shots", "method")
    heads = ("classes N", "rows M", "search space N·D", "moves", "outer loops", "seconds")
    return ResultTable(
        name="annealing_time",
        title="Annealing time against the size of the search",
        frame=tidy.drop(columns=["smallest", "largest"]).astype({"classes": int, "rows": "Int64"}),
        text=filled(pd.DataFrame(lines, columns=[*words, *heads, "seconds to tune"])),
        words=words,
        kinds=tuple(kinds),
        sections=1,
        about=_TIMES_NOTE,
    )


TABLES: Final[dict[str, Callable[[Sequence[CellRecord]], list[ResultTable]]]] = {
    "main": lambda records: [main_results(records)],
    "schemes": lambda records: [scheme_summary(records)],
    "timing": lambda records: [timing_table(records)],
    "classes": class_accuracies_by_seed,
    "ablation": ablation_tables,
    "methods": method_tables,
}
"""The tables of the paper by short name, in its order."""


def all_tables(records: Iterable[CellRecord]) -> list[ResultTable]:
    """Return every table of the paper that a sweep has cells for, in the paper's order."""
    cells = list(records)
    return [table for make in TABLES.values() for table in make(cells) if table.rows]


def table_files(records: Iterable[CellRecord], board: pd.DataFrame) -> dict[str, str]:
    """Return the tables that the run of a sweep shows, its `leaderboard` too, by artifact path."""
    cells = list(records)
    classes = frames.classes_frame(cells)[[*frames.CLASS_COLUMNS[1:]]]
    files = {
        schema.LEADERBOARD_FILE: to_mlflow_json(board),
        schema.CLASS_ACCURACIES_FILE: to_mlflow_json(classes),
        schema.LEADERBOARD_TEXT: leaderboard_markdown(board),
    }
    for table in all_tables(cells):
        for name, text in table.contents().items():
            files[f"{schema.TABLES_FOLDER}/{name}"] = text
    return files


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One value of both cells, and second minus first where that says something."""

    name: str
    first: str
    second: str
    difference: str = ""


def compare_records(first: CellRecord, second: CellRecord) -> dict[str, list[ComparedRow]]:
    """Compare two cells, of any models, tasks and methods.

    Returns
    -------
    dict of str to list of ComparedRow
        By title: settings that differ, results, class accuracies, other figures, schemes in
        words; without the parts that have nothing to show.
    """
    parts: dict[str, Callable[[CellRecord], Mapping[str, str | Estimate]]] = {
        _DIFFERENT: _settings_of,
        "Results, %": _results_of,
        "Class accuracies, % of test rows": _classes_of,
        "Other figures": _others_of,
        "Schemes": _words_of,
    }
    compared = {title: _side_by_side(of(first), of(second)) for title, of in parts.items()}
    compared[_DIFFERENT] = [row for row in compared[_DIFFERENT] if row.first != row.second]
    return {title: rows for title, rows in compared.items() if rows}


_DIFFERENT: Final = "Settings that differ"
_INTERVALS: Final = ("_low", "_high")


def _settings_of(cell: CellRecord) -> dict[str, str]:
    flat = schema.flatten({**cell.identity, **cell.params})
    texts = {name: v if isinstance(v, str) else json.dumps(v) for name, v in flat.items()}
    # Digests are told apart by how they begin.
    return {
        name: text[:12] if name.endswith("digest") else schema.shorten(text, 40)
        for name, text in texts.items()
    }


def _results_of(cell: CellRecord) -> dict[str, Estimate]:
    own = cell.metrics
    return {
        name: Estimate(own[name], math.nan, *(own.get(name + end, math.nan) for end in _INTERVALS))
        for name in own
        if name.endswith(MEASURES)
    }


def _classes_of(cell: CellRecord) -> dict[str, Estimate]:
    rows = frames.classes_frame([cell]).to_dict("records")
    return {str(row["class"]): Estimate.of_class(row) for row in rows}


def _others_of(cell: CellRecord) -> dict[str, str]:
    known = (*MEASURES, *_INTERVALS)
    return {name: f"{v:,.6g}" for name, v in cell.metrics.items() if not name.endswith(known)}


def _words_of(cell: CellRecord) -> dict[str, str]:
    if cell.scheme is None:
        return {}
    scheme = CorrectionScheme.from_dict(cell.scheme, source=f"cell {cell.key}")
    calibration = {"calibration": scheme.calibration.name} if scheme.calibration else {}
    effects = [correction.effect for correction in scheme.corrections]
    return calibration | dict(zip(scheme.classes, effects, strict=True))


def _side_by_side(
    ours: Mapping[str, str | Estimate], theirs: Mapping[str, str | Estimate]
) -> list[ComparedRow]:
    rows = []
    for name in dict.fromkeys([*ours, *theirs]):
        both = [own.get(name, "") for own in (ours, theirs)]
        first, second = (
            each if isinstance(each, str) else each.percent(padded=True) for each in both
        )
        figures = [100 * each.mean for each in both if isinstance(each, Estimate)]
        gap = difference(figures[1], figures[0]) if len(figures) == 2 else ""
        rows.append(ComparedRow(name, first, second, gap))
    return rows


def difference(ours: float, theirs: float, *, digits: int = 1) -> str:
    """Return ours minus theirs with its sign, a true minus; nothing where one is not known."""
    gap = ours - theirs
    return "" if is_missing(gap) else f"{gap:+.{digits}f}".replace("-", "−")


def _measured(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["test/accuracy"].notna()]


def _estimates_of(frame: pd.DataFrame, measure: str) -> list[Estimate]:
    return [Estimate.of(row, measure) for row in frame.to_dict("records")]


def _column_title(task: Any, seen: Mapping[str, int]) -> str:
    if task in AVERAGES:
        return str(task).removeprefix("average_")
    return task_title(task) if seen[task_title(task)] == 1 else str(task)


def _text(value: object) -> str:
    return "" if is_missing(value) else str(value)


def _count(value: float) -> str:
    return "" if is_missing(value) else f"{value:,.0f}"


def _seconds(mean: float, deviation: float) -> str:
    if is_missing(mean):
        return ""
    return f"{mean:.2f}" if is_missing(deviation) else f"{mean:.2f} ± {deviation:.2f}"
