"""Cells of a folder and their runs, also in a store that others have been at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from dcs.errors import ConfigError, TrackingError
from dcs_tracking import Archive, queries
from dcs_tracking.store.client import default_tracking_uri, open_client, run_link
from dcs_tracking.store.queries import find_cell, newest_links, stored_cells
from dcs_tracking.store.serving import log_cell_scheme
from tests.dcs.refusals import refuses
from tests.servers import answering
from tests.tracking.cells import failed_cell, make_cell, recorded, runs


@pytest.fixture(scope="module")
def several(new_output: Callable[[], Path]) -> Path:
    """An output folder with two sweeps: cells 1 to 3, a failed one and one that both have."""
    folder = new_output()
    recorded(folder, 2, 1, failed_cell(4))
    recorded(folder, 2, 3, experiment="other", sweep_key="s2")
    return folder


def test_queries_give_tidy_frames(several: Path, tmp_path: Path) -> None:
    cells = queries.cells(several, "demo")
    assert cells["seconds"].tolist() == [0.9] * 3
    assert cells["cell_key"].tolist() == ["cell0001", "cell0002", "cell0004"]
    assert cells["status"].tolist() == ["FINISHED", "FINISHED", "FAILED"]
    assert cells["test/cobias"].tolist()[:2] == pytest.approx([0.19, 0.18])
    assert len(queries.cells(several)) == 5, "the cell of both sweeps is there twice"
    for query in (queries.cells, stored_cells):
        refuses(ConfigError, query, several, "demos", names=["did you mean 'demo'"])
        refuses(TrackingError, query, tmp_path, "demo", names=["no sweep"])


def test_cells_are_read_back_with_their_runs(several: Path) -> None:
    store, found = default_tracking_uri(several), stored_cells(several, "demo")
    wanted = [make_cell(1), make_cell(2), failed_cell(4)]
    assert [cell.record for cell in found] == [record.summary for record in wanted]
    assert find_cell(several, str(found[0].run_id)) == find_cell(several, "cell0001")
    assert find_cell(several, "cell0001").record == wanted[0]

    for given, host in ((store, "127.0.0.1:5000"), ("http://me:pass@host:80/", "host:80")):
        place = f"http://{host}/#/experiments/1/runs/{found[0].run_id}?"
        assert run_link(given, found[0]).startswith(place)


def test_the_folder_tells_of_its_sweeps_what_mlflow_does(
    several: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", default_tracking_uri(several))
    names = {"run_id": "run_id", "status": "status", "tags.mlflow.runName": "name"}
    names |= {"experiment_id": "experiment_id", "tags.dcs.sweep": "sweep"}
    names |= {f"metrics.{name}": name for name in queries.FIGURES}
    tags = ("cell_key", "model", "task", "shots", "seed", "method", "objective")
    names |= {f"tags.dcs.{name}": name for name in (*tags, "optimization_size")}
    for sweep in ("demo", "other"):
        told, found = runs(sweep, "cell"), queries.cells(several, sweep)
        names |= {name: name for name in told if name.startswith("params.")}
        told = told[[*names]].rename(columns=names)
        assert {*told} <= {*found} and {*queries.CELL_COLUMNS} <= {*found}
        orders = [
            frame.sort_values("run_id", ignore_index=True)[[*told]].astype(object)
            for frame in (told, found)
        ]
        pd.testing.assert_frame_equal(*[each.where(each.notna(), None) for each in orders])


def test_cells_that_are_in_no_store_have_no_run(output: Path, uri: str) -> None:
    recorded(output, 1)
    archive = Archive(output)
    for store in (uri, "http://127.0.0.1:9"):
        (cell,) = stored_cells(output, "demo", tracking_uri=store)
        assert (cell.run_id is None) == (store != uri)
    assert run_link(store, cell) == ""
    # The name of one store may end with that of another, and a crash may cut a line.
    archive.add_run("s1", "cell0001", "other", "2", "digest", "sqlite:////a default")
    archive.add_run("s1", "cell0001", "cut")
    assert "other" not in {run_id for run_id, *_ in archive.runs("s1", "default").values()}
    assert archive.runs("s1", "sqlite:////a default") == {"cell0001": ("other", "2", "digest")}
    refuses(TrackingError, log_cell_scheme, store, cell, names=["dcs sync"])


def test_a_cell_goes_by_its_key_run_id_or_name(several: Path) -> None:
    for row in queries.cells(several).itertuples():
        assert find_cell(several, row.name).record.key == row.cell_key
        assert find_cell(several, row.run_id[:12]).run_id == row.run_id
    for name in ("cell", "%", "cell____", "", "'", "\udcff", "nobody"):
        refuses(TrackingError, find_cell, several, name)


def test_cells_are_sorted_by_numbers_where_a_column_has_them() -> None:
    cells = pd.DataFrame({"seed": ["9", "10", "1"], "size": ["16", "full", "8"]})
    cells["test/accuracy"] = [0.5, 0.6, 0.7]
    for column, order in (("seed", "1 9 10"), ("size", "8 16 full")):
        assert queries.best_first(cells, column)[column].tolist() == order.split()
    assert queries.best_first(cells, "test/accuracy")["seed"].tolist() == ["1", "10", "9"]


def test_an_experiment_of_somebody_else_is_shared_in_peace(output: Path, uri: str) -> None:
    client = open_client(uri)
    theirs = client.create_experiment("demo", artifact_location=(output / "theirs").as_uri())
    for tags in ({}, {"dcs.kind": "trial"}):
        run = client.create_run(theirs, tags=tags)
        client.log_metric(run.info.run_id, "test/accuracy", 0.5)
    recorded(output, 1)
    assert runs("demo", "cell")["tags.dcs.cell_key"].tolist() == ["cell0001"]
    assert len(client.search_runs([theirs])) == 4, "theirs, the sweep and a cell"


@pytest.mark.parametrize(
    ("status", "body"), [(401, b"Not authenticated."), (404, b"<html>\n"), (200, b"<html>\n")]
)
def test_what_a_server_refuses_is_said_on_one_line(status: int, body: bytes) -> None:
    with answering(status, body) as address:
        refuses(TrackingError, newest_links, address, "", names=[address])
