"""The finished cells of sweeps with what tables and figures share, each computed once."""

from __future__ import annotations

import math
from binascii import crc32
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from colorsys import hls_to_rgb
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dcs.errors import ConfigError
from dcs.evaluation.metrics import METRICS
from dcs.evaluation.uncertainty import percent
from dcs.selection.methods import get_method, method_names
from dcs_tracking.records import UNCORRECTED, CellRecord
from dcs_tracking.results import settings
from dcs_tracking.results.settings import Axis
from dcs_tracking.schema import IDENTITY_TAGS

if TYPE_CHECKING:
    import pandas as pd
    from pandas.core.groupby import DataFrameGroupBy

MEASURES: Final = tuple(name for name, metric in METRICS.items() if metric.tested)
_STATISTICS: Final = ("mean", "std", "low", "high", "p")
#: Columns of `Cells.estimates`.
MEASURE_COLUMNS: Final = tuple(f"{m}_{name}" for m in MEASURES for name in _STATISTICS)

#: Columns of the source of class probabilities.
SOURCE: Final = ("model", "task", "shots")

_CELL: Final = ("key", *IDENTITY_TAGS, "setting")
#: Numeric columns of every frame of cells.
_NUMBERS: Final = (
    *(f"test/{m}{more}" for m in MEASURES for more in ("", "_low", "_high", "_p")),
    *(f"uncorrected/test/{m}" for m in MEASURES),
    *("test/balanced_accuracy", "test/weakest_class"),
    *("rows", "test_rows", "unlabelled", "tables"),
)
_QUALITY: Final = ("accuracy", "cobias", "score")
_ACCURACIES: Final = ("before", "after", "after_low", "after_high")
#: Methods in the order of tables, uncorrected first; those of plug-ins follow.
_METHODS: Final = (UNCORRECTED, *method_names(peers=True))
#: Cells of a frame that are rows at the same time.
_PART: Final = 500
#: Nine, since methods eight places apart have similar hues.
_MARKERS: Final = "ospDvPX<^"


@dataclass(frozen=True)
class Cells:
    """Finished cells in the order of tables, and what is computed from them on first use.

    Use `Cells.of` to build it from records.

    Attributes
    ----------
    records : tuple of CellRecord
        Finished cells, by first appearance of model and task, then shots, method, setting, seed.
    """

    records: tuple[CellRecord, ...]

    @classmethod
    def of(cls, records: Iterable[CellRecord]) -> Cells:
        """Return the finished cells among records, in order."""
        return cls(tuple(ordered(record for record in records if record.finished)))

    def where(self, chosen: Callable[[CellRecord], bool]) -> Cells:
        """Return the cells whose record satisfies a condition."""
        return Cells(tuple(filter(chosen, self.records)))

    @cached_property
    def axes(self) -> list[Axis]:
        """Settings in which cells differ; see `settings.axes_of`."""
        return settings.axes_of(self.records)

    @cached_property
    def main(self) -> Cells:
        """Cells with the main values of all settings."""
        return self.main_but(())

    def main_but(self, names: Collection[str]) -> Cells:
        """Return the cells with the main values of all settings except those named."""
        return Cells(tuple(settings.main_cells(self.records, but=names)))

    def ablation(self, axis: Axis) -> Cells:
        """Return the cells in which one setting varies and the others have main values.

        If it varies only where others do not have them, those of the cells that differ in it
        alone.
        """
        own = self.main_but((axis.name,)).where(axis.varies)
        if any(each.name == axis.name for each in own.axes):
            return own
        return Cells(tuple(settings.varying(self.records, axis))).main_but((axis.name,))

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row per cell: identity, settings and metrics.

        ``key``, ``model``, ``task``, ``shots``, ``seed``, ``method``; ``setting``, a description
        of how the cell differs from the main ones, and each axis under its own name;
        ``objective``, its label; the metrics under
        their names, with the ends of 95 % intervals and the p-value of the test against
        uncorrected (NaN for that method itself); ``rows`` and ``unlabelled``, the numbers of
        rows to fit on with and without labels, ``test_rows``, and ``tables``, the number of tables
        that were fitted jointly. Fractions, not percent; NaN for
        values missing from a record.
        """
        frame = self._build(lambda cell: [self._describe(cell)], _NUMBERS, "objective")
        frame.loc[frame["method"] == UNCORRECTED, [f"test/{m}_p" for m in MEASURES]] = math.nan
        return frame

    def _describe(self, cell: CellRecord) -> dict[str, Any]:
        rows = cell.provenance.get("tables", {}).get("optimization", {})
        labelled = rows.get("labelled", rows.get("rows"))
        return {
            **{axis.name: axis.value(cell) for axis in self.axes},
            "objective": settings.objective_label(cell),
            **cell.metrics,
            "rows": labelled,
            "test_rows": cell.provenance.get("tables", {}).get("test", {}).get("rows"),
            "unlabelled": None if labelled is None else rows["rows"] - labelled,
            "tables": rows.get("tables", 1),
        }

    @cached_property
    def classes(self) -> pd.DataFrame:
        """One row per cell and class: its accuracy.

        ``key``, ``model``, ``task``, ``shots``, ``seed``, ``method``, ``setting``, ``class``,
        ``before``, ``after``, ``after_low``, ``after_high`` (95 % interval); NaN for a class
        without rows.
        """

        def rows(cell: CellRecord) -> list[dict[str, Any]]:
            columns = cell.class_accuracies
            transposed = zip(*columns.values(), strict=True)
            return [dict(zip(columns, row, strict=True)) for row in transposed]

        return self._build(rows, _ACCURACIES, "class")[[*_CELL, "class", *_ACCURACIES]]

    def _build(
        self,
        rows_of: Callable[[CellRecord], Iterable[Mapping[str, Any]]],
        numbers: Sequence[str],
        *texts: str,
    ) -> pd.DataFrame:
        """Return rows of cells: columns of the cell, `texts`, `numbers`, then others."""
        import pandas as pd

        known = dict.fromkeys((*_CELL, *texts, *numbers))

        def frame_of(cells: Sequence[CellRecord]) -> pd.DataFrame:
            rows: list[Mapping[str, Any]] = []
            for cell in cells:
                about = {"key": cell.key, **cell.who, "setting": settings.setting(cell, self.axes)}
                rows += [{**about, **row} for row in rows_of(cell)]
            others = dict.fromkeys(name for row in rows for name in row if name not in known)
            frame = pd.DataFrame(rows, columns=[*known, *others], dtype=object)
            # Other columns keep the types of their values.
            measured = [*numbers, *(name for name in others if "/" in name)]
            return frame.astype(dict.fromkeys(measured, float))

        # In parts: as rows, cells take more memory than in a frame.
        starts = range(0, max(1, len(self.records)), _PART)
        parts = [frame_of(self.records[start : start + _PART]) for start in starts]
        return pd.concat(parts, ignore_index=True)

    @cached_property
    def judged(self) -> pd.DataFrame:
        """Rows of `frame` with test metrics, with ``accuracy``, ``cobias`` and ``score``.

        The score is accuracy minus COBias.
        """
        frame = self.frame[self.frame["test/accuracy"].notna()]
        accuracy, cobias = frame["test/accuracy"], frame["test/cobias"]
        return frame.assign(accuracy=accuracy, cobias=cobias, score=accuracy - cobias)

    @property
    def best_schemes(self) -> list[CellRecord]:
        """The cell with the best scheme of each model and task.

        It has the highest accuracy minus COBias on the test rows.
        """

        def score(cell: CellRecord) -> float:
            metric = cell.metrics.get
            return metric("test/accuracy", -math.inf) - metric("test/cobias", 0.0)

        best: dict[tuple[Any, Any], CellRecord] = {}
        for cell in filter(has_chosen, self.records):
            source = cell.who["model"], cell.who["task"]
            best[source] = max(best.get(source, cell), cell, key=score)
        return list(best.values())

    @cached_property
    def by_tables(self) -> pd.DataFrame:
        """Quality against the number of tables of the same rows that are fitted jointly.

        One row per method and number of tables: ``cells`` and ``tasks``, their numbers;
        ``accuracy``, ``cobias`` and ``score``, means over tasks; ``gain``, what each further table
        adds to the score since the row before, mean over the tasks that have both, and
        ``gain_error``, its standard error over these tasks, NaN of a single one. Of tasks with
        ensembles only.
        """
        keys = ["method", "tables"]
        own = self.main.judged
        own = own[own["task"].isin(own.loc[own["tables"] > 1, "task"])]
        by_task = own.groupby([*keys, "task"])[[*_QUALITY]].mean()
        counts = {"cells": own.groupby(keys).size(), "tasks": by_task.groupby(keys).size()}
        frame = by_task.groupby(keys).mean().assign(**counts).reset_index()
        steps = frame.groupby("method")["tables"].diff()
        scores = by_task["score"].unstack("task").groupby("method").diff().reset_index(drop=True)
        # Cells of a task share its tables: its seeds and random choices are not independent.
        gains = scores.div(steps, axis=0)
        frame = frame.assign(gain=gains.mean(axis=1), gain_error=gains.sem(axis=1))
        return sorted_by(frame, {"method": list(own["method"].unique())})

    def estimates(self, by: Sequence[str]) -> pd.DataFrame:
        """Return accuracy and COBias of groups of cells that differ only in their seed.

        Parameters
        ----------
        by : sequence of str
            Columns of `frame` that define the groups.

        Returns
        -------
        pandas.DataFrame
            The columns `by`, ``seeds`` (number of cells), and `MEASURE_COLUMNS`: mean and sample
            standard deviation of several seeds, 95 % interval and p-value of one seed.
        """
        result, groups = grouped(self.judged, by)
        result["seeds"] = groups.size()
        for measure in MEASURES:
            result[f"{measure}_mean"] = groups[f"test/{measure}"].mean()
            result[f"{measure}_std"] = groups[f"test/{measure}"].std()
            for more in ("low", "high", "p"):
                first = groups[f"test/{measure}_{more}"].first()
                result[f"{measure}_{more}"] = first.where(result["seeds"] == 1)
        return result

    def uneven(self, by: Sequence[str], within: Sequence[str] = ()) -> str:
        """Return a sentence that says which groups lack cells that others have, if any do.

        Their means are not comparable: the rows that a group lacks may be the difficult ones.

        Parameters
        ----------
        by : sequence of str
            Columns of `frame` that define the groups, ``method`` and axes among them.
        within : sequence of str, optional
            Columns whose values are shown separately.
        """
        where = [name for name in (*SOURCE, "seed") if name not in by]
        found: defaultdict[Any, defaultdict[Any, set[Any]]] = defaultdict(lambda: defaultdict(set))
        for row in self.judged.to_dict("records"):
            place, group, cell = (tuple(map(row.get, names)) for names in (within, by, where))
            found[place][group].add(cell)
        lacking = Counter[str]()
        for groups in found.values():
            every = set[Any]().union(*groups.values())
            for group, own in groups.items():
                key = dict(zip(by, group, strict=True))
                axes = (a for a in self.axes if a.name in key and key["method"] in a.methods)
                words = (axis.words(key[axis.name]) for axis in axes)
                lacking[", ".join((name_of(key, "shots", "method"), *words))] += len(every - own)
        texts = [f"{name} lacks {number}" for name, number in lacking.most_common(4) if number]
        lacks = "; ".join(texts)
        return f"Means are of different cells: {lacks} that others have." if texts else ""


#: Changes with a p-value below this level are marked.
_SIGNIFICANT: Final = 0.05

#: The explanation of the notation of `marked`.
NOTATION: Final = (
    "Mean ± standard deviation over seeds. One seed: value [95 % interval]. "
    f"* differs from uncorrected on the same rows (paired test, p < {_SIGNIFICANT})."
)


def marked(row: Mapping[Any, Any], measure: str) -> str:
    """Format a measure of a row of `Cells.estimates` in percent, starred if it changes."""
    mean, std, low, high, p = (row[f"{measure}_{name}"] for name in _STATISTICS)
    return percent(mean, std, interval=(low, high)) + ("*" if p < _SIGNIFICANT else "")


def reach(row: Mapping[Any, Any], measure: str) -> tuple[float, float]:
    """Return the lengths of error bars below and above the mean of a row of `Cells.estimates`.

    They are standard deviations over seeds or, of a single one, reach the ends of the interval.
    """
    mean, std, low, high, _ = (row[f"{measure}_{name}"] for name in _STATISTICS)
    return (std, std) if is_missing(low) else (mean - low, high - mean)


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


def fullest(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the largest number of shots of each model and task."""
    rank = frame["shots"].map(shots_rank).astype(float)
    most = rank.groupby([frame["model"], frame["task"]], dropna=False).transform("max")
    return frame[rank == most]


def ordered(records: Iterable[CellRecord]) -> list[CellRecord]:
    """Sort cells by first appearance of model and task, then shots, method, settings, seed."""
    cells = list(records)
    models, tasks = (
        list(dict.fromkeys(cell.who[name] for cell in cells)) for name in ("model", "task")
    )
    axes = settings.axes_of(cells)
    places = [(axis, {value: place for place, value in enumerate(axis.in_order)}) for axis in axes]

    def position(cell: CellRecord) -> tuple[Any, ...]:
        who = cell.who
        method = str(who["method"])
        source = models.index(who["model"]), tasks.index(who["task"]), shots_rank(who["shots"])
        rank = _METHODS.index(method) if method in _METHODS else len(_METHODS)
        varied = (place.get(axis.value(cell), -1) for axis, place in places)
        return *source, rank, method, *varied, _to_float(who["seed"])

    return sorted(cells, key=position)


def shots_rank(shots: object) -> float:
    """Return the sort key of a number of shots: none, 0, 1, 5, ..., N."""
    return math.inf if shots == "N" else -1.0 if is_missing(shots) else _to_float(shots)


def text_of(value: object) -> str:
    """Format a value as text; empty if it is missing."""
    return "" if is_missing(value) else str(value)


def name_of(cell: Mapping[Any, Any], *names: str) -> str:
    """Return the given identity fields of a cell in one line: ``trec, 1-shot, seed 0, DCS``."""
    forms = {"shots": "{}-shot", "seed": "seed {}"}
    texts = {name: text_of(cell.get(name)) for name in names}
    return ", ".join(
        method_title(text) if name == "method" else forms.get(name, "{}").format(text)
        for name, text in texts.items()
        if text
    )


def method_title(name: object) -> str:
    """Return the title of a method, or its name if the method is unknown."""
    try:
        return get_method(str(name)).title
    except ConfigError:
        return str(name)


def look_of(method: str) -> tuple[str, str]:
    """Return color and marker of a method, which tell it from the others in all charts."""
    place = _METHODS.index(method) if method in _METHODS else crc32(method.encode())
    # Multiples of the golden ratio are hues far from each other.
    shades = hls_to_rgb(place * 0.618034 % 1.0, 0.45, 0.6)
    color = "#" + "".join(f"{round(255 * shade):02x}" for shade in shades)
    return color, _MARKERS[place % len(_MARKERS)]


def is_missing(value: object) -> bool:
    """Whether a value is None or NaN."""
    return value is None or value != value


def has_chosen(record: CellRecord) -> bool:
    """Whether the cell has a chosen scheme, and not that of the uncorrected method."""
    return record.scheme is not None and record.identity.get("method") != "icl"


def _to_float(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return math.inf
