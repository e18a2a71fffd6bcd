from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hardening.corpus import record
from tracking import Recorder


@pytest.fixture(scope="session")
def one_recorded(new_output: Callable[[], Path]) -> Path:
    """An output folder with the cell of `record`, in experiment ``e``; not to be changed."""
    folder = new_output()
    with Recorder(None, output=folder, experiment="e", sweep_key="k", sweep_params={}) as recorder:
        recorder.record(record())
        recorder.finish()
    return folder
