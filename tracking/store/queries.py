"""Whole cells read back from a store, with the runs that hold them."""

from __future__ import annotations

import operator
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcs.errors import ConfigError, TrackingError, listing, one_line, unknown
from tracking import schema
from tracking.records import Archive, CellRecord, StoredCell
from tracking.results.frames import ordered
from tracking.store.client import (
    cells_link,
    open_experiment,
    open_store,
    search_runs,
)

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Run

_IDENTITY = (*schema.IDENTITY_TAGS, *schema.SETTING_TAGS)

# The figures that a notebook asks for by name, also where no cell has finished.
_FIGURES = ("test/accuracy", "test/cobias")

_RUN = ("run_id", "cell_key", "status", "name", "sweep", "experiment_id")

CELL_COLUMNS = (*_RUN, *_IDENTITY, "started", "seconds", *_FIGURES)

_TYPES = {"started": "datetime64[ms, UTC]"} | dict.fromkeys(("seconds", *_FIGURES), "float64")

_CELLS = schema.tagged({schema.KIND: schema.KIND_CELL})

_CONDITION = re.compile(r"(?P<name>[^<>=!]+)(?P<sign><=|>=|!=|=|<|>)(?P<value>.*)")
_SIGNS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
_SIGNS |= {"=": operator.eq, "!=": operator.ne}

# Shares of rows, and the metrics of which more is better.
_MORE = re.compile(r"/class_accuracy/|(accuracy|f1|class|score)(_low|_high)?$")
_SHARE = re.compile(rf"{_MORE.pattern}|cobias(_low|_high)?$")


def cells(tracking_uri: str, experiment: str | None = None) -> pd.DataFrame:
    """Return the cells of an experiment, one row each, oldest first.

    Parameters
    ----------
    tracking_uri : str
        The store.
    experiment : str, optional
        Name of the experiment (the sweep); by default all of the store.

    Returns
    -------
    pandas.DataFrame
        ``run_id``, ``cell_key``, ``status``, ``name``, ``sweep``, ``experiment_id``, ``model``,
        ``task``, ``shots``, ``seed``, ``method``, ``objective``, ``optimization_size``,
        ``started``, ``seconds``,
        ``test/accuracy``, ``test/cobias``, also where there are no cells; then whatever the cells
        have of other metrics, such as the ends of 95 % intervals ``test/accuracy_low`` and
        ``test/accuracy_high`` and the chance ``test/accuracy_p`` of no difference to uncorrected,
        and of parameters as ``params.<name>``. The last values of annealing traces are left out.

    Raises
    ------
    dcs.errors.TrackingError
        When there is no such experiment, it was deleted, or the store cannot be opened.
    """
    import pandas as pd

    if experiment is None:
        runs = _search_all(open_store(tracking_uri), _CELLS)
    else:
        runs = _each_once(search_runs(*open_experiment(tracking_uri, experiment), _CELLS))
    frame = pd.DataFrame([_row(run) for run in runs])
    others = [name for name in frame if name not in CELL_COLUMNS]
    # Of the same types without any row.
    return frame.reindex(columns=[*CELL_COLUMNS, *others]).astype(_TYPES)


def _row(run: Run) -> dict[str, Any]:
    tags, start, end = run.data.tags, run.info.start_time, run.info.end_time
    metrics = run.data.metrics.items()
    return {
        **{name: value for name, value in metrics if not name.startswith(schema.TRACE_PREFIX)},
        **{f"params.{name}": value for name, value in run.data.params.items()},
        "run_id": run.info.run_id,
        "cell_key": tags.get(schema.CELL_KEY),
        "status": run.info.status,
        "name": run.info.run_name,
        "sweep": tags.get(schema.SWEEP),
        "experiment_id": str(run.info.experiment_id),
        **{name: tags.get(f"dcs.{name}") for name in _IDENTITY},
        "started": start,
        "seconds": None if end is None else (end - start) / 1000,
    }


def _search_all(client: MlflowClient, where: str) -> list[Run]:
    ids = [str(item.experiment_id) for item in client.search_experiments()]
    runs = [run for each in ids for run in _each_once(search_runs(client, each, where))]
    return sorted(runs, key=lambda run: run.info.start_time)


def matching(frame: pd.DataFrame, conditions: Iterable[str]) -> pd.DataFrame:
    """Return the cells that fulfil conditions such as ``method=dcs`` and ``test/cobias<5``.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `cells`.
    conditions : iterable of str
        A column, one of ``= != < <= > >=``, and a value. Accuracies and COBias are in percent, as
        in tables; so are F1 and scores.

    Raises
    ------
    dcs.errors.ConfigError
        One cannot be read, or there is no such column.
    """
    import pandas as pd

    for text in conditions:
        found = _CONDITION.fullmatch(text)
        if not found:
            raise ConfigError(f"{text!r} is no condition; write e.g. method=dcs or test/cobias<5")
        name, value = found["name"].strip(), found["value"].strip()
        column: Any = _column(frame, name)
        compared: Any = value
        if column.dtype.kind == "f" or found["sign"] not in ("=", "!="):
            column, compared = pd.to_numeric(column, errors="coerce"), _number(value, text)
            compared /= 100 if is_share(name) else 1
        frame = frame[_SIGNS[found["sign"]](column, compared)]
    return frame


def best_first(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return cells by a metric or another column; without a value last.

    Accuracies, F1 and scores count down; all others, such as COBias and seconds, count up.
    """
    import pandas as pd

    column = _column(frame, name)
    numbers = pd.to_numeric(column, errors="coerce")
    # Tags and parameters are texts, also where they are numbers.
    values = numbers if numbers.notna().any() else column
    order = values.sort_values(ascending=not _MORE.search(name), kind="stable")
    return frame.loc[order.index]


def is_share(name: str) -> bool:
    """Whether a metric is a share of rows, which people read in percent."""
    return _SHARE.search(name) is not None


def _column(frame: pd.DataFrame, name: str) -> pd.Series[Any]:
    if name not in frame:
        known = [str(each) for each in frame if not str(each).startswith("params.")]
        raise unknown("column", name, known)
    return frame[name]


def _number(value: str, condition: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"{condition!r}: {value!r} is not a number") from None


def _each_once(runs: Iterable[Run]) -> list[Run]:
    """Return one run of each cell, where several drivers wrote it: a finished one."""
    kept: dict[str, Run] = {}
    rank = defaultdict(lambda: 2, FINISHED=0, FAILED=1)
    for run in runs:
        name = run.data.tags.get(schema.CELL_KEY, run.info.run_id)
        other = kept.setdefault(name, run)
        if rank[run.info.status] < rank[other.info.status]:
            kept[name] = run
    return list(kept.values())


def stored_cells(
    tracking_uri: str, experiment: str, *, archive: Archive | None = None
) -> list[StoredCell]:
    """Return the cells of an experiment, finished and failed, in the order of tables.

    Parameters
    ----------
    tracking_uri : str
        The store.
    experiment : str
        Name of the experiment (the sweep).
    archive : Archive, optional
        Where to look for the records first: reading a file is faster than asking a server.

    Raises
    ------
    dcs.errors.TrackingError
        There is no such experiment, it holds no cells, or the store cannot be opened.
    """
    client, experiment_id = open_experiment(tracking_uri, experiment)
    cells = [
        _stored(client, run, archive)
        for run in _each_once(search_runs(client, experiment_id, _CELLS))
        if run.info.status in ("FINISHED", "FAILED")
    ]
    if not cells:
        raise TrackingError(
            f"experiment {experiment!r} has no finished cells; run `dcs sync` if they are still "
            "to be recorded"
        )
    place = {id(cell.record): cell for cell in cells}
    return [place[id(record)] for record in ordered(cell.record for cell in cells)]


def find_cell(tracking_uri: str, name: str, *, archive: Archive | None = None) -> StoredCell:
    """Return the cell that a person means.

    Parameters
    ----------
    tracking_uri : str
        The store.
    name : str
        A cell key or run id, or how one begins; the name of a run; or ``best:`` with conditions
        of `matching` between commas, of which one may be a metric alone:
        ``best:test/cobias<5,method=dcs`` is the most accurate cell of DCS with a COBias below
        5 %, ``best:test/cobias`` that of the least COBias.
    archive : Archive, optional
        Where to look for the record first.

    Raises
    ------
    dcs.errors.TrackingError
        None or several are meant.
    dcs.errors.ConfigError
        A condition cannot be read.
    """
    client = open_store(tracking_uri)
    kind, _, best = name.partition(":")
    runs = _best(tracking_uri, client, best) if kind == "best" else _named(client, name)
    if len({run.data.tags.get(schema.CELL_KEY) for run in runs}) != 1:
        known = ", ".join(f"{run.info.run_id[:8]} ({run.info.run_name})" for run in runs[:5])
        raise TrackingError(
            f"run {name!r}: {len(runs)} cells are meant ({known}); give more of the key or run id"
            if runs
            else f"run {name!r}: no cell has that key, run id or name; `dcs runs` lists them"
        )
    # A cell of several sweeps is the same in each.
    return _stored(client, runs[-1], archive)


def _best(tracking_uri: str, client: MlflowClient, text: str) -> list[Run]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    conditions = [part for part in parts if _CONDITION.fullmatch(part)]
    measure, *others = [part for part in parts if part not in conditions] or ["test/accuracy"]
    if others:
        raise ConfigError(
            f"best:{text}: one metric is allowed, got {listing([measure, *others])}; write "
            "conditions as method=dcs or test/cobias<5"
        )
    frame = matching(cells(tracking_uri), ["status=FINISHED", *conditions])
    best = best_first(frame, measure).dropna(subset=[measure])["run_id"].iloc[:1]
    return [client.get_run(str(run_id)) for run_id in best]


def _named(client: MlflowClient, name: str) -> list[Run]:
    # What no name holds would be no condition for MLflow either.
    if not name.strip() or "'" in name or not name.isprintable():
        return []
    for where in (
        f"tags.`{schema.CELL_KEY}` LIKE '{name}%'",
        f"attributes.run_id LIKE '{name}%'",
        f"attributes.run_name = '{name}'",
    ):
        if runs := _search_all(client, f"{_CELLS} and {where}"):
            return runs
    return []


def sweep_run(tracking_uri: str, experiment: str) -> Run | None:
    """Return the newest run of the sweep itself."""
    client, experiment_id = open_experiment(tracking_uri, experiment)
    where = schema.tagged({schema.KIND: schema.KIND_SWEEP})
    runs = list(search_runs(client, experiment_id, where))
    return runs[-1] if runs else None


def log_report(tracking_uri: str, experiment: str, page: str) -> Run | None:
    """Keep a report with the newest run of its sweep, and return that; None if there is none."""
    run = sweep_run(tracking_uri, experiment)
    if run is not None:
        open_store(tracking_uri).log_text(run.info.run_id, page, schema.REPORT_FILE)
    return run


def newest_link(tracking_uri: str, ui: str) -> str:
    """Return the page at `ui` with the cells of the newest sweep of a store, or `ui` itself."""
    newest_first = ["creation_time DESC"]
    for experiment in open_store(tracking_uri).search_experiments(order_by=newest_first):
        if experiment.tags.keys() >= schema.EXPERIMENT_TAGS.keys():
            return cells_link(tracking_uri, experiment.experiment_id, ui=ui)
    return ui


def _stored(client: MlflowClient, run: Run, archive: Archive | None) -> StoredCell:
    tags, run_id = run.data.tags, str(run.info.run_id)
    key = tags.get(schema.CELL_KEY, "")
    record = archive.load([key]).get(key) if archive else None
    if record is None or record.digest != tags.get(schema.RECORD_DIGEST):
        record = _downloaded(client, run_id)
    return StoredCell(record, run_id, str(run.info.experiment_id))


def _downloaded(client: MlflowClient, run_id: str) -> CellRecord:
    source = f"{schema.CELL_FILE} of run {run_id}"
    try:
        with tempfile.TemporaryDirectory(prefix="dcs-") as folder:
            path = client.download_artifacts(run_id, schema.CELL_FILE, folder)
            return CellRecord.from_json(Path(path).read_text(encoding="utf-8"), source=source)
    except Exception as error:  # MLflow, requests, the disk, the record: all mean the same to us.
        raise TrackingError(
            f"{source} cannot be read ({one_line(error)}); give --runs with the folder of the "
            "sweep's results, or delete the run in MLflow"
        ) from error
