from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dcs_tracking.store.client import default_tracking_uri


@pytest.fixture(autouse=True)
def nothing_lands_in_the_working_directory(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """An experiment on a database without an artifact location writes to ./mlruns."""
    folder = tmp_path_factory.mktemp("cwd")
    monkeypatch.chdir(folder)
    yield
    assert not list(folder.iterdir())


@pytest.fixture
def uri(output: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The default store of `output`, also for MLflow's own functions."""
    address = default_tracking_uri(output)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    return address
