"""What holds for all tests: Ray's token, no hub, the same examples, a database to copy."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]
#: Where the packages are, as `pythonpath` of pyproject.toml says it to this process.
_PATH = [str(ROOT), str(ROOT / "tracking"), str(ROOT / "workflows")]

# Set before anything imports Ray, which reads it only once.
os.environ.update(
    # The processes that tests start test this checkout too, whether it is installed or not.
    PYTHONPATH=os.pathsep.join([*_PATH, *filter(None, [os.environ.get("PYTHONPATH")])]),
    RAY_AUTH_MODE="token",
    RAY_AUTH_TOKEN=secrets.token_hex(32),
    # Its workers step back for other processes, here for the tests that run at the same time.
    RAY_worker_niceness="0",
    # A busy machine takes longer than the 30 s of the default to start it.
    RAY_raylet_start_wait_time_s="120",
    # No test asks the hub, whose client would try again for a minute without a network.
    HF_HUB_OFFLINE="1",
)

# A run that fails can be repeated. HYPOTHESIS_PROFILE=search looks for new examples.
settings.register_profile(
    "repeatable", derandomize=True, database=None, max_examples=50, deadline=None
)
settings.register_profile("search", derandomize=False, max_examples=500, deadline=None)
# Failures of make fuzz are repeated by the seed that it prints.
settings.register_profile(
    "fuzz",
    derandomize=False,
    database=None,
    max_examples=int(os.environ.get("DCS_FUZZ_EXAMPLES", "60")),
    deadline=None,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def _leave_writing_to_the_system(connection: Any, _record: object) -> None:
    """Do not wait for the disk: no test outlives the machine."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")


# The environment of vLLM has no database.
if find_spec("sqlalchemy") is not None:
    from sqlalchemy import Engine, event

    event.listen(Engine, "connect", _leave_writing_to_the_system)


_STRAYS = [ROOT / name for name in ("mlflow.db", "mlruns", "mlartifacts")]


#: The files whose tests share a Ray, which starts once where one process has them all.
_RAY = re.compile("workflows/(test_(sweep|tables|ensembles)|cluster/test_(parallel|connect))")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slow ones first, so that several processes end at about the same time."""
    slow = ("tests/workflows/", "tests/tracking/")
    items.sort(key=lambda item: (not _RAY.search(item.nodeid), not item.nodeid.startswith(slow)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file in one process, and those of Ray in the same one.

    Documents share nothing.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if "::test_what_is_shown_works[" in nodeid:
                return nodeid
            return "ray" if _RAY.search(nodeid) else super()._split_scope(nodeid)

    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def no_store_in_the_checkout() -> Iterator[None]:
    """MLflow creates a store in the current folder where no other one is named."""
    assert not any(path.exists() for path in _STRAYS), "left behind earlier: remove it"
    yield
    assert not any(path.exists() for path in _STRAYS)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with MLflow's tables: making them takes seconds, copying it does not."""
    from dcs_tracking.store.client import default_tracking_uri, open_client

    folder = tmp_path_factory.mktemp("store")
    open_client(default_tracking_uri(folder))
    return folder / "mlflow.db"


@pytest.fixture(scope="session")
def new_output(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Callable[[], Path]:
    """Make output folders whose MLflow database is ready."""

    def make() -> Path:
        folder = tmp_path_factory.mktemp("output")
        shutil.copy(empty_store, folder / "mlflow.db")
        return folder

    return make


@pytest.fixture
def output(tmp_path: Path, empty_store: Path) -> Path:
    """An output folder whose MLflow database is ready."""
    folder = tmp_path / "output"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    return folder
