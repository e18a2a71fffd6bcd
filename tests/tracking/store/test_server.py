"""A real MLflow server: records arrive over HTTP, also after it was gone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from dcs_tracking import Recorder, sync
from dcs_tracking.store.queries import stored_cells
from tests.servers import free_port, mlflow_server
from tests.tracking.cells import content, make_cell, runs, table

pytestmark = pytest.mark.slow


def test_a_server_that_goes_and_comes_back_has_every_cell_once(
    output: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    warnings: list[str] = []
    options: Any = {"experiment": "demo", "sweep_key": "s1", "figures": "none"}
    with Recorder(address, output=output, warn=warnings.append, **options) as recorder:
        with mlflow_server(output, port):
            recorder.record(make_cell(1))
            for _ in range(1200):
                if recorder.recorded:
                    break
                time.sleep(0.1)
        recorder.record(make_cell(2))
        report = recorder.finish()
    assert report.pending == 1
    assert len(warnings) == 1

    with mlflow_server(output, port):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        told = sync(output)
        assert [(r.recorded, r.pending) for r in told] == [(1, 0)], told[0].message
        cells = ("cell0001", "cell0002")
        assert content() == (1, dict.fromkeys(cells, "FINISHED"), dict.fromkeys(cells, 2))
        assert set(runs()["status"]) == {"FINISHED"}
        sweep = runs(kind="sweep").iloc[0]
        assert table("tables/main_results.json", sweep["run_id"])["seeds"].tolist() == [2]
        # The server keeps the artifacts, and only the address says which server.
        monkeypatch.delenv("MLFLOW_TRACKING_URI")
        read = stored_cells(address, "demo")
        assert [cell.record for cell in read] == [make_cell(1), make_cell(2)]
    assert capfd.readouterr().out == ""


def test_a_cell_costs_eight_requests(output: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "access.log"
    identity = {"model": "m", "task": "t", "method": "dcs", "optimization_digest": "ab" * 32}
    cells = [make_cell(number, identity=identity | {"seed": number}) for number in range(5)]

    def requests_for(count: int) -> int:
        before = len(log.read_text().splitlines())
        options: Any = {"experiment": f"of {count}", "sweep_key": "s1", "figures": "none"}
        with Recorder(address, output=output / str(count), writers=1, **options) as recorder:
            for cell in cells[:count]:
                recorder.record(cell)
        return len(log.read_text().splitlines()) - before

    with mlflow_server(output, port, access_log=log) as address:
        # The sweep itself costs as much with one cell as with five: one model in both.
        assert requests_for(5) - requests_for(1) == 4 * 8
