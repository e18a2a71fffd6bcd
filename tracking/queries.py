"""What a store holds of an experiment, as tidy tables: three lines in a notebook.

from tracking import queries
cells = queries.cells("sqlite:////runs/mlflow.db", "quickstart")
cells.pivot_table(index="task", columns="method", values="test/accuracy")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dcs.errors import TrackingError
from dcs.scheme import CorrectionScheme
from tracking import schema
from tracking._lookup import artifact_text, open_experiment, search_runs
from tracking.records import KEY_PATTERN
from tracking.stores import quietly
from tracking.tables import CORRECTION_COLUMNS, CORRECTION_NUMBERS

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.entities import Run

__all__ = ["cells", "schemes", "trials"]

_IDENTITY = (*schema.IDENTITY_TAGS, *schema.SETTING_TAGS)
_TIMES = ("started", "seconds")
# The figures that a notebook asks for by name, also where no cell has finished.
_FIGURES = ("test/accuracy", "test/cobias")
CELL_COLUMNS = ("run_id", "cell_key", "status", *_IDENTITY, *_TIMES, *_FIGURES)
TRIAL_COLUMNS = ("run_id", "cell_key", "status", "trial", "state", *_TIMES)
SCHEME_COLUMNS = ("run_id", "cell_key", *_IDENTITY, *CORRECTION_COLUMNS)
_TYPES = {"started": "datetime64[ms, UTC]", "trial": "int64"} | dict.fromkeys(
    ("seconds", *_FIGURES, *CORRECTION_NUMBERS), "float64"
)


def cells(tracking_uri: str, experiment: str) -> pd.DataFrame:
    """Return the cells of an experiment, one row each, oldest first.

    Parameters
    ----------
    tracking_uri : str
        The store.
    experiment : str
        Name of the experiment (the sweep).

    Returns
    -------
    pandas.DataFrame
        ``run_id``, ``cell_key``, ``status``, ``model``, ``task``, ``shots``, ``seed``,
        ``method``, ``objective``, ``optimization_size``, ``started``, ``seconds``,
        ``test/accuracy``, ``test/cobias``, also where there are no cells; then whatever the cells
        have of other metrics, such as the ends of 95 % intervals ``test/accuracy_low`` and
        ``test/accuracy_high`` and the chance ``test/accuracy_p`` of no difference to ICL, and of
        parameters as ``params.<name>``. The last values of annealing traces are left out.

    Raises
    ------
    dcs.errors.TrackingError
        When there is no such experiment, it was deleted, or the store cannot be opened.
    """
    client, experiment_id = open_experiment(tracking_uri, experiment)
    where = f"tags.`{schema.KIND}` = '{schema.KIND_CELL}'"
    return _frame(
        [
            {
                **_head(run),
                **_identity(run),
                **_times(run),
                **_values(run),
            }
            for run in search_runs(client, experiment_id, where)
        ],
        CELL_COLUMNS,
    )


def trials(tracking_uri: str, experiment: str, *, cell_key: str | None = None) -> pd.DataFrame:
    """Return the trials of an experiment that have runs of their own, one row each.

    Parameters
    ----------
    tracking_uri, experiment : str
        As for `cells`.
    cell_key : str, optional
        Only the trials of one cell.

    Returns
    -------
    pandas.DataFrame
        ``run_id``, ``cell_key``, ``status``, ``trial``, ``state``, ``started``, ``seconds``,
        also where there are no trials; then metrics and ``params.<name>``. Where a sweep gave no
        runs to its trials, the artifact ``trials.json`` of each cell has them all.

    Raises
    ------
    dcs.errors.TrackingError
        When there is no such experiment, it was deleted, or the store cannot be opened.
    """
    client, experiment_id = open_experiment(tracking_uri, experiment)
    where = f"tags.`{schema.KIND}` = '{schema.KIND_TRIAL}'"
    if cell_key is not None:
        if not KEY_PATTERN.fullmatch(cell_key):
            raise TrackingError(f"cell key {cell_key!r} is not one; take it from `cells`")
        where += f" and tags.`{schema.CELL_KEY}` = '{cell_key}'"
    return _frame(
        [
            {
                **_head(run),
                "trial": int(run.data.tags[schema.TRIAL_NUMBER]),
                "state": run.data.tags.get(schema.TRIAL_STATE),
                **_times(run),
                **_values(run),
            }
            for run in search_runs(client, experiment_id, where)
            # Those that somebody else tagged so are none of ours.
            if schema.TRIAL_NUMBER in run.data.tags
        ],
        TRIAL_COLUMNS,
    )


def schemes(tracking_uri: str, experiment: str) -> pd.DataFrame:
    """Return the correction schemes of an experiment, one row per cell and class.

    Parameters
    ----------
    tracking_uri, experiment : str
        As for `cells`.

    Returns
    -------
    pandas.DataFrame
        ``run_id``, ``cell_key``, ``model``, ``task``, ``shots``, ``seed``, ``method``,
        ``objective``, ``optimization_size``, ``class``, ``kind``, ``value``, ``a``, ``b``, ``c``,
        ``name``.

    Raises
    ------
    dcs.errors.TrackingError
        When there is no such experiment, it was deleted, or the store cannot be opened.
    """
    client, experiment_id = open_experiment(tracking_uri, experiment)
    where = f"tags.`{schema.KIND}` = '{schema.KIND_CELL}' and attributes.status = 'FINISHED'"
    rows = []
    for run in search_runs(client, experiment_id, where):
        with quietly():
            names = {item.path for item in client.list_artifacts(run.info.run_id)}
        if schema.SCHEME_FILE not in names:
            continue
        source = f"{schema.SCHEME_FILE} of run {run.info.run_id}"
        scheme = CorrectionScheme.from_json(
            artifact_text(client, run, schema.SCHEME_FILE), source=source
        )
        head = _head(run)
        del head["status"]
        for correction in scheme.to_dict()["corrections"]:
            values = {name: correction.get(name) for name in CORRECTION_COLUMNS}
            rows.append({**head, **_identity(run), **values})
    return _frame(rows, SCHEME_COLUMNS)


def _head(run: Run) -> dict[str, Any]:
    return {
        "run_id": run.info.run_id,
        "cell_key": run.data.tags.get(schema.CELL_KEY),
        "status": run.info.status,
    }


def _identity(run: Run) -> dict[str, str | None]:
    return {name: run.data.tags.get(f"dcs.{name}") for name in _IDENTITY}


def _times(run: Run) -> dict[str, Any]:
    import pandas as pd

    start, end = run.info.start_time, run.info.end_time
    return {
        "started": pd.Timestamp(start, unit="ms", tz="UTC"),
        "seconds": None if end is None else (end - start) / 1000,
    }


def _values(run: Run) -> dict[str, Any]:
    metrics = {
        name: value
        for name, value in run.data.metrics.items()
        if not name.startswith(schema.TRACE_PREFIX)
    }
    return metrics | {f"params.{name}": value for name, value in run.data.params.items()}


def _frame(rows: list[dict[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """Return rows with at least `columns`, of the types that they have where there are rows."""
    import pandas as pd

    others = dict.fromkeys(name for row in rows for name in row if name not in columns)
    frame = pd.DataFrame(rows, columns=[*columns, *others])
    return frame.astype({name: kind for name, kind in _TYPES.items() if name in columns})
