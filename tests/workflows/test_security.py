"""Planted secrets are found nowhere, names lead nowhere else, servers listen on this machine."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pydantic import ValidationError

from dcs.errors import DCSError
from dcs.prompting.files import get_task
from dcs_tracking import Archive, Sweep
from dcs_tracking.records import ScoringRecord
from dcs_tracking.store.client import ui_arguments
from dcs_workflows.config.sweep import SweepConfig
from dcs_workflows.study.cell import failed_record
from tests.dcs.prompting.test_files import OWN
from tests.servers import answering
from tests.tracking.cells import make_cell
from tests.workflows.conftest import UNDRAWN, Outcome, biased_table, done, run_dcs, toy_cell

PASSWORD = "hunter2/w0rd-of-Mine"
SECRETS = {
    "OPENAI_API_KEY": "plantedkey-0123456789abcdef",
    "HF_TOKEN": "plantedhub-0123456789abcdef",
    "AWS_SECRET_ACCESS_KEY": "plantedaws/0123456789abcdef",
    "PGPASSWORD": "plantedpg-0123456789abcdef",
}
PATH, FRAGMENT, USER = "plantedpath-0123456789ab", "plantedpart-0123456789ab", "planteduser01"
#: A part of the password is found too, as errors of addresses quote it.
FORMS = {PASSWORD[:7].encode()} | {
    form.encode()
    for secret in (PASSWORD, f"me:{PASSWORD}", PATH, FRAGMENT, USER, *SECRETS.values())
    for form in (secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode())
}


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


def search(outcome: Outcome, folder: Path) -> None:
    """Fail where a secret, or a common form of it, is printed or written."""
    texts = {"out": outcome.out.encode(), "err": outcome.err.encode()}
    texts |= {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found = [place for place, text in texts.items() for form in FORMS if form in text]
    assert found == []


@pytest.fixture
def echo() -> Iterator[str]:
    """Host and port, with a password, of a server that repeats headers in an error."""
    with answering(400, lambda asked, _: f"{dict(asked.headers)} {asked.path}".encode()) as url:
        yield f"me:{quote(PASSWORD, safe='')}@{url.removeprefix('http://')}"


def test_a_store_that_refuses(echo: str, tmp_path: Path) -> None:
    biased_table(80).write(tmp_path / "moods.parquet")
    uri = ("--tracking-uri", f"http://{echo}/{PATH}#{FRAGMENT}")
    for words in (
        ("tune", tmp_path / "moods.parquet", "--method", "batch", *UNDRAWN, "-o", tmp_path, *uri),
        ("sync", "-o", tmp_path, *uri),
        ("report", "tune", "-o", tmp_path / "report.html", "--runs", tmp_path, *uri),
        ("ui", "-o", tmp_path, *uri),
        ("runs", "--tracking-uri", f"http://{USER}@{echo.partition('@')[2]}"),
        ("runs", "--tracking-uri", f"postgresql://me:{PASSWORD}[::1@127.0.0.1:1/x"),
    ):
        search(run_dcs(*words), tmp_path)
    assert Archive(tmp_path).finished()


def test_a_model_server(tmp_path: Path, echo: str) -> None:
    """Which repeats the key it was sent; and addresses that hold one, which are refused."""
    host = echo.partition("@")[2]
    scoring = (f"http://{host}/v1", f"http://{echo}/v1", f"http://{host}/v1?api_key={PASSWORD}")
    asked = ("generate", "--model", "m", "--engine", "openai", "--task", "reviews", "--limit", "3")
    for address in (*scoring, f"http://{host}/v1#{FRAGMENT}", f"http://{USER}@{host}/v1"):
        said = ("-o", tmp_path, "--set", f"scoring.base_url={address}")
        search(done(*asked, *said, code=2), tmp_path)
        plan = run_dcs("sweep", "quickstart", "--dry-run", "--set", "scoring.engine=openai", *said)
        assert (plan.code == 2) is (address != scoring[0]), plan
        search(plan, tmp_path)


def test_the_record_of_a_cell_that_failed(tmp_path: Path) -> None:
    error = ConnectionError(f"https://me:{PASSWORD}@h {SECRETS['HF_TOKEN']}")
    record = failed_record(toy_cell(), error, sweep="s", started_ms=0)
    assert "ConnectionError" in (record.error or "")
    search(Outcome(0, record.to_json(), ""), tmp_path)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", "..", "", "a\0b", "~/x", "a\nb"])
def test_names_lead_nowhere_else(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name"):
        SweepConfig.model_validate({"name": name, "tasks": ["helpdesk"]})
    (tmp_path / "task.yaml").write_text(json.dumps(OWN | {"name": name}))
    with pytest.raises(DCSError, match="key 'name'"):
        get_task(str(tmp_path / "task.yaml"))
    nothing: dict[str, Any] = dict.fromkeys(("identity", "params", "metrics"), {})
    for use in (
        lambda: replace(make_cell(), key=name),
        lambda: Sweep(experiment="s", sweep_key=name),
        lambda: ScoringRecord(key=name, started_ms=0, finished_ms=0, **nothing),
    ):
        with pytest.raises(ValidationError):
            use()


def test_the_pages_of_mlflow_are_for_this_machine() -> None:
    arguments = ui_arguments("sqlite:////x.db")
    assert arguments[arguments.index("--host") + 1] == "127.0.0.1"


@pytest.mark.slow
def test_a_local_ray_asks_for_a_token() -> None:
    code = (
        "import os; from dcs_workflows.cluster.connect import connected\n"
        "with connected(): print(os.environ['RAY_AUTH_MODE'], len(os.environ['RAY_AUTH_TOKEN']))"
    )
    others = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH_")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=others, capture_output=True, text=True, check=True
    )
    mode, length = done.stdout.split()[-2:]
    assert mode == "token" and int(length) >= 64
