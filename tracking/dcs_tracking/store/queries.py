"""Cells of an output folder, with their runs; and what commands ask of a store besides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcs.errors import TrackingError, unknown
from dcs.evaluation.metrics import metric_of
from dcs_tracking import schema
from dcs_tracking.archive import Archive, Sweep
from dcs_tracking.records import StoredCell
from dcs_tracking.results.cells import MEASURES
from dcs_tracking.store import views
from dcs_tracking.store.client import open_store, resolve_tracking_uri, search_runs, store_name

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient

_IDENTITY = (*schema.IDENTITY_TAGS, *schema.SETTING_TAGS)

# These metrics are columns even if no cell has finished: notebooks access them by name.
FIGURES = tuple(f"test/{name}" for name in MEASURES)

_RUN = ("run_id", "cell_key", "status", "name", "sweep", "experiment_id")

CELL_COLUMNS = (*_RUN, *_IDENTITY, "started", "seconds", *FIGURES)

_TYPES = {"started": "datetime64[ms, UTC]"} | dict.fromkeys(("seconds", *FIGURES), "float64")


def cells(
    output: Path | str, sweep: str | None = None, *, tracking_uri: str | None = None
) -> pd.DataFrame:
    """Return the cells of an output folder, one row each, oldest first.

    Parameters
    ----------
    output : path or str
        Output folder of the sweeps.
    sweep : str, optional
        Name of a sweep; by default all of the folder.
    tracking_uri : str, optional
        Store whose runs are meant; see `store_of`. It is not asked: the folder knows which cells
        are recorded where.

    Returns
    -------
    pandas.DataFrame
        ``run_id``, ``cell_key``, ``status``, ``name``, ``sweep``, ``experiment_id``, ``model``,
        ``task``, ``shots``, ``seed``, ``method``, ``objective``, ``optimization_size``,
        ``started``, ``seconds``, ``test/accuracy``, ``test/cobias``, even without any cell; then
        the other metrics of the cells, such as the bounds of the 95 % interval
        ``test/accuracy_low`` and ``test/accuracy_high`` and the p-value ``test/accuracy_p`` of no
        difference to uncorrected; and their parameters as ``params.<name>``. A cell that is not
        known to be recorded in the store has no ``run_id``.

    Raises
    ------
    dcs.errors.ConfigError
        Raised if the folder has no sweep of this name.
    dcs.errors.TrackingError
        Raised if the folder has no sweep at all.
    """
    import pandas as pd

    frame = pd.DataFrame([_row(*each) for each in _stored(output, sweep, tracking_uri)])
    others = [name for name in frame if name not in CELL_COLUMNS]
    # The types must not depend on the number of rows.
    return frame.reindex(columns=[*CELL_COLUMNS, *others]).astype(_TYPES)


def _stored(
    output: Path | str, name: str | None, tracking_uri: str | None
) -> list[tuple[Sweep, StoredCell]]:
    """Return the cells of the sweeps of a name, and the sweep of each."""
    archive = Archive(output)
    names = list(dict.fromkeys(sweep.experiment for sweep in archive.sweeps()))
    if not names:
        raise TrackingError(
            f"{archive.output}: contains no sweep, and results are read from the output folder; "
            "check --runs, or run dcs quickstart, dcs tune or dcs sweep first"
        )
    if name not in (None, *names):
        raise unknown(f"sweep in {archive.output}:", name, names)
    return archive.stored(name, store_name(store_of(output, tracking_uri, name), output))


def store_of(output: Path | str, tracking_uri: str | None = None, name: str | None = None) -> str:
    """Return the URI of the store of an output folder; a password in it is not known.

    By default it is the one that all sweeps of the folder, or of a name, were recorded in.
    """
    if tracking_uri is None:
        sweeps = (each for each in Archive(output).sweeps() if name in (None, each.experiment))
        stores = {sweep.tracking_uri for sweep in sweeps}
        tracking_uri = stores.pop() if len(stores) == 1 else None
    return resolve_tracking_uri(tracking_uri, output)


def _row(sweep: Sweep, cell: StoredCell) -> dict[str, Any]:
    record = cell.record
    params = schema.as_params(views.cell_params(record, sweep.varied))
    identity = views.identity_of(record)
    return {
        **record.metrics,
        **{f"params.{name}": value for name, value in params.items()},
        "run_id": cell.run_id,
        "cell_key": record.key,
        "status": record.status,
        "name": views.cell_name(record, sweep.varied),
        "sweep": sweep.experiment,
        "experiment_id": cell.experiment_id,
        **{name: identity.get(name) for name in _IDENTITY},
        "started": record.started_ms,
        "seconds": (record.finished_ms - record.started_ms) / 1000,
    }


def best_first(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return cells sorted by a metric or another column, missing values last.

    Accuracies, F1 and scores are sorted in descending order, all others, such as COBias and
    seconds, in ascending order.
    """
    import pandas as pd

    if name not in frame:
        known = [str(each) for each in frame if not str(each).startswith("params.")]
        raise unknown("column", name, known)
    numbers = pd.to_numeric(frame[name], errors="coerce")
    # Tags and parameters are strings, even if their values are numbers.
    values = numbers if numbers.notna().any() else frame[name]
    metric = metric_of(name)
    ascending = metric is None or not metric.maximize
    return frame.loc[values.sort_values(ascending=ascending, kind="stable").index]


def stored_cells(
    output: Path | str, sweep: str, *, tracking_uri: str | None = None
) -> list[StoredCell]:
    """Return the finished and failed cells of a sweep, oldest first, without search and scheme.

    Parameters and errors are those of `cells`; a sweep without cells is a `TrackingError`, too.
    """
    found = [cell for _, cell in _stored(output, sweep, tracking_uri)]
    if not found:
        raise TrackingError(f"sweep {sweep!r} has no finished cells; run it again")
    return found


def find_cell(output: Path | str, name: str, *, tracking_uri: str | None = None) -> StoredCell:
    """Return the cell with a user-specified name.

    Parameters
    ----------
    output, tracking_uri
        As in `cells`.
    name : str
        A cell key or run id, or a prefix of one; or the name of a run.

    Raises
    ------
    dcs.errors.TrackingError
        Raised if no cell or several cells match.
    """
    # Several sweeps may have the same cell, with the same record.
    named: dict[str, StoredCell] = {}
    for sweep, cell in _stored(output, None, tracking_uri):
        begins = any(own and own.startswith(name) for own in (cell.record.key, cell.run_id))
        if name and (begins or views.cell_name(cell.record, sweep.varied) == name):
            named[cell.record.key] = cell
    if not named:
        raise TrackingError(f"run {name!r}: no cell has this key, run id or name; see `dcs runs`")
    if len(named) > 1:
        known = ", ".join(f"{key} ({cell.run_id})" for key, cell in [*named.items()][:5])
        raise TrackingError(
            f"run {name!r}: {len(named)} cells have this key, run id or name ({known}); "
            "`dcs runs` lists all of them"
        )
    (cell,) = named.values()
    return replace(cell, record=Archive(output).read(cell.record.key))


def delete_runs(client: MlflowClient, experiment_ids: Iterable[str], where: str) -> int:
    """Delete the runs that match a filter, and their models; return their number.

    MLflow keeps deleted runs until `mlflow gc`.
    """
    runs = list(search_runs(client, experiment_ids, where))
    for run in runs:
        of_run = f"source_run_id = '{run.info.run_id}'"
        for model in client.search_logged_models([run.info.experiment_id], of_run):
            client.delete_logged_model(model.model_id)
        client.delete_run(run.info.run_id)
    return len(runs)


def newest_links(tracking_uri: str, ui: str) -> dict[str, str]:
    """Return the URLs at `ui` of the views of the newest sweep of a store, by name."""
    newest_first = ["creation_time DESC"]
    for experiment in open_store(tracking_uri).search_experiments(order_by=newest_first):
        if links := views.view_links(experiment.experiment_id, experiment.tags, f"{ui}/#"):
            return links
    return {}
