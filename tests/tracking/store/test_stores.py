from __future__ import annotations

import logging
import os
import socket
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from dcs.errors import ConfigError
from tracking.store import client as stores
from tracking.store.client import (
    StoreUnavailable,
    artifact_location,
    default_tracking_uri,
    open_client,
    quietly,
    redact,
    resolve_tracking_uri,
    stored_uri,
    ui_arguments,
)


def test_default_store_is_a_file_in_the_output_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_tracking_uri(None, "runs") == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert resolve_tracking_uri("sqlite:///x.db", "runs") == f"sqlite:///{tmp_path}/x.db"
    assert resolve_tracking_uri("sqlite:////abs/x.db", "runs") == "sqlite:////abs/x.db"
    assert resolve_tracking_uri("http://host:5000/", "runs") == "http://host:5000"
    assert resolve_tracking_uri("postgresql+psycopg2://h/db", "r") == "postgresql+psycopg2://h/db"


@pytest.mark.parametrize(
    "uri",
    [
        "./mlruns",
        "mlruns",
        "file:///tmp/mlruns",
        "/tmp/x",
        "sqlite://",
        "ftp://x",
        "sqlite:///:memory:",
        "",
    ],
)
def test_stores_that_lose_runs_are_refused_in_one_line(uri: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_tracking_uri(uri, "runs")
    assert repr(uri) in str(caught.value)
    assert "sqlite:////" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_passwords_stay_out_of_files_and_messages(tmp_path: Path) -> None:
    assert redact("postgresql://me:secret@host:5432/db") == "postgresql://me:***@host:5432/db"
    assert redact("http://host:5000") == "http://host:5000"
    assert stored_uri("https://me:secret@host", tmp_path) == "https://me:***@host"
    assert stored_uri(default_tracking_uri(tmp_path), tmp_path) is None


def test_artifacts_lie_beside_a_database_and_with_a_server(tmp_path: Path) -> None:
    where = artifact_location("sqlite:////data/x.db", tmp_path, "paper/main")
    assert where == "file:///data/mlartifacts/paper_main"
    beside = artifact_location("postgresql://h/db", tmp_path, "a")
    assert beside == f"file://{tmp_path}/mlartifacts/a"
    assert artifact_location("http://h", tmp_path, "a") is None


def test_ui_needs_a_store_without_pages_of_its_own() -> None:
    assert ui_arguments("sqlite:////x.db", port=6000)[-6:] == [
        "--backend-store-uri",
        "sqlite:////x.db",
        "--host",
        "127.0.0.1",
        "--port",
        "6000",
    ]
    with pytest.raises(ConfigError, match="open it in a browser"):
        ui_arguments("http://h:5000")


def test_a_server_that_is_not_there_is_found_out_without_mlflow() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(StoreUnavailable, match="refused"):
        open_client(f"http://127.0.0.1:{port}")


def test_environment_and_loggers_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    before = dict(os.environ)
    filters = list(logging.getLogger("urllib3.connectionpool").filters)
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with quietly():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(10)
    with quietly():
        assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77", "the user's own value"
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "2"
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" in os.environ, "still used by the other thread"
    leave.set()
    thread.join(10)
    assert dict(os.environ) == before
    assert logging.getLogger("urllib3.connectionpool").filters == filters


def test_only_our_own_thread_is_silenced(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("urllib3.connectionpool")
    with quietly():
        logger.warning("ours")
        thread = threading.Thread(target=logger.warning, args=("theirs",))
        thread.start()
        thread.join()
    assert [record.message for record in caplog.records] == ["theirs"]


def test_opening_a_new_store_says_nothing_and_leaves_the_root_logger(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    open_client(default_tracking_uri(tmp_path / "new" / "folder"))
    assert (root.level, list(root.handlers)) == before
    assert capfd.readouterr() == ("", "")
    assert stores.is_http("http://x")


def test_a_file_that_another_sweep_made_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "mlflow.db"

    class Slow:
        """Makes its tables while another process puts its own file into the folder."""

        def __init__(self, tracking_uri: str) -> None:
            self._made = tracking_uri.removeprefix("sqlite:///")

        def search_experiments(self, *, max_results: int) -> None:
            with closing(sqlite3.connect(self._made)) as made:
                made.execute("CREATE TABLE slow (x)")
            path.parent.mkdir()
            path.write_bytes(b"the other's")

    stores._make_sqlite(f"sqlite:///{path}", Slow)
    assert path.read_bytes() == b"the other's"
    assert list(path.parent.iterdir()) == [path]
