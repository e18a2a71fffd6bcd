"""The paper's own numbers, and how its models and tasks are recognised among ours."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "AVERAGES",
    "BIOMEDICAL",
    "GENERAL",
    "paper_beside",
    "paper_frame",
    "paper_model",
    "paper_rows",
    "paper_task",
    "task_rank",
    "task_title",
]

GENERAL: Final = ("agnews", "dbpedia", "sst5", "trec", "rte")
"""The paper's general domain tasks, in its order."""

BIOMEDICAL: Final = ("ddi", "pubmedqa")
"""The paper's biomedical tasks, in its order."""

AVERAGES: Final = {
    "average_all": (*GENERAL, *BIOMEDICAL),
    "average_general": GENERAL,
    "average_biomedical": BIOMEDICAL,
}
"""The tasks of the averages that the paper prints."""

#: The short titles that the paper's tables use.
_TITLES: Final = {
    "agnews": "AGN",
    "dbpedia": "DBP",
    "sst5": "SST",
    "trec": "TREC",
    "rte": "RTE",
    "ddi": "DDI",
    "pubmedqa": "PMQA",
}
#: In lower case, letters and digits only.
_TASKS: Final = {
    **{name: name for name in _TITLES},
    **{title.lower(): name for name, title in _TITLES.items()},
    "dbpedia14": "dbpedia",
}
# The base models only: a chat or instruction-tuned variant is another model.
_MODELS: Final = {
    "llama-2-13b": re.compile(r"llama-?2-13b(-hf)?"),
    "llama-2-70b": re.compile(r"llama-?2-70b(-hf)?"),
    "gemma-2-2b": re.compile(r"gemma-?2-2b"),
}


def paper_model(model: object) -> str | None:
    """Return the paper's name of a model (``meta-llama/Llama-2-13b-hf``), or None."""
    name = re.split(r"[/\\]", str(model).rstrip("/\\"))[-1].lower().replace("_", "-")
    return next((own for own, pattern in _MODELS.items() if pattern.fullmatch(name)), None)


def paper_task(task: object) -> str | None:
    """Return the paper's name of a task (``SST-5``, ``ag_news``, ``trec@published``), or None."""
    return _TASKS.get(re.sub(r"@.*|[^a-z0-9]", "", str(task).lower()))


def task_title(task: object) -> str:
    """Return the short title that the paper's tables use, or the name itself."""
    return _TITLES.get(paper_task(task) or "", str(task))


def task_rank(task: object) -> int:
    """Return where a task stands in the paper's order; tasks that it does not have come last."""
    names = list(_TITLES)
    known = paper_task(task)
    return len(names) if known is None else names.index(known)


@cache
def paper_frame(name: str) -> pd.DataFrame:
    """Return one data file, for example ``paper_results``, all as printed but for empty cells."""
    import pandas as pd

    with files("tracking").joinpath("data", f"{name}.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file, dtype=str).astype(object)


def paper_beside(
    name: str, ours: pd.DataFrame, *, columns: Sequence[str], figures: Sequence[str]
) -> pd.DataFrame:
    """Return `figures` of a data file for each of our rows, in percent; NaN where it has none.

    Parameters
    ----------
    name : str
        The file: ``paper_results``.
    ours : pandas.DataFrame
        Rows with ``model``, ``task`` and `columns`.
    columns : sequence of str
        What else says of which row a figure is, written as the paper does.
    figures : sequence of str
        Columns of the file, where it has them.
    """
    keys = ours[list(columns)].astype(object).map(str)
    keys["model"] = ours["model"].map(paper_model)
    keys["task"] = ours["task"].where(ours["task"].isin(AVERAGES), ours["task"].map(paper_task))
    paper = paper_frame(name).reindex(columns=[*keys, *figures])
    return keys.merge(paper, how="left")[list(figures)].astype(float).set_axis(ours.index)


def paper_rows(
    name: str, *, model: object, task: object = None, shots: object = None
) -> list[dict[Hashable, Any]]:
    """Return the rows of a data file about a model, and about a task and number of shots.

    Parameters
    ----------
    name : str
        The file: ``paper_schemes``.
    model, task, shots : str or int
        In any of the usual spellings.
    """
    frame = paper_frame(name)
    chosen = frame["model"] == paper_model(model)
    if task is not None:
        chosen &= (frame["task"] == paper_task(task)) & (frame["shots"] == str(shots))
    return frame[chosen].to_dict("records")
