"""A real MLflow server: records arrive over HTTP, also after it was gone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import requests
from mlflow.exceptions import MlflowException

from tests.servers import free_port, mlflow_server
from tests.tracking.cells import content, make_cell, runs, table
from tests.tracking.store.test_runs import contents, written
from tracking import Recorder, sync
from tracking.store.client import open_client
from tracking.store.queries import stored_cells
from tracking.store.runs import BATCH, PATH, writer

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("app", [None, "dcs"])
def test_a_server_that_goes_and_comes_back_has_every_cell_once(
    output: Path,
    app: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    warnings: list[str] = []
    options: Any = {"experiment": "demo", "sweep_key": "s1", "figures": "none"}
    with Recorder(address, output=output, warn=warnings.append, **options) as recorder:
        with mlflow_server(output, port, app=app):
            recorder.record(make_cell(1))
            for _ in range(1200):
                if recorder.recorded:
                    break
                time.sleep(0.1)
        recorder.record(make_cell(2))
        report = recorder.finish()
    assert report.pending == 1
    assert len(warnings) == 1

    with mlflow_server(output, port, app=app):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        told = sync(output)
        assert [(r.recorded, r.pending) for r in told] == [(1, 0)], told[0].message
        cells = ("cell0001", "cell0002")
        assert content() == (1, dict.fromkeys(cells, "FINISHED"), dict.fromkeys(cells, 2))
        assert set(runs()["status"]) == {"FINISHED"}
        sweep = runs(kind="sweep").iloc[0]
        assert table("leaderboard.json", sweep["run_id"])["seeds"].tolist() == [2]
        # The server keeps the artifacts, and only the address says which server.
        monkeypatch.delenv("MLFLOW_TRACKING_URI")
        read = stored_cells(address, "demo")
        assert [cell.record for cell in read] == [make_cell(1), make_cell(2)]
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("artifacts", [True, False])
def test_the_app_of_a_server_writes_what_requests_write(
    tmp_path: Path, artifacts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"cell.json": b"{}", "model/MLmodel": bytes(range(256))}
    with mlflow_server(tmp_path, free_port(), artifacts=artifacts, app="dcs") as address:
        client = open_client(address)
        posted = written(client, files=files)
        monkeypatch.setattr("tracking.store.runs._takes_batches", lambda client: False)
        assert written(client, files=files) == posted


def test_the_app_of_a_server_refuses_what_is_no_batch(tmp_path: Path) -> None:
    with mlflow_server(tmp_path, free_port(), app="dcs") as address:
        client = open_client(address)
        place = client.get_experiment(client.create_experiment("demo"))
        going = client.create_run(place.experiment_id).info.run_id

        def answer(body: bytes, experiment: str = place.experiment_id) -> int:
            where = {"experiment_id": experiment}
            return requests.post(address + PATH, params=where, data=body).status_code

        good = BATCH.dump_json(contents(going))
        for body in (b"", b"[{}]", good[:-1], good.replace(b'"0.5"', b"[0]")):
            assert answer(body) == 400
        assert answer(good, "404") == 404
        for outside in ("../x", "/tmp/x"):
            assert answer(BATCH.dump_json(contents(going, files={outside: b""}))) == 400
        assert answer(BATCH.dump_json(contents("../../x", files={"x": b""}))) == 400
        (alone,) = client.search_runs([place.experiment_id])
        assert alone.data.params == {}
        # A record of which a part is there already is taken as a whole or not at all.
        with pytest.raises(MlflowException):
            writer(client, place)(contents(going, tags={"mlflow.runName": "twice"}))
        (alone,) = client.search_runs([place.experiment_id])
        assert alone.data.params == {}
