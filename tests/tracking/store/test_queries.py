"""Reading a store back, also one that others have been at."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from mlflow import MlflowClient

from dcs.errors import ConfigError, TrackingError
from tests.servers import answering
from tests.tracking.cells import failed_cell, make_cell
from tracking import Archive, Recorder, sync
from tracking.store import queries
from tracking.store.client import open_client, run_link
from tracking.store.queries import find_cell, log_report, stored_cells, sweep_run

SWEEP = {"experiment": "demo", "sweep_key": "s1", "figures": "none"}


def test_queries_give_tidy_frames(output: Path, uri: str) -> None:
    with Recorder(output=output, **SWEEP) as rec:
        rec.record(make_cell(1))
        rec.record(failed_cell(2))
    cells = queries.cells(uri, "demo")
    assert cells["seconds"].tolist() == [0.9, 0.9]
    assert cells["status"].tolist() == ["FINISHED", "FAILED"]
    assert cells.loc[0, "test/cobias"] == pytest.approx(0.19)
    assert not [name for name in cells.columns if name.startswith("anneal/")]
    trials = queries.trials(uri, "demo", cell_key="cell0001")
    assert trials["params.weight_scale"].tolist() == ["10", "20"]
    assert queries.trials(uri, "demo", cell_key="cell0002").empty
    schemes = queries.schemes(uri, "demo")
    assert schemes[["class", "kind"]].to_numpy().tolist() == [
        ["Sports", "weight"],
        ["World", "membership"],
    ]
    with pytest.raises(TrackingError, match="'demo'"):
        queries.cells(uri, "dem")


def test_cells_are_read_back_with_their_runs(output: Path, uri: str) -> None:
    records = [make_cell(2), make_cell(1), failed_cell(3)]
    with Recorder(output=output, **SWEEP) as recorder:
        for record in records:
            recorder.record(record)
    found = stored_cells(uri, "demo")
    assert [cell.record for cell in found] == [make_cell(1), make_cell(2), failed_cell(3)]
    assert stored_cells(uri, "demo", archive=Archive(output)) == found

    by_run = find_cell(uri, found[0].run_id)
    by_key = find_cell(uri, "cell0001")
    assert by_run == by_key == found[0]
    for ambiguous_or_unknown in ("cell", "nothing"):
        with pytest.raises(TrackingError):
            find_cell(uri, ambiguous_or_unknown)
    with pytest.raises(TrackingError, match="did you mean 'demo'"):
        stored_cells(uri, "demos")

    assert log_report(uri, "demo", "<html>")
    run = sweep_run(uri, "demo")
    assert run is not None
    assert recorder.finish().link == run_link(uri, run.info)
    names = {item.path for item in MlflowClient(uri).list_artifacts(run.info.run_id)}
    assert "report.html" in names
    link = run_link(uri, found[0])
    assert link.startswith(f"http://127.0.0.1:5000/#/experiments/1/runs/{found[0].run_id}?")
    with pytest.raises(ConfigError, match="javascript:"):
        run_link(uri, found[0], ui="javascript:alert(1)")
    assert run_link("http://host:80/", found[0]).startswith("http://host:80/#/experiments/")


@pytest.fixture
def several(output: Path, uri: str) -> str:
    """A store with two sweeps: cells 1 to 3, a failed one and one that both have."""
    for sweep, cells in (
        ("demo", [make_cell(1), make_cell(2), failed_cell(4)]),
        ("other", [make_cell(2), make_cell(3)]),
    ):
        with Recorder(output=output, experiment=sweep, sweep_key=sweep, figures="none") as rec:
            for cell in cells:
                rec.record(cell)
    return uri


def test_conditions_choose_cells(several: str) -> None:
    cells = queries.cells(several)
    for conditions, numbers in (
        ([], [1, 2, 2, 3, 4]),
        (["sweep=demo", "status!=FAILED"], [1, 2]),
        (["test/accuracy>=52"], [2, 2, 3]),
        (["test/cobias < 17.5"], [3]),
        (["seconds>1000"], []),
        (["seed<=2", "sweep=other"], [2]),
        (["params.weight_scale=30", "test/class_accuracy/R_D / _new_=25"], [1, 2, 2, 3]),
    ):
        found = queries.matching(cells, conditions)
        assert found["cell_key"].tolist() == [f"cell{number:04d}" for number in numbers]
    for text in ("", "dcs", "=dcs", "mode=dcs", "test/cobias<five", "model<x"):
        with pytest.raises(ConfigError):
            queries.matching(cells, [text])


def test_a_cell_goes_by_its_name_or_is_the_best_one(several: str) -> None:
    cells = queries.cells(several)
    assert cells.loc[cells["cell_key"] != "cell0002", "name"].is_unique
    for row in cells.itertuples():
        assert find_cell(several, row.name).record.key == row.cell_key
        assert find_cell(several, row.run_id[:12]).run_id == row.run_id or row.seed == "2"
    for name, number in (
        ("best:", 3),
        ("best:test/cobias", 3),
        ("best:sweep=demo", 2),
        ("best:test/cobias>=18,test/accuracy", 2),
        ("best:test/accuracy<52", 1),
        ("best:seconds, seed=1", 1),
    ):
        assert find_cell(several, name).record.key == f"cell{number:04d}", name
    for nobody in (
        "best:test/cobias<1",
        "best:status=FAILED",
        "cell",
        "",
        "'",
        "\udcff",
        "nobody",
    ):
        with pytest.raises(TrackingError):
            find_cell(several, nobody)


def test_queries_have_their_columns_also_where_there_is_nothing(output: Path, uri: str) -> None:
    with Recorder(output=output, **SWEEP) as rec:
        rec.record(make_cell(1))
    open_client(uri).create_experiment("empty", artifact_location=output.as_uri())
    for query in (queries.cells, queries.trials, queries.schemes):
        some, none = query(uri, "demo"), query(uri, "empty")
        fixed = list(none.columns)
        assert none.empty
        assert list(some.columns[: len(fixed)]) == fixed
        typed = [name for name in fixed if some[name].dtype.kind in "ifM"]
        assert {n: some[n].dtype for n in typed} == {n: none[n].dtype for n in typed}
    none = queries.cells(uri, "empty")
    assert none.pivot_table(index="task", columns="method", values="test/accuracy").empty


@pytest.fixture
def client(output: Path, uri: str) -> MlflowClient:
    """A store with the cells 1 and 2 of a sweep."""
    with Recorder(output=output, **SWEEP) as rec:
        rec.record(make_cell(1))
        rec.record(make_cell(2))
    return open_client(uri)


def _record(client: MlflowClient, uri: str) -> tuple[str, Path]:
    run_id = str(queries.cells(uri, "demo").loc[0, "run_id"])
    return run_id, Path(urlsplit(client.get_run(run_id).info.artifact_uri).path) / "cell.json"


@pytest.mark.parametrize("damage", ["{not json", None])
def test_a_damaged_artifact_is_named_on_one_line(
    client: MlflowClient, uri: str, damage: str | None
) -> None:
    run_id, record = _record(client, uri)
    record.unlink()
    if damage is not None:
        record.write_text(damage)
    for read in (queries.schemes, stored_cells, lambda uri, _: find_cell(uri, "cell0001")):
        with pytest.raises(TrackingError, match=f"cell.json of run {run_id}") as told:
            read(uri, "demo")
        assert "\n" not in str(told.value)
    assert len(queries.cells(uri, "demo")) == 2, "of these no artifact is read"


def test_a_deleted_run_is_gone_and_the_others_stay(
    client: MlflowClient, output: Path, uri: str
) -> None:
    run_id, _ = _record(client, uri)
    client.delete_run(run_id)
    assert queries.cells(uri, "demo")["cell_key"].tolist() == ["cell0002"]
    assert set(queries.schemes(uri, "demo")["cell_key"]) == {"cell0002"}
    assert [cell.record.key for cell in stored_cells(uri, "demo")] == ["cell0002"]
    with pytest.raises(TrackingError, match="cell0001"):
        find_cell(uri, "cell0001")
    assert sync(output) == (), "what somebody deleted stays deleted"


def test_a_deleted_experiment_says_how_it_comes_back(client: MlflowClient, uri: str) -> None:
    experiment = client.get_experiment_by_name("demo")
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    for read in (queries.cells, queries.trials, queries.schemes, stored_cells, sweep_run):
        with pytest.raises(TrackingError, match="'demo' is deleted"):
            read(uri, "demo")
    client.restore_experiment(experiment.experiment_id)
    assert len(stored_cells(uri, "demo")) == 2


def test_an_experiment_of_somebody_else_is_shared_in_peace(output: Path, uri: str) -> None:
    client = open_client(uri)
    theirs = client.create_experiment("demo", artifact_location=(output / "theirs").as_uri())
    for tags in ({}, {"dcs.kind": "trial"}):
        run = client.create_run(theirs, tags=tags)
        client.log_metric(run.info.run_id, "test/accuracy", 0.5)
    for query in (queries.cells, queries.trials, queries.schemes):
        assert query(uri, "demo").empty
    with pytest.raises(TrackingError, match="'demo' has no finished cells"):
        stored_cells(uri, "demo")
    with Recorder(output=output, **SWEEP) as rec:
        rec.record(make_cell(1))
    assert queries.cells(uri, "demo")["cell_key"].tolist() == ["cell0001"]
    assert queries.trials(uri, "demo")["trial"].tolist() == [0, 1]
    assert len(client.search_runs([theirs])) == 6, "theirs, the sweep, a cell and its trials"


@pytest.mark.parametrize(
    ("status", "body"), [(401, b"Not authenticated."), (404, b"<html>\n"), (200, b"<html>\n")]
)
def test_what_a_server_refuses_is_said_on_one_line(status: int, body: bytes) -> None:
    with answering(status, body) as address, pytest.raises(TrackingError, match=address) as told:
        queries.cells(address, "demo")
    assert "\n" not in str(told.value)
