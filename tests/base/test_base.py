"""What works without the extra ``models``: make test-base runs this where torch is missing."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from dcs import read_table
from tests.faults.processes import end, start_dcs
from tests.golden.test_golden import FOLDER
from tests.workflows.conftest import done, refused

pytestmark = pytest.mark.skipif(
    find_spec("torch") is not None, reason="the extra models is installed"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_table_is_tuned_corrected_recorded_and_reported(folder: Path) -> None:
    table = FOLDER / "table.parquet"
    done("tune", table, "--method", "dnip", "--output", "runs")
    done("apply", "runs/table-dnip/scheme.json", table, "-o", "out.parquet")
    assert read_table(folder / "out.parquet").n_rows == 60
    listed = json.loads(done("runs", "tune", "--runs", "runs", "--json").out)
    assert any(run["method"] == "dnip" for run in listed)
    done("report", "tune", "--runs", "runs", "-o", "report.html")
    assert (folder / "report.html").stat().st_size > 10_000


def test_tables_are_swept(folder: Path) -> None:
    (folder / "sweep.yaml").write_text(
        f"name: tables\ntables: [{FOLDER / 'table.parquet'}]\nmethods: [dnip, batch]\n"
    )
    # A process of its own, as Ray's workers are those of its own environment.
    code, _, err = end(start_dcs("sweep", "sweep.yaml", "--output", "runs"))
    assert code == 0, err
    records = [json.loads(path.read_text()) for path in folder.glob("runs/cells/*.json")]
    assert {record["status"] for record in records} == {"FINISHED"}


_GENERATE = "generate --task helpdesk --model tiny_lm --engine"


@pytest.mark.parametrize(
    "command",
    [
        "quickstart",
        f"{_GENERATE} transformers",
        f"{_GENERATE} vllm",
        f"{_GENERATE} openai --set scoring.base_url=http://127.0.0.1:9/v1",
    ],
)
def test_engines_name_their_extra_in_one_line(command: str, folder: Path) -> None:
    refused(*command.split(), "--output", "runs", says=["dcs-debias["])
