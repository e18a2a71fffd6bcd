"""The tables of a sweep: pivots of the frames of its cells, the paper's numbers beside ours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from dcs.evaluation.formatting import chance, percent
from tracking import schema
from tracking.records import CellRecord
from tracking.results import frames, settings
from tracking.results.formats import ResultTable, RowKind, to_markdown, to_mlflow_json
from tracking.results.frames import MEASURES, Estimate, cells_frame, estimates, grouped, is_missing
from tracking.results.paper import (
    AVERAGES,
    paper_beside,
    paper_rows,
    paper_task,
    task_rank,
    task_title,
)
from tracking.results.settings import OBJECTIVE, Axis

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ablation_tables",
    "all_tables",
    "class_accuracies_by_seed",
    "difference",
    "leaderboard",
    "leaderboard_markdown",
    "main_results",
    "scheme_summary",
    "table_files",
    "timing_table",
]

_GROUP: Final = ("model", "task", "shots", "method", "setting")
_PROMPT: Final = ("model", "task", "shots")
LEADERBOARD_COLUMNS: Final = (*_GROUP, "seeds", *frames.MEASURE_COLUMNS)

_HEADS: Final = {"accuracy": "Acc", "cobias": "COBias"}
_PAPER_NOTE: Final = (
    "Rows marked 'paper' are the published figures, 'difference' is ours minus theirs, in points."
)
_TIMES_NOTE: Final = (
    "Moves and seconds are those of the annealing run whose scheme was chosen, where it was "
    "timed; 'to tune' is the time of all that was tried. N·D is the number of classes times the "
    "number of corrections to choose from."
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
        and the chance of no difference to ICL on the same rows are of one seed, NaN for several.
    """
    return estimates(_measured(cells_frame(records)), _GROUP)


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
    shown = {measure: _estimates_of(frame, measure) for measure in MEASURES}
    heads = {"accuracy": "accuracy %", "cobias": "COBias %"}
    for measure, own in shown.items():
        text[heads[measure]] = [each.percent() for each in own]
        if frame["accuracy_p"].notna().any():
            text[f"p {heads[measure]}"] = [chance(each.p) for each in own]
    text = text.rename(columns=lambda name: "p" if name.startswith("p ") else name)
    note = frames.notes_of(
        (each for own in shown.values() for each in own), tested=frames.P_VALUES
    )
    table = to_markdown(text, words=words)
    return f"{table}\n{note}\n" if note else table


def main_results(records: Iterable[CellRecord], *, paper_too: bool = True) -> ResultTable:
    """Return accuracy and COBias per task with averages (paper, main results).

    Parameters
    ----------
    records : iterable of CellRecord
        Cells of any models, tasks, shots, methods and seeds; failed ones are left out, and so
        are those that an ablation only compares with: see `ablation_tables`.
    paper_too : bool
        Add the paper's figures and the differences for the cells that exist in both.

    Returns
    -------
    ResultTable
        A row per model, shots and method; in percent, mean and standard deviation over seeds.
        An average is the mean of task means, over the tasks that there are.
    """
    cells = frames.finished_cells(records)
    axes = settings.axes_of(cells)
    cells = settings.main_cells(cells, axes=axes)
    # The paper's cells had all terms of the objective.
    terms = {
        (c.identity.get("method"), settings.objective_terms(settings.objective_label(c)))
        for c in cells
    }
    like_the_papers = {method: method for method, _ in terms} | {
        method: None for method, own in terms if own != "full"
    }
    tried = ", ".join(axis.words(axis.main) for axis in axes)
    note = f"Of the settings tried: {tried}; the others are in the tables of ablations."
    return _task_table(
        cells,
        rows={"method": list(dict.fromkeys(c.identity.get("method") for c in cells))},
        titles={"method": frames.method_title},
        published=("paper_results", like_the_papers) if paper_too else None,
        name="main_results",
        title="Main results: accuracy and COBias on the test rows, %",
        note=note if axes else "",
    )


def ablation_tables(records: Iterable[CellRecord], *, paper_too: bool = True) -> list[ResultTable]:
    """Return a table for each setting in which cells of a method differ.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells. In each table the other settings are those of the main results.
    paper_too : bool
        Add the paper's figures for the cells that exist in both: DCS with another objective.

    Returns
    -------
    list of ResultTable
        ``objective_ablation`` first: DCS by the terms of its objective (paper, ablations); empty
        if all cells have the same settings.
    """
    cells = frames.finished_cells(records)
    tables = []
    for axis in settings.axes_of(cells):
        own = [cell for cell in settings.main_cells(cells, but=(axis.name,)) if axis.varies(cell)]
        if axis.name == OBJECTIVE and "dcs" in axis.methods:
            tables.append(_objective_table(own, paper_too=paper_too))
        if axis.name != OBJECTIVE or axis.methods != ("dcs",):
            tables.append(_axis_table(own, axis))
    return tables


def _objective_table(cells: Sequence[CellRecord], *, paper_too: bool) -> ResultTable:
    cells = [cell for cell in cells if cell.identity.get("method") == "dcs"]
    (axis,) = (axis for axis in settings.axes_of(cells) if axis.name == OBJECTIVE)
    terms = {label: settings.objective_terms(label) for label in axis.values}
    return _task_table(
        cells,
        rows={OBJECTIVE: axis.values},
        titles={OBJECTIVE: settings.objective_title},
        published=("paper_ablation", terms) if paper_too else None,
        averages=False,
        name="objective_ablation",
        title="Ablation of the objective: DCS on the test rows, %",
    )


def _axis_table(cells: Sequence[CellRecord], axis: Axis) -> ResultTable:
    return _task_table(
        cells,
        rows={"method": axis.methods, axis.name: axis.in_order},
        titles={"method": frames.method_title, axis.name: axis.short},
        published=None,
        name=f"{axis.name}_by_method" if axis.name == OBJECTIVE else f"{axis.name}_ablation",
        title=f"Ablation by {axis.title}: accuracy and COBias on the test rows, %",
    )


def _task_table(
    cells: Sequence[CellRecord],
    *,
    rows: Mapping[str, Sequence[Any]],
    titles: Mapping[str, Callable[[Any], str]],
    published: tuple[str, Mapping[Any, str | None]] | None,
    averages: bool = True,
    name: str,
    title: str,
    note: str = "",
) -> ResultTable:
    """Lay out accuracy and COBias: a row per model, shots and `rows`, a column per task.

    `rows` gives the values of each column that rows differ by, in order, `titles` how they are
    shown; `published` the paper's data file, and what the last of them is called there.
    """
    import pandas as pd

    by = ["model", "shots", *rows]
    tidy = estimates(_measured(cells_frame(cells)), [*by, "task"])
    tasks = sorted(tidy["task"].unique(), key=task_rank)
    means = [*_averages_of(tidy, by)] if averages else []
    tidy = pd.concat([tidy.assign(whole=True), *means], ignore_index=True)
    columns = [*(own["task"].iloc[0] for own in means if len(own)), *tasks]
    ranks: dict[Any, Sequence[Any]] = {
        "model": [*dict.fromkeys(cell.identity.get("model") for cell in cells)],
        "task": columns,
        **rows,
    }
    tidy = tidy.sort_values(
        [*by, "task"],
        key=lambda column: column.map(
            frames.shots_rank if column.name == "shots" else ranks[column.name].index
        ),
        ignore_index=True,
    )
    tidy = _with_paper(tidy, *(published or ("paper_results", {})))
    seen = Counter(map(task_title, columns))
    heads = {
        (measure, task): f"{_HEADS[measure]} {_column_title(task, seen)}"
        for measure in MEASURES
        for task in columns
    }
    shown = {measure: _estimates_of(tidy, measure) for measure in MEASURES}
    long = [
        tidy[by].assign(
            column=[heads[measure, task] for task in tidy["task"]],
            measured=[each.marked() for each in shown[measure]],
            paper=list(map(percent, tidy[f"paper_{measure}"], tidy[f"paper_{measure}_sd"])),
            difference=_gaps(tidy[f"{measure}_mean"], tidy[f"paper_{measure}"]),
        )
        for measure in MEASURES
    ]
    text, kinds = _compared(
        pd.concat(long),
        {"model": _text, "shots": _text, **titles},
        list(heads.values()),
        marked=by[-1],
    )
    text = text.rename(columns=lambda name: name.replace("_", " ") if name in by else name)
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
        words=tuple(text.columns[: len(by)]),
        kinds=kinds,
        sections=2,
        note=_note([*chain(*shown.values())], kinds, note),
    )


_KINDS: Final[tuple[RowKind, ...]] = ("measured", "paper", "difference")


def _compared(
    long: pd.DataFrame,
    titles: Mapping[str, Callable[[Any], str]],
    columns: Sequence[str],
    *,
    marked: str,
) -> tuple[pd.DataFrame, tuple[RowKind, ...]]:
    """Return the text of a table: ours, and below it the paper's and the difference.

    `long` has a row per row and column of the table: the keys of `titles`, which give their text,
    ``column`` and a text of each kind. The key `marked` says what is not ours.
    """
    import pandas as pd

    lines: list[dict[Any, str]] = []
    kinds: list[RowKind] = []
    keys, groups = grouped(long, list(titles))
    for key, (_, group) in zip(keys.to_dict("records"), groups, strict=True):
        head = {name: title_of(key[name]) for name, title_of in titles.items()}
        names = {"measured": head[marked], "paper": f"{head[marked]}, paper"}
        for kind in _KINDS if (group["paper"] != "").any() else _KINDS[:1]:
            figures = dict(zip(group["column"], group[kind], strict=True))
            lines.append({**head, marked: names.get(kind, kind), **figures})
            kinds.append(kind)
    return pd.DataFrame(lines, columns=[*titles, *columns]).fillna(""), tuple(kinds)


def _note(shown: Iterable[Estimate], kinds: Sequence[RowKind], more: str = "") -> str:
    parts = (frames.notes_of(shown), more, _PAPER_NOTE if "paper" in kinds else "")
    return " ".join(filter(None, parts))


def _gaps(ours: Iterable[float], theirs: Iterable[float]) -> list[str]:
    return [difference(100 * a, 100 * b) for a, b in zip(ours, theirs, strict=True)]


def _averages_of(tidy: pd.DataFrame, by: Sequence[str]) -> Iterable[pd.DataFrame]:
    """Yield the averages that say more than a single task does, of the rows that have them."""
    tasks = list(tidy["task"].unique())
    for name, published in AVERAGES.items():
        own = [t for t in tasks if name == "average_all" or paper_task(t) in published]
        if len(own) < 2:
            continue
        means, groups = grouped(tidy[tidy["task"].isin(own)], by)
        means["seeds"] = groups["seeds"].min()
        for measure in MEASURES:
            means[f"{measure}_mean"] = groups[f"{measure}_mean"].mean()
        # An average over other tasks than in the row above it would mislead, and one over some
        # of the paper's tasks is not the one that the paper prints.
        whole = set(published) <= set(map(paper_task, own))
        yield means[groups.size() == len(own)].assign(task=name, whole=whole)


def _with_paper(tidy: pd.DataFrame, name: str, called: Mapping[Any, str | None]) -> pd.DataFrame:
    """Add the paper's figures, as fractions, where it has a row's model, prompt and task."""
    column = OBJECTIVE if name == "paper_ablation" else "method"
    figures = [f"{measure}{more}" for measure in MEASURES for more in ("", "_sd")]
    keys = tidy.assign(**{column: tidy[column].map(called) if called else None})
    keys["task"] = keys["task"].where(keys["whole"], None)
    theirs = paper_beside(name, keys, columns=["shots", column], figures=figures)
    return tidy.join(theirs.add_prefix("paper_") / 100)


def scheme_summary(
    records: Iterable[CellRecord], *, method: str = "dcs", paper_too: bool = True
) -> ResultTable:
    """Return how many classes get weights and how many memberships (paper, scheme table).

    Parameters
    ----------
    records : iterable of CellRecord
        Cells; those of other methods are left out, and those of ablations.
    method : str
        The method whose schemes are counted.
    paper_too : bool
        Add the paper's counts for the cells that exist in both.

    Returns
    -------
    ResultTable
        A row per model, task and shots: classes with a weight and with a membership, averaged
        over seeds; their ratio; memberships in each seed's run; and the weakest class of each
        seed before and after correction, marked with M where a membership corrects it.
    """
    import pandas as pd

    cells = frames.main_finished(records, method=method)
    tidy = _schemes_of(cells)
    keys, groups = grouped(tidy, _PROMPT)
    long = [
        {**where, "column": column, **dict(zip(_KINDS, texts, strict=True))}
        for where, (_, group) in zip(keys.to_dict("records"), groups, strict=True)
        for column, texts in _scheme_texts(where, group, paper_too=paper_too).items()
    ]
    columns = ["classes", "weights", "memberships", "ratio", "memberships by seed", _WEAKEST]
    titles = {"model": _text, "task": task_title, "shots": _text}
    text, kinds = _compared(
        pd.DataFrame(long, columns=[*_PROMPT, "column", *_KINDS]), titles, columns, marked="task"
    )
    return ResultTable(
        name="schemes",
        title=f"Correction schemes of {frames.method_title(method)}: weights against memberships",
        frame=tidy,
        text=text,
        words=(*_PROMPT, "memberships by seed", _WEAKEST),
        kinds=kinds,
        note="Classes with each kind of correction, mean over seeds; ratio of memberships to "
        "weights. (M): a membership corrects the weakest class.",
    )


_WEAKEST: Final = "weakest class by seed, before → after"


def _scheme_texts(
    where: Mapping[Any, Any], group: pd.DataFrame, *, paper_too: bool
) -> dict[str, tuple[str, str, str]]:
    """Return what the columns say of the schemes of a prompt: ours, the paper's, difference."""
    weights, memberships = group["weights"].mean(), group["memberships"].mean()
    ratio = memberships / weights if weights else math.nan
    ours = {"classes": weights + memberships, "weights": weights, "memberships": memberships}
    own: dict[Any, Any] = next(iter(paper_rows("paper_schemes", **where)[:paper_too]), {})
    weakest = paper_rows("paper_weakest_classes", **where) if own else []
    texts = {
        name: (
            f"{value:.{name != 'classes':d}f}",
            own.get(name, ""),
            difference(value, float(own[name])) if own and name != "classes" else "",
        )
        for name, value in ours.items()
    }
    texts["ratio"] = (
        "-" if is_missing(ratio) else f"{ratio:.2f}",
        own.get("ratio", ""),
        difference(ratio, float(own["ratio"]), digits=2) if own else "",
    )
    by_seed = "/".join(map(str, group["memberships"]))
    texts["memberships by seed"] = (by_seed, own.get("memberships_by_seed", ""), "")
    known = group.dropna(subset="weakest_class").to_dict("records")
    texts[_WEAKEST] = (
        "; ".join(map(_weakest_text, known)),
        "; ".join(
            f"{row['seed']}: {row['class']} (M) {row['before']} → {row['after']}"
            for row in weakest
        ),
        "",
    )
    return texts


def _schemes_of(cells: Sequence[CellRecord]) -> pd.DataFrame:
    """Return a row per cell: its kinds of corrections, and what becomes of its weakest class."""
    corrections = frames.corrections_frame(cells)
    kinds = corrections.groupby(["key", "kind"]).size().unstack(fill_value=0)
    kinds = kinds.reindex(columns=["weight", "membership"], fill_value=0)
    kinds.columns = ["weights", "memberships"]
    classes = frames.classes_frame(cells).dropna(subset="before")
    weakest = classes.loc[classes.groupby("key")["before"].idxmin()]
    weakest = weakest.merge(corrections[["key", "class", "kind"]], on=["key", "class"], how="left")
    weakest = weakest.rename(columns={"class": "weakest_class", "kind": "weakest_kind"})
    about = corrections[["key", *_PROMPT, "seed"]].drop_duplicates("key")
    figures = ["weakest_class", "weakest_kind", "before", "after"]
    tidy = about.merge(kinds, on="key").merge(weakest[["key", *figures]], on="key", how="left")
    return tidy.drop(columns="key")


def _weakest_text(row: Mapping[Any, Any]) -> str:
    mark = " (M)" if row["weakest_kind"] == "membership" else ""
    return f"{row['seed']}: {row['weakest_class']}{mark} {row['before']:.2f} → {row['after']:.2f}"


def class_accuracies_by_seed(
    records: Iterable[CellRecord], *, paper_too: bool = True
) -> list[ResultTable]:
    """Return the class accuracies of every seed (paper, DDI table), one table per task.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells; those of ablations are left out.
    paper_too : bool
        Add the paper's figures and the differences for the cells that exist in both.

    Returns
    -------
    list of ResultTable
        One per task: a row per model, shots, method and seed; in percent.
    """
    by_task: dict[Any, list[CellRecord]] = {}
    for cell in frames.main_finished(records):
        if cell.class_accuracies:
            classes = map(str, cell.class_accuracies["class"])
            by_task.setdefault((cell.identity.get("task"), *classes), []).append(cell)
    return [
        _class_table(task, classes, cells, paper_too=paper_too)
        for (task, *classes), cells in by_task.items()
    ]


def _class_table(
    task: Any, classes: Sequence[str], cells: Sequence[CellRecord], *, paper_too: bool
) -> ResultTable:
    import pandas as pd

    by = ["model", "shots", "method", "seed"]
    tidy = frames.classes_frame(cells)
    published = paper_beside(
        "paper_class_accuracies",
        tidy.assign(**{"class": tidy["class"].str.capitalize()}),
        columns=["shots", "seed", "method", "class"],
        figures=["accuracy"],
    )
    tidy["paper_accuracy"] = published["accuracy"] / 100 if paper_too else math.nan
    heads = [name if name not in _CLASS_HEADS else f"class {name}" for name in classes]
    totals = estimates(cells_frame(cells), by)
    shown = {measure: _estimates_of(totals, measure) for measure in MEASURES}
    after = [Estimate.of_class(row) for row in tidy.to_dict("records")]
    long = [
        totals[by].assign(
            column=_HEADS[measure],
            measured=[each.marked() for each in own],
            paper="",
            difference="",
        )
        for measure, own in shown.items()
    ]
    named = tidy["class"].map(dict(zip(classes, heads, strict=True)))
    long.append(
        tidy[by].assign(
            column=named,
            measured=[each.percent(coarse=True) for each in after],
            paper=list(map(percent, tidy["paper_accuracy"])),
            difference=_gaps(tidy["after"], tidy["paper_accuracy"]),
        )
    )
    titles: dict[str, Callable[[Any], str]] = {"model": _text, "shots": _text}
    titles |= {"method": frames.method_title, "seed": str}
    columns = [*_HEADS.values(), *heads]
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
        note=_note([*chain(*shown.values(), after)], kinds),
    )


_CLASS_HEADS: Final = ("model", "shots", "method", "seed", *_HEADS.values())


def timing_table(records: Iterable[CellRecord], *, paper_too: bool = True) -> ResultTable:
    """Return the time of one annealing run against the size of its search (paper, Figure 2).

    Parameters
    ----------
    records : iterable of CellRecord
        Cells; a row for each model, task, shots and method, and for each setting tried.
    paper_too : bool
        Add what the paper says of its times where it has the model.
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
            _count(row["moves"]),
            *(_seconds(row[name], row[f"{name}_std"]) for name in ("seconds", "tuning_seconds")),
        )
        for row in tidy.to_dict("records")
    ]
    kinds: list[RowKind] = ["measured"] * len(lines)
    for model in tidy.loc[tidy["method"] == "dcs", "model"].unique() if paper_too else ():
        for own in paper_rows("paper_annealing_time", model=model):
            seconds = f"{own['seconds_mean']} ({own['seconds_min']} to {own['seconds_max']})"
            head = (_text(model), "all seven", "", "DCS, paper")
            lines.append((*head, "", "", f"{own['corrections']}·N", "", seconds, ""))
            kinds.append("paper")
    words = ("model", "task", "shots", "method")
    heads = ("classes N", "rows M", "search space N·D", "moves", "seconds", "seconds to tune")
    return ResultTable(
        name="annealing_time",
        title="Annealing time against the size of the search",
        frame=tidy.drop(columns=["smallest", "largest"]).astype({"classes": int, "rows": "Int64"}),
        text=pd.DataFrame(lines, columns=[*words, *heads]),
        words=words,
        kinds=tuple(kinds),
        sections=1,
        note=_TIMES_NOTE
        + (" Of the paper: mean (range) over its tasks." if "paper" in kinds else ""),
    )


def all_tables(records: Iterable[CellRecord], *, paper_too: bool = True) -> list[ResultTable]:
    """Return every table of the paper that a sweep has cells for, in the paper's order."""
    cells = list(records)
    tables = [
        main_results(cells, paper_too=paper_too),
        scheme_summary(cells, paper_too=paper_too),
        timing_table(cells, paper_too=paper_too),
        *class_accuracies_by_seed(cells, paper_too=paper_too),
        *ablation_tables(cells, paper_too=paper_too),
    ]
    return [table for table in tables if table.rows]


def table_files(records: Iterable[CellRecord]) -> dict[str, str]:
    """Return the tables that the run of a sweep shows, by artifact path."""
    cells = list(records)
    board = leaderboard(cells)
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
