"""``dcs sweep`` on a served model: estimate first, numbers of the server, nothing asked twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from dcs.data.table import ProbabilityTable
from tests.dcs.scoring.server import ModelServer
from tests.workflows.conftest import KEY_VARIABLE, SECRET, run_dcs

SWEEP = {
    "name": "served",
    "models": ["served-model"],
    "tasks": ["reviews"],
    "shots": [1],
    "methods": ["icl"],
    "limit": 20,
    "tracking": {"figures": "none"},
}


def sweep(folder: Path, url: str, *more: object, **scoring: object):
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(SWEEP | {"scoring": {"engine": "openai"} | scoring}))
    return run_dcs("sweep", path, "-o", folder / "runs", "--set", f"scoring.base_url={url}", *more)


@pytest.fixture
def served():
    server = ModelServer()
    server.key = SECRET
    with server.serving() as url:
        yield server, url


@pytest.mark.slow
def test_a_served_model(cluster, served, tmp_path):
    server, url = served
    # Four tokens are too few to show five labels.
    options = {"top_logprobs": 4, "missing": "bound", "concurrency": 4}
    options["key_variable"] = KEY_VARIABLE
    plan = sweep(tmp_path, url, "--dry-run", **options)
    assert plan.code == 0, plan.err
    assert "at most 40 requests" in plan.out
    assert server.requests == []

    outcome = sweep(tmp_path, url, **options)
    assert outcome.code == 0, outcome.err + outcome.out
    assert "at most 40 requests" in outcome.out
    scored = [body for path, _, body, _ in server.requests if path == "/v1/completions"]
    assert len(scored) == 40
    assert {body["model"] for body in scored} == {"served-model"}
    assert server.most_active <= 4
    assert "was missing from" in outcome.out

    (folder,) = (tmp_path / "runs" / "probabilities").iterdir()
    note = json.loads((folder / "scoring.json").read_text())
    assert note["scorer"]["scorer"] == "openai"
    assert note["gpus"] == 0
    table = ProbabilityTable.read(folder / "test.parquet")
    assert table.provenance.model == "served-model"

    again = sweep(tmp_path, url, **options)
    assert again.code == 0
    assert "requests" not in again.out
    assert len([1 for path, *_ in server.requests if path == "/v1/completions"]) == 40
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert SECRET.encode() not in written
    assert SECRET not in outcome.out + outcome.err
