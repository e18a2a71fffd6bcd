"""Read the studies of sweeps back from MLflow, from the Optuna journals and from the records.

    python -m benchmarks.studies FOLDER ...

For each experiment: trials, the share asked after results were known, and which of the tuned
parameters vary in every cell of `dcs`; checked to be the same in all three places.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any, Final

import mlflow
import optuna
import pandas as pd
from mlflow import MlflowClient

from benchmarks.importances import KNOBS
from benchmarks.results import markdown_table
from dcs_tracking import Archive, CellRecord
from dcs_tracking.store.client import default_tracking_uri
from dcs_workflows.plan import cell_label
from dcs_workflows.study.storage import Studies

METHOD: Final = "dcs"


def read_studies(folder: Path) -> pd.DataFrame:
    """Return a row per trial of each cell of `dcs`, checked against MLflow and the journal."""
    # `load_table` of a client reads from the address that is set, not from that of the client.
    mlflow.set_tracking_uri(default_tracking_uri(folder))
    client = MlflowClient()
    archive, studies = Archive(folder), Studies(folder)
    rows = []
    for record in archive.finished().values():
        if record.identity["method"] != METHOD or not record.trials:
            continue
        place = studies.of(record.key, cell_label(record.identity))
        study = optuna.load_study(study_name=place.name, storage=place.storage)
        stored = study.get_trials(deepcopy=False)
        tracked = _tracked(client, record)
        assert len(tracked) == len(stored) == len(record.trials)
        first = min(trial.started_ms for trial in record.trials)
        for trial, there, run in zip(
            record.trials, stored, tracked.to_dict("records"), strict=True
        ):
            for name in (*KNOBS, "error_weight"):
                own = trial.params.get(name)
                # A trial without a search has no such parameter.
                assert _same(own, run.get(name)), (name, own, run.get(name))
                if own is not None and name in there.params:
                    assert _same(own, there.params[name]), (name, own, there.params[name])
            values = [trial.metrics[f"dev/{each}"] for each in ("accuracy", "cobias")]
            assert values == there.values[:2]
            about = {"sweep": record.sweep, "cell": record.key, "number": trial.number}
            # The standard settings are asked together, all others when these are judged.
            rows.append({**about, "informed": trial.started_ms > first, **trial.params})
    return pd.DataFrame(rows)


def _tracked(client: MlflowClient, record: CellRecord) -> pd.DataFrame:
    experiments = [each.experiment_id for each in client.search_experiments()]
    (run,) = client.search_runs(experiments, f"tags.`dcs.cell_key` = '{record.key}'")
    return client.load_table(run.info.experiment_id, "trials.json", run_ids=[run.info.run_id])


def _same(one: Any, other: Any) -> bool:
    if one is None:
        return other is None or math.isnan(other)
    return math.isclose(one, other, rel_tol=1e-9)


def table(trials: pd.DataFrame) -> str:
    """Return one row per sweep."""
    rows = []
    for sweep, own in trials.groupby("sweep", sort=False):
        cells = [each for _, each in own.groupby("cell")]
        varied = [k for k in KNOBS if all(each[k].nunique() > 2 for each in cells)]
        fixed = [k for k in (*KNOBS, "error_weight") if own[k].nunique() == 1]
        counts = {len(each) for each in cells}
        share = min(each["informed"].mean() for each in cells)
        row = [f"`{sweep}`", str(len(cells)), " to ".join(map(str, sorted(counts)))]
        row += [f"{share:.0%}", f"{len(varied)} of {len(KNOBS)}", ", ".join(fixed)]
        rows.append(row)
    head = ["sweep", "cells", "trials", "asked after results", "parameters that vary", "fixed"]
    return markdown_table(head, rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    options = parser.parse_args()
    print(table(pd.concat(map(read_studies, options.folders))))


if __name__ == "__main__":
    main()
