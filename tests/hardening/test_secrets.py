"""A planted secret is looked for in all that is printed, written and recorded."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock
from urllib.parse import quote

import pytest
import yaml

from dcs.errors import DCSError
from dcs.messages import redact
from tests.hardening.commands import Outcome, soon
from tests.hardening.corpus import SWEEP, table
from tests.servers import free_port
from tests.workflows.conftest import run_dcs
from workflows.cells import Cell
from workflows.tuning.cell import failed_record

PASSWORD = "hunter2/w0rd-of-Mine"
SECRETS = {
    "OPENAI_API_KEY": "plantedkey-0123456789abcdef",
    "RAY_AUTH_TOKEN": "plantedray-0123456789abcdef",
    "HF_TOKEN": "plantedhub-0123456789abcdef",
    "AWS_SECRET_ACCESS_KEY": "plantedaws/0123456789abcdef",
    "MLFLOW_TRACKING_TOKEN": "plantedmlf-0123456789abcdef",
    "PGPASSWORD": "plantedpg-0123456789abcdef",
}
_BATCH = ("--method", "batch")
FORMS = {
    form
    for secret in (PASSWORD, *SECRETS.values())
    for form in (secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode())
} | {base64.b64encode(f"me:{PASSWORD}".encode()).decode()}


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        if name not in ("RAY_AUTH_TOKEN", "MLFLOW_TRACKING_TOKEN"):
            # Ray and MLflow would use those in this process.
            monkeypatch.setenv(name, value)


def search(outcome: Outcome | None, *folders: Path) -> None:
    """Fail where a secret, or a common form of it, is to be found."""
    texts = {} if outcome is None else {"out": outcome.out.encode(), "err": outcome.err.encode()}
    for folder in folders:
        for path in folder.rglob("*"):
            texts[f"name of {path}"] = os.fsencode(path)
            if path.is_file():
                texts[str(path)] = path.read_bytes()
    assert texts
    for place, content in texts.items():
        for form in FORMS:
            assert form.encode() not in content, f"{form} in {place}"


class _Echo(BaseHTTPRequestHandler):
    """Answers as servers do that repeat in an error what they were sent."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.do_GET()

    def do_GET(self) -> None:
        body = f"refused: {dict(self.headers)} {self.path}".encode()
        self.send_response(400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that repeats headers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_a_run_that_succeeds(tmp_path: Path, output: Path) -> None:
    table(80).write(tmp_path / "t.parquet")
    with soon():
        outcome = run_dcs("tune", tmp_path / "t.parquet", "--method", "batch", "-o", output)
        assert outcome.code == 0, outcome
        report = run_dcs("report", "tune", "--runs", output, "-o", tmp_path / "r.html")
    assert report.code == 0, report
    search(outcome, tmp_path)
    search(report, tmp_path)


def test_a_store_that_refuses(tmp_path: Path, echo: int) -> None:
    uri = f"http://me:{quote(PASSWORD, safe='')}@127.0.0.1:{echo}"
    table(80).write(tmp_path / "t.parquet")
    commands = (
        (
            "tune",
            tmp_path / "t.parquet",
            "--method",
            "batch",
            "-o",
            tmp_path,
            "--tracking-uri",
            uri,
        ),
        ("sync", "-o", tmp_path),
        ("sync", "-o", tmp_path, "--tracking-uri", uri),
        ("report", "tune", "--runs", tmp_path, "--tracking-uri", uri),
        ("table", "tune", "--runs", tmp_path, "--tracking-uri", uri),
        ("compare", "abcd", "efgh", "--runs", tmp_path, "--tracking-uri", uri),
        ("register", "abcd", "--name", "m", "--runs", tmp_path, "--tracking-uri", uri),
        ("doctor", "--quick", "-o", tmp_path, "--tracking-uri", uri),
        ("submit", tmp_path / "t.parquet", "--tracking-uri", uri),
        ("ui", "-o", tmp_path, "--tracking-uri", uri),
    )
    for words in commands:
        with soon():
            outcome = run_dcs(*words)
        search(outcome, tmp_path)
    assert list((tmp_path / "archive").glob("*/sweep.json"))


@pytest.mark.parametrize("driver", ["postgresql", "postgresql+psycopg", "mysql+pymysql"])
def test_a_database_that_does_not_answer(driver: str, tmp_path: Path) -> None:
    uri = f"{driver}://me:{PASSWORD}@127.0.0.1:{free_port()}/x?password={quote(PASSWORD)}"
    table(80).write(tmp_path / "t.parquet")
    with soon(), mock.patch.dict(os.environ, DCS_OPTUNA_STORAGE=uri):
        for words in (
            ("doctor", "--quick", "-o", tmp_path, "--tracking-uri", uri),
            ("table", "tune", "--runs", tmp_path, "--tracking-uri", uri),
        ):
            outcome = run_dcs(*words)
            assert outcome.code in (1, 2)
            search(outcome, tmp_path)


@pytest.mark.parametrize("password", [PASSWORD, f"{PASSWORD}[::1", f"a/{PASSWORD}:x"])
def test_a_password_that_breaks_the_address(password: str, tmp_path: Path) -> None:
    with soon():
        outcome = run_dcs(
            "doctor",
            "--quick",
            "-o",
            tmp_path,
            "--tracking-uri",
            f"postgresql://me:{password}@127.0.0.1:1/x",
        )
    assert outcome.code == 1
    for part in (PASSWORD, "hunter2"):
        assert part not in outcome.out + outcome.err, outcome


def test_a_model_server_that_repeats_the_key(tmp_path: Path, echo: int) -> None:
    with soon():
        outcome = run_dcs(
            *("generate", "--model", "m", "--engine", "openai", "--task", "reviews"),
            *("--limit", "3", "--yes", "-o", tmp_path / "o"),
            *("--base-url", f"http://me:{quote(PASSWORD, safe='')}@127.0.0.1:{echo}/v1"),
        )
    assert outcome.code == 2, outcome
    (tmp_path / "kept").touch()
    search(outcome, tmp_path)


def test_a_sweep_with_passwords_in_its_configuration(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = mock.Mock(side_effect=DCSError("stopped by the test"))
    monkeypatch.setattr("workflows.cli._sweeping._joined_ray", stop)
    config = {
        **SWEEP,
        "optuna_storage": f"postgresql://me:{quote(PASSWORD, safe='')}@127.0.0.1:1/x",
        "scoring": {"store": f"memory://me:{PASSWORD}@h/x"},
    }
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(config))
    for words in (("sweep", path, "--dry-run"), ("sweep", path)):
        with soon():
            outcome = run_dcs(*words, "-o", output)
        search(outcome)
    assert list(output.glob("archive/*/sweep.json"))
    path.unlink()
    search(None, tmp_path)


def test_tracebacks(capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    from workflows.cli import main

    error = RuntimeError(f"postgresql://me:{PASSWORD}@h/x {SECRETS['OPENAI_API_KEY']}")
    hook = sys.excepthook
    try:
        with (
            mock.patch.object(sys, "argv", ["dcs", "tasks"]),
            mock.patch("workflows.cli.tasks.list_tasks", side_effect=error),
            mock.patch("workflows.cli.app", side_effect=error),
            pytest.raises(RuntimeError),
        ):
            main()
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.excepthook = hook
    err = capsys.readouterr().err
    assert "Traceback" in err
    search(Outcome(1, "", err))


def test_the_record_of_a_cell_that_failed() -> None:
    cell = Cell(
        model="m",
        task="t",
        shots=1,
        seed=0,
        method="icl",
        tuner=None,
        optimization_digest="a",
        test_digest="b",
    )
    try:
        raise ConnectionError(f"https://me:{PASSWORD}@h {SECRETS['HF_TOKEN']}")
    except ConnectionError as error:
        record = failed_record(cell, error, sweep="s", started_ms=0)
    assert "ConnectionError" in (record.error or "")
    search(Outcome(0, record.to_json(), record.error or ""))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:p%40ss@h/db", "postgresql://u:***@h/db"),
        (
            "postgresql+psycopg://u:p@ss@h:5/db?sslmode=x",
            "postgresql+psycopg://u:***@h:5/db?sslmode=x",
        ),
        ("mysql://h/db?user=a&password=x&x=1", "mysql://h/db?user=a&password=***&x=1"),
        ("https://abcdefghijklmnopqrstuvwxyz@h/v1", "https://***@h/v1"),
        ("s3://key:sec/ret@bucket", "s3://key:***@bucket"),
        ("Authorization: Bearer abcdefghij", "Authorization: Bearer ***"),
        ("redis://:pw@h", "redis://:***@h"),
        ("http://h:5000/x@y", "http://h:5000/x@y"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("sqlite:////a/b:c@d.db", "sqlite:////a/b:c@d.db"),
        ("key 'beta': 0.5", "key 'beta': 0.5"),
    ],
)
def test_what_is_redacted(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(f"before {text} after") == f"before {shown} after"
    assert redact(shown) == shown
