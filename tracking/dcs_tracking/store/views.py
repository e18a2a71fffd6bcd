"""What MLflow's UI shows of a sweep: names, notes and colors of runs, saved views and their links.

Views and colors are what MLflow's own pages write (the buttons *Views*, *Share* and the color of a
run) and no public interface. A version of MLflow that does not understand them shows its own
charts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from dcs.evaluation.uncertainty import percent
from dcs.schemes.scheme import CorrectionScheme
from dcs_tracking import schema
from dcs_tracking.records import CellRecord
from dcs_tracking.results.settings import NONE_LABELS, own_settings

#: Tag of an experiment of MLflow's pages for model training, and the same in links: without it,
#: they open the pages for language models.
EXPERIMENT_KIND: Final = {"mlflow.experimentKind": "custom_model_development"}
CLASSICAL: Final = "workflowType=machine_learning"

#: Tag of a view, which ends with its key: that of a group, or `_CELLS`.
VIEW: Final = "mlflow.sharedViewState.dcs."
_CELLS: Final = "cells"
_NAMES: Final = {"method": "methods", _CELLS: "all cells"}

#: Tag of a run.
COLOR: Final = "mlflow.runColor"
#: Number of runs that MLflow loads. Of more, it would group those with the least COBias.
MAX_RUNS: Final = 100
#: Number of characters of the name of a run that MLflow shows in its list.
_SHOWN = 20
#: Number of characters of a tag of an experiment that MLflow accepts.
_LONGEST: Final = 20_000
#: Maximum number of tasks with a chart of their own.
_MAX_TASKS: Final = 12


def cell_name(record: CellRecord, varied: Collection[str] = ()) -> str:
    """Return the run name of a cell.

    It has no quotes, so that it can be used in a filter.

    Parameters
    ----------
    record : CellRecord
        The cell.
    varied : collection of str
        What the sweep varies. The name begins with it, shortened to the number of characters
        that MLflow shows, and then has all of it in parentheses.
    """
    forms = {"method": "{}", "task": "{}", "shots": "{}-shot", "seed": "seed {}", "model": "{}"}
    who = record.who
    if who["model"] is not None:  # The last part of a path or of a name on the hub.
        who["model"] = str(who["model"]).rstrip("/").rpartition("/")[2]
    words = {key: form.format(who[key]) for key, form in forms.items() if who[key] is not None}
    name = " ".join(dict.fromkeys(words.values())) or record.key
    settings = own_settings(record, varied)
    short = {**words, **settings, "seed": f"s{who['seed']}"}
    words |= {key: f"{key.replace('_', ' ')} {value}" for key, value in settings.items()}
    own = [key for key in (*forms, *settings) if key in varied and key in words]
    if own:
        begin = " ".join(_shortened([short[key] for key in own]))
        full = [words[key] for key in own]
        name = begin if begin == " ".join(full) else f"{begin} ({', '.join(full)})"
    return schema.shorten(name.replace("'", "’"), schema.NAME_LIMIT)


def _shortened(texts: Sequence[str]) -> list[str]:
    """Shorten texts, and the words in them, so that together they have few characters."""
    left, result = _SHOWN - len(texts) + 1, dict.fromkeys(range(len(texts)), "")
    for number, place in enumerate(sorted(result, key=lambda place: len(texts[place]))):
        width = max(2, left // (len(texts) - number))
        words = re.split(r"[-_ ]+", texts[place])
        each = max(1, (width + 1) // len(words) - 1)
        whole = len(texts[place]) <= width
        result[place] = texts[place] if whole else "-".join(w[:each] for w in words)[:width]
        left -= len(result[place])
    return [result[place].rstrip("-") for place in range(len(texts))]


def cell_note(record: CellRecord) -> str:
    """Return the description of a cell: its result and scheme in words, or its error."""
    if record.error is not None:
        return f"```text\n{record.error}\n```"
    lines = [
        f"{title}: {percent(record.metrics.get(f'uncorrected/test/{name}'))} % of the test rows "
        f"uncorrected, {percent(record.metrics.get(f'test/{name}'))} % corrected."
        for name, title in (("accuracy", "Accuracy"), ("cobias", "COBias"))
    ]
    if record.scheme is not None:
        lines += CorrectionScheme.from_dict(record.scheme).explain()
    return "\n".join(f"- {line}" for line in lines)


def identity_of(record: CellRecord, varied: Collection[str] = ()) -> dict[str, str]:
    """Return what distinguishes the cell of a sweep, by the tags of its run without prefix."""
    own = {key: value for key, value in record.who.items() if value is not None}
    settings = own_settings(record, (*varied, *schema.SETTING_TAGS))
    settings.setdefault(schema.OPTIMIZATION_SIZE, NONE_LABELS[schema.OPTIMIZATION_SIZE])
    return {key: schema.shorten(value, schema.TAG_LIMIT) for key, value in own.items()} | settings


def cell_params(record: CellRecord, varied: Collection[str]) -> dict[str, Any]:
    """Return the parameters of a cell, named so that MLflow compares first what is varied."""
    known = {k: v for k, v in record.identity.items() if not k.endswith("digest")}
    settings = own_settings(record, [*varied, schema.OBJECTIVE])
    winner = {f"winner.{name}": value for name, value in record.params.items()}
    return {**known, **settings, "method": record.who["method"], **winner}


def group_names(varied: Collection[str]) -> dict[str, str]:
    """Return the tags that views group by, and what is varied between the groups of each."""
    axes = [name for name in varied if name not in ("method", "task")]
    return {"method": "method", **{f"by_{name}": name for name in axes}}


def group_tags(record: CellRecord, varied: Collection[str]) -> dict[str, str]:
    """Return the tags that views group by: the method, and with it what the sweep varies.

    Methods without a setting, such as uncorrected, are one group. Tables of several seeds that are
    fitted jointly have the seed ``all``: the seed of the cell is that of the first.
    """
    method = str(record.who["method"])
    known = {**record.who, **own_settings(record, varied), "method": None}
    rows = record.provenance.get("tables", {}).get("optimization", {})
    if rows.get("tables", 1) > 1 and "demonstration_seed" not in rows:
        known["seed"] = "all"
    return {
        tag: f"{known[name]} {method}" if known.get(name) is not None else method
        for tag, name in group_names(varied).items()
    }


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
    found: dict[str, str] = {}
    for place, key in enumerate([*groups, _CELLS]):
        tag, own = (key, groups[key]) if key in groups else ("", ())
        where = {schema.KIND: schema.KIND_CELL}
        if averaged and tag:
            where = {schema.KIND: schema.KIND_MEAN, schema.MEAN_OF: tag}
        # MLflow lists the newest first.
        about = {"name": _NAMES.get(key, key.replace("_", " ")), "createdAt": -place}
        # Where names are too long, groups are shown open, and then without charts of tasks.
        for shown, values in ((tasks, own), (tasks, ()), ((), ())):
            state = _state(columns, shown, where, tag, values)
            found[f"{VIEW}{key}"] = view = json.dumps({**about, "state": state})
            if len(view) <= _LONGEST:
                break
    return found


def _state(
    columns: Iterable[str],
    tasks: Sequence[str],
    where: Mapping[str, str],
    tag: str = "",
    values: Iterable[str] = (),
) -> str:
    """Return the state of a page: charts of runs, grouped by a tag, and the table."""
    accuracy, cobias, *others = schema.SHOWN_METRICS
    charts: list[dict[str, Any]] = [
        _scatter("results", cobias, accuracy),
        *({"type": "BAR", "metricKey": name} for name in (cobias, *others)),
    ]
    by_task = [[schema.task_metric(name, task) for name in (cobias, accuracy)] for task in tasks]
    charts += [_scatter("tasks", *names) for names in by_task[:_MAX_TASKS]]
    common = {"deleted": False, "isGenerated": False}
    basis = {"metricSectionId": "results", "runsCountToCompare": 100, **common}
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
            {"uuid": str(number), **basis, **chart} for number, chart in enumerate(charts)
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
    axes = {"xaxis": {"key": x, "type": "METRIC"}, "yaxis": {"key": y, "type": "METRIC"}}
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
    views = {tag: json.loads(tags[tag]) for tag in tags if tag.startswith(VIEW)}
    query = f"runs?{CLASSICAL}&compareRunsMode=CHART&viewStateShareKey=dcs."
    return {
        view["name"]: f"{base}/experiments/{experiment_id}/{query}{tag.removeprefix(VIEW)}"
        for tag, view in sorted(views.items(), key=lambda item: -item[1]["createdAt"])
    }
