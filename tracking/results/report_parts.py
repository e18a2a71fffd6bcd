"""What a report says of the cells, before it is laid out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from dcs.evaluation.formatting import sentence_of_chance
from dcs.schemes.scheme import CorrectionScheme
from tracking.records import CellRecord, StoredCell
from tracking.results.frames import (
    has_chosen,
    mean_and_deviation,
    method_title,
    place,
    shots_rank,
    shots_text,
)
from tracking.results.tables import difference

__all__ = [
    "Change",
    "SchemeText",
    "Shift",
    "changes",
    "chosen_schemes",
    "packages",
    "period",
]

_DRAWN_METHOD = "dcs"
_MEASURED = {f"{when}test/{m}" for when in ("", "uncorrected/") for m in ("accuracy", "cobias")}


@dataclass(frozen=True, slots=True)
class Shift:
    """A figure before and after correction, mean over seeds, in percent.

    Attributes
    ----------
    before, after : float
        The figure.
    change : str
        After minus before, on the same rows: with its deviation over seeds, or, of one seed, how
        likely chance makes it.
    """

    before: float
    after: float
    change: str


@dataclass(frozen=True, slots=True)
class Change:
    """What a method does to a task, mean over seeds, in percent.

    Attributes
    ----------
    name, detail : str
        The task, and model, prompt and method.
    accuracy, cobias : Shift
        Before and after.
    weakest : tuple of (str, float, float) or None
        The class that is weakest before correction, its accuracy before and after.
    """

    name: str
    detail: str
    accuracy: Shift
    cobias: Shift
    weakest: tuple[str, float, float] | None


@dataclass(frozen=True, slots=True)
class SchemeText:
    """A scheme in words.

    Attributes
    ----------
    name : str
        The cell.
    classes : tuple of (str, str, str)
        Class, kind of correction, and what it does.
    calibration : str
        Name of the calibration that comes first; empty if there is none.
    """

    name: str
    classes: tuple[tuple[str, str, str], ...]
    calibration: str = ""


def changes(records: Sequence[CellRecord], *, method: str = _DRAWN_METHOD) -> list[Change]:
    """Return what a method does to every model and task at the largest number of shots."""
    groups: dict[tuple[Any, ...], list[CellRecord]] = {}
    for cell in records:
        if cell.identity.get("method") == method and cell.metrics.keys() >= _MEASURED:
            groups.setdefault(place(cell, "model", "task"), []).append(cell)
    result = []
    for (model, task), cells in groups.items():
        shots = max((cell.identity.get("shots") for cell in cells), key=shots_rank)
        cells = [cell for cell in cells if cell.identity.get("shots") == shots]
        detail = ", ".join(filter(None, (str(model), shots_text(shots), method_title(method))))
        accuracy, cobias = (_shift(cells, f"test/{name}") for name in ("accuracy", "cobias"))
        result.append(Change(str(task), detail, accuracy, cobias, _weakest(cells)))
    return result


def chosen_schemes(cells: Sequence[StoredCell]) -> Iterator[tuple[StoredCell, SchemeText, bool]]:
    """Yield the schemes worth reading, and whether each is drawn too.

    All schemes of DCS, or of every method that searched where there is no DCS; one per model and
    task is drawn: that of the largest number of shots that was best on the development rows.
    """
    tuned = [cell for cell in cells if cell.record.finished and has_chosen(cell.record)]
    own = [cell for cell in tuned if cell.record.identity.get("method") == _DRAWN_METHOD]
    shown = own or tuned
    best: dict[tuple[Any, ...], StoredCell] = {}
    for cell in shown:
        key = place(cell.record, "model", "task")
        if key not in best or _merit(cell.record) > _merit(best[key].record):
            best[key] = cell
    drawn = {cell.run_id for cell in best.values()}
    for cell in shown:
        if cell.record.scheme is not None:
            yield cell, _text(cell.record), cell.run_id in drawn


def packages(records: Sequence[CellRecord]) -> list[tuple[str, str]]:
    """Return the packages that the cells were computed with; several versions are all named."""
    found: dict[str, dict[str, None]] = {}
    for cell in records:
        about = cell.provenance
        versions = about.get("packages", {})
        if isinstance(versions, Mapping):
            for name, version in {"python": about.get("python"), **versions}.items():
                if version:
                    found.setdefault(str(name), {})[str(version)] = None
        if about.get("git_commit"):
            found.setdefault("git commit", {})[str(about["git_commit"])[:12]] = None
    return [(name, ", ".join(versions)) for name, versions in sorted(found.items())]


def period(records: Sequence[CellRecord]) -> str:
    """Return when the cells were computed, in UTC."""
    start = min(cell.started_ms for cell in records)
    end = max(cell.finished_ms for cell in records)
    first, last = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (start, end))
    if first.date() == last.date():
        return f"{first:%Y-%m-%d, %H:%M} to {last:%H:%M} UTC"
    return f"{first:%Y-%m-%d} to {last:%Y-%m-%d}"


def _text(record: CellRecord) -> SchemeText:
    scheme = CorrectionScheme.from_dict(record.scheme, source=f"cell {record.key}")
    method, model, task, shots, seed = place(record, "method", "model", "task", "shots", "seed")
    parts = (str(task), str(model), shots_text(shots), f"seed {seed}", method_title(method))
    return SchemeText(
        ", ".join(filter(None, parts)),
        tuple(
            (name, correction.kind, correction.effect)
            for name, correction in zip(scheme.classes, scheme.corrections, strict=True)
        ),
        scheme.calibration.name if scheme.calibration else "",
    )


def _merit(record: CellRecord) -> tuple[float, float]:
    return shots_rank(record.identity.get("shots")), record.metrics.get("dev/score", 0.0)


def _shift(cells: Sequence[CellRecord], metric: str) -> Shift:
    pairs = [
        (100 * cell.metrics[f"uncorrected/{metric}"], 100 * cell.metrics[metric]) for cell in cells
    ]
    before, after = (mean_and_deviation(values)[0] for values in zip(*pairs, strict=True))
    mean, deviation = mean_and_deviation([after - before for before, after in pairs])
    change = difference(mean, 0.0)
    if len(pairs) > 1:
        change += f" ± {deviation:.1f}"
    elif (p := cells[0].metrics.get(f"{metric}_p")) is not None:
        change += f", {sentence_of_chance(p)}"
    return Shift(before, after, change)


def _weakest(cells: Sequence[CellRecord]) -> tuple[str, float, float] | None:
    columns = [cell.class_accuracies for cell in cells if cell.class_accuracies]
    if not columns:
        return None
    means = []
    for index, name in enumerate(columns[0]["class"]):
        before = [c["before"][index] for c in columns if c["before"][index] is not None]
        after = [c["after"][index] for c in columns if c["after"][index] is not None]
        if before and after:
            means.append((100 * fmean(before), 100 * fmean(after), str(name)))
    if not means:
        return None
    before_mean, after_mean, name = min(means)
    return name, before_mean, after_mean
