"""The published figures, and the mapping of model and task names to those of the paper."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from dcs_tracking.records import UNCORRECTED

if TYPE_CHECKING:
    import pandas as pd

#: Short titles in the paper's tables.
_TITLES: Final = {
    "agnews": "AGN",
    "dbpedia": "DBP",
    "sst5": "SST",
    "trec": "TREC",
    "rte": "RTE",
    "ddi": "DDI",
    "pubmedqa": "PMQA",
}
TASKS: Final = tuple(_TITLES)
"""The paper's tasks, in the paper's order."""

AVERAGE: Final = "average_all"
"""The paper's name of the average over its tasks."""

#: Names of tasks in lower case, letters and digits only.
_NAMES: Final = {
    **{name: name for name in _TITLES},
    **{title.lower(): name for name, title in _TITLES.items()},
    "dbpedia14": "dbpedia",
}
# Base models only: a chat or instruction-tuned variant is a different model.
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
    return _NAMES.get(re.sub(r"@.*|[^a-z0-9]", "", str(task).lower()))


def task_title(task: object) -> str:
    """Return the short title from the paper's tables, or the name itself."""
    return _TITLES.get(paper_task(task) or "", str(task))


def task_rank(task: object) -> int:
    """Return the position of a task in the paper's order; other tasks come last."""
    known = paper_task(task)
    return len(TASKS) if known is None else TASKS.index(known)


@cache
def paper_frame(name: str) -> pd.DataFrame:
    """Return a data file such as ``paper_results``, with text as printed and NaN if empty."""
    import pandas as pd

    with files("dcs_tracking").joinpath("data", f"{name}.csv").open(encoding="utf-8") as file:
        return (
            pd.read_csv(file, dtype=str).astype(object).replace({"method": {"icl": UNCORRECTED}})
        )


@cache
def paper_results() -> pd.DataFrame:
    """Return the published figures of methods and objective terms, as fractions.

    Returns
    -------
    pandas.DataFrame
        ``model``, ``shots``, ``task``, ``method``, ``terms``; ``accuracy`` and ``cobias``, and
        their standard deviations (``_sd``).
    """
    import pandas as pd

    ablation = paper_frame("paper_ablation").rename(columns={"objective": "terms"})
    ablation = ablation[ablation["terms"] != "full"].assign(method="dcs")
    main = paper_frame("paper_results").assign(terms="full")
    frame = pd.concat([main, ablation], ignore_index=True)
    for measure in ("accuracy", "cobias"):
        own = [measure, f"{measure}_sd"]
        frame[own] = frame[own].astype(float) / 100
    return frame


def paper_beside(theirs: pd.DataFrame, ours: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return the published figures for each of our rows as ``paper_...``; NaN if there are none.

    Parameters
    ----------
    theirs : pandas.DataFrame
        Published rows.
    ours : pandas.DataFrame
        Rows with ``model``, ``task`` and `columns`.
    columns : sequence of str
        Further columns that identify a row, with values in the paper's notation.
    """
    keys = ours[list(columns)].astype(object).map(str)
    keys["model"] = ours["model"].map(paper_model)
    keys["task"] = ours["task"].where(ours["task"] == AVERAGE, ours["task"].map(paper_task))
    found = keys.merge(theirs, how="left").drop(columns=[*keys])
    return found.add_prefix("paper_").set_axis(ours.index)
