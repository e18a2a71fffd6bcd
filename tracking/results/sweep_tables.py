"""Tables of a sweep, as pivots of the frames of its cells."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dcs.evaluation.uncertainty import percent
from tracking import schema
from tracking.records import UNCORRECTED
from tracking.results import formats, paper, settings
from tracking.results.cells import (
    MEASURE_COLUMNS,
    MEASURES,
    SOURCE,
    Cells,
    Estimate,
    changes_nothing,
    grouped,
    groups_of,
    is_missing,
    method_title,
    name_of,
    notes_of,
    shots_rank,
    sorted_by,
    text_of,
    words_of,
)
from tracking.results.formats import ResultTable, RowKind, filled, points

if TYPE_CHECKING:
    import pandas as pd

#: For each column that distinguishes rows: its values in order, and their formatter.
_Rows: TypeAlias = "Mapping[str, tuple[Sequence[Any], Callable[[Any], str]]]"

_GROUP: Final = (*SOURCE, "method", "setting")
LEADERBOARD_COLUMNS: Final = (*_GROUP, "seeds", *MEASURE_COLUMNS)

_HEADS: Final = {"accuracy": "Acc", "cobias": "COBias"}
#: Formatters of row keys that are not displayed as they are.
_TITLES: Final[Mapping[str, Callable[[Any], str]]] = {
    "task": paper.task_title,
    "method": method_title,
}
_CORRECTIONS: Final = ("weights", "memberships", "unchanged")
_TERMS_NOTE: Final = (
    "The objective is a sum of terms: Z_err is the error rate, Z_cobias the COBias, Z_pmi the "
    "negated pointwise mutual information of predictions and labels; full has all three."
)
_SCHEMES_NOTE: Final = (
    "Classes with each kind of correction, mean over seeds; unchanged: weight 1 or Don't Change, "
    "which the paper does not count separately. Ratio of memberships to weights, from unrounded "
    "counts."
)
_COUNTS: Final = {
    "classes": "classes N",
    "rows": "rows M",
    "search_space": "search space N·D",
    "moves": "moves",
    "temperatures": "outer loops",
}
_TIMES: Final = {"seconds": "seconds", "tuning_seconds": "seconds to tune"}
_TIMES_NOTE: Final = (
    "Moves, outer loops (temperatures) and seconds are those of the annealing run whose scheme "
    "was chosen; 'to tune' is the time of the whole search. N·D is the number of classes times "
    "the number of available corrections. Paper: mean (range) over its tasks."
)
_MEANS: Final = {
    "accuracy": "accuracy",
    "cobias": "COBias",
    "score": "accuracy − COBias",
    "balanced_accuracy": "balanced accuracy",
    "weakest_class": "weakest class",
}
#: Metrics that differ by less than half a tenth of a point are considered equal.
_ROUNDING: Final = 0.0005
_METHODS_NOTE: Final = (
    "Means over the sources of means over seeds, ± standard error over seeds. Less accurate: "
    "sources on which accuracy is below uncorrected by more than two standard errors of the "
    "difference over seeds (one seed: p < 0.05). Fairest: sources on which the method's COBias is "
    "the lowest of the methods that are not less accurate there."
)


def leaderboard(cells: Cells) -> pd.DataFrame:
    """Return accuracy and COBias on the test rows per model, task, shots and method.

    Returns
    -------
    pandas.DataFrame
        Columns ``model``, ``task``, ``shots``, ``method``, ``setting`` (description of how the
        cells differ from the main ones; empty for main cells), ``seeds`` (number of cells),
        ``accuracy_mean``, ``accuracy_std``, ``accuracy_low``, ``accuracy_high``,
        ``accuracy_p``, and the same of ``cobias``; fractions, not percent. The sample
        standard deviation (``n - 1``) is NaN for one seed; the ends of the 95 % interval and the
        p-value of the difference from uncorrected on the same rows are NaN for several seeds.
    """
    return cells.estimates(_GROUP)[[*LEADERBOARD_COLUMNS]]


def leaderboard_metrics(board: pd.DataFrame) -> dict[str, float]:
    """Return the means of a `leaderboard` by name: ``accuracy/trec/DCS``.

    Fields that are missing or the same in all rows are left out of the names.
    """
    several = board[["model", "setting", "shots"]].nunique(dropna=False) > 1
    names = [*several.index[several], "task", "method"]
    return {
        "/".join([measure, *words_of(row, *names)]): row[f"{measure}_mean"]
        for measure in MEASURES
        for row in board.dropna(subset=f"{measure}_mean").to_dict("records")
    }


def main_results(cells: Cells) -> ResultTable:
    """Return accuracy and COBias per task with their average (paper, main results).

    Cells of other settings are left out: see `ablation_tables`.

    Returns
    -------
    ResultTable
        A row per model, shots and method; in percent, mean and standard deviation over seeds.
        The average is the mean of the means of the tasks.
    """
    tried = ", ".join(axis.words(axis.main) for axis in cells.axes)
    note = f"Of the settings tried: {tried}; the others are in the tables of ablations."
    methods = list(dict.fromkeys(cell.who["method"] for cell in cells.main.records))
    return _build_task_table(
        cells.main,
        {"method": (methods, method_title)},
        # The paper's main results use all terms of the objective.
        paper.paper_results().query("terms == 'full'"),
        name="main_results",
        title="Main results: accuracy and COBias on the test rows, %",
        note=note if cells.axes else "",
    )


def ablation_tables(cells: Cells) -> list[ResultTable]:
    """Return a table for each setting in which cells of a method differ.

    Returns
    -------
    list of ResultTable
        ``objective_ablation`` first: DCS by the terms of its objective (paper, Section 4.4), with
        arrows for the change from uncorrected. In each table the other settings are those of the
        main results. Empty if all cells have the same settings.
    """
    tables = []
    for axis in cells.axes:
        own = cells.ablation(axis)
        if axis.name not in (each.name for each in own.axes):
            continue  # The setting varies only where another one is not at its main value.
        rows: _Rows = {axis.name: (axis.in_order, axis.short)}
        named = f"{axis.name}_ablation"
        if axis.name == schema.OBJECTIVE and "dcs" in axis.methods:
            tables.append(
                _build_task_table(
                    own.of_method("dcs"),
                    rows,
                    paper.paper_results(),
                    name=named,
                    title="Ablation of the objective: DCS on the test rows, %",
                    note=_TERMS_NOTE,
                    arrows=True,
                )
            )
            named = f"{axis.name}_by_method"
        if axis.name != schema.OBJECTIVE or axis.methods != ("dcs",):
            title = f"Ablation by {axis.title}: accuracy and COBias on the test rows, %"
            rows = {"method": (axis.methods, method_title), **rows}
            tables.append(_build_task_table(own, rows, name=named, title=title))
    return tables


def _build_task_table(
    cells: Cells,
    rows: _Rows,
    theirs: pd.DataFrame | None = None,
    *,
    name: str,
    title: str,
    note: str = "",
    arrows: bool = False,
) -> ResultTable:
    """Return a table of accuracy and COBias: a row per model, shots and `rows`, a column per task.

    `rows` gives the ordered values and the formatter of each column that distinguishes rows,
    `theirs` the rows of `paper_results` to show below. The average over tasks comes first or,
    with `arrows`, changes from uncorrected are shown beside the values.
    """
    import pandas as pd

    by = ["model", "shots", *rows]
    of_row = list(dict.fromkeys([*by, "method", "terms"]))
    tidy = cells.estimates([*of_row, "task"]).assign(whole=True)
    tasks = sorted(tidy["task"].unique(), key=paper.task_rank)
    if len(tasks) > 1 and not arrows:
        tidy = pd.concat([tidy, _average(tidy, of_row, tasks)], ignore_index=True)
        tasks = [paper.AVERAGE, *tasks]
    order = {
        "model": list(tidy["model"].unique()),
        "shots": sorted(tidy["shots"].unique(), key=shots_rank),
        **{column: list(values) for column, (values, _) in rows.items()},
        "task": tasks,
    }
    tidy = sorted_by(tidy, order)
    keys = tidy.assign(
        task=tidy["task"].where(tidy["whole"], None),
        method=tidy["method"].replace({"published": "dcs"}),
    )
    known = paper.paper_results().head(0) if theirs is None else theirs
    tidy = tidy.join(paper.paper_beside(known, keys, ["shots", "method", "terms"]))
    titles = Counter(map(paper.task_title, tasks))
    heads = {
        task: "all"
        if task == paper.AVERAGE
        else (paper.task_title(task) if titles[paper.task_title(task)] == 1 else str(task))
        for task in tasks
    }
    shown = {measure: _get_estimates(tidy, measure) for measure in MEASURES}
    long: list[pd.DataFrame] = []
    for measure, own in shown.items():
        ours = [each.marked() for each in own]
        published = list(map(percent, tidy[f"paper_{measure}"], tidy[f"paper_{measure}_sd"]))
        if arrows:
            ours = list(map(_add_arrow, ours, tidy[f"{measure}_change"]))
            published = list(map(_add_arrow, published, tidy[f"paper_{measure}_change"]))
        tidy[f"{measure}_difference"] = tidy[f"{measure}_mean"] - tidy[f"paper_{measure}"]
        long.append(
            tidy[[*by, "as_paper"]].assign(
                column=[f"{_HEADS[measure]} {heads[task]}" for task in tidy["task"]],
                measured=ours,
                paper=published,
                difference=list(map(points, tidy[f"{measure}_difference"])),
            )
        )
    numbers = [*by, "task", "seeds", *MEASURE_COLUMNS]
    if tidy["paper_accuracy"].notna().any():
        numbers += [f"paper_{m}" for m in MEASURES] + [f"{m}_difference" for m in MEASURES]
    return _build_pivot(
        pd.concat(long),
        {key: rows[key][1] if key in rows else text_of for key in by},
        marked=by[-1],
        name=name,
        title=title,
        frame=tidy[numbers],
        sections=2,
        about=" ".join(filter(None, (notes_of(chain(*shown.values())), note))),
    )


def _average(tidy: pd.DataFrame, by: Sequence[str], tasks: Sequence[Any]) -> pd.DataFrame:
    """Return the averages over tasks, for the rows that have all of them."""
    means, groups = grouped(tidy, by)
    means["seeds"] = groups["seeds"].min()
    means["as_paper"] = groups["as_paper"].all()
    means = means.join(groups[[f"{measure}_mean" for measure in MEASURES]].mean())
    # Averages over different tasks are not comparable: rows that lack a task have none, and
    # the published average is shown only if the tasks are the same.
    whole = sorted(paper.TASKS) == sorted(str(paper.paper_task(task)) for task in tasks)
    return means[groups.size() == len(tasks)].assign(task=paper.AVERAGE, whole=whole)


def _build_pivot(
    long: pd.DataFrame,
    titles: Mapping[str, Callable[[Any], str]],
    *,
    marked: str,
    name: str,
    title: str,
    frame: pd.DataFrame,
    about: str,
    sections: int = 0,
) -> ResultTable:
    """Return a table of measured values, each followed by the published one and the difference.

    `long` has a row per entry of the table: the keys of `titles`, which maps them to formatters,
    ``column``, a text of each kind, and ``as_paper``, whether our scheme was chosen as in the
    paper. Published rows are marked in the column `marked`. Columns are in order of first
    appearance; empty ones are left out.
    """
    import pandas as pd

    lines: list[dict[Any, str]] = []
    kinds: list[RowKind] = []
    for key, group in groups_of(long, list(titles)):
        head = {name: title_of(key[name]) for name, title_of in titles.items()}
        dagger = "" if group["as_paper"].all() else "†"
        names = {"measured": head[marked], "paper": f"{head[marked]}, paper{dagger}"}
        for kind in formats.KINDS if (group["paper"] != "").any() else formats.KINDS[:1]:
            values = dict(zip(group["column"], group[kind], strict=True))
            lines.append({**head, marked: names.get(kind, kind), **values})
            kinds.append(kind)
    text = filled(pd.DataFrame(lines, columns=[*titles, *long["column"].unique()]).fillna(""))
    text = text.rename(columns={key: key.replace("_", " ") for key in titles})
    heads = (key.replace("_", " ") for key in titles)
    return ResultTable(
        name=name,
        title=title,
        frame=frame,
        text=text,
        words=tuple(head for head in heads if head in text),
        kinds=tuple(kinds),
        sections=sections,
        about=about,
    )


def _add_arrow(text: str, change: float) -> str:
    """Append the change from uncorrected as in the paper: ``81.5 ↑12.9``."""
    if not text or is_missing(change):
        return text
    return f"{text} {'↑' if change >= 0 else '↓'}{100 * abs(change):.1f}"


def scheme_summary(cells: Cells) -> ResultTable:
    """Return the numbers of weights and memberships in schemes of DCS (paper, scheme table).

    Returns
    -------
    ResultTable
        A row per model, task and shots: classes with a weight, with a membership and unchanged,
        averaged over seeds; ratio of memberships to weights; and memberships by seed.
    """
    import pandas as pd

    own = cells.main.of_method("dcs")
    corrections = own.corrections
    same = changes_nothing(corrections)
    kinds = corrections["kind"].mask(same, "unchanged")
    counts = corrections.groupby(["key", kinds]).size().unstack(fill_value=0)
    counts = counts.reindex(columns=["weight", "membership", "unchanged"], fill_value=0)
    counts.columns = [*_CORRECTIONS]
    tidy = own.frame[["key", *SOURCE, "seed", "as_paper"]].merge(counts.reset_index(), on="key")
    theirs = paper.paper_schemes()
    long: list[tuple[Any, ...]] = []
    for where, group in groups_of(tidy, SOURCE):
        published = theirs[
            (theirs["model"] == paper.paper_model(where["model"]))
            & (theirs["task"] == paper.paper_task(where["task"]))
            & (theirs["shots"] == str(where["shots"]))
        ]
        ours, known = _count_corrections(group), _count_corrections(published)
        gaps = {name: formats.difference(ours[name] - known[name]) for name in _CORRECTIONS}
        gaps["ratio"] = formats.difference(ours["ratio"] - known["ratio"], digits=2)
        texts, printed = _format_counts(group, ours), _format_counts(published, known)
        about = (*where.values(), group["as_paper"].all())
        long += [
            (*about, name, text, printed.get(name, ""), gaps.get(name, ""))
            for name, text in texts.items()
        ]
    return _build_pivot(
        pd.DataFrame(long, columns=[*SOURCE, "as_paper", "column", *formats.KINDS]),
        {key: _TITLES.get(key, text_of) for key in SOURCE},
        marked="task",
        name="schemes",
        title=f"Correction schemes of {method_title('dcs')}: weights against memberships",
        frame=tidy.drop(columns=["key", "as_paper"]),
        about=_SCHEMES_NOTE,
    )


def _count_corrections(schemes: pd.DataFrame) -> dict[str, float]:
    """Return the mean numbers of classes with each correction, and their ratio."""
    means = schemes.reindex(columns=[*_CORRECTIONS]).astype(float).mean()
    ratio = means["memberships"] / means["weights"] if means["weights"] else math.nan
    return {"classes": means.sum(), **means, "ratio": ratio}


def _format_counts(schemes: pd.DataFrame, counts: Mapping[str, float]) -> dict[str, str]:
    """Return the text of each column for the schemes of all seeds of a source."""
    if schemes.empty:
        return {}
    means = {name: counts[name] for name in _CORRECTIONS}
    return {
        "classes": f"{counts['classes']:.0f}",
        **{name: "" if is_missing(mean) else f"{mean:.1f}" for name, mean in means.items()},
        "ratio": "-" if is_missing(counts["ratio"]) else f"{counts['ratio']:.2f}",
        "memberships by seed": "/".join(map(str, schemes["memberships"])),
    }


def class_accuracies_by_seed(cells: Cells) -> list[ResultTable]:
    """Return the class accuracies of each seed (paper, DDI table), one table per task.

    Returns
    -------
    list of ResultTable
        One per task and set of classes: a row per model, shots, method and seed; in percent, with
        the change of accuracy and COBias from uncorrected.
    """
    tables = []
    stems: Counter[str] = Counter()
    of_record = {
        cell.key: (cell.who["task"], *map(str, cell.class_accuracies["class"]))
        for cell in cells.main.records
        if cell.class_accuracies
    }
    for group in dict.fromkeys(of_record.values()):
        own = Cells(tuple(c for c in cells.main.records if of_record.get(c.key) == group))
        task = group[0]
        stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in f"class_accuracies_{task}")
        stems[stem] += 1
        name = stem if stems[stem] == 1 else f"{stem}_{stems[stem]}"
        tables.append(_build_class_table(task, own, name))
    return tables


def _build_class_table(task: Any, cells: Cells, name: str) -> ResultTable:
    import pandas as pd

    by = ["model", "shots", "method", "seed"]
    totals = cells.estimates(by)
    totals.loc[totals["method"] == UNCORRECTED, [f"{m}_change" for m in MEASURES]] = math.nan
    shown = {measure: _get_estimates(totals, measure) for measure in MEASURES}
    columns = {_HEADS[m]: [each.marked() for each in own] for m, own in shown.items()}
    columns |= {f"Δ {_HEADS[m]}": list(map(points, totals[f"{m}_change"])) for m in MEASURES}
    about = totals[[*by, "as_paper"]]
    long = [
        about.assign(column=head, measured=own, paper="", difference="")
        for head, own in columns.items()
    ]
    tidy = cells.classes.merge(about, on=by)
    theirs = paper.paper_frame("paper_class_accuracies")
    published = paper.paper_beside(
        theirs.assign(**{"class": theirs["class"].str.lower()}),
        tidy.assign(**{"class": tidy["class"].str.lower()}),
        ["shots", "seed", "method", "class"],
    )
    tidy["paper_accuracy"] = published["paper_accuracy"].astype(float) / 100
    after = [Estimate.of_class(row) for row in tidy.to_dict("records")]
    # A class may have the name of another column.
    taken = {*by, *columns}
    long.append(
        tidy[[*by, "as_paper"]].assign(
            column=[f"class {name}" if name in taken else name for name in tidy["class"]],
            measured=[each.percent(coarse=True) for each in after],
            paper=list(map(percent, tidy["paper_accuracy"])),
            difference=list(map(points, tidy["after"] - tidy["paper_accuracy"])),
        )
    )
    tidy = tidy.rename(columns={"after": "accuracy", "after_low": "low", "after_high": "high"})
    numbers = ["model", "task", *by[1:], "class", "accuracy", "low", "high"]
    numbers += ["paper_accuracy"] if tidy["paper_accuracy"].notna().any() else []
    return _build_pivot(
        pd.concat(long),
        {key: _TITLES.get(key, text_of) for key in by},
        marked="method",
        name=name,
        title=f"Class accuracies of {paper.task_title(task)} by seed, % of test rows",
        frame=tidy[numbers],
        sections=2,
        about=notes_of([*chain(*shown.values()), *after]),
    )


def timing_table(cells: Cells) -> ResultTable:
    """Return the time of one annealing run against the size of its search (paper, Figure 3)."""
    import pandas as pd

    frame = cells.frame.rename(columns={"opt/evaluations": "moves", "opt/seconds": "seconds"})
    frame = frame[frame["tuning_seconds"].notna() & frame["search_space"].notna()]
    tidy, groups = grouped(frame, _GROUP)
    tidy["seeds"] = groups.size()
    tidy = tidy.join(groups[["classes", "rows"]].first().astype({"classes": int, "rows": "Int64"}))
    tidy = tidy.join(groups[["search_space", "moves", "temperatures", *_TIMES]].mean())
    tidy = tidy.join(groups[[*_TIMES]].std().add_suffix("_std"))
    rows = tidy.to_dict("records")
    ours = {
        "model": tidy["model"].map(text_of),
        "task": tidy["task"].map(paper.task_title),
        "shots": tidy["shots"].map(text_of),
        "method": [name_of(row, "method", "setting") for row in rows],
        **{head: [_format_count(row[name]) for row in rows] for name, head in _COUNTS.items()},
        **{
            head: [_format_seconds(row[name], row[f"{name}_std"]) for row in rows]
            for name, head in _TIMES.items()
        },
    }
    published = paper.paper_frame("paper_annealing_time")
    theirs = [
        {
            "model": text_of(model),
            "task": "all seven",
            "method": "DCS, paper",
            "search space N·D": f"{own['corrections']}·N",
            "outer loops": f"≤ {own['outer_loops_max']}",
            "seconds": f"{own['seconds_mean']} ({own['seconds_min']} to {own['seconds_max']})",
        }
        for model in tidy.loc[tidy["method"] == "dcs", "model"].unique()
        for own in published[published["model"] == paper.paper_model(model)].to_dict("records")
    ]
    text = pd.concat([pd.DataFrame(ours), pd.DataFrame(theirs)], ignore_index=True)
    kinds: list[RowKind] = ["measured"] * len(tidy)
    kinds += ["paper"] * len(theirs)
    return ResultTable(
        name="annealing_time",
        title="Annealing time against the size of the search",
        frame=tidy,
        text=filled(text.fillna("")),
        words=("model", "task", "shots", "method"),
        kinds=tuple(kinds),
        sections=1,
        about=_TIMES_NOTE,
    )


def _format_count(value: float) -> str:
    return "" if is_missing(value) else f"{value:,.0f}"


def _format_seconds(mean: float, deviation: float) -> str:
    if is_missing(mean):
        return ""
    return f"{mean:.2f}" if is_missing(deviation) else f"{mean:.2f} ± {deviation:.2f}"


def method_tables(cells: Cells) -> list[ResultTable]:
    """Return tables that compare methods on each source of probabilities and on their mean.

    Each setting of a method is a method of its own, except for the number of labelled rows.
    Sources (model, task and shots) for which a method has no cell are left out of both tables.

    Returns
    -------
    list of ResultTable
        ``method_means``, a row per method, and ``methods_by_source``, a row per source; empty
        for fewer than two sources or methods.
    """
    others = [axis.name for axis in cells.axes if axis.name not in settings.LABEL_AXES]
    tidy = _summarize_sources(cells.main_but(others).judged)
    whole = tidy.groupby("source")["name"].transform("size") == tidy["name"].nunique()
    tidy = tidy[whole].rename(columns={"name": "method"})
    if tidy["source"].nunique() < 2 or tidy["method"].nunique() < 2:
        return []
    return [_tabulate_means(tidy), _tabulate_sources(tidy)]


def _summarize_sources(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per source and method: means over seeds, standard errors and verdicts."""
    frame = frame.assign(
        change=frame["test/accuracy"] - frame["uncorrected/test/accuracy"],
        balanced_accuracy=frame["test/balanced_accuracy"],
        weakest_class=frame["test/weakest_class"],
    )
    groups = frame.groupby(["source", "name"], sort=False)
    tidy = groups[[*_MEANS, "change"]].mean()
    tidy = tidy.join(groups[[*_MEANS, "change"]].sem().add_suffix("_error"))
    single = tidy["change_error"].isna()
    tidy["less_accurate"] = (tidy["change"] + 2.0 * tidy["change_error"] < 0.0) | (
        single & (tidy["change"] < 0.0) & (groups["test/accuracy_p"].first() < 0.05)
    )
    harmless = tidy["cobias"].mask(tidy["less_accurate"])
    lowest = harmless.groupby("source").transform("min")
    tidy["fairest"] = harmless <= lowest + _ROUNDING
    tidy["seeds"] = groups.size()
    return tidy.reset_index()


def _tabulate_means(tidy: pd.DataFrame) -> ResultTable:
    groups = tidy.groupby("method", sort=False)
    # Sources are independent of each other, so the variances of their errors add up.
    errors = groups[[f"{name}_error" for name in _MEANS]].agg(_compute_error_of_mean)
    verdicts = ("less_accurate", "fairest")
    counts = groups[[*verdicts]].sum()
    frame = groups[[*_MEANS]].mean().join(errors).join(counts).assign(sources=groups.size())
    frame = frame.reset_index()
    text = frame[["method"]].copy()
    for name, head in _MEANS.items():
        text[head] = list(map(percent, frame[name], frame[f"{name}_error"]))
    of = f" of {tidy['source'].nunique()}"
    for name in verdicts:
        text[name.replace("_", " ")] = [f"{count}{of}" for count in frame[name]]
    return ResultTable(
        name="method_means",
        title="Methods on the mean of the sources, % of test rows",
        frame=frame,
        text=text,
        words=("method",),
        about=_METHODS_NOTE,
    )


def _compute_error_of_mean(errors: pd.Series[float]) -> float:
    return math.sqrt(float((errors**2).sum(skipna=False))) / len(errors)


def _tabulate_sources(tidy: pd.DataFrame) -> ResultTable:
    marks = tidy["less_accurate"].map({True: "↓", False: ""})
    pairs = zip(tidy["accuracy"], tidy["cobias"], marks, strict=True)
    texts = [f"{percent(a)} / {percent(b)}{mark}" for a, b, mark in pairs]
    text = tidy.assign(text=texts).pivot(index="source", columns="method", values="text")
    text = text.reindex(tidy["source"].unique(), columns=tidy["method"].unique())
    text = text.rename_axis(columns=None).reset_index()
    best = tidy.loc[tidy.groupby("source")["score"].idxmax()].set_index("source")["method"]
    text["highest accuracy − COBias"] = text["source"].map(best)
    return ResultTable(
        name="methods_by_source",
        title="Accuracy / COBias of methods by source, % of test rows",
        frame=tidy,
        text=text,
        words=("source", "highest accuracy − COBias"),
        about="↓: less accurate than uncorrected, beyond noise.",
    )


TABLES: Final[dict[str, Callable[[Cells], list[ResultTable]]]] = {
    "main": lambda cells: [main_results(cells)],
    "schemes": lambda cells: [scheme_summary(cells)],
    "timing": lambda cells: [timing_table(cells)],
    "classes": class_accuracies_by_seed,
    "ablation": ablation_tables,
    "methods": method_tables,
}
"""The tables by short name, those of the paper first."""


def all_tables(cells: Cells) -> list[ResultTable]:
    """Return all nonempty tables of a sweep, in the order of `TABLES`."""
    return [table for make in TABLES.values() for table in make(cells) if table.rows]


def table_files(cells: Cells) -> dict[str, str]:
    """Return the files of the tables of a sweep and of its `leaderboard` by artifact path."""
    files = {schema.LEADERBOARD_FILE: formats.to_mlflow_json(leaderboard(cells))}
    for table in all_tables(cells):
        for name, text in table.contents().items():
            files[f"{schema.TABLES_FOLDER}/{name}"] = text
    return files


def _get_estimates(frame: pd.DataFrame, measure: str) -> list[Estimate]:
    return [Estimate.of(row, measure) for row in frame.to_dict("records")]
