"""The paper's own numbers, and how its models and tasks are recognised among ours."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

__all__ = [
    "BIOMEDICAL",
    "GENERAL",
    "PaperResult",
    "paper_ablation",
    "paper_class_accuracies",
    "paper_model",
    "paper_result",
    "paper_rows",
    "paper_schemes",
    "paper_task",
    "paper_times",
    "paper_weakest",
    "task_title",
]

GENERAL: Final = ("agnews", "dbpedia", "sst5", "trec", "rte")
"""The paper's general domain tasks, in its order."""

BIOMEDICAL: Final = ("ddi", "pubmedqa")
"""The paper's biomedical tasks, in its order."""

_TITLES: Final = {
    "agnews": "AGN",
    "dbpedia": "DBP",
    "sst5": "SST",
    "trec": "TREC",
    "rte": "RTE",
    "ddi": "DDI",
    "pubmedqa": "PMQA",
}
_TASK_NAMES: Final = {
    "agn": "agnews",
    "agnews": "agnews",
    "dbp": "dbpedia",
    "dbpedia": "dbpedia",
    "dbpedia14": "dbpedia",
    "sst": "sst5",
    "sst5": "sst5",
    "trec": "trec",
    "rte": "rte",
    "ddi": "ddi",
    "pmqa": "pubmedqa",
    "pubmedqa": "pubmedqa",
}
# The base models only: a chat or instruction-tuned variant is another model.
_MODELS: Final = {
    "llama-2-13b": re.compile(r"llama-?2-13b(-hf)?"),
    "llama-2-70b": re.compile(r"llama-?2-70b(-hf)?"),
    "gemma-2-2b": re.compile(r"gemma-?2-2b"),
}


@dataclass(frozen=True, slots=True)
class PaperResult:
    """One cell of the paper's tables of results, as fractions.

    Attributes
    ----------
    accuracy, cobias : float
        Means over three seeds.
    accuracy_std, cobias_std : float or None
        Their deviations; None for an average over tasks.
    """

    accuracy: float
    cobias: float
    accuracy_std: float | None
    cobias_std: float | None


def paper_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of one data file, for example ``paper_results``, as they are printed."""
    return [dict(row) for row in _read(name)]


def paper_model(model: object) -> str | None:
    """Return the paper's name of a model (``meta-llama/Llama-2-13b-hf``), or None."""
    name = re.split(r"[/\\]", str(model).rstrip("/\\"))[-1].lower().replace("_", "-")
    return next((own for own, pattern in _MODELS.items() if pattern.fullmatch(name)), None)


def paper_task(task: object) -> str | None:
    """Return the paper's name of a task (``SST-5``, ``ag_news``), or None."""
    return _TASK_NAMES.get(re.sub(r"[^a-z0-9]", "", str(task).lower()))


def task_title(task: object) -> str:
    """Return the short title that the paper's tables use, or the name itself."""
    known = paper_task(task)
    return str(task) if known is None else _TITLES[known]


def paper_result(*, model: object, task: object, shots: object, method: str) -> PaperResult | None:
    """Return what the paper reports for a cell, or None where it reports nothing.

    Parameters
    ----------
    model, task : str
        Names in any of the usual spellings; a task may also be ``average_all``,
        ``average_general`` or ``average_biomedical``.
    shots : int or str
        Demonstrations, ``N`` for one per class.
    method : str
        ``icl``, ``dnip``, ``furud`` or ``dcs``.
    """
    known = task if str(task).startswith("average_") else paper_task(task)
    return _results().get((paper_model(model), str(shots), method, known))


def paper_ablation(
    *, model: object, task: object, shots: object, objective: str
) -> PaperResult | None:
    """Return accuracy and COBias of DCS with another objective: ``full``, ``err``, ``err+pmi``."""
    return _ablation().get((paper_model(model), str(shots), objective, paper_task(task)))


def paper_class_accuracies(
    *, model: object, task: object, shots: object, seed: object, method: object
) -> dict[str, float]:
    """Return class accuracies (fractions) by class name in lower case; mostly there are none."""
    return {
        row["class"].lower(): float(row["accuracy"]) / 100
        for row in _rows_of("paper_class_accuracies", model, task, shots)
        if (row["seed"], row["method"]) == (str(seed), method)
    }


def paper_schemes(*, model: object, task: object, shots: object) -> dict[str, str] | None:
    """Return the paper's count of weights and memberships for a task, as printed."""
    return next(iter(_rows_of("paper_schemes", model, task, shots)), None)


def paper_weakest(*, model: object, task: object, shots: object) -> list[dict[str, str]]:
    """Return the weakest classes that the paper says a membership corrects, by seed."""
    return list(_rows_of("paper_weakest_classes", model, task, shots))


def paper_times(*, model: object) -> dict[str, str] | None:
    """Return what the paper says of the seconds of an annealing run, over its tasks."""
    name = paper_model(model)
    return next((row for row in _read("paper_annealing_time") if row["model"] == name), None)


def _rows_of(name: str, model: object, task: object, shots: object) -> Iterator[dict[str, str]]:
    wanted = (paper_model(model), paper_task(task), str(shots))
    for row in _read(name):
        if (row["model"], row["task"], row["shots"]) == wanted:
            yield row


@cache
def _read(name: str) -> tuple[dict[str, str], ...]:
    text = files("tracking").joinpath("data", f"{name}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


@cache
def _results() -> dict[tuple[Any, ...], PaperResult]:
    return dict(_keyed("paper_results", "method"))


@cache
def _ablation() -> dict[tuple[Any, ...], PaperResult]:
    return dict(_keyed("paper_ablation", "objective"))


def _keyed(name: str, column: str) -> Iterator[tuple[tuple[Any, ...], PaperResult]]:
    for row in _read(name):
        accuracy, cobias, accuracy_std, cobias_std = (
            float(row[key]) / 100 if row.get(key) else None
            for key in ("accuracy", "cobias", "accuracy_sd", "cobias_sd")
        )
        if accuracy is None or cobias is None:
            raise ValueError(f"{name}.csv: a row without accuracy or COBias: {row}")
        yield (
            (row["model"], row["shots"], row[column], row["task"]),
            PaperResult(accuracy, cobias, accuracy_std, cobias_std),
        )
