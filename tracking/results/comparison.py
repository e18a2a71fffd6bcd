"""Comparisons of methods over sources of probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dcs.evaluation.uncertainty import percent
from dcs.io import content_key
from tracking.records import CellRecord
from tracking.results import frames, settings
from tracking.results.formats import ResultTable, points

if TYPE_CHECKING:
    import pandas as pd

_MEASURES: Final = {
    "accuracy": "accuracy",
    "cobias": "COBias",
    "score": "accuracy − COBias",
    "balanced_accuracy": "balanced accuracy",
    "weakest_class": "weakest class",
}
#: Figures that differ by less than half a tenth of a point are considered equal.
_ROUNDING: Final = 0.0005
_NOTE: Final = (
    "Means over the sources of means over seeds, ± standard error over seeds. Less accurate: "
    "sources on which accuracy is below uncorrected by more than two standard errors of the "
    "difference over seeds (one seed: p < 0.05). Fairest: sources on which the method's COBias is "
    "the lowest of the methods that are not less accurate there."
)
_ENSEMBLES_NOTE: Final = (
    "Accuracy / COBias, mean over seeds. The best table is the one with the highest "
    "accuracy − COBias on these same rows, which is not known in advance; the gain in "
    "accuracy − COBias over it ± standard error over seeds, of a mean over groups."
)
_LABELS_NOTE: Final = (
    "Means over the sources of means over seeds, ± standard error over sources; by number of "
    "labelled rows. The other optimization rows are left out or used without labels; methods "
    "that need no labels use all rows."
)


def method_tables(records: Iterable[CellRecord]) -> list[ResultTable]:
    """Return tables that compare methods on each source of probabilities and on their mean.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells. Each setting of a method is a method of its own, except for the number of labelled
        rows: see `label_tables`. Sources (model, task and shots) for which a method has no cell
        are left out of both tables.

    Returns
    -------
    list of ResultTable
        ``method_means``, a row per method, and ``methods_by_source``, a row per source; empty
        for fewer than two sources or methods. Then `ensemble_tables`.
    """
    cells = frames.finished_cells(records)
    others = [a.name for a in settings.axes_of(cells) if a.name not in settings.LABEL_AXES]
    cells = settings.main_cells(cells, but=others)
    frame = _build_frame(cells)
    tidy = _summarize_sources(frame)
    whole = tidy.groupby("source")["method"].transform("size") == tidy["method"].nunique()
    tidy = tidy[whole]
    joint = ensemble_tables(cells)
    if tidy["source"].nunique() < 2 or tidy["method"].nunique() < 2:
        return joint
    return [_tabulate_means(tidy), _tabulate_sources(tidy), *joint]


def _build_frame(cells: list[CellRecord]) -> pd.DataFrame:
    """Return the cells with test metrics, their display names and figures by short names."""
    frame = frames.cells_frame(cells)
    return _add_display_names(frame[frame["test/accuracy"].notna()])


def _add_display_names(frame: pd.DataFrame) -> pd.DataFrame:
    named = [frames.name_of(row, "method", "setting") for row in frame.to_dict("records")]
    return frames.by_source(frame).assign(method=named)


def _summarize_sources(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per source and method: means over seeds, standard errors and verdicts."""
    frame = frame.assign(
        change=frame["test/accuracy"] - frame["uncorrected/test/accuracy"],
        balanced_accuracy=frame["test/balanced_accuracy"],
        weakest_class=frame["test/weakest_class"],
    )
    groups = frame.groupby(["source", "method"], sort=False)
    tidy = groups[[*_MEASURES, "change"]].mean()
    tidy = tidy.join(groups[[*_MEASURES, "change"]].sem().add_suffix("_error"))
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
    errors = groups[[f"{name}_error" for name in _MEASURES]].agg(_compute_error_of_mean)
    verdicts = ("less_accurate", "fairest")
    counts = groups[[*verdicts]].sum()
    frame = groups[[*_MEASURES]].mean().join(errors).join(counts).assign(sources=groups.size())
    frame = frame.reset_index()
    text = frame[["method"]].copy()
    for name, head in _MEASURES.items():
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
        about=_NOTE,
    )


def _compute_error_of_mean(errors: pd.Series[float]) -> float:
    return math.sqrt(float((errors**2).sum(skipna=False))) / len(errors)


def _tabulate_sources(tidy: pd.DataFrame) -> ResultTable:
    marks = tidy["less_accurate"].map({True: "↓", False: ""})
    pairs = map(_format_pair, tidy["accuracy"], tidy["cobias"], marks)
    text = _pivot_texts(tidy, ["source"], "method", list(pairs))
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


def _pivot_texts(
    tidy: pd.DataFrame, index: list[str], columns: str, texts: Sequence[str]
) -> pd.DataFrame:
    """Return a pivot of texts, with rows and columns in order of first appearance."""
    text = tidy.assign(text=texts).pivot(index=index, columns=columns, values="text")
    text = text.reindex(tidy.set_index(index).index.unique(), columns=tidy[columns].unique())
    text = text.fillna("").rename_axis(columns=None).reset_index()
    return text.rename(columns=lambda head: head.replace("_", " ") if head in index else head)


def _format_pair(accuracy: float, cobias: float, mark: str = "") -> str:
    return f"{percent(accuracy)} / {percent(cobias)}{mark}" if accuracy == accuracy else "-"


def ensemble_tables(records: Iterable[CellRecord]) -> list[ResultTable]:
    """Return the comparison of ensembles of tables with the best of their tables alone.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells of ensembles and of their tables.

    Returns
    -------
    list of ResultTable
        ``ensembles``, a row per group of tables and method, then their mean; empty if there are
        no ensembles whose tables have cells of the same method and settings.
    """
    import pandas as pd

    cells = {cell.key: cell for cell in frames.finished_cells(records)}
    frame = _build_frame(list(cells.values()))
    members = [
        {"key": key, "name": name, "table": content_key(about)}
        for key in frame["key"]
        for name, about in _get_members(cells[key]).items()
    ]
    parts = pd.DataFrame(members, columns=["key", "name", "table"])
    columns = ["method", "seed", "accuracy", "cobias", "score"]
    alone = frame.loc[~frame["key"].isin(parts["key"]), ["key", *columns]]
    origins = [content_key(_get_origin(cells[key])) for key in alone["key"]]
    # Without rows pandas would infer a numeric column, which does not merge with text.
    alone = alone.assign(table=pd.Series(origins, index=alone.index, dtype=object))
    both = frame[["key", "source", *columns]].merge(parts, on="key")
    both = both.merge(alone, on=["table", "method"], suffixes=("", "_alone"))
    # A table split by several seeds is matched by the ensemble's seed; a table for each seed of
    # the demonstrations has its own.
    same = both["seed"] == both["seed_alone"]
    both = both[same | ~same.groupby([both["key"], both["table"]]).transform("any")]
    both = both.drop_duplicates(["key", "table"])
    rows = []
    for (source, method), own in both.groupby(["source", "method"], sort=False):
        best = own.groupby("name")["score_alone"].mean().idxmax()
        chosen = own[own["name"] == best]
        gain = chosen["score"] - chosen["score_alone"]
        figures = chosen[[f"{name}{of}" for of in ("", "_alone") for name in columns[2:]]].mean()
        about = {"source": source, "method": method, "seeds": len(chosen), "best": best}
        rows.append({**about, **figures, "gain": gain.mean(), "gain_error": gain.sem()})
    if not rows:
        return []
    tidy = pd.DataFrame(rows)
    text = tidy[["source", "method"]].copy()
    text["together"] = list(map(_format_pair, tidy["accuracy"], tidy["cobias"]))
    text["best alone"] = list(map(_format_pair, tidy["accuracy_alone"], tidy["cobias_alone"]))
    text["which is"] = tidy["best"]
    text["gain"] = list(map(points, tidy["gain"], tidy["gain_error"]))
    over = tidy.groupby("method", sort=False)["gain"].agg(["mean", "sem", "size"]).reset_index()
    several = over[over["size"] > 1]
    gains = list(map(points, several["mean"], several["sem"]))
    of_all = several[["method"]].assign(source="mean of groups", gain=gains)
    return [
        ResultTable(
            name="ensembles",
            title="Tables of the same rows together and the best of them alone, % of test rows",
            frame=tidy,
            text=pd.concat([text, of_all], ignore_index=True).fillna(""),
            words=("source", "method", "which is"),
            about=_ENSEMBLES_NOTE,
        )
    ]


def _get_members(cell: CellRecord) -> Mapping[str, Any]:
    """Return the provenance of the tables of an ensemble by name; empty for other cells."""
    found: Mapping[str, Any] = (cell.scheme or {}).get("provenance", {}).get("tables", {})
    return found


def _get_origin(cell: CellRecord) -> dict[str, Any]:
    """Return the provenance of the table of a cell in the form of `_get_members`."""
    rows = cell.provenance.get("tables", {}).get("optimization", {})
    return {name: value for name, value in rows.items() if name not in ("rows", "labelled")}


def label_tables(records: Iterable[CellRecord]) -> list[ResultTable]:
    """Return tables of methods by number of labelled rows, with and without unlabelled rows.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells of several numbers of labelled rows (``optimization_sizes``); ensembles, and sources
        without cells of every number, are left out.

    Returns
    -------
    list of ResultTable
        A row per method and rows used, a column per number of labelled rows: ``labels``,
        accuracy minus COBias; ``labels_gain``, the gain over batch calibration of all rows, which
        needs no labels. Empty if all cells have the same number.
    """
    frame = frames.labels_frame(cell for cell in records if not _get_members(cell))
    if frame["size"].nunique(dropna=False) < 2:
        return []
    frame = _add_display_names(frame).sort_values("size", kind="stable")
    frame["labels"] = ["all" if math.isnan(size) else f"{size:.0f}" for size in frame["size"]]
    by = ["method", "rows_used", "labels"]
    figures = ["accuracy", "cobias", "score"]
    means = frame.groupby(["source", *by], sort=False)[figures].mean().reset_index()
    whole = means.groupby("source")["labels"].transform("nunique") == frame["labels"].nunique()
    # With all labels both variants are the same, so this number alone compares nothing.
    several = means.groupby(["source", "method", "rows_used"])["labels"].transform("nunique") > 1
    means = means[whole & several]
    batch = means[(means["method"] == frames.method_title("batch")) & (means["labels"] == "all")]
    free = batch.drop_duplicates("source").set_index("source")["score"]
    means["gain"] = means["score"] - means["source"].map(free)
    groups = means.groupby(by, sort=False)[[*figures, "gain"]]
    tidy = groups.mean().join(groups.sem().add_suffix("_error")).assign(sources=groups.size())
    orders = {"method": list(means["method"].unique()), "rows_used": sorted({*means["rows_used"]})}
    tidy = frames.sorted_by(tidy.reset_index(), orders)
    texts = {
        "score": list(map(percent, tidy["score"], tidy["score_error"])),
        "gain": list(map(points, tidy["gain"], tidy["gain_error"])),
    }
    titles = {
        "score": ("labels", "Accuracy − COBias by labelled rows, % of test rows"),
        "gain": ("labels_gain", "Gain in accuracy − COBias over batch calibration, points"),
    }
    return [
        ResultTable(
            name=name,
            title=title,
            frame=tidy,
            text=_pivot_texts(tidy, ["method", "rows_used"], "labels", texts[figure]),
            words=("method", "rows used"),
            about=_LABELS_NOTE,
        )
        for figure, (name, title) in titles.items()
        if any(texts[figure])
    ]
