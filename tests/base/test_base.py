"""What works without the extra ``models``: make test-base runs this where torch is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dcs import ProbabilityTable
from tests.golden.test_golden import FOLDER

pytestmark = pytest.mark.skipif(
    find_spec("torch") is not None, reason="the extra models is installed"
)


def dcs(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in a folder."""
    code = "from dcs_workflows.cli import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_a_table_is_tuned_corrected_recorded_and_reported(tmp_path: Path) -> None:
    table = str(FOLDER / "table.parquet")
    tuned = dcs("tune", table, "--method", "dnip", "--output", "runs", folder=tmp_path)
    assert tuned.returncode == 0, tuned.stderr
    scheme = "runs/table-dnip/scheme.json"
    applied = dcs("apply", scheme, table, "-o", "out.parquet", folder=tmp_path)
    assert applied.returncode == 0, applied.stderr
    assert ProbabilityTable.read(tmp_path / "out.parquet").n_rows == 60
    listed = dcs("runs", "tune", "--runs", "runs", "--json", folder=tmp_path)
    assert any(run["method"] == "dnip" for run in json.loads(listed.stdout)), listed.stderr
    report = dcs("report", "tune", "--runs", "runs", "-o", "report.html", folder=tmp_path)
    assert report.returncode == 0, report.stderr
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_tables_are_swept(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(
        f"name: tables\ntables: [{FOLDER / 'table.parquet'}]\nmethods: [dnip, batch]\n"
    )
    swept = dcs("sweep", "sweep.yaml", "--output", "runs", folder=tmp_path)
    assert swept.returncode == 0, swept.stderr
    records = [json.loads(path.read_text()) for path in (tmp_path / "runs/cells").glob("*.json")]
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
def test_engines_name_their_extra_in_one_line(command: str, tmp_path: Path) -> None:
    done = dcs(*command.split(), "--output", "runs", folder=tmp_path)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("dcs: error: ")]
    assert len(lines) == 1
    assert "dcs-debias[" in lines[0]
