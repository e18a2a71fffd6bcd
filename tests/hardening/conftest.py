from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.hardening.corpus import record
from tracking import Recorder


@pytest.fixture
def output(tmp_path: Path, empty_store: Path) -> Path:
    """An output folder whose MLflow database is ready."""
    folder = tmp_path / "o"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    return folder


@pytest.fixture(scope="session")
def one_recorded(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """An output folder with the cell of `record`, in experiment ``e``; not to be changed."""
    folder = tmp_path_factory.mktemp("one") / "recorded"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    with Recorder(None, output=folder, experiment="e", sweep_key="k", sweep_params={}) as recorder:
        recorder.record(record())
        recorder.finish()
    return folder
