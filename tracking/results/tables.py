"""Tables of a sweep, as pivots of the frames of its cells, and comparison of two cells."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dcs.errors import listing
from dcs.evaluation.uncertainty import percent
from dcs.schemes.scheme import CorrectionScheme
from tracking import schema
from tracking.records import CellRecord
from tracking.results import formats, frames, paper, settings
from tracking.results.comparison import label_tables, method_tables
from tracking.results.formats import ResultTable, RowKind, filled, points
from tracking.results.frames import MEASURES, Estimate

if TYPE_CHECKING:
    import pandas as pd

#: For each column that distinguishes rows: its values in order, and their formatter.
_Rows: TypeAlias = "Mapping[str, tuple[Sequence[Any], Callable[[Any], str]]]"

_GROUP: Final = ("model", "task", "shots", "method", "setting")
_PROMPT: Final = ("model", "task", "shots")
LEADERBOARD_COLUMNS: Final = (*_GROUP, "seeds", *frames.MEASURE_COLUMNS)

_HEADS: Final = {"accuracy": "Acc", "cobias": "COBias"}
#: Formatters of row keys that are not displayed as they are.
_TITLES: Final[Mapping[str, Callable[[Any], str]]] = {
    "task": paper.task_title,
    "method": frames.method_title,
}
_WEAKEST: Final = "weakest class by seed, % before → after"
_CORRECTIONS: Final = ("weights", "memberships", "unchanged")
_TERMS_NOTE: Final = (
    "The objective is a sum of terms: Z_err is the error rate, Z_cobias the COBias, Z_pmi the "
    "negated pointwise mutual information of predictions and labels; full has all three."
)
_SCHEMES_NOTE: Final = (
    "Classes with each kind of correction, mean over seeds; unchanged: weight 1 or Don't Change, "
    "which the paper does not count separately. Ratio of memberships to weights, from unrounded "
    "counts. (M): a membership corrects the weakest class."
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


def leaderboard(records: Iterable[CellRecord]) -> pd.DataFrame:
    """Return accuracy and COBias on the test split per model, task, shots and method.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells; failed ones and those without test metrics are left out.

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
    return _compute_estimates(records, _GROUP)[[*LEADERBOARD_COLUMNS]]


def leaderboard_markdown(frame: pd.DataFrame) -> str:
    """Return a `leaderboard` in percent, as a Markdown table followed by an explanation."""
    if frame.empty:
        return "No finished cells.\n"
    text = filled(frame[[*_GROUP]].map(frames.text_of))
    words = tuple(map(str, text))
    shown = {measure: _get_estimates(frame, measure) for measure in MEASURES}
    text = text.assign(seeds=frame["seeds"].map(str))
    text["accuracy %"], text["COBias %"] = ([e.marked() for e in own] for own in shown.values())
    return f"{formats.to_markdown(text, words=words)}\n{frames.notes_of(chain(*shown.values()))}\n"


def leaderboard_metrics(frame: pd.DataFrame) -> dict[str, float]:
    """Return the means of a `leaderboard` by name: ``accuracy/trec/DCS``.

    Fields that are missing or the same in all rows are left out of the names.
    """
    several = frame[["model", "setting", "shots"]].nunique(dropna=False) > 1
    names = [*several.index[several], "task", "method"]
    return {
        "/".join([measure, *frames.words_of(row, *names)]): row[f"{measure}_mean"]
        for measure in MEASURES
        for row in frame.dropna(subset=f"{measure}_mean").to_dict("records")
    }


def main_results(records: Iterable[CellRecord]) -> ResultTable:
    """Return accuracy and COBias per task with averages (paper, main results).

    Parameters
    ----------
    records : iterable of CellRecord
        Cells of any models, tasks, shots, methods and seeds; failed ones, and those of other
        settings, are left out: see `ablation_tables`.

    Returns
    -------
    ResultTable
        A row per model, shots and method; in percent, mean and standard deviation over seeds.
        An average is the mean of the means of the available tasks.
    """
    cells = frames.finished_cells(records)
    axes = settings.axes_of(cells)
    cells = settings.main_cells(cells)
    tried = ", ".join(axis.words(axis.main) for axis in axes)
    note = f"Of the settings tried: {tried}; the others are in the tables of ablations."
    methods = list(dict.fromkeys(cell.identity.get("method") for cell in cells))
    # The paper's main results use all terms of the objective.
    theirs = paper.paper_results().query("terms == 'full'")
    return _build_task_table(
        cells,
        {"method": (methods, frames.method_title)},
        theirs,
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
        arrows for the change from uncorrected. Empty if all cells have the same settings.
    """
    cells = frames.finished_cells(records)
    tables = []
    for axis in settings.axes_of(cells):
        own = [cell for cell in settings.main_cells(cells, but=(axis.name,)) if axis.varies(cell)]
        if axis.name not in (each.name for each in settings.axes_of(own)):
            continue  # The setting varies only where another one is not at its main value.
        rows: _Rows = {axis.name: (axis.in_order, axis.short)}
        named = f"{axis.name}_ablation"
        if axis.name == schema.OBJECTIVE and "dcs" in axis.methods:
            tables.append(
                _build_task_table(
                    [cell for cell in own if cell.identity.get("method") == "dcs"],
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
            rows = {"method": (axis.methods, frames.method_title), **rows}
            tables.append(_build_task_table(own, rows, name=named, title=title))
    return tables


def _build_task_table(
    cells: Sequence[CellRecord],
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
    `theirs` the rows of `paper_results` to show below. Averages over tasks come first or, with
    `arrows`, changes from uncorrected are shown beside the figures.
    """
    import pandas as pd

    by = ["model", "shots", *rows]
    of_row = list(dict.fromkeys([*by, "method", "terms"]))
    tidy = _compute_estimates(cells, [*of_row, "task"]).assign(whole=True)
    tasks = sorted(tidy["task"].unique(), key=paper.task_rank)
    means = [] if arrows else _compute_averages(tidy, of_row)
    tidy = pd.concat([tidy, *means], ignore_index=True)
    order = {
        "model": list(tidy["model"].unique()),
        "shots": sorted(tidy["shots"].unique(), key=frames.shots_rank),
        **{column: list(values) for column, (values, _) in rows.items()},
        "task": [*(own["task"].iloc[0] for own in means if len(own)), *tasks],
    }
    tidy = frames.sorted_by(tidy, order)
    keys = tidy.assign(
        task=tidy["task"].where(tidy["whole"], None),
        method=tidy["method"].replace({"published": "dcs"}),
    )
    figures = paper.paper_results().head(0) if theirs is None else theirs
    tidy = tidy.join(paper.paper_beside(figures, keys, ["shots", "method", "terms"]))
    seen = Counter(map(paper.task_title, order["task"]))
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
                column=[f"{_HEADS[measure]} {_name_column(t, seen)}" for t in tidy["task"]],
                measured=ours,
                paper=published,
                difference=list(map(points, tidy[f"{measure}_difference"])),
            )
        )
    numbers = [*by, "task", "seeds", *frames.MEASURE_COLUMNS]
    if tidy["paper_accuracy"].notna().any():
        numbers += [f"paper_{m}" for m in MEASURES] + [f"{m}_difference" for m in MEASURES]
    return _build_pivot(
        pd.concat(long),
        {key: rows[key][1] if key in rows else frames.text_of for key in by},
        marked=by[-1],
        name=name,
        title=title,
        frame=tidy[numbers],
        sections=2,
        about=" ".join(filter(None, (frames.notes_of(chain(*shown.values())), note))),
    )


def _build_pivot(
    long: pd.DataFrame,
    titles: Mapping[str, Callable[[Any], str]],
    *,
    marked: str,
    words: Sequence[str] = (),
    name: str,
    title: str,
    frame: pd.DataFrame,
    about: str,
    sections: int = 0,
) -> ResultTable:
    """Return a table of measured figures, each followed by the published one and the difference.

    `long` has a row per entry of the table: the keys of `titles`, which maps them to formatters,
    ``column``, a text of each kind, and ``as_paper``, whether our scheme was chosen as in the
    paper. Published rows are marked in the column `marked`. Columns are in order of first
    appearance, those of `words` aligned to the left; empty ones are left out.
    """
    import pandas as pd

    lines: list[dict[Any, str]] = []
    kinds: list[RowKind] = []
    for key, group in frames.groups_of(long, list(titles)):
        head = {name: title_of(key[name]) for name, title_of in titles.items()}
        dagger = "" if group["as_paper"].all() else "†"
        names = {"measured": head[marked], "paper": f"{head[marked]}, paper{dagger}"}
        for kind in formats.KINDS if (group["paper"] != "").any() else formats.KINDS[:1]:
            figures = dict(zip(group["column"], group[kind], strict=True))
            lines.append({**head, marked: names.get(kind, kind), **figures})
            kinds.append(kind)
    text = filled(pd.DataFrame(lines, columns=[*titles, *long["column"].unique()]).fillna(""))
    text = text.rename(columns={key: key.replace("_", " ") for key in titles})
    heads = [*(key.replace("_", " ") for key in titles), *words]
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
    if not text or frames.is_missing(change):
        return text
    return f"{text} {'↑' if change >= 0 else '↓'}{100 * abs(change):.1f}"


def _compute_averages(tidy: pd.DataFrame, by: Sequence[str]) -> list[pd.DataFrame]:
    """Return the averages over at least two tasks, for the rows that have all of these tasks."""
    averages = []
    tasks = list(tidy["task"].unique())
    for name, published in paper.AVERAGES.items():
        own = [t for t in tasks if name == "average_all" or paper.paper_task(t) in published]
        # The average of all tasks is not shown twice.
        if len(own) < 2 or (name != "average_all" and own == tasks):
            continue
        means, groups = frames.grouped(tidy[tidy["task"].isin(own)], by)
        means["seeds"] = groups["seeds"].min()
        means["as_paper"] = groups["as_paper"].all()
        means = means.join(groups[[f"{measure}_mean" for measure in MEASURES]].mean())
        # Averages over different tasks are not comparable: rows that lack a task have none, and
        # the published average is shown only if the tasks are the same.
        whole = sorted(published) == sorted(str(paper.paper_task(task)) for task in own)
        averages.append(means[groups.size() == len(own)].assign(task=name, whole=whole))
    return averages


def scheme_summary(records: Iterable[CellRecord]) -> ResultTable:
    """Return the numbers of weights and memberships in schemes of DCS (paper, scheme table).

    Parameters
    ----------
    records : iterable of CellRecord
        Cells; those of other methods and of ablations are left out.

    Returns
    -------
    ResultTable
        A row per model, task and shots: classes with a weight, with a membership and unchanged,
        averaged over seeds; ratio of memberships to weights; memberships by seed; and the
        weakest class of each seed before and after correction, marked with M if a membership
        corrects it.
    """
    import pandas as pd

    tidy = _summarize_schemes(frames.main_finished(records, method="dcs"))
    theirs = paper.paper_schemes()
    long: list[tuple[Any, ...]] = []
    for where, group in frames.groups_of(tidy, _PROMPT):
        published = theirs[
            (theirs["model"] == paper.paper_model(where["model"]))
            & (theirs["task"] == paper.paper_task(where["task"]))
            & (theirs["shots"] == str(where["shots"]))
        ]
        ours, known = _count_corrections(group), _count_corrections(published)
        gaps = {name: formats.difference(ours[name] - known[name]) for name in _CORRECTIONS}
        gaps["ratio"] = formats.difference(ours["ratio"] - known["ratio"], digits=2)
        texts, printed = _format_schemes(group, ours), _format_schemes(published, known)
        about = (*where.values(), group["as_paper"].all())
        long += [
            (*about, name, text, printed.get(name, ""), gaps.get(name, ""))
            for name, text in texts.items()
        ]
    return _build_pivot(
        pd.DataFrame(long, columns=[*_PROMPT, "as_paper", "column", *formats.KINDS]),
        {key: _TITLES.get(key, frames.text_of) for key in _PROMPT},
        marked="task",
        words=("memberships by seed", _WEAKEST),
        name="schemes",
        title=f"Correction schemes of {frames.method_title('dcs')}: weights against memberships",
        frame=tidy.drop(columns="as_paper"),
        about=_SCHEMES_NOTE,
    )


def _count_corrections(schemes: pd.DataFrame) -> dict[str, float]:
    """Return the mean numbers of classes with each correction, and their ratio."""
    means = schemes.reindex(columns=[*_CORRECTIONS]).astype(float).mean()
    ratio = means["memberships"] / means["weights"] if means["weights"] else math.nan
    return {"classes": means.sum(), **means, "ratio": ratio}


def _format_schemes(schemes: pd.DataFrame, counts: Mapping[str, float]) -> dict[str, str]:
    """Return the text of each column for the schemes of all seeds of a prompt."""
    if schemes.empty:
        return {}
    means = {name: counts[name] for name in _CORRECTIONS}
    weakest = [
        f"{row['seed']}: {row['weakest_class']}{' (M)' * (row['weakest_kind'] == 'membership')} "
        f"{percent(row['before'], digits=0)} → {percent(row['after'], digits=0)}"
        for row in schemes.dropna(subset="weakest_class").to_dict("records")
    ]
    return {
        "classes": f"{counts['classes']:.0f}",
        **{name: "" if frames.is_missing(mean) else f"{mean:.1f}" for name, mean in means.items()},
        "ratio": "-" if frames.is_missing(counts["ratio"]) else f"{counts['ratio']:.2f}",
        "memberships by seed": "/".join(map(str, schemes["memberships"])),
        _WEAKEST: "; ".join(weakest),
    }


def _summarize_schemes(cells: Sequence[CellRecord]) -> pd.DataFrame:
    """Return a row per cell: the counts of its corrections, and its weakest class."""
    corrections = frames.corrections_frame(cells)
    same = frames.changes_nothing(corrections)
    corrections["kind"] = corrections["kind"].mask(same, "unchanged")
    kinds = corrections.groupby(["key", "kind"]).size().unstack(fill_value=0)
    kinds = kinds.reindex(columns=["weight", "membership", "unchanged"], fill_value=0)
    kinds.columns = [*_CORRECTIONS]
    classes = frames.classes_frame(cells).dropna(subset="before")
    weakest = classes.loc[classes.groupby("key")["before"].idxmin()]
    weakest = weakest.merge(corrections[["key", "class", "kind"]], on=["key", "class"], how="left")
    weakest = weakest.rename(columns={"class": "weakest_class", "kind": "weakest_kind"})
    about = frames.cells_frame(cells)[["key", *_PROMPT, "seed", "as_paper"]]
    figures = ["weakest_class", "weakest_kind", "before", "after"]
    tidy = about.merge(kinds, on="key").merge(weakest[["key", *figures]], on="key", how="left")
    return tidy.drop(columns="key")


def class_accuracies_by_seed(records: Iterable[CellRecord]) -> list[ResultTable]:
    """Return the class accuracies of each seed (paper, DDI table), one table per task.

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
    made = []
    stems: Counter[str] = Counter()
    for (task, *_), cells in by_task.items():
        stem = "".join(c if c.isalnum() or c in "-_" else "_" for c in f"class_accuracies_{task}")
        stems[stem] += 1
        name = stem if stems[stem] == 1 else f"{stem}_{stems[stem]}"
        made.append(_build_class_table(task, cells, name))
    return made


def _build_class_table(task: Any, cells: Sequence[CellRecord], name: str) -> ResultTable:
    import pandas as pd

    by = ["model", "shots", "method", "seed"]
    totals = frames.estimates(frames.cells_frame(cells), by)
    totals.loc[totals["method"] == "icl", [f"{m}_change" for m in MEASURES]] = math.nan
    shown = {measure: _get_estimates(totals, measure) for measure in MEASURES}
    columns = {_HEADS[m]: [each.marked() for each in own] for m, own in shown.items()}
    columns |= {f"Δ {_HEADS[m]}": list(map(points, totals[f"{m}_change"])) for m in MEASURES}
    about = totals[[*by, "as_paper"]]
    long = [
        about.assign(column=head, measured=own, paper="", difference="")
        for head, own in columns.items()
    ]
    tidy = frames.classes_frame(cells).merge(about, on=by)
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
        {key: _TITLES.get(key, frames.text_of) for key in by},
        marked="method",
        name=name,
        title=f"Class accuracies of {paper.task_title(task)} by seed, % of test rows",
        frame=tidy[numbers],
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

    frame = frames.cells_frame(records).rename(
        columns={"opt/evaluations": "moves", "opt/seconds": "seconds"}
    )
    frame = frame[frame["tuning_seconds"].notna() & frame["search_space"].notna()]
    tidy, groups = frames.grouped(frame, _GROUP)
    tidy["seeds"] = groups.size()
    tidy = tidy.join(groups[["classes", "rows"]].first().astype({"classes": int, "rows": "Int64"}))
    tidy = tidy.join(groups[["search_space", "moves", "temperatures", *_TIMES]].mean())
    tidy = tidy.join(groups[[*_TIMES]].std().add_suffix("_std"))
    rows = tidy.to_dict("records")
    ours = {
        "model": tidy["model"].map(frames.text_of),
        "task": tidy["task"].map(paper.task_title),
        "shots": tidy["shots"].map(frames.text_of),
        "method": [frames.name_of(row, "method", "setting") for row in rows],
        **{head: [_format_count(row[name]) for row in rows] for name, head in _COUNTS.items()},
        **{
            head: [_format_seconds(row[name], row[f"{name}_std"]) for row in rows]
            for name, head in _TIMES.items()
        },
    }
    published = paper.paper_frame("paper_annealing_time")
    theirs = [
        {
            "model": frames.text_of(model),
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


TABLES: Final[dict[str, Callable[[Sequence[CellRecord]], list[ResultTable]]]] = {
    "main": lambda records: [main_results(records)],
    "schemes": lambda records: [scheme_summary(records)],
    "timing": lambda records: [timing_table(records)],
    "classes": class_accuracies_by_seed,
    "ablation": ablation_tables,
    "methods": method_tables,
    "labels": label_tables,
}
"""The tables by short name, those of the paper first."""


def all_tables(records: Iterable[CellRecord]) -> list[ResultTable]:
    """Return all nonempty tables of a sweep, in the order of `TABLES`."""
    cells = list(records)
    return [table for make in TABLES.values() for table in make(cells) if table.rows]


def table_files(records: Iterable[CellRecord], board: pd.DataFrame) -> dict[str, str]:
    """Return the files of the tables of a sweep and of its `leaderboard` by artifact path."""
    cells = list(records)
    files = {
        schema.LEADERBOARD_FILE: formats.to_mlflow_json(board),
        schema.LEADERBOARD_TEXT: leaderboard_markdown(board),
    }
    for table in all_tables(cells):
        for name, text in table.contents().items():
            files[f"{schema.TABLES_FOLDER}/{name}"] = text
    return files


def compare_records(
    first: CellRecord, second: CellRecord
) -> dict[str, list[tuple[str, str, str]]]:
    """Compare two cells, of any models, tasks and methods.

    Returns
    -------
    dict of str to list of tuple of str
        Names and values of both cells by section title: settings that differ, results, class
        accuracies and descriptions of the schemes; empty sections are left out.
    """
    compared = {}
    theirs = _describe_cell(second)
    for title, ours in _describe_cell(first).items():
        names = dict.fromkeys([*ours, *theirs[title]])
        compared[title] = [(n, ours.get(n, ""), theirs[title].get(n, "")) for n in names]
    compared[_DIFFERENCES] = [row for row in compared[_DIFFERENCES] if row[1] != row[2]]
    return {title: rows for title, rows in compared.items() if rows}


_DIFFERENCES: Final = "Settings that differ"


def _describe_cell(cell: CellRecord) -> dict[str, Mapping[str, str]]:
    """Return the values of a cell to compare, by section title and name."""
    flat = schema.flatten({**cell.identity, **cell.params})
    texts = {name: v if isinstance(v, str) else json.dumps(v) for name, v in flat.items()}
    own = cell.metrics
    words: dict[str, str] = {}
    if cell.scheme is not None:
        scheme = CorrectionScheme.from_dict(cell.scheme, source=f"cell {cell.key}")
        if scheme.inputs:
            combined = f"{scheme.combination.name} of " if scheme.combination else ""
            words["tables"] = f"{combined}{listing(scheme.inputs)}"
        if scheme.calibration:
            words["calibration"] = scheme.calibration.name
        effects = [correction.effect for correction in scheme.corrections]
        words |= dict(zip(scheme.classes, effects, strict=True))
    return {
        # The first characters identify a digest.
        _DIFFERENCES: {
            name: text[:12] if name.endswith("digest") else text for name, text in texts.items()
        },
        "Results, %": {
            name: percent(
                own[name],
                interval=(own.get(f"{name}_low", math.nan), own.get(f"{name}_high", math.nan)),
                padded=True,
            )
            for name in own
            if name.endswith(MEASURES)
        },
        "Class accuracies, % of test rows": {
            str(row["class"]): Estimate.of_class(row).percent(padded=True)
            for row in frames.classes_frame([cell]).to_dict("records")
        },
        "Schemes": words,
    }


def _compute_estimates(records: Iterable[CellRecord], by: Sequence[str]) -> pd.DataFrame:
    frame = frames.cells_frame(records)
    return frames.estimates(frame[frame["test/accuracy"].notna()], by)


def _get_estimates(frame: pd.DataFrame, measure: str) -> list[Estimate]:
    return [Estimate.of(row, measure) for row in frame.to_dict("records")]


def _name_column(task: Any, seen: Mapping[str, int]) -> str:
    if task in paper.AVERAGES:
        return str(task).removeprefix("average_")
    return paper.task_title(task) if seen[paper.task_title(task)] == 1 else str(task)


def _format_count(value: float) -> str:
    return "" if frames.is_missing(value) else f"{value:,.0f}"


def _format_seconds(mean: float, deviation: float) -> str:
    if frames.is_missing(mean):
        return ""
    return f"{mean:.2f}" if frames.is_missing(deviation) else f"{mean:.2f} ± {deviation:.2f}"
