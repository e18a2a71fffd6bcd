from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dcs.errors import ConfigError, TrackingError
from dcs_tracking.store import client, runs
from dcs_tracking.store.client import (
    default_tracking_uri,
    open_client,
    open_store,
    redact_uri,
    resolve_tracking_uri,
)
from dcs_tracking.testing import check_store
from tests.dcs.refusals import refuses
from tests.servers import free_port


def test_a_file_is_the_default_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_tracking_uri(None, "runs") == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert resolve_tracking_uri("sqlite:///x.db", "runs") == f"sqlite:///{tmp_path}/x.db"
    assert resolve_tracking_uri("sqlite:////abs/x.db", "runs") == "sqlite:////abs/x.db"
    assert resolve_tracking_uri("http://host:5000/", "runs") == "http://host:5000"
    assert resolve_tracking_uri("postgresql+psycopg2://h/db", "r") == "postgresql+psycopg2://h/db"
    assert redact_uri("postgresql://me:p#x@host:5432/db") == "postgresql://me:***@host:5432/db"


def test_stores_that_lose_runs_are_refused() -> None:
    for uri in ("mlruns", "file:///tmp/mlruns", "ftp://x", "sqlite:///:memory:", ""):
        refuses(ConfigError, resolve_tracking_uri, uri, "runs", names=[repr(uri)])


def test_the_contract_of_stores(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = default_tracking_uri(output)
    check_store(uri, output)

    def empty(store: Any, run_id: str, files: Any) -> None:
        client.log_files(store, run_id, dict.fromkeys(files, ""))

    for name, fault in (("_metrics", lambda *values: []), ("log_files", empty)):
        with pytest.raises(AssertionError), monkeypatch.context() as broken:
            broken.setattr(runs, name, fault)
            check_store(uri, output)


def test_a_server_that_is_not_there_is_found_out_without_mlflow() -> None:
    refuses(TrackingError, open_client, f"http://127.0.0.1:{free_port()}", names=["refused"])


def test_opening_a_new_store_says_nothing_and_leaves_the_root_logger(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    # Two sweeps may make the same database, and its address may have options and any letters.
    uri = f"sqlite:///{tmp_path}/new/Zürich/x.db?timeout=30"
    assert redact_uri(uri) == uri
    with ThreadPoolExecutor(2) as pool:
        assert len([*pool.map(open_client, [uri, uri])]) == 2
    assert (root.level, list(root.handlers)) == before
    assert capfd.readouterr() == ("", "")
    open_store(uri)
    assert (tmp_path / "new" / "Zürich" / "x.db").is_file()
