"""The pages on which MLflow's UI shows a sweep: its saved views, links to them, colors of runs.

All of this is what MLflow's own pages write (the buttons *Views*, *Share* and the color of a run)
and no public interface. A version of MLflow that does not understand it shows its own charts.
"""

from __future__ import annotations

import json
from binascii import crc32
from collections.abc import Iterable, Mapping, Sequence
from colorsys import hls_to_rgb
from typing import Any, Final

from dcs.selection.methods import method_names
from dcs_tracking import schema
from dcs_tracking.records import UNCORRECTED

#: Tag of an experiment of MLflow's pages for model training, and the same in links: without it,
#: they open the pages for language models.
EXPERIMENT_KIND: Final = {"mlflow.experimentKind": "custom_model_development"}
CLASSICAL: Final = "workflowType=machine_learning"

#: Tag of a view, which ends with its key: that of a group, or `_CELLS`.
_VIEW: Final = "mlflow.sharedViewState.dcs."
_CELLS: Final = "cells"
_NAMES: Final = {"method": "methods", _CELLS: "all cells"}

#: Tag of a run.
COLOR: Final = "mlflow.runColor"
#: Number of runs that MLflow loads. Of more, it would group those with the least COBias.
MAX_RUNS: Final = 100
#: Maximum number of tasks with a chart of their own.
_MAX_TASKS: Final = 12


def color_of(method: str) -> str:
    """Return the color of the runs of a method."""
    known = [UNCORRECTED, *method_names(peers=True)]
    place = known.index(method) if method in known else crc32(method.encode())
    # Multiples of the golden ratio are hues far from each other.
    shades = hls_to_rgb(place * 0.618034 % 1.0, 0.45, 0.6)
    return "#" + "".join(f"{round(255 * shade):02x}" for shade in shades)


def view_tags(
    columns: Iterable[str],
    groups: Mapping[str, Iterable[str]],
    tasks: Sequence[str],
    *,
    averaged: bool,
) -> dict[str, str]:
    """Return the tags of the views of an experiment.

    Parameters
    ----------
    columns : iterable of str
        Tags to show as columns of the table, without their prefix.
    groups : mapping of str to iterable of str
        The tags to group by in a view of their own, without their prefix, and their values.
    tasks : sequence of str
        Tasks with a chart of their own; empty for a single task.
    averaged : bool
        Whether to show a run of the means of each group instead of the cells in it.
    """
    cells = {schema.KIND: schema.KIND_CELL}
    where = {
        tag: {schema.KIND: schema.KIND_MEAN, schema.MEAN_OF: tag} if averaged else cells
        for tag in groups
    }
    states = {tag: _state(columns, tasks, where[tag], tag, own) for tag, own in groups.items()}
    states[_CELLS] = _state(columns, tasks, cells)
    return {
        f"{_VIEW}{key}": json.dumps(
            # MLflow lists the newest first.
            {"name": _NAMES.get(key, key.replace("_", " ")), "createdAt": -place, "state": state}
        )
        for place, (key, state) in enumerate(states.items())
    }


def _state(
    columns: Iterable[str],
    tasks: Sequence[str],
    where: Mapping[str, str],
    tag: str = "",
    values: Iterable[str] = (),
) -> str:
    """Return the state of a page: charts of runs, grouped by a tag, and the table."""
    accuracy, cobias, weakest = schema.SHOWN_METRICS
    charts: list[dict[str, Any]] = [
        _scatter("results", cobias, accuracy),
        *({"type": "BAR", "metricKey": name} for name in (cobias, weakest)),
    ]
    by_task = [[schema.task_metric(name, task) for name in (cobias, accuracy)] for task in tasks]
    charts += [_scatter("tasks", *names) for names in by_task[:_MAX_TASKS]]
    common = {"deleted": False, "isGenerated": False}
    sections = {"results": "Means over tasks and seeds" if tag else "Cells"}
    sections |= {"tasks": "By task"} if tasks else {}
    state: dict[str, Any] = {
        "searchFilter": schema.tagged(where),
        # Sorted by start time, MLflow would collapse the cells under the sweep.
        "orderByKey": f"metrics.`{cobias}`",
        "orderByAsc": True,
        "runsHiddenMode": "SHOW_ALL",
        "selectedColumns": [
            *(f"metrics.`{name}`" for name in schema.SHOWN_METRICS),
            *(f"tags.`dcs.{name}`" for name in columns),
        ],
        # Otherwise MLflow sorts the sections by name, and its own come first.
        "isAccordionReordered": True,
        "compareRunCharts": [
            {"uuid": str(number), "metricSectionId": "results", "runsCountToCompare": 100}
            | common
            | chart
            for number, chart in enumerate(charts)
        ],
        "compareRunSections": [
            {"uuid": key, "name": name, "display": True, "isReordered": False, **common}
            for key, name in sections.items()
        ],
    }
    if tag:
        key = {"mode": "tag", "groupByData": f"dcs.{tag}"}
        state["groupBy"] = {"aggregateFunction": "average", "groupByKeys": [key]}
        # The list of groups is the legend of the charts.
        state["groupsExpanded"] = {f"tag.dcs.{tag}.{value}": False for value in values}
    return json.dumps(state)


def _scatter(section: str, x: str, y: str) -> dict[str, Any]:
    axes = {
        f"{name}axis": {"key": key, "type": "METRIC"} for name, key in {"x": x, "y": y}.items()
    }
    return {"type": "SCATTER", "metricSectionId": section, **axes}


def view_links(experiment_id: str, tags: Mapping[str, str], base: str = "#") -> dict[str, str]:
    """Return the URLs of the views of an experiment by name, that of methods first.

    Parameters
    ----------
    experiment_id : str
        Id of the experiment.
    tags : mapping of str to str
        Its tags.
    base : str, optional
        Address of the UI, as of `dcs_tracking.store.client.pages`; by default links work within
        the UI.
    """
    views = {tag: json.loads(tags[tag]) for tag in tags if tag.startswith(_VIEW)}
    query = f"runs?{CLASSICAL}&compareRunsMode=CHART&viewStateShareKey=dcs."
    return {
        view["name"]: f"{base}/experiments/{experiment_id}/{query}{tag.removeprefix(_VIEW)}"
        for tag, view in sorted(views.items(), key=lambda item: -item[1]["createdAt"])
    }
