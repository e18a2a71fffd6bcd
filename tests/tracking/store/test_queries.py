"""Reading a store back, also one that others have been at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pandas as pd
import pytest
from mlflow import MlflowClient

from dcs.errors import ConfigError, TrackingError
from dcs_tracking import Archive
from dcs_tracking.store import queries
from dcs_tracking.store.client import default_tracking_uri, open_client, run_link
from dcs_tracking.store.queries import find_cell, log_report, stored_cells
from dcs_tracking.store.serving import log_cell_scheme
from tests.servers import answering
from tests.tracking.cells import failed_cell, make_cell, recorded


@pytest.fixture(scope="module")
def several(new_output: Callable[[], Path]) -> Path:
    """An output folder with two sweeps: cells 1 to 3, a failed one and one that both have."""
    folder = new_output()
    recorded(folder, 2, 1, failed_cell(4))
    recorded(folder, 2, 3, experiment="other", sweep_key="s2")
    return folder


@pytest.fixture
def store(several: Path) -> str:
    """The store of the two sweeps, which is only read."""
    return default_tracking_uri(several)


def test_queries_give_tidy_frames(store: str) -> None:
    cells = queries.cells(store, "demo")
    assert cells["seconds"].tolist() == [0.9] * 3
    assert cells["cell_key"].tolist() == ["cell0001", "cell0002", "cell0004"]
    assert cells["status"].tolist() == ["FINISHED", "FINISHED", "FAILED"]
    assert cells["test/cobias"].tolist()[:2] == pytest.approx([0.19, 0.18])
    for query in (queries.cells, stored_cells):
        with pytest.raises(ConfigError, match="did you mean 'demo'"):
            query(store, "demos")


def test_cells_are_read_back_with_their_runs(several: Path, store: str, tmp_path: Path) -> None:
    found = stored_cells(store, "demo")
    assert [cell.record for cell in found] == [make_cell(1), make_cell(2), failed_cell(4)]
    another = Archive(tmp_path)
    another.write(make_cell(1, trials=0))
    for archive in (Archive(several), another):
        again = stored_cells(store, "demo", archive=archive)
        assert [cell.run_id for cell in again] == [cell.run_id for cell in found]
        assert [c.record.summary for c in again] == [c.record.summary for c in found]
    assert find_cell(store, found[0].run_id) == find_cell(store, "cell0001") == found[0]

    run = log_report(store, "demo", "<html>")
    assert run is not None
    names = {item.path for item in MlflowClient(store).list_artifacts(run.info.run_id)}
    assert "report.html" in names
    for given, host in ((store, "127.0.0.1:5000"), ("http://me:pass@host:80/", "host:80")):
        place = f"http://{host}/#/experiments/1/runs/{found[0].run_id}?"
        assert run_link(given, found[0]).startswith(place)


def test_the_folder_tells_of_its_sweeps_what_the_store_does(several: Path, store: str) -> None:
    archive = Archive(several)
    for sweep in ("demo", "other", None):
        told, on_disk = queries.cells(store, sweep), queries.cells(store, sweep, archive=archive)
        assert len(told) == (5 if sweep is None else len(on_disk))
        shown = [name for name in told if not name.startswith("trial/") and name in on_disk]
        assert {*queries.CELL_COLUMNS, "params.method"} <= {*shown}
        orders = [
            frame.sort_values("run_id", ignore_index=True)[shown] for frame in (told, on_disk)
        ]
        pd.testing.assert_frame_equal(*orders, check_dtype=False)
    assert stored_cells(store, "demo", archive=archive)[0].run_id in {*told["run_id"]}
    assert find_cell(store, "cell0003", archive=archive) == find_cell(store, "cell0003")


def test_cells_that_are_in_no_store_have_no_run(output: Path, uri: str) -> None:
    recorded(output, 1)
    archive = Archive(output)
    for store in (uri, "http://127.0.0.1:9"):
        (cell,) = stored_cells(store, "demo", archive=archive)
        assert (cell.run_id is None) == (store != uri)
    assert run_link(store, cell) == ""
    # The name of one store may end with that of another, and a crash may cut a line.
    archive.add_run("s1", "cell0001", "other", "2", "digest", "sqlite:////a default")
    archive.add_run("s1", "cell0001", "cut")
    assert "other" not in {run_id for run_id, *_ in archive.runs("s1", "default").values()}
    assert archive.runs("s1", "sqlite:////a default") == {"cell0001": ("other", "2", "digest")}
    with pytest.raises(TrackingError, match="dcs sync"):
        log_cell_scheme(store, cell)


def test_a_cell_goes_by_its_key_run_id_or_name(store: str) -> None:
    for row in queries.cells(store).itertuples():
        assert find_cell(store, row.name).record.key == row.cell_key
        assert find_cell(store, row.run_id[:12]).run_id == row.run_id or row.seed == "2"
    for name in ("cell", "%", "cell____", "", "'", "\udcff", "nobody"):
        with pytest.raises(TrackingError):
            find_cell(store, name)


def test_cells_are_sorted_by_numbers_where_a_column_has_them() -> None:
    sizes = ["16", "full", "8"]
    accuracies = [0.5, 0.6, 0.7]
    cells = pd.DataFrame({"seed": ["9", "10", "1"], "test/accuracy": accuracies, "size": sizes})
    for column, order in (("seed", "1 9 10"), ("size", "8 16 full")):
        assert queries.best_first(cells, column)[column].tolist() == order.split()
    assert queries.best_first(cells, "test/accuracy")["seed"].tolist() == ["1", "10", "9"]


def test_a_damaged_artifact_is_named_on_one_line(output: Path, uri: str) -> None:
    recorded(output, 1, 2)
    found = queries.cells(uri, "demo").loc[0, "run_id"]
    record = Path(urlsplit(open_client(uri).get_run(found).info.artifact_uri).path) / "cell.json"
    for damage in (lambda: record.write_text("{not json"), record.unlink):
        damage()
        for read in (stored_cells, lambda uri, _: find_cell(uri, "cell0001")):
            with pytest.raises(TrackingError, match=f"cell.json of run {found}") as told:
                read(uri, "demo")
            assert "\n" not in str(told.value)
    assert len(queries.cells(uri, "demo")) == 2, "of these no artifact is read"


def test_an_experiment_of_somebody_else_is_shared_in_peace(output: Path, uri: str) -> None:
    client = open_client(uri)
    theirs = client.create_experiment("demo", artifact_location=(output / "theirs").as_uri())
    for tags in ({}, {"dcs.kind": "trial"}):
        run = client.create_run(theirs, tags=tags)
        client.log_metric(run.info.run_id, "test/accuracy", 0.5)
    assert queries.cells(uri, "demo").empty
    with pytest.raises(TrackingError, match="'demo' has no finished cells"):
        stored_cells(uri, "demo")
    recorded(output, 1)
    assert queries.cells(uri, "demo")["cell_key"].tolist() == ["cell0001"]
    assert len(client.search_runs([theirs])) == 4, "theirs, the sweep and a cell"


@pytest.mark.parametrize(
    ("status", "body"), [(401, b"Not authenticated."), (404, b"<html>\n"), (200, b"<html>\n")]
)
def test_what_a_server_refuses_is_said_on_one_line(status: int, body: bytes) -> None:
    with answering(status, body) as address, pytest.raises(TrackingError, match=address) as told:
        queries.cells(address, "demo")
    assert "\n" not in str(told.value)
