"""A real MLflow server: records arrive over HTTP, also those that were made without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dcs_tracking import sync
from dcs_tracking.store.queries import stored_cells
from tests.servers import free_port, mlflow_server
from tests.tracking.cells import content, make_cell, recorded, runs, table

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "access.log"


@pytest.fixture(scope="module")
def server(new_output: Callable[[], Path], log: Path) -> Iterator[str]:
    with mlflow_server(new_output(), free_port(), access_log=log) as address:
        yield address


def test_a_server_that_was_away_has_every_cell_once(
    output: Path, server: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    warnings: list[str] = []
    away = f"http://127.0.0.1:{free_port()}"
    assert recorded(output, 1, 2, tracking_uri=away, warn=warnings.append).pending == 2
    assert len(warnings) == 1
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    told = sync(output, tracking_uri=server)
    assert [(r.recorded, r.pending) for r in told] == [(2, 0)], told[0].message
    cells = ("cell0001", "cell0002")
    assert content() == (1, dict.fromkeys(cells, "FINISHED"), dict.fromkeys(cells, 2))
    assert set(runs()["status"]) == {"FINISHED"}
    sweep = runs(kind="sweep").iloc[0]
    assert table("tables/main_results.json", sweep["run_id"])["seeds"].tolist() == [2]
    # The server keeps the artifacts, and only the address says which server.
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert [cell.record for cell in stored_cells(server, "demo")] == [make_cell(1), make_cell(2)]
    assert capfd.readouterr().out == ""


def test_a_cell_costs_eight_requests(output: Path, server: str, log: Path) -> None:
    identity = {"model": "m", "task": "t", "method": "dcs", "optimization_digest": "ab" * 32}
    cells = [make_cell(number, identity=identity | {"seed": number}) for number in range(5)]

    def requests_for(count: int) -> int:
        before = len(log.read_text().splitlines())
        options = {"experiment": f"of {count}", "tracking_uri": server, "writers": 1}
        recorded(output / str(count), *cells[:count], **options)
        return len(log.read_text().splitlines()) - before

    # The sweep itself costs as much with one cell as with five: one model in both.
    assert requests_for(5) - requests_for(1) == 4 * 8
