"""Tidy pandas frames of the cells of a sweep, from which all tables and figures are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from dcs.errors import ConfigError, InvalidInputError
from dcs.evaluation.uncertainty import percent
from dcs.selection.methods import get_method, method_names
from tracking.records import CellRecord, TrialRecord
from tracking.results import settings
from tracking.schema import IDENTITY_TAGS, OPTIMIZATION_SIZE

if TYPE_CHECKING:
    import pandas as pd
    from pandas.core.groupby import DataFrameGroupBy

MEASURES: Final = ("accuracy", "cobias")
_STATISTICS: Final = ("mean", "std", "low", "high", "p")
MEASURE_COLUMNS: Final = tuple(f"{m}_{figure}" for m in MEASURES for figure in _STATISTICS)
"""Columns of `estimates`."""

#: Numeric columns of every frame of cells.
_NUMBERS: Final = (
    *(f"test/{m}{more}" for m in MEASURES for more in ("", "_low", "_high", "_p")),
    *(f"uncorrected/test/{m}" for m in MEASURES),
    *("test/balanced_accuracy", "test/weakest_class"),
    *("dev/score", "opt/evaluations", "opt/seconds", "tuning_seconds"),
    *("classes", "rows", "unlabelled", "search_space", "temperatures"),
)
_CELL: Final = ("key", *IDENTITY_TAGS, "setting")
_ACCURACIES: Final = ("before", "after", "after_low", "after_high", "change")
_CORRECTION: Final = ("value", "a", "b", "c")


def cells_frame(records: Iterable[CellRecord]) -> pd.DataFrame:
    """Return the finished cells, one row each, in the order of `ordered`.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells; failed ones are left out.

    Returns
    -------
    pandas.DataFrame
        ``key``, ``model``, ``task``, ``shots``, ``seed``, ``method``; ``setting``, a description
        of how the cell differs from the main ones, and each setting in which cells differ under
        its own name; ``objective``, its label, and ``terms``, its terms of nonzero weight;
        ``as_paper``, whether the scheme was chosen as in the paper; the metrics under their
        names, with the ends of 95 % intervals and the p-value of the test against uncorrected
        (NaN for that method itself), moves and seconds of the annealing run as
        ``opt/evaluations`` and ``opt/seconds``; ``temperatures``, its outer loops;
        ``tuning_seconds``, the time of the whole search; ``classes``, ``rows`` (labelled rows)
        and ``search_space``, the size of the search; ``unlabelled``, the number of rows without
        labels. Fractions, not percent; NaN for values missing from a record.
    """
    cells = finished_cells(records)
    axes = settings.axes_of(cells)

    def row(cell: CellRecord) -> dict[str, Any]:
        rows = cell.provenance.get("tables", {}).get("optimization", {})
        labelled = rows.get("labelled", rows.get("rows"))
        seconds = (cell.finished_ms - cell.started_ms) / 1000
        return {
            **{axis.name: axis.value(cell) for axis in axes},
            "objective": settings.objective_label(cell),
            "terms": settings.objective_terms(cell),
            "as_paper": settings.chosen_as_paper(cell),
            **cell.metrics,
            "tuning_seconds": seconds if has_chosen(cell) else None,
            "classes": len((cell.scheme or {}).get("corrections", [])),
            "rows": labelled,
            "unlabelled": None if labelled is None else rows["rows"] - labelled,
            "search_space": search_space(cell),
            "temperatures": len(cell.trace) or None,
        }

    frame = _build(cells, lambda cell: [row(cell)], ("objective", "terms", "as_paper"), _NUMBERS)
    # The test compares the other methods with uncorrected.
    frame.loc[frame["method"] == "icl", [f"test/{m}_p" for m in MEASURES]] = math.nan
    return frame


def classes_frame(records: Iterable[CellRecord]) -> pd.DataFrame:
    """Return the class accuracies of finished cells, one row per cell and class.

    Returns
    -------
    pandas.DataFrame
        ``key``, ``model``, ``task``, ``shots``, ``seed``, ``method``, ``setting``, ``class``,
        ``before``, ``after``, ``after_low``, ``after_high`` (95 % interval), ``change``; NaN for
        a class without rows.
    """

    def rows(cell: CellRecord) -> list[dict[str, Any]]:
        columns = cell.class_accuracies
        transposed = zip(*columns.values(), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in transposed]

    frame = _build(records, rows, ("class",), _ACCURACIES)
    frame["change"] = frame["after"] - frame["before"]
    return frame[[*_CELL, "class", *_ACCURACIES]]


def corrections_frame(records: Iterable[CellRecord]) -> pd.DataFrame:
    """Return the chosen corrections of finished cells, one row per cell and class.

    Returns
    -------
    pandas.DataFrame
        ``key``, ``model``, ``task``, ``shots``, ``seed``, ``method``, ``setting``, ``class``,
        ``kind`` (``weight`` or ``membership``), ``value`` (of a weight), ``a``, ``b``, ``c`` and
        ``name`` (of a membership function).
    """
    frame = _build(
        records,
        lambda cell: (cell.scheme or {}).get("corrections", []),
        ("class", "kind", "name"),
        _CORRECTION,
    )
    return frame[[*_CELL, "class", "kind", *_CORRECTION, "name"]]


def trials_frame(records: Iterable[CellRecord]) -> pd.DataFrame:
    """Return the completed trials of finished cells that have a score, one row each.

    Returns
    -------
    pandas.DataFrame
        ``key``, ``model``, ``task``, ``shots``, ``seed``, ``method``, ``setting``, ``trial``,
        ``score``, and a column for each suggested hyperparameter.
    """
    return _build(
        records,
        lambda cell: [
            {"trial": trial.number, "score": trial_score(trial), **trial.params}
            for trial in cell.trials
            if trial.state == "COMPLETE" and trial_score(trial) is not None
        ],
        (),
        ("trial", "score"),
    )


def importances_frame(records: Iterable[CellRecord]) -> pd.DataFrame:
    """Return the importance of hyperparameters in the studies of finished cells, one row each.

    Returns
    -------
    pandas.DataFrame
        ``key``, ``model``, ``task``, ``shots``, ``seed``, ``method``, ``setting``,
        ``parameter``, ``importance``; importances sum to 1 per cell.
    """
    return _build(
        records,
        lambda cell: [
            {"parameter": name, "importance": share} for name, share in cell.importances.items()
        ],
        ("parameter",),
        ("importance",),
    )


def _build(
    records: Iterable[CellRecord],
    rows_of: Callable[[CellRecord], Iterable[Mapping[str, Any]]],
    texts: Sequence[str],
    numbers: Sequence[str],
) -> pd.DataFrame:
    """Return the rows of finished cells: columns of the cell, `texts`, `numbers`, then others."""
    import pandas as pd

    cells = finished_cells(records)
    axes = settings.axes_of(cells)
    rows: list[Mapping[str, Any]] = []
    for cell in cells:
        about = {"key": cell.key, **cell.who, "setting": settings.setting(cell, axes)}
        rows += [{**about, **row} for row in rows_of(cell)]
    known = dict.fromkeys((*_CELL, *texts, *numbers))
    others = dict.fromkeys(name for row in rows for name in row if name not in known)
    frame = pd.DataFrame(rows, columns=[*known, *others], dtype=object)
    # Other columns keep the types of their values.
    figures = [*numbers, *(name for name in others if "/" in name)]
    return frame.astype(dict.fromkeys(figures, float))


#: Changes with a p-value below this level are marked.
_SIGNIFICANT: Final = 0.05

_STARS: Final = f"* differs from uncorrected on the same rows (paired test, p < {_SIGNIFICANT})."


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure of cells that differ only in their seed.

    Attributes
    ----------
    mean, std : float
        Mean and sample standard deviation over seeds; the latter is NaN for a single seed.
    low, high : float
        95 % interval of a single seed; NaN for several.
    p : float
        p-value of the change from uncorrected on the same rows, of a single seed; NaN for
        several.
    """

    mean: float
    std: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan

    @classmethod
    def of(cls, row: Mapping[Any, Any], measure: str) -> Estimate:
        """Return the estimate of accuracy or COBias from a row of `estimates`."""
        return cls(*(row[f"{measure}_{figure}"] for figure in _STATISTICS))

    @classmethod
    def of_class(cls, row: Mapping[Any, Any]) -> Estimate:
        """Return the class accuracy after correction from a row of `classes_frame`."""
        return cls(row["after"], low=row["after_low"], high=row["after_high"])

    @property
    def is_single(self) -> bool:
        """Whether the estimate has an interval instead of a standard deviation."""
        return not math.isnan(self.low)

    @property
    def reach(self) -> tuple[float, float]:
        """Lengths of the error bars below and above the mean."""
        if self.is_single:
            return self.mean - self.low, self.high - self.mean
        return self.std, self.std

    def marked(self) -> str:
        """Format the estimate in percent, with a star if the change is significant."""
        return self.percent() + ("*" if self.p < _SIGNIFICANT else "")

    def percent(self, *, coarse: bool = False, padded: bool = False) -> str:
        """Format the estimate; see `dcs.evaluation.uncertainty.percent`."""
        interval = self.low, self.high
        return percent(self.mean, self.std, interval=interval, coarse=coarse, padded=padded)


class Point(NamedTuple):
    """A point in the plane of accuracy and COBias."""

    accuracy: float
    cobias: float


def estimates(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return accuracy and COBias of groups of cells that differ only in their seed.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `cells_frame`.
    by : sequence of str
        Columns that define the groups.

    Returns
    -------
    pandas.DataFrame
        The columns `by`, ``seeds`` (number of cells), and `MEASURE_COLUMNS`: mean and sample
        standard deviation of several seeds, 95 % interval and p-value of one seed;
        ``accuracy_change`` and ``cobias_change``, the mean change from uncorrected, and
        ``as_paper``, whether all schemes were chosen as in the paper.
    """
    result, groups = grouped(frame, by)
    result["seeds"] = groups.size()
    result["as_paper"] = groups["as_paper"].all()
    for measure in MEASURES:
        before = groups[f"uncorrected/test/{measure}"].mean()
        result[f"{measure}_change"] = groups[f"test/{measure}"].mean() - before
        result[f"{measure}_mean"] = groups[f"test/{measure}"].mean()
        result[f"{measure}_std"] = groups[f"test/{measure}"].std()
        for more in ("low", "high", "p"):
            figures = groups[f"test/{measure}_{more}"].first()
            result[f"{measure}_{more}"] = figures.where(result["seeds"] == 1)
    return result


def grouped(
    frame: pd.DataFrame, by: Sequence[str]
) -> tuple[pd.DataFrame, DataFrameGroupBy[Any, Any]]:
    """Return the keys of groups in order of first appearance, and the groups by row number.

    Unlike the index of a `groupby`, the frame of keys preserves None and mixed types.
    """
    number = frame.groupby(list(by), sort=False, dropna=False).ngroup()
    keys = frame.loc[~number.duplicated(), list(by)].reset_index(drop=True)
    return keys, frame.groupby(number.to_numpy())


def groups_of(
    frame: pd.DataFrame, by: Sequence[str]
) -> Iterator[tuple[dict[Any, Any], pd.DataFrame]]:
    """Yield the keys and the rows of each group; see `grouped`."""
    keys, groups = grouped(frame, by)
    for key, (_, group) in zip(keys.to_dict("records"), groups, strict=True):
        yield key, group


def sorted_by(frame: pd.DataFrame, orders: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Sort rows by the given order of the values of each column, the first column first."""
    places = [[values.index(value) for value in frame[name]] for name, values in orders.items()]
    return frame.iloc[np.lexsort(places[::-1])].reset_index(drop=True)


def changes_nothing(corrections: pd.DataFrame) -> pd.Series[bool]:
    """Return whether each correction of `corrections_frame` is weight 1 or Don't Change."""
    same = (corrections[["a", "b", "c"]] == [0.0, 1.0, 1.0]).all(axis=1)
    return same | (corrections["value"] == 1.0)


def by_source(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the source (model, task, shots) and short names of figures to `cells_frame`."""
    return frame.assign(
        source=[name_of(row, "model", "task", "shots") for row in frame.to_dict("records")],
        accuracy=frame["test/accuracy"],
        cobias=frame["test/cobias"],
        score=frame["test/accuracy"] - frame["test/cobias"],
    )


def fullest(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the largest number of shots of each model and task."""
    rank = frame["shots"].map(shots_rank).astype(float)
    most = rank.groupby([frame["model"], frame["task"]], dropna=False).transform("max")
    return frame[rank == most]


def notes_of(shown: Iterable[Estimate]) -> str:
    """Return the explanation of the notation of some estimates."""
    found = list(shown)
    notes = {
        "Mean ± standard deviation over seeds.": any(each.std == each.std for each in found),
        "One seed: figure [95 % interval].": any(each.is_single for each in found),
        _STARS: any(each.p == each.p for each in found),
    }
    return " ".join(note for note, needed in notes.items() if needed)


def finished_cells(records: Iterable[CellRecord]) -> list[CellRecord]:
    """Return the finished cells in the order of `ordered`."""
    return ordered(record for record in records if record.finished)


def main_finished(
    records: Iterable[CellRecord], *, method: str | None = None, but: Collection[str] = ()
) -> list[CellRecord]:
    """Return the finished cells of the main results, by default of all methods."""
    cells = settings.main_cells(finished_cells(records), but=but)
    return [cell for cell in cells if method in (None, cell.identity.get("method"))]


def ordered(records: Iterable[CellRecord]) -> list[CellRecord]:
    """Sort cells by first appearance of model and task, then shots, method, setting and seed."""
    cells = list(records)
    models, tasks = (
        list(dict.fromkeys(cell.who[name] for cell in cells)) for name in ("model", "task")
    )
    methods = method_names(baselines=True)
    axes = settings.axes_of(cells)

    def position(cell: CellRecord) -> tuple[Any, ...]:
        who = cell.who
        method = str(who["method"])
        return (
            models.index(who["model"]),
            tasks.index(who["task"]),
            shots_rank(who["shots"]),
            methods.index(method) if method in methods else len(methods),
            method,
            settings.setting(cell, axes),
            _to_float(who["seed"]),
        )

    return sorted(cells, key=position)


def shots_rank(shots: object) -> float:
    """Return the sort key of a number of shots: none, 0, 1, 5, ..., N."""
    return math.inf if shots == "N" else -1.0 if is_missing(shots) else _to_float(shots)


def text_of(value: object) -> str:
    """Format a value as text; empty if it is missing."""
    return "" if is_missing(value) else str(value)


def words_of(cell: Mapping[Any, Any], *names: str) -> list[str]:
    """Return descriptions of the given identity fields of a cell, without missing ones."""
    forms = {"shots": "{}-shot", "seed": "seed {}"}
    texts = {name: text_of(cell.get(name)) for name in names}
    return [
        method_title(text) if name == "method" else forms.get(name, "{}").format(text)
        for name, text in texts.items()
        if text
    ]


def name_of(cell: Mapping[Any, Any], *names: str) -> str:
    """Return the given identity fields of a cell in one line: ``trec, 1-shot, seed 0, DCS``."""
    return ", ".join(words_of(cell, *names))


def method_title(name: object) -> str:
    """Return the title of a method, or its name if the method is unknown."""
    try:
        return get_method(str(name)).title
    except ConfigError:
        return str(name)


def is_missing(value: object) -> bool:
    """Whether a value is None or NaN."""
    return value is None or value != value


def trial_score(trial: TrialRecord) -> float | None:
    """Return the score of a trial on the development rows."""
    return trial.metrics.get("dev/score") if trial.value is None else trial.value


def search_space(record: CellRecord) -> int | None:
    """Return N * D, classes times corrections to choose from (paper, Sections 2.2 and 4.1)."""
    if record.scheme is None:
        return None
    tuner = record.identity.get("tuner") or {}
    scale = int(record.params.get("weight_scale") or tuner.get("weight_scale") or 30)
    method = str(record.identity.get("method"))
    family = str(record.params.get("corrections"))
    # A setting may restrict the corrections that the method chooses from.
    methods = {"weights": "dnip", "memberships": "furud", "both": "dcs", "none": "icl"}
    method = methods.get(family, method)
    size = _count_corrections(method, scale, tuner.get("memberships"))
    return size * len(record.scheme["corrections"]) or None


@cache
def _count_corrections(method: str, scale: int, memberships: int | None) -> int:
    try:
        corrections = get_method(method).correction_set(scale, memberships=memberships)
    except ConfigError:
        return 0
    return 0 if corrections is None else len(corrections)


def has_chosen(record: CellRecord) -> bool:
    """Whether the cell has a chosen scheme, and not that of the uncorrected method."""
    return record.scheme is not None and record.identity.get("method") != "icl"


def labels_frame(records: Iterable[CellRecord]) -> pd.DataFrame:
    """Return cells by the number of labelled rows and the use of the others.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells, of any methods.

    Returns
    -------
    pandas.DataFrame
        As `cells_frame`, with ``labelled``, the number of labelled rows, ``size``, the requested
        number (NaN if all rows have labels), ``rows_used`` (``labelled rows alone``,
        ``with unlabelled rows``, ``all, without labels``), and in ``setting`` all other settings.
        Cells with all labels are included in both of the former, and methods that need no labels
        for every number.
    """
    import pandas as pd

    cells = finished_cells(records)
    frame = cells_frame(cells).rename(columns={"rows": "labelled"})
    axes = [axis for axis in settings.axes_of(cells) if axis.name not in settings.LABEL_AXES]
    frame["setting"] = [settings.setting(cell, axes) for cell in cells]
    frame["size"] = np.array([cell.identity.get(OPTIMIZATION_SIZE) for cell in cells], float)
    frame = frame.dropna(subset=["labelled", "test/accuracy"]).astype({"labelled": int})
    frame["rows_used"] = frame["unlabelled"].gt(0).map({True: _BOTH, False: LABELLED_ALONE})
    whole = frame[frame["size"].isna()]
    free = whole["method"].isin(_LABEL_FREE)
    parts = [frame.dropna(subset="size"), whole[~free].assign(rows_used=LABELLED_ALONE)]
    parts.append(whole[~free].assign(rows_used=_BOTH))
    for size in frame["size"].unique():
        labelled = whole.loc[free, "labelled"] if math.isnan(size) else int(size)
        parts.append(whole[free].assign(size=size, labelled=labelled, rows_used=_NONE))
    return pd.concat(parts).sort_index(kind="stable", ignore_index=True)


_LABEL_FREE: Final = frozenset({"icl", "batch"})
LABELLED_ALONE, _BOTH, _NONE = "labelled rows alone", "with unlabelled rows", "all, without labels"


def learning_curve_frame(
    records: Iterable[CellRecord], *, method: str | None = "dcs"
) -> pd.DataFrame:
    """Return the figures of a method by number of labelled rows, means over tables and seeds.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells, of any methods.
    method : str or None
        Name of the method; None for all methods.

    Returns
    -------
    pandas.DataFrame
        Columns ``method``, ``rows_used`` as in `labels_frame`, ``labelled``, ``accuracy``,
        ``cobias``, and both prefixed by ``uncorrected_``. If cells differ in other settings, only
        those of the main results are used.

    Raises
    ------
    InvalidInputError
        Raised if all cells have the same number of labelled rows.
    """
    frame = labels_frame(main_finished(records, method=method, but=settings.LABEL_AXES))
    # A single point is not a curve. Points are counted by the requested size, because tables
    # have different numbers of rows.
    curve = ["method", "rows_used"]
    frame = frame[frame.groupby(curve)["size"].transform("nunique", dropna=False) > 1]
    if frame.empty:
        raise InvalidInputError("no cells differ in the number of labelled rows")
    figures = {"labelled": "labelled", **{f"test/{m}": m for m in MEASURES}}
    figures |= {f"uncorrected/test/{m}": f"uncorrected_{m}" for m in MEASURES}
    groups = frame.groupby([*curve, "size"], sort=False, dropna=False)
    means = groups[[*figures]].mean().rename(columns=figures).reset_index(curve)
    return means.astype({"labelled": int}).sort_values([*curve, "labelled"], ignore_index=True)


def _to_float(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return math.inf
