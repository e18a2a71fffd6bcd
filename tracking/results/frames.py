"""In which settings the cells of a sweep differ: the axes of its ablations.

A cell's settings are what makes it besides model, task, shots, seed and method: the terms of its
objective, its optimization rows, and how it was tuned. Records of earlier versions lack some; what
a record does not say is not compared.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Final

from dcs.errors import ConfigError
from dcs.evaluation.formatting import percent
from dcs.schemes.corrections import CorrectionSet
from dcs.selection.methods import get_method, method_names
from tracking.records import CellRecord, TrialRecord
from tracking.schema import OBJECTIVE, OPTIMIZATION_SIZE

__all__ = [
    "Axis",
    "Estimate",
    "OBJECTIVE",
    "P_VALUES",
    "STARS",
    "annealing_seconds",
    "axes_of",
    "best_trial",
    "class_intervals",
    "finished_cells",
    "main_cells",
    "mean_and_deviation",
    "method_title",
    "notes_of",
    "objective_label",
    "objective_terms",
    "objective_title",
    "optimization_rows",
    "ordered",
    "own_setting",
    "place",
    "search_space",
    "setting",
    "shots_text",
    "weakest_class",
]


def finished_cells(records: Iterable[CellRecord]) -> list[CellRecord]:
    """Return the finished cells in the order of tables: see `ordered`."""
    return ordered(record for record in records if record.finished)


def ordered(records: Iterable[CellRecord]) -> list[CellRecord]:
    """Sort cells by model and task as they first come, then by shots, method and seed."""
    cells = list(records)
    first: dict[tuple[str, str], int] = {}
    for cell in cells:
        for name in ("model", "task"):
            first.setdefault((name, str(cell.identity.get(name))), len(first))
    methods = method_names(baselines=True)

    def position(cell: CellRecord) -> tuple[Any, ...]:
        who = cell.identity
        method = str(who.get("method"))
        rank = methods.index(method) if method in methods else len(methods)
        return (
            first["model", str(who.get("model"))],
            first["task", str(who.get("task"))],
            shots_rank(who.get("shots")),
            rank,
            method,
            _number(who.get("seed")),
        )

    return sorted(cells, key=position)


def shots_rank(shots: object) -> float:
    """Order shots: none, 0, 1, 5, ..., N."""
    return math.inf if shots == "N" else -1.0 if shots is None else _number(shots)


def shots_text(shots: object) -> str:
    """Return how people write a number of shots."""
    return "" if shots is None else f"{shots}-shot"


def method_title(name: object) -> str:
    """Return a method's title, or its name where it is not one of ours."""
    try:
        return get_method(str(name)).title
    except ConfigError:
        return str(name)


def place(record: CellRecord, *names: str) -> tuple[Any, ...]:
    """Return some values of a cell's identity."""
    return tuple(record.identity.get(name) for name in names)


def best_trial(record: CellRecord) -> TrialRecord | None:
    """Return the trial whose scheme was chosen, None if nothing was tuned."""
    number = record.params.get("best_trial")
    for trial in record.trials:
        if trial.number == number:
            return trial
    scored = [trial for trial in record.trials if trial.value is not None]
    sign = 1.0 if record.direction == "maximize" else -1.0
    return max(scored, key=lambda trial: sign * (trial.value or 0.0), default=None)


def trial_score(trial: TrialRecord) -> float | None:
    """Return what a trial was judged by on the development rows."""
    return trial.metrics.get("dev/score") if trial.value is None else trial.value


def annealing_seconds(record: CellRecord) -> float | None:
    """Return the time of the search that found the scheme; None where it is not known.

    Where the annealing itself was not timed it is the trial's time, judging included.
    """
    seconds = record.metrics.get("opt/seconds")
    if seconds is not None:
        return seconds
    trial = best_trial(record)
    # A point of a front was fitted with others and has no time of its own.
    return None if trial is None or not trial.seconds else trial.seconds


def tuning_seconds(record: CellRecord) -> float | None:
    """Return the time of all that was tried for a cell; None where nothing was chosen."""
    if not has_chosen(record):
        return None
    return (record.finished_ms - record.started_ms) / 1000


def search_space(record: CellRecord) -> int | None:
    """Return N * D, classes times correction functions to choose from (paper, Section 4.2)."""
    try:
        method = get_method(str(record.identity.get("method")))
    except ConfigError:
        return None
    # A setting may narrow down what the method chooses from.
    family = str(record.params.get("corrections", ""))
    builders = {"weights": CorrectionSet.dnip, "both": CorrectionSet.dcs}
    tuner = record.identity.get("tuner") or {}
    scale = int(record.params.get("weight_scale") or tuner.get("weight_scale") or 30)
    if family in builders:
        corrections: CorrectionSet | None = builders[family](weight_scale=scale)
    else:
        memberships = tuner.get("memberships")
        corrections = method.correction_set(scale, memberships=memberships)
        corrections = None if family == "none" else corrections
    if corrections is None or record.scheme is None:
        return None
    return len(corrections) * len(record.scheme["corrections"])


def has_chosen(record: CellRecord) -> bool:
    """Whether the cell has a scheme that was chosen, and not the one that changes nothing."""
    return record.scheme is not None and record.identity.get("method") != "icl"


def optimization_rows(record: CellRecord) -> int | None:
    """Return the number of rows that the cell was tuned on."""
    tables = record.provenance.get("tables", {})
    rows = tables.get("optimization", {}).get("rows") if isinstance(tables, Mapping) else None
    size = record.identity.get("optimization_size")
    known = [int(number) for number in (rows, size) if isinstance(number, int)]
    return min(known, default=None)


def weakest_class(record: CellRecord) -> int | None:
    """Return the index of the class that the uncorrected model is worst at."""
    before = record.class_accuracies.get("before", [])
    known = [index for index, value in enumerate(before) if value is not None]
    return min(known, key=lambda index: before[index], default=None)


def text(value: object) -> str:
    """Return a value as tables show it: nothing for None."""
    return "" if value is None else str(value)


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return math.inf


#: A change of which chance is less likely than this is marked.
_SIGNIFICANT: Final = 0.05

P_VALUES: Final = "p: paired test against ICL on the same rows."

STARS: Final = f"* differs from ICL on the same rows (paired test, p < {_SIGNIFICANT})."


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure of cells that differ in their seed alone.

    Attributes
    ----------
    mean, deviation : float
        Over seeds, the deviation that of a sample; it is NaN for a single seed.
    low, high : float
        95 % interval of a single seed; NaN for several.
    p : float
        How likely chance makes such a change from ICL on the same rows, of a single seed; NaN for
        several. Not known of what earlier versions recorded, as the interval is not.
    """

    mean: float
    deviation: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan

    @classmethod
    def of(cls, cells: Sequence[CellRecord], metric: str) -> Estimate:
        """Return a metric of some cells; NaN where none of them has it.

        Parameters
        ----------
        cells : sequence of CellRecord
            One per seed.
        metric : str
            ``test/accuracy`` or ``test/cobias``.
        """
        values = [cell.metrics[metric] for cell in cells if metric in cell.metrics]
        mean, deviation = mean_and_deviation(values)
        if len(cells) != 1:
            return cls(mean, deviation)
        own = cells[0].metrics
        low, high, p = (own.get(f"{metric}_{more}", math.nan) for more in ("low", "high", "p"))
        # ICL is what the others are compared with.
        is_icl = cells[0].identity.get("method") == "icl"
        return cls(mean, deviation, low, high, math.nan if is_icl else p)

    @property
    def is_single(self) -> bool:
        """Whether it has an interval instead of a deviation."""
        return not math.isnan(self.low)

    @property
    def is_significant(self) -> bool:
        """Whether chance hardly makes such a change; False where that is not known."""
        return self.p < _SIGNIFICANT

    @property
    def reach(self) -> tuple[float, float]:
        """How far the figure may be off, downwards and upwards: what error bars show."""
        if self.is_single:
            return self.mean - self.low, self.high - self.mean
        return self.deviation, self.deviation

    def marked(self) -> str:
        """Return it in percent, with a star if it differs from ICL."""
        return self.percent() + ("*" if self.is_significant else "")

    def percent(self, *, digits: int = 1, coarse: bool = False, padded: bool = False) -> str:
        """Return it for people, as `dcs._shown.percent` writes it."""
        return percent(
            self.mean,
            self.deviation,
            interval=(self.low, self.high),
            digits=digits,
            coarse=coarse,
            padded=padded,
        )


def notes_of(shown: Iterable[Estimate], *, tested: str = STARS) -> str:
    """Return what has to be known to read some estimates; `tested` is about p-values."""
    estimates = list(shown)
    several = any(not math.isnan(each.deviation) for each in estimates)
    notes = ["Mean ± standard deviation over seeds."] if several else []
    if any(each.is_single for each in estimates):
        notes.append("One seed: figure [95 % interval].")
    if any(not math.isnan(each.p) for each in estimates):
        notes.append(tested)
    return " ".join(notes)


def class_intervals(cell: CellRecord) -> list[Estimate]:
    """Return the class accuracies of a cell after correction, NaN for a class without rows."""
    columns = cell.class_accuracies
    after = columns.get("after", [])
    low, high = (columns.get(f"after_{end}", [None] * len(after)) for end in ("low", "high"))
    return [
        Estimate(*(math.nan if value is None else value for value in (mean, None, *ends)))
        for mean, *ends in zip(after, low, high, strict=True)
    ]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample's standard deviation, NaN where there is none."""
    mean = fmean(values) if values else math.nan
    if len(values) < 2 or not math.isfinite(mean):
        return mean, math.nan
    return mean, stdev(values)


#: The objectives that have names, by the weights of COBias and PMI that are not 0.
_TERMS: Final = {
    (True, True): "full",
    (False, True): "err+pmi",
    (True, False): "err+cobias",
    (False, False): "err",
}

_OBJECTIVES: Final = ("full", "err", "err+pmi", "err+cobias")

_TERM_NAMES: Final = {"err": "Z_err", "cobias": "Z_cobias", "pmi": "Z_pmi"}

_PLACE: Final = frozenset({"model", "task", "shots", "seed", "method", "tuner", "objective"})

#: What an ablation is compared with, where it has it.
_USUAL: Final[Mapping[str, tuple[Any, ...]]] = {
    OBJECTIVE: ("full",),
    OPTIMIZATION_SIZE: (None,),
    "weight_scale": (None, 30),
    "memberships": (None,),
    "protocol": ("paper",),
    "prefer": ("balance",),
}

#: What None means, in short and alone, and how a number is said.
_WORDS: Final[Mapping[str, tuple[str, str, str]]] = {
    OPTIMIZATION_SIZE: ("all", "all rows", "{} rows"),
    "weight_scale": ("tuned", "weight scale tuned", "weight scale {}"),
    "memberships": ("all", "all memberships", "{} memberships"),
}


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting in which cells of the same method differ.

    Attributes
    ----------
    name : str
        Its name in the configuration.
    values : tuple
        What it takes: the main value first, then the others in order.
    methods : tuple of str
        The methods that have cells of several values.
    """

    name: str
    values: tuple[Any, ...]
    methods: tuple[str, ...]

    @property
    def main(self) -> Any:
        """The value that main results are for."""
        return self.values[0]

    @property
    def title(self) -> str:
        """Its name for people."""
        return self.name.replace("_", " ")

    @property
    def is_numeric(self) -> bool:
        """Whether its values, but for None, are numbers."""
        return all(_is_number(value) for value in self.values if value is not None)

    def varies(self, record: CellRecord) -> bool:
        """Whether cells of this method and others differ in it."""
        known = self.name in _settings(record)
        return known and str(record.identity.get("method")) in self.methods

    def value(self, record: CellRecord) -> Any:
        """Return a cell's value."""
        return _settings(record).get(self.name)

    @property
    def in_order(self) -> list[Any]:
        """Its values as a scale: rising, and the whole of something, such as all rows, last."""
        if not self.is_numeric:
            return list(self.values)
        return sorted(self.values, key=_rank)

    def short(self, value: Any) -> str:
        """Return a value for people, under a head that names the setting."""
        if self.name == OBJECTIVE:
            return self.words(value)
        return str(value) if value is not None else self._said[0]

    def words(self, value: Any) -> str:
        """Return a value for people, so that it stands alone."""
        if self.name == OBJECTIVE:
            return objective_title(str(value))
        _, none, some = self._said
        return none if value is None else some.format(value)

    @property
    def _said(self) -> tuple[str, str, str]:
        return _WORDS.get(self.name, ("none", f"no {self.title}", f"{self.title} {{}}"))


def axes_of(records: Iterable[CellRecord]) -> list[Axis]:
    """Return what cells of one model, task, shots, seed and method differ in, the objective first.

    Differences that come with the table, such as its digest, are none.
    """
    cells = list(records)
    by_place: dict[tuple[Any, ...], dict[str, set[Any]]] = {}
    for cell in cells:
        seen = by_place.setdefault((*_group(cell), str(cell.identity.get("seed"))), {})
        for name, value in _settings(cell).items():
            seen.setdefault(name, set()).add(value)
    methods: dict[str, dict[str, None]] = {}
    for (*_, method, _seed), seen in by_place.items():
        for name, values in seen.items():
            if len(values) > 1:
                methods.setdefault(name, {})[method] = None
    axes = []
    for name, varied in methods.items():
        counts = Counter(
            own[name]
            for cell in cells
            if str(cell.identity.get("method")) in varied and name in (own := _settings(cell))
        )
        axes.append(Axis(name, _in_order(name, counts), tuple(varied)))
    return sorted(axes, key=lambda axis: axis.name != OBJECTIVE)


def setting(record: CellRecord, axes: Sequence[Axis]) -> str:
    """Return in words what sets a cell apart from the main ones; often nothing."""
    return ", ".join(
        axis.words(value)
        for axis in axes
        if axis.varies(record) and (value := axis.value(record)) != axis.main
    )


def own_setting(record: CellRecord) -> str:
    """Return in words what a cell, seen alone, has unlike the usual."""
    own = _settings(record)
    unusual = [
        name
        for name in (OBJECTIVE, OPTIMIZATION_SIZE, *_WORDS)
        if name in own and own[name] != _USUAL[name][0]
    ]
    return ", ".join(
        Axis(name, (own[name],), ()).words(own[name]) for name in dict.fromkeys(unusual)
    )


def main_cells(
    records: Iterable[CellRecord], *, but: Collection[str] = (), axes: Sequence[Axis] | None = None
) -> list[CellRecord]:
    """Return the cells that an ablation is compared with, and those that it does not touch.

    Parameters
    ----------
    records : iterable of CellRecord
        Cells.
    but : collection of str
        Names of axes of which all values are kept.
    axes : sequence of Axis, optional
        Their axes, where they are known already.
    """
    cells = list(records)
    for axis in axes_of(cells) if axes is None else axes:
        if axis.name in but:
            continue
        counts: dict[tuple[str, ...], Counter[Any]] = {}
        for cell in cells:
            if axis.varies(cell):
                counts.setdefault(_group(cell), Counter())[axis.value(cell)] += 1
        # A table that was never tried with the main value has a main value of its own.
        main = {
            group: axis.main if axis.main in own else _in_order(axis.name, own)[0]
            for group, own in counts.items()
        }
        cells = [c for c in cells if not axis.varies(c) or axis.value(c) == main[_group(c)]]
    return cells


def objective_label(record: CellRecord) -> str | None:
    """Return ``full``, ``err``, ``err+pmi``, ``err+cobias`` or ``beta=0.5 tau=0.1``.

    None where nothing was searched, so that no objective had a part in it.
    """
    label = _settings(record).get(OBJECTIVE)
    return None if label is None else str(label)


def objective_terms(label: str | None) -> str:
    """Return which terms of the objective have weight: ``full``, ``err``, ``err+pmi``, ..."""
    weights = dict(part.split("=") for part in (label or "").split() if "=" in part)
    if not weights:
        return label or "full"
    return _TERMS[bool(float(weights["beta"])), bool(float(weights["tau"]))]


def objective_title(label: str) -> str:
    """Return an objective for people: ``full objective``, ``Z_err + Z_pmi``, or its weights."""
    if label == "full":
        return "full objective"
    return " + ".join(_TERM_NAMES.get(term, term) for term in label.split("+"))


def _group(record: CellRecord) -> tuple[str, ...]:
    return tuple(str(record.identity.get(name)) for name in ("model", "task", "shots", "method"))


def _settings(record: CellRecord) -> dict[str, Any]:
    identity = record.identity
    given = identity.get("tuner")
    tuner = given if isinstance(given, Mapping) else {}
    found = {
        name: value
        for name, value in {**identity, **tuner}.items()
        if name not in _PLACE and not name.endswith("digest")
    }
    objective = tuner.get(OBJECTIVE, identity.get(OBJECTIVE))
    if objective is not None or tuner or record.trials:
        found[OBJECTIVE] = _label("full" if objective is None else objective)
    if found.get(OPTIMIZATION_SIZE) == "full":
        found[OPTIMIZATION_SIZE] = None
    return {name: _hashable(value) for name, value in found.items()}


def _label(objective: Any) -> str:
    """Name an objective; weights that are 0 leave a term out, others are told as they are."""
    if not isinstance(objective, Mapping):
        return str(objective)
    beta, tau = (float(objective.get(name, 0.0)) for name in ("beta", "tau"))
    if not beta and not tau:
        return _TERMS[False, False]
    return f"beta={beta:g} tau={tau:g}"


def _in_order(name: str, counts: Mapping[Any, int]) -> tuple[Any, ...]:
    rising = sorted(counts, key=_rank)
    usual = next((value for value in _USUAL.get(name, ()) if value in counts), ...)
    if usual is ...:
        # Else the one with most cells; of several the largest, which is the whole of most things.
        most = max(counts.values())
        usual = [value for value in rising if counts[value] == most][-1]
    return (usual, *(value for value in rising if value != usual))


def _rank(value: Any) -> tuple[int, float, str]:
    if _is_number(value):
        return 0, float(value), ""
    if value in _OBJECTIVES:
        return 1, float(_OBJECTIVES.index(value)), ""
    return (3, 0.0, "") if value is None else (2, 0.0, str(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _hashable(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping | list) else value
