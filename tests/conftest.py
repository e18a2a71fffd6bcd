"""What holds for all tests: one thread, Ray's token, no hub, the same examples, an empty store."""

from __future__ import annotations

import fcntl
import gc
import os
import re
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]
#: Where the packages are, as `pythonpath` of pyproject.toml says it to this process.
_PATH = [str(ROOT), str(ROOT / "tracking"), str(ROOT / "workflows")]

# Set before anything imports NumPy, Torch or Ray, which read it only once.
os.environ.update(
    # The matrices of tests are small: threads would spend most of their time waiting for others.
    OPENBLAS_NUM_THREADS="1",
    OMP_NUM_THREADS="1",
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


#: Files whose tests one process runs, so that it alone starts Ray or loads Torch.
_TOGETHER = {
    "ray": re.compile("workflows/(test_(sweep|tables)|cluster/test_(parallel|connect))"),
    "torch": re.compile("dcs/scoring/|/test_(scoring|commands|export|generate|production)"),
}


def _scope(test: str) -> str:
    """Return the group of a test, or else its file."""
    if "::test_what_is_shown_works[" in test:
        return test
    groups = (name for name, files in _TOGETHER.items() if files.search(test))
    return next(groups, test.partition("::")[0])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slow ones first, so that several processes end at about the same time."""
    slow = [*_TOGETHER, "tests/workflows", "tests/tracking", "tests/dcs/selection", "tests"]

    def rank(item: pytest.Item) -> int:
        scope = _scope(item.nodeid)
        return next(number for number, start in enumerate(slow) if scope.startswith(start))

    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """Spare the garbage collector all that was imported, a million objects, and many rounds."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 100)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file, and of a group of files, in one process, but documents apart."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def no_store_in_the_checkout() -> Iterator[None]:
    """MLflow creates a store in the current folder where no other one is named."""
    assert not any(path.exists() for path in _STRAYS), "left behind earlier: remove it"
    yield
    assert not any(path.exists() for path in _STRAYS)


# MLflow asks for a user that a server without accounts does not know, and its charts settle in
# more than one frame.
_EXPECTED = ("users/current", "ResizeObserver loop")


@pytest.fixture
def page() -> Iterator[Any]:
    """A page in Chromium; it fails the test when it logs an error or does not get what it asks."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium on the path")
    troubles: list[str] = []

    def note(message: Any) -> None:
        if message.type == "error":
            troubles.append(f"{message.text} ({message.location['url']})")

    with playwright.sync_playwright() as engine:
        # Chromium refuses its sandbox to root, which tests in containers are.
        browser = engine.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", note)
        yield page
        browser.close()
    assert [text for text in troubles if not any(part in text for part in _EXPECTED)] == []


@pytest.fixture(scope="module")
def model_server() -> Iterator[Any]:
    """A server of the packaged model."""
    from tests.dcs.scoring.server import ModelServer

    server = ModelServer()
    with server.serving():
        yield server


@pytest.fixture(scope="session")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all processes of this run."""
    root = tmp_path_factory.getbasetemp()
    return root.parent if "PYTEST_XDIST_WORKER" in os.environ else root


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Let the other processes of this run wait while the block runs."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def empty_store(together: Path) -> Path:
    """A SQLite file with MLflow's tables: making them takes seconds, copying it does not."""
    from dcs_tracking.store.client import default_tracking_uri, open_client

    with alone(together / "store.lock"):  # the first of the processes makes it for all
        if not (together / "mlflow.db").exists():
            open_client(default_tracking_uri(together))
    return together / "mlflow.db"


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
