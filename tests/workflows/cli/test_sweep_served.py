"""``dcs sweep`` on a served model: estimate first, numbers of the server, nothing asked twice."""

from __future__ import annotations

import json

import pytest

from dcs.data.table import ProbabilityTable
from tests.workflows.conftest import KEY_VARIABLE, SECRET, done

SWEEP = f"""
name: served
models: [served-model]
tasks: [reviews]
shots: [1]
methods: [icl]
limit: 20
tracking: {{figures: none}}
scoring:
  engine: openai
  # Four tokens are too few to show five labels.
  top_logprobs: 4
  concurrency: 4
  key_variable: {KEY_VARIABLE}
"""


@pytest.mark.slow
def test_a_served_model(cluster, model_server, output, tmp_path):
    model_server.key = SECRET
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    address = f"scoring.base_url={model_server.url}"
    served = ("sweep", tmp_path / "sweep.yaml", "-o", output, "--set", address)
    plan = done(*served, "--dry-run")
    assert model_server.requests == []
    outcome, again = done(*served), done(*served)

    assert "about 40 requests" in plan.out and "about 40 requests" in outcome.out
    assert "requests" not in again.out
    scored = [body for path, _, body, _ in model_server.requests if path == "/v1/completions"]
    assert len(scored) == 40
    assert {body["model"] for body in scored} == {"served-model"}
    assert model_server.most_active <= 4
    assert "was missing from" in outcome.out

    (folder,) = (output / "probabilities").iterdir()
    note = json.loads((folder / "scoring.json").read_text())
    assert note["scorer"]["scorer"] == "openai"
    assert note["gpus"] == 0
    table = ProbabilityTable.read(folder / "test.parquet")
    assert table.provenance.model == "served-model"

    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert SECRET.encode() not in written
    assert SECRET not in outcome.out + outcome.err
