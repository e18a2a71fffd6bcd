"""Settings in which the cells of a sweep differ: the axes of its ablations.

The settings of a cell are its identity besides model, task, shots, seed and method: the terms of
its objective, its optimization rows, and its tuner settings. Records of earlier versions lack some
of them; settings missing from a record are not compared.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dcs.methods.parameters import PARAMETERS
from dcs_tracking.records import CellRecord
from dcs_tracking.schema import OBJECTIVE, OPTIMIZATION_SIZE

#: Named objectives, in the order of tables.
_OBJECTIVES: Final = ("full", "err", "err+pmi", "err+cobias")

_GROUP: Final = ("model", "task", "shots", "method")
#: Groups of tuner settings, each of which is a setting.
_PARTS: Final = ("judge", "space", "search")
_NOT_SETTINGS: Final = frozenset({*_GROUP, "seed", "tuner", OBJECTIVE})

#: What a study explores by default, as text, by knob.
_TUNED: Final = {row.name: json.dumps(row.values) for row in PARAMETERS if len(row.values) > 1}

_OTHERS: Final = {OPTIMIZATION_SIZE: "full", "memberships": "all"}
#: Text of None by setting, where it does not mean that there is none.
NONE_LABELS: Final = dict.fromkeys(_TUNED, "tuned") | _OTHERS

#: Preferred main values of settings, with which ablations are compared.
_MAIN_VALUES: Final[Mapping[str, tuple[Any, ...]]] = {
    OBJECTIVE: ("full",),
    OPTIMIZATION_SIZE: (None,),
    "weight_scale": (_TUNED["weight_scale"], None, 30),
    "memberships": (None,),
    "prefer": ("no-harm", "balance"),
}


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting in which cells of the same method differ.

    Attributes
    ----------
    name : str
        Name in the configuration.
    values : tuple
        Its values: the main value first, then the others in order.
    methods : tuple of str
        Methods with cells of several values.
    """

    name: str
    values: tuple[Any, ...]
    methods: tuple[str, ...]

    @property
    def main(self) -> Any:
        """The value used in the main results."""
        return self.values[0]

    @property
    def title(self) -> str:
        """Display name."""
        return self.name.replace("_", " ")

    @property
    def in_order(self) -> list[Any]:
        """The values in ascending order, with None last."""
        return sorted(self.values, key=_get_rank)

    def varies(self, record: CellRecord) -> bool:
        """Whether the setting varies among cells of the record's method."""
        return self.name in _get_settings(record) and record.who["method"] in self.methods

    def value(self, record: CellRecord) -> Any:
        """Return the value of a cell."""
        return _get_settings(record).get(self.name)

    def short(self, value: Any) -> str:
        """Format a value, for use under a head that names the setting."""
        if value is None or value == _TUNED.get(self.name):
            return NONE_LABELS.get(self.name, "none")
        if isinstance(value, str) and value.startswith("["):
            return "..".join(map(str, json.loads(value)))
        return f"{value:g}" if isinstance(value, float) else str(value)

    def words(self, value: Any) -> str:
        """Format a value together with the name of the setting."""
        return f"{self.title} {self.short(value)}"


def axes_of(records: Iterable[CellRecord]) -> list[Axis]:
    """Return the settings that vary for one model, task, shots and method, objective first.

    Properties of the table, such as its digest, are not settings.
    """
    cells = [(record.who["method"], _get_settings(record), record) for record in records]
    seen: defaultdict[tuple[Any, ...], set[Any]] = defaultdict(set)
    for method, own, record in cells:
        for name, value in own.items():
            seen[name, method, *_get_group(record)].add(value)
    methods: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for (name, method, *_), values in seen.items():
        if len(values) > 1:
            methods[name][method] = None
    axes = []
    for name, varied in methods.items():
        counts = Counter(own[name] for each, own, _ in cells if name in own and each in varied)
        axes.append(Axis(name, _order_values(name, counts), tuple(varied)))
    return sorted(axes, key=lambda axis: axis.name != OBJECTIVE)


def setting(record: CellRecord, axes: Sequence[Axis]) -> str:
    """Describe how a cell differs from the main ones; empty for main cells."""
    own, method = _get_settings(record), record.who["method"]
    varied = (axis for axis in axes if axis.name in own and method in axis.methods)
    return ", ".join(axis.words(own[axis.name]) for axis in varied if own[axis.name] != axis.main)


def own_settings(record: CellRecord, names: Iterable[str]) -> dict[str, str]:
    """Return the settings of a cell by name, as text; names that it does not have are left out."""
    own = _get_settings(record)
    return {name: Axis(name, (), ()).short(own[name]) for name in names if name in own}


def main_cells(records: Iterable[CellRecord], *, but: Collection[str] = ()) -> list[CellRecord]:
    """Return the cells with main values of the varied settings, and cells without these settings.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells.
    but : collection of str
        Names of settings of which all values are kept.
    """
    cells = list(records)
    for axis in axes_of(cells):
        if axis.name in but:
            continue
        counts: defaultdict[tuple[Any, ...], Counter[Any]] = defaultdict(Counter)
        for cell in cells:
            if axis.varies(cell):
                counts[_get_group(cell)][axis.value(cell)] += 1
        # Groups without cells of the main value have their own main value.
        main = {
            group: axis.main if axis.main in own else _order_values(axis.name, own)[0]
            for group, own in counts.items()
        }
        cells = [c for c in cells if not axis.varies(c) or axis.value(c) == main[_get_group(c)]]
    return cells


def varying(records: Iterable[CellRecord], axis: Axis) -> list[CellRecord]:
    """Return the cells that differ from another cell in one setting alone."""
    groups: defaultdict[tuple[Any, ...], list[CellRecord]] = defaultdict(list)
    for record in filter(axis.varies, records):
        others = frozenset((k, v) for k, v in _get_settings(record).items() if k != axis.name)
        groups[*_get_group(record), record.identity.get("seed"), others].append(record)
    return [each for own in groups.values() if len({*map(axis.value, own)}) > 1 for each in own]


def comparable_cells(*sweeps: Sequence[CellRecord]) -> list[list[CellRecord]]:
    """Return the cells of sweeps: of a source and method with the same settings in all, these."""
    own: list[defaultdict[Any, set[Any]]] = [defaultdict(set) for _ in sweeps]
    for found, records in zip(own, sweeps, strict=True):
        for record in records:
            found[_get_group(record)].add(frozenset(_get_settings(record).items()))

    def is_common(record: CellRecord) -> bool:
        both = set.intersection(*(found[_get_group(record)] for found in own))
        return not both or frozenset(_get_settings(record).items()) in both

    return [[*filter(is_common, records)] for records in sweeps]


def objective_label(record: CellRecord) -> str | None:
    """Return ``full``, ``err``, ``err+pmi`` or ``err+cobias``.

    None if nothing was searched, since no objective was used.
    """
    tuner = record.identity.get("tuner") or {}
    found = tuner.get(OBJECTIVE, record.identity.get(OBJECTIVE))
    if found is None:
        return "full" if tuner else None
    return str(found)


def _get_group(record: CellRecord) -> tuple[Any, ...]:
    return tuple(map(record.identity.get, _GROUP))


def _get_settings(record: CellRecord) -> dict[str, Any]:
    """Return the settings of a cell by name, all values hashable."""
    tuner = record.identity.get("tuner") or {}
    parts = [tuner.get(part, {}) for part in _PARTS]
    known = {k: v for part in (record.identity, tuner, *parts) for k, v in part.items()}
    found = {
        name: _as_value(value)
        for name, value in known.items()
        if name not in (*_NOT_SETTINGS, *_PARTS) and not name.endswith("digest")
    }
    label = objective_label(record)
    return found if label is None else found | {OBJECTIVE: label}


def _as_value(value: Any) -> Any:
    """Return a hashable value; a fixed setting is a list of one."""
    if isinstance(value, list) and len(value) == 1:
        return _as_value(value[0])
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value


def _order_values(name: str, counts: Mapping[Any, int]) -> tuple[Any, ...]:
    rising = sorted(counts, key=_get_rank)
    # By default the most frequent value; of several the largest, such as all rows.
    most = max(reversed(rising), key=lambda value: counts[value])
    usual = next((value for value in _MAIN_VALUES.get(name, ()) if value in counts), most)
    return (usual, *(value for value in rising if value != usual))


def _get_rank(value: Any) -> tuple[int, float, str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, float(value), ""
    if value in _OBJECTIVES:
        return 1, float(_OBJECTIVES.index(value)), ""
    return (3, 0.0, "") if value is None else (2, 0.0, str(value))
