"""Tables of sweeps, as pivots of the frames of their cells, and their formats."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import METRICS
from dcs.evaluation.uncertainty import chance, compare_over_splits, percent
from dcs.io import inert
from dcs_tracking import schema
from dcs_tracking.results import settings
from dcs_tracking.results.cells import (
    MEASURE_COLUMNS,
    MEASURES,
    NOTATION,
    SOURCE,
    Cells,
    grouped,
    groups_of,
    marked,
    method_title,
    shots_rank,
    sorted_by,
    text_of,
)
from dcs_tracking.results.settings import Axis

if TYPE_CHECKING:
    import pandas as pd

#: Which of the values of a column is the best, by the first word of its head.
_BEST: Final[dict[str, Any]] = {"Acc": "max", "COBias": "min"}

_AVERAGE: Final = "average"
_HEADS: Final = {"accuracy": "Acc", "cobias": "COBias"}
#: Formatters of the columns that distinguish rows, where these are no texts.
_TITLES: Final[dict[str, Callable[[Any], str]]] = {"method": method_title}
_TERMS_NOTE: Final = (
    "The objective is a sum of terms: Z_err is the error rate, Z_cobias the COBias, Z_pmi the "
    "negated pointwise mutual information of predictions and labels; full has all three."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """A result table: numbers for programs and text for display.

    Attributes
    ----------
    name : str
        Stem of the file names.
    title : str
        Caption.
    frame : pandas.DataFrame
        The numbers in tidy form, as fractions; exported to CSV and MLflow.
    text : pandas.DataFrame
        The displayed table: all values are text, columns have their display names.
    words : tuple of str
        Columns that hold text; the others hold numbers.
    about : str
        Explanation of the measured numbers.
    """

    name: str
    title: str
    frame: pd.DataFrame
    text: pd.DataFrame
    words: tuple[str, ...]
    about: str = ""

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Rows of the displayed table, one text per column."""
        return tuple(self.text.itertuples(index=False, name=None))

    def to_markdown(self) -> str:
        """Return the table in Markdown, in lines of equal width, including title and note."""
        columns = []
        for name, column in self.text.items():
            cells = [re.sub(r"([|<])", r"\\\1", str(cell)) for cell in (name, *column)]
            cells = [cell.replace("\n", " ") for cell in cells]
            width = max(3, *map(len, cells))
            left = name in self.words
            cells = [cell.ljust(width) if left else cell.rjust(width) for cell in cells]
            rule = "-" * (width + 2) if left else "-" * (width + 1) + ":"
            columns.append([f" {cells[0]} ", rule, *(f" {cell} " for cell in cells[1:])])
        lines = "".join(f"|{'|'.join(row)}|\n" for row in zip(*columns, strict=True))
        note = f"\n{self.about}\n" if self.about else ""
        return f"**{self.title}**\n\n{lines}{note}"

    def to_csv(self) -> str:
        """Return the tidy numbers as CSV, with text escaped that spreadsheets run as formulas."""
        return self.frame.map(inert).to_csv(index=False, lineterminator="\n")

    def to_latex(self) -> str:
        """Return the displayed table in LaTeX, for the package booktabs.

        The best accuracy and the least COBias of each model and number of shots are bold.
        """
        import pandas as pd

        bold = pd.DataFrame("", index=self.text.index, columns=self.text.columns)
        names = [name for name in ("model", "shots") if name in self.text]
        same = self.text[names].agg(tuple, axis=1) if names else pd.Series("", self.text.index)
        for name in self.text.columns:
            if (best := _BEST.get(str(name).split()[0])) is not None:
                shown = self.text[name].str.extract(r"^([\d.]+)")[0].astype(float)
                reached = shown == shown.groupby(same).transform(best)
                bold.loc[reached, name] = "textbf: --rwrap;"
        style = self.text.style.hide(axis="index").apply(lambda _: bold, axis=None)
        style.format(_mathematical, escape="latex")
        style.format_index(_mathematical, escape="latex", axis="columns")
        caption = re.sub(r"([&%$#_{}])", r"\\\1", f"{self.title}. {self.about}".strip())
        return style.to_latex(
            hrules=True,
            column_format="".join("l" if n in self.words else "r" for n in self.text.columns),
            caption=_mathematical(caption),
            label=f"tab:{self.name}",
            position_float="centering",
        )

    def contents(self) -> dict[str, str]:
        """Return the table in every format by file name; the JSON is that of `mlflow.load_table`.

        `MlflowClient.log_table` appends to an existing table; a file in the same format replaces
        it, so that a sweep recorded twice has each row once.
        """
        # Fifteen digits are the maximum that pandas supports.
        numbers = self.frame.to_json(orient="split", index=False, double_precision=15)
        return {
            f"{self.name}.md": self.to_markdown(),
            f"{self.name}.csv": self.to_csv(),
            f"{self.name}.json": numbers,
            f"{self.name}.tex": self.to_latex(),
        }


def filled(text: pd.DataFrame) -> pd.DataFrame:
    """Return a frame of text without the columns that are empty in all rows."""
    return text.loc[:, (text != "").any()] if len(text) else text


def points(gap: float, deviation: float = math.nan) -> str:
    """Format a difference of fractions in percentage points, with its sign; empty for NaN."""
    text = "" if math.isnan(gap) else f"{100 * gap:+.1f}".replace("-", "−")
    return text if math.isnan(deviation) else f"{text} ± {100 * deviation:.1f}"


def _mathematical(text: object) -> str:
    """Replace the signs that LaTeX has in formulas only."""
    text = re.sub(r"[<>|]", r"$\g<0>$", str(text))
    return text.replace("±", r"$\pm$").replace("−", "$-$")


def main_results(cells: Cells) -> ResultTable:
    """Return accuracy and COBias per task with their average.

    Cells of other settings are left out: see `ablation_tables`.

    Returns
    -------
    ResultTable
        A row per model, shots and method; in percent, mean and standard deviation over seeds.
        The average is the mean of the means of the tasks.
    """
    tried = ", ".join(axis.words(axis.main) for axis in cells.axes)
    note = f"Of the settings tried: {tried}; the others are in the tables of ablations."
    lacking = {
        f"{cell.who['method']} with {axis.words(axis.value(cell))}"
        for axis in cells.axes
        for cell in cells.main.records
        if settings.own_settings(cell, [axis.name]) and axis.value(cell) != axis.main
    }
    note += f" Where these are missing: {'; '.join(sorted(lacking))}." if lacking else ""
    about = note if cells.axes else ""
    return _build_task_table(cells.main, name="main_results", title="Main results", note=about)


def ablation_tables(cells: Cells) -> list[ResultTable]:
    """Return a table for each setting in which cells of a method differ.

    Returns
    -------
    list of ResultTable
        A row per model, shots, method and value; the other settings are those of the main
        results, if the value varies with them. Empty if all cells have the same settings.
    """
    tables = []
    for axis in cells.axes:
        own = cells.ablation(axis)
        if not own.records:
            continue  # The setting varies only together with another one.
        others = [other for other in cells.axes if other.name != axis.name]
        fixed = {settings.setting(record, others) for record in own.records} - {""}
        notes = [_TERMS_NOTE] if axis.name == schema.OBJECTIVE else []
        notes += [f"With {'; '.join(sorted(fixed))}."] if fixed else []
        name, title = f"{axis.name}_ablation", f"Ablation by {axis.title}"
        tables.append(_build_task_table(own, axis, name=name, title=title, note=" ".join(notes)))
    return tables


def _build_task_table(cells: Cells, *axes: Axis, name: str, title: str, note: str) -> ResultTable:
    """Return a table of accuracy and COBias: a row per model, shots and method, a column per task.

    Rows are distinguished by the values of `axes`, too.
    """
    import pandas as pd

    by = ["model", "shots", "method", *(axis.name for axis in axes)]
    tidy = cells.estimates([*by, "task"])
    tasks = list(tidy["task"].unique())
    heads = {task: text_of(task) for task in tasks}
    if len(tasks) > 1:
        average = _unlike(_AVERAGE, tasks)
        # The averages over tasks, of the rows that have all of them.
        means, groups = grouped(tidy, by)
        means["seeds"] = groups["seeds"].min()
        means = means.join(groups[[f"{measure}_mean" for measure in MEASURES]].mean())
        means = means[groups.size() == len(tasks)].assign(task=average)
        tidy = pd.concat([tidy, means], ignore_index=True)
        heads = {average: _unlike("all", heads.values()), **heads}
    order = {
        "model": list(tidy["model"].unique()),
        "shots": sorted(tidy["shots"].unique(), key=shots_rank),
        "method": list(dict.fromkeys(cell.who["method"] for cell in cells.records)),
        **{axis.name: axis.in_order for axis in axes},
        "task": list(heads),
    }
    tidy = sorted_by(tidy, order)
    columns = {(m, task): f"{_HEADS[m]} {head}" for m in MEASURES for task, head in heads.items()}
    forms = _TITLES | {axis.name: axis.short for axis in axes}
    lines: list[dict[Any, str]] = []
    for key, group in groups_of(tidy, by):
        rows = {row["task"]: row for row in group.to_dict("records")}
        own = {text: marked(rows[task], m) for (m, task), text in columns.items() if task in rows}
        head = {name.replace("_", " "): forms.get(name, text_of)(key[name]) for name in by}
        lines.append(head | own)
    words = [column.replace("_", " ") for column in by]
    text = pd.DataFrame(lines, columns=[*words, *columns.values()], dtype=object).fillna("")
    notes = NOTATION, note, cells.uneven([name for name in by if name not in SOURCE], SOURCE)
    return ResultTable(
        name=name,
        title=f"{title}: accuracy and COBias on the test rows, %",
        frame=tidy[[*by, "task", "seeds", *MEASURE_COLUMNS]],
        text=filled(text),
        words=tuple(words),
        about=" ".join(filter(None, notes)),
    )


def _unlike(name: str, others: Collection[Any]) -> str:
    """Return a name that none of the others is: a task may be called so."""
    while name in others:
        name += " tasks"
    return name


def _texts(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return the columns that distinguish rows as they are shown."""
    import pandas as pd

    return pd.DataFrame({name: frame[name].map(_TITLES.get(name, text_of)) for name in columns})


def class_accuracies(cells: Cells) -> ResultTable:
    """Return the accuracy of every class before and after correction, the mean over seeds.

    Returns
    -------
    ResultTable
        A row per model, task, shots, method and class; in percent, with the standard deviation
        over seeds.
    """
    by = [*SOURCE, "method", "class"]
    frame, groups = grouped(cells.main.classes, by)
    text = _texts(frame, by)
    notes = "Mean ± standard deviation over seeds.", cells.main.uneven(["method"], SOURCE)
    frame["seeds"] = groups.size()
    for when in ("before", "after"):
        frame[when], frame[f"{when}_std"] = groups[when].mean(), groups[when].std()
        text[when] = list(map(percent, frame[when], frame[f"{when}_std"]))
    return ResultTable(
        name="class_accuracies",
        title="Class accuracies, % of test rows",
        frame=frame,
        text=filled(text),
        words=tuple(by),
        about=" ".join(filter(None, notes)),
    )


def joint_tables(cells: Cells) -> ResultTable:
    """Return quality against the number of tables that are fitted jointly.

    Returns
    -------
    ResultTable
        A row per method and number of tables of the same rows, and what each further one added.
    """
    frame = cells.by_tables
    text = _texts(frame.astype({"tables": int}), ("method", "tables", "cells"))
    for column, head in {"accuracy": "accuracy", "cobias": "COBias", "score": "score"}.items():
        text[head] = frame[column].map(percent)
    text["per further table"] = list(map(points, frame["gain"], frame["gain_error"]))
    notes = ["score: accuracy minus COBias, mean over tasks; ± standard error over tasks."]
    if frame["tasks"].nunique() > 1:
        notes.append("Rows are means over different tasks; the last column is of the same tasks.")
    for row in frame[frame["method"] == "dcs"].dropna(subset="gain").to_dict("records")[-1:]:
        notes.append(
            "Another table of the same rows (a prompt, a demonstration seed or a model) would buy "
            f"about {points(row['gain'], row['gain_error'])} points."
        )
    return ResultTable(
        name="joint_tables",
        title="Quality against the number of tables fitted jointly, % of test rows",
        frame=frame,
        text=filled(text),
        words=("method",),
        about=" ".join(notes),
    )


def all_tables(cells: Cells) -> list[ResultTable]:
    """Return all nonempty tables of a sweep, those of the paper first."""
    # Without the cells of a random choice of tables.
    own = cells.where(lambda record: ", draw " not in str(record.identity.get("model")))
    made = [main_results(own), class_accuracies(own), joint_tables(cells), *ablation_tables(own)]
    return [table for table in made if table.rows]


def table_files(cells: Cells) -> dict[str, str]:
    """Return the files of the tables of a sweep by artifact path."""
    return {
        f"{schema.TABLES_FOLDER}/{name}": text
        for table in all_tables(cells)
        for name, text in table.contents().items()
    }


def compare_sweeps(first: Cells, second: Cells) -> ResultTable:
    """Compare two sweeps over the cells that both have: second minus first.

    Cells are paired by model, task, shots, seed and method, at the main values of all settings.

    Returns
    -------
    ResultTable
        A row per source and method: means over the paired cells, and the mean change. From three
        seeds, with the p-value of the corrected resampled t-test of Nadeau and Bengio.

    Raises
    ------
    InvalidInputError
        Raised if the sweeps have no cell in common.
    """
    import pandas as pd

    by, sweeps = [*SOURCE, "method"], settings.comparable_cells(first.records, second.records)
    wanted = [*by, "seed", *(f"test/{m}" for m in MEASURES), "key", "rows", "test_rows"]
    frames = [Cells.of(records).main.judged[wanted] for records in sweeps]
    for frame in frames:
        # Merged as text: a number of shots may be a number in one sweep and a text in the other.
        frame[[*by, "seed"]] = frame[[*by, "seed"]].map(text_of)
        if frame.duplicated([*by, "seed"]).any():
            raise InvalidInputError("a sweep has several cells of one source, seed and method")
    both = frames[0].merge(frames[1], on=[*by, "seed"], suffixes=("", "_second"))
    if both.empty:
        raise InvalidInputError("the sweeps have no cell of the same source, seed and method")
    cells = {cell.key: cell for own in sweeps for cell in own}
    pairs = [[cells[key] for key in both[name]] for name in ("key", "key_second")]
    tables = [[[*map(c.identity.get, schema.DIGESTS)] for c in own] for own in pairs]
    others = sum(old != new for old, new in zip(*tables, strict=True))
    unlike = []
    for axis in Cells.of(cells.values()).axes:
        was, now = (sorted({axis.short(axis.value(cell)) for cell in own}) for own in pairs)
        if was != now:
            unlike.append(f" The {axis.title} changes from {', '.join(was)} to {', '.join(now)}.")
    single = sum(map(len, frames)) - 2 * len(both)
    rows = []
    for where, group in groups_of(both, by):
        row: dict[Any, Any] = {**where, "cells": len(group)}
        ratio = float((group["test_rows"] / group["rows"]).mean())
        for measure in MEASURES:
            old, new = group[f"test/{measure}"], group[f"test/{measure}_second"]
            found = compare_over_splits(new - old, test_ratio=ratio if ratio > 0.0 else 1.0)
            row |= {f"{measure}_first": old.mean(), f"{measure}_second": new.mean()}
            row |= {f"{measure}_change": found.estimate, f"{measure}_p": found.p}
        rows.append(row)
    frame = pd.DataFrame(rows)
    text = _texts(frame, [*by, "cells"])
    for measure in MEASURES:
        title = METRICS[measure].title
        means = zip(frame[f"{measure}_first"], frame[f"{measure}_second"], strict=True)
        text[title] = [f"{percent(old)} → {percent(new)}" for old, new in means]
        text[f"Δ {title}"] = frame[f"{measure}_change"].map(points)
        text[f"p {title}"] = frame[f"{measure}_p"].map(chance)
    return ResultTable(
        name="comparison",
        title="Change from the first sweep to the second, % of test rows",
        frame=frame,
        text=filled(text),
        words=tuple(by),
        about="p: corrected resampled t-test over three or more seeds (Nadeau and Bengio)."
        + (f" The tables or test rows of {others} of {len(both)} cells differ." if others else "")
        + (f" Cells that only one of the sweeps has: {single}." if single else "")
        + "".join(unlike),
    )
