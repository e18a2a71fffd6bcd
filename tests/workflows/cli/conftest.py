from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def new_output(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Callable[[], Path]:
    """Make output folders whose MLflow database is ready."""

    def make() -> Path:
        folder = tmp_path_factory.mktemp("output")
        shutil.copy(empty_store, folder / "mlflow.db")
        return folder

    return make


@pytest.fixture
def output(new_output: Callable[[], Path]) -> Path:
    """An output folder whose MLflow database is ready."""
    return new_output()
