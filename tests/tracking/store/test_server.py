"""What records cost on a real MLflow server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import free_port, mlflow_server
from tests.tracking.cells import make_cell, recorded


@pytest.mark.slow
def test_a_cell_costs_eight_requests(
    output: Path, new_output: Callable[[], Path], tmp_path: Path
) -> None:
    identity = {"model": "m", "task": "t", "method": "dcs", "optimization_digest": "ab" * 32}
    cells = [make_cell(number, identity=identity | {"seed": number}) for number in range(5)]
    log = tmp_path / "access.log"

    def requests_for(count: int) -> int:
        before = len(log.read_text().splitlines())
        options = {"experiment": f"of {count}", "tracking_uri": server, "writers": 1}
        recorded(output / str(count), *cells[:count], **options)
        return len(log.read_text().splitlines()) - before

    with mlflow_server(new_output(), free_port(), access_log=log) as server:
        # The sweep itself costs as much with one cell as with five: one model in both.
        assert requests_for(5) - requests_for(1) == 4 * 8
