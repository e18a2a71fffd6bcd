"""Fronts, transfer, ensembles and numbers of labels in a sweep.

    python -m benchmarks.comparison fronts|transfer|ensembles|labels SWEEP [--runs dcs-runs]

A method gives one point of accuracy and COBias, DCS a whole front: the COBias of the front is
compared at the accuracy of each other method. Transfer evaluates the scheme of every table on the
test rows of the others, which it reads from the output folder of the runs. Ensembles are compared
with the best of their tables alone, methods by their number of labelled rows.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from pydantic import ValidationError

from dcs.data.table import ProbabilityTable
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics
from dcs.evaluation.uncertainty import percent
from dcs.io import content_key
from dcs.prompting.tasks import SPLITS
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.preference import pareto_front
from dcs_tracking import Archive, CellRecord
from dcs_tracking.results import settings
from dcs_tracking.results.cells import (
    SOURCE,
    Cells,
    has_chosen,
    method_title,
    name_of,
    sorted_by,
)
from dcs_tracking.results.sweep_tables import ResultTable, points
from dcs_tracking.schema import OPTIMIZATION_SIZE
from dcs_workflows.config.sweep import SweepConfig
from dcs_workflows.plan import plan_sweep
from dcs_workflows.tables import Rows, StoredTables

_VERDICTS: Final = ("lower", "within one error", "higher", "out of reach")
#: Figures that differ by less than half a tenth of a point are considered equal.
_ROUNDING: Final = 0.0005
_TRANSFER_NOTE: Final = (
    "Rows are the tables that schemes were fitted on, columns the tables that they are evaluated "
    "on: accuracy / COBias of the same test rows. Uncorrected has no scheme. A dash: the tables "
    "have different test rows."
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
_LABEL_FREE: Final = frozenset({"uncorrected", "batch"})
_ALONE, _BOTH, _NONE = "labelled rows alone", "with unlabelled rows", "all, without labels"


def named_cells(cells: Cells) -> pd.DataFrame:
    """Return `Cells.judged` with ``source`` (model, task, shots), ``name`` (method, setting)."""
    frame = cells.judged
    rows = frame.to_dict("records")
    return frame.assign(
        source=[name_of(row, *SOURCE) for row in rows],
        name=[name_of(row, "method", "setting") for row in rows],
    )


def sweep_records(runs: Path, sweep: str) -> list[CellRecord]:
    """Return the finished cells of a sweep in an output folder."""
    archive = Archive(runs)
    sweeps = archive.sweeps()
    found = [each for each in sweeps if each.experiment == sweep]
    if not found:
        names = ", ".join(dict.fromkeys(each.experiment for each in sweeps))
        raise InvalidInputError(f"{runs}: no sweep {sweep!r}; it has {names or 'none'}")
    keys = dict.fromkeys(key for each in found for key in archive.keys(each.sweep_key))
    return list(archive.finished(keys).values())


class Point(NamedTuple):
    """A point in the plane of accuracy and COBias."""

    accuracy: float
    cobias: float


def front_comparison(records: Iterable[CellRecord]) -> ResultTable | None:
    """Return a row per other method, if cells have a front of DCS with test metrics."""
    cells = Cells.of(records)
    frame = named_cells(cells)
    frame["method"] = frame["name"]
    fronts: dict[tuple[object, ...], list[Point]] = {}
    for cell in cells.records:
        reached = [
            Point(trial.metrics["test/accuracy"], trial.metrics["test/cobias"])
            for trial in cell.trials
            if "test/accuracy" in trial.metrics and cell.identity.get("method") == "dcs"
        ]
        if reached:
            # The front starts with the most accurate point; np.interp needs increasing accuracy.
            fronts.setdefault(_get_source_and_seed(cell), list(pareto_front(reached))[::-1])
    names = frame.set_index("key")[["source", "method"]]
    rows = []
    for cell in cells.records:
        front = fronts.get(_get_source_and_seed(cell), [])
        if not front or cell.identity.get("method") == "dcs" or cell.key not in names.index:
            continue
        accuracy = cell.metrics["test/accuracy"]
        at = np.interp(accuracy, [p.accuracy for p in front], [p.cobias for p in front])
        gap = float(at) - cell.metrics["test/cobias"]
        rows.append((*names.loc[cell.key], gap, max(0.0, accuracy - front[-1].accuracy)))
    if not rows:
        return None
    tidy = pd.DataFrame(rows, columns=["source", "method", "gap", "beyond"])
    groups = tidy.groupby(["source", "method"], sort=False)
    means, errors = groups.mean(), groups.sem().fillna(0.0).clip(lower=_ROUNDING)
    verdicts = pd.Series("within one error", index=means.index)
    verdicts[means["gap"] <= 0.0] = "lower"
    verdicts[means["gap"] > errors["gap"]] = "higher"
    verdicts[means["beyond"] > errors["beyond"]] = "out of reach"
    counts = verdicts.groupby("method", sort=False).value_counts().unstack(fill_value=0)
    counts = counts.reindex(tidy["method"].unique(), columns=[*_VERDICTS], fill_value=0)
    counts.loc["all"] = counts.sum()
    counts = counts.rename_axis(index="method", columns=None).reset_index()
    return ResultTable(
        name="front_comparison",
        title="COBias of the front of DCS at the accuracy of other methods, sources",
        frame=counts,
        text=counts.astype(str),
        words=("method",),
        about=(
            "Per seed the front is interpolated at the other method's accuracy; errors are "
            "standard errors over seeds. Out of reach: no point is as accurate."
        ),
    )


def _get_source_and_seed(cell: CellRecord) -> tuple[object, ...]:
    """Return the source and the seed of a cell."""
    return tuple(map(cell.identity.get, ("model", "task", "shots", "seed")))


def transfer_tables(
    records: Iterable[CellRecord], tests: Mapping[str, ProbabilityTable]
) -> list[ResultTable]:
    """Return evaluations of each table's scheme on the other tables, one per task and method.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells; those of ensembles are left out.
    tests : mapping of str to ProbabilityTable
        Test rows by cell key; cells without an entry are left out.

    Returns
    -------
    list of ResultTable
        Only for tasks and methods with at least two tables.
    """
    groups: dict[str, list[CellRecord]] = {}
    for record in Cells.of(records).records:
        if has_chosen(record) and record.key in tests:
            # Cells of one group differ only in their tables.
            own = {"model", "shots", "seed", "optimization_digest", "test_digest"}
            shared = {k: v for k, v in record.identity.items() if k not in own}
            groups.setdefault(content_key(shared), []).append(record)
    several = [group for group in groups.values() if len(group) > 1]
    return [_build_transfer_table(group, tests, number) for number, group in enumerate(several, 1)]


def _build_transfer_table(
    group: Sequence[CellRecord], tests: Mapping[str, ProbabilityTable], number: int
) -> ResultTable:
    names = [name_of(record.identity, "model", "shots", "seed") for record in group]
    count = Counter(names)
    names = [
        name if count[name] == 1 else f"{name}, cell {record.key[:8]}"
        for name, record in zip(names, group, strict=True)
    ]
    schemes = [CorrectionScheme.from_dict(record.scheme) for record in group]
    rows: list[dict[str, Any]] = []
    for other, judged_on in zip(group, names, strict=True):
        test = tests[other.key].only_labelled()
        plain = CorrectionScheme.identity(test.classes)
        rows.append({"fitted on": "uncorrected", "judged on": judged_on, **_score(plain, test)})
        for record, scheme, fitted_on in zip(group, schemes, names, strict=True):
            own = tests[record.key]
            # The test rows of another split may be among the rows that the scheme was fitted on.
            same_rows = {*own.ids} == {*tests[other.key].ids} and {*own.classes} == {*test.classes}
            figures = _score(scheme, test.with_classes(scheme.classes)) if same_rows else {}
            rows.append({"fitted on": fitted_on, "judged on": judged_on, **figures})
    frame = pd.DataFrame(rows, columns=["fitted on", "judged on", "accuracy", "cobias"])
    about = name_of(group[0].identity, "task", "method")
    pairs = list(map(_format_pair, frame["accuracy"], frame["cobias"]))
    text = frame.assign(text=pairs).pivot(index="fitted on", columns="judged on", values="text")
    text = text.reindex(["uncorrected", *names], columns=names)
    text = text.rename_axis(columns=None).reset_index()
    return ResultTable(
        name=f"transfer_{number}",
        title=f"{about}: schemes on tables they were not fitted on, accuracy / COBias in %",
        frame=frame,
        text=text,
        words=("fitted on",),
        about=_TRANSFER_NOTE,
    )


def _score(scheme: CorrectionScheme, test: ProbabilityTable) -> dict[str, float]:
    found = ClassificationMetrics.from_predictions(
        test.labels, scheme.predict(test.probs), test.n_classes
    )
    return {"accuracy": found.accuracy, "cobias": found.cobias}


def _format_pair(accuracy: float, cobias: float) -> str:
    return f"{percent(accuracy)} / {percent(cobias)}" if accuracy == accuracy else "-"


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
    found = Cells.of(records)
    cells = {cell.key: cell for cell in found.records}
    frame = named_cells(found)
    frame["method"] = frame["name"]
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
    frame = labels_frame(cell for cell in records if not _get_members(cell))
    if frame["size"].nunique(dropna=False) < 2:
        return []
    frame = frame.assign(method=frame["name"]).sort_values("size", kind="stable")
    frame["labels"] = ["all" if math.isnan(size) else f"{size:.0f}" for size in frame["size"]]
    by = ["method", "rows_used", "labels"]
    figures = ["accuracy", "cobias", "score"]
    means = frame.groupby(["source", *by], sort=False)[figures].mean().reset_index()
    whole = means.groupby("source")["labels"].transform("nunique") == frame["labels"].nunique()
    # With all labels both variants are the same, so this number alone compares nothing.
    several = means.groupby(["source", "method", "rows_used"])["labels"].transform("nunique") > 1
    means = means[whole & several]
    batch = means[(means["method"] == method_title("batch")) & (means["labels"] == "all")]
    free = batch.drop_duplicates("source").set_index("source")["score"]
    means["gain"] = means["score"] - means["source"].map(free)
    groups = means.groupby(by, sort=False)[[*figures, "gain"]]
    tidy = groups.mean().join(groups.sem().add_suffix("_error")).assign(sources=groups.size())
    orders = {"method": list(means["method"].unique()), "rows_used": sorted({*means["rows_used"]})}
    tidy = sorted_by(tidy.reset_index(), orders)
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
            text=_pivot_texts(tidy, texts[figure]),
            words=("method", "rows used"),
            about=_LABELS_NOTE,
        )
        for figure, (name, title) in titles.items()
        if any(texts[figure])
    ]


def _pivot_texts(tidy: pd.DataFrame, texts: Sequence[str]) -> pd.DataFrame:
    """Return a row per method and rows used, a column per number of labelled rows."""
    index = ["method", "rows_used"]
    text = tidy.assign(text=texts).pivot(index=index, columns="labels", values="text")
    text = text.reindex(tidy.set_index(index).index.unique(), columns=tidy["labels"].unique())
    text = text.fillna("").rename_axis(columns=None).reset_index()
    return text.rename(columns={"rows_used": "rows used"})


def labels_frame(records: Iterable[CellRecord]) -> pd.DataFrame:
    """Return cells by the number of labelled rows and the use of the others.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells, of any methods.

    Returns
    -------
    pandas.DataFrame
        As `named_cells`, with ``labelled``, the number of labelled rows, ``size``, the requested
        number (NaN if all rows have labels), ``rows_used`` (``labelled rows alone``,
        ``with unlabelled rows``, ``all, without labels``), and in ``name`` all other settings.
        Cells with all labels are included in both of the former, and methods that need no labels
        for every number.
    """
    cells = Cells.of(records)
    frame = named_cells(cells).rename(columns={"rows": "labelled"})
    by_key = {cell.key: cell for cell in cells.records}
    own = [by_key[key] for key in frame["key"]]
    axes = [axis for axis in cells.axes if axis.name not in (OPTIMIZATION_SIZE, "keep_unlabelled")]
    named = [
        name_of(cell.who | {"setting": settings.setting(cell, axes)}, "method", "setting")
        for cell in own
    ]
    sizes = np.array([cell.identity.get(OPTIMIZATION_SIZE) for cell in own], float)
    frame = frame.assign(name=named, size=sizes)
    frame = frame.dropna(subset="labelled").astype({"labelled": int})
    frame["rows_used"] = frame["unlabelled"].gt(0).map({True: _BOTH, False: _ALONE})
    whole = frame[frame["size"].isna()]
    free = whole["method"].isin(_LABEL_FREE)
    parts = [frame.dropna(subset="size"), whole[~free].assign(rows_used=_ALONE)]
    parts.append(whole[~free].assign(rows_used=_BOTH))
    for size in frame["size"].unique():
        labelled = whole.loc[free, "labelled"] if math.isnan(size) else int(size)
        parts.append(whole[free].assign(size=size, labelled=labelled, rows_used=_NONE))
    return pd.concat(parts).sort_index(kind="stable", ignore_index=True)


def _stored_tables(record: CellRecord, runs: Path) -> Mapping[str, Rows] | None:
    """Return the tables of a cell by their recorded hashes: scored in `runs`, or given ones."""
    wanted = {str(split): record.identity[f"{split}_digest"] for split in SPLITS}
    for folder in sorted(StoredTables.under(runs, "").folder.glob("*/")):
        if (stored := StoredTables(folder)).digests == wanted:
            return stored.read()
    archive = Archive(runs)
    for sweep in archive.sweeps():
        if record.key not in archive.keys(sweep.sweep_key):
            continue
        known = SweepConfig.model_fields.keys() & sweep.sweep_params.keys()
        config = {name: sweep.sweep_params[name] for name in known}
        try:
            plan = plan_sweep(SweepConfig.model_validate(config), runs)
        except ValidationError:
            continue  # A sweep of another version.
        for key, cells in plan.cells.items():
            if any(cell.key == record.key for cell in cells):
                return plan.tables[key].read()
    return None


def _read_test_rows(records: Sequence[CellRecord], runs: Path) -> dict[str, ProbabilityTable]:
    """Return the stored test rows of cells that have a single table, by cell key."""
    known: dict[str, Any] = {}
    for record in records:
        digest = record.identity["test_digest"]
        if record.finished and digest not in known:
            known[digest] = (_stored_tables(record, runs) or {}).get("test")
    found = {record.key: known.get(record.identity["test_digest"]) for record in records}
    return {key: test for key, test in found.items() if isinstance(test, ProbabilityTable)}


def main() -> None:
    """Print the tables of a sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=("fronts", "transfer", "ensembles", "labels"))
    parser.add_argument("sweep", help="name of the sweep")
    parser.add_argument("--runs", type=Path, default=Path("dcs-runs"))
    given = parser.parse_args()
    records = sweep_records(given.runs, given.sweep)
    if given.which == "transfer":
        tables = transfer_tables(records, _read_test_rows(records, given.runs))
    elif given.which == "fronts":
        tables = [table for table in [front_comparison(records)] if table is not None]
    else:
        tables = {"ensembles": ensemble_tables, "labels": label_tables}[given.which](records)
    if not tables:
        parser.exit(1, f"{given.sweep}: no cells for {given.which}\n")
    for table in tables:
        print(table.to_markdown())


if __name__ == "__main__":
    main()
