"""vLLM in a Ray actor, as sweeps run it. Runs in an environment of its own: make test-vllm."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.faults.processes import wait_for
from workflows.cluster.placement import place
from workflows.cluster.scoring import ScoringActor
from workflows.config.scoring import ScoringSettings
from workflows.tables import ProbabilityStore, TableRequest, request_key

pytestmark = pytest.mark.vllm

HAS_GPU = shutil.which("nvidia-smi") is not None
SCORING = ScoringSettings(
    engine="vllm", max_length=1024, dtype="float32", memory=0.3 if HAS_GPU else None
)
REQUEST = TableRequest(
    model="tiny_lm", task="reviews", shots="N", seed=0, limit=60, scoring=SCORING
)


@pytest.fixture
def cluster():
    import ray

    # Nothing uses the GPU: it is there to be asked for and given back.
    ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def test_an_actor_scores_and_gives_its_gpu_back(cluster, tmp_path: Path):
    import vllm

    options, most = place(cluster.nodes()).scoring(SCORING)
    assert (options["num_gpus"], most) == (1, 1)
    key, store = request_key(REQUEST), tmp_path / "probabilities"
    actor = cluster.remote(ScoringActor).options(**options).remote("tiny_lm", store, 1, SCORING)
    tables, note = cluster.get(list(actor.generate.options(num_returns=2).remote(REQUEST, key)))
    assert cluster.available_resources().get("GPU", 0) == 0
    assert note.scorer["version"].startswith(f"vllm {vllm.__version__}")
    assert vllm.__version__.partition("+")[0] in SCORING.identity("tiny_lm")["versions"]["vllm"]
    assert note.digests == ProbabilityStore(store).digests(key)

    on_cpu = ScoringSettings(device="cpu")
    plain = ScoringActor("tiny_lm", tmp_path / "plain" / "probabilities", 0, on_cpu)
    expected, _ = plain.generate(REQUEST, key)
    for split, table in tables.items():
        assert table.ids == expected[split].ids
        np.testing.assert_allclose(table.probs, expected[split].probs, atol=1e-3)

    del actor
    wait_for(lambda: is_given_back(cluster), "the GPU to be given back", 60)


def is_given_back(cluster) -> bool:
    """Whether Ray has its GPU again, and no process of ours is left on a real one."""
    used = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    pids = subprocess.run(used, capture_output=True, text=True, check=True) if HAS_GPU else None
    left = [] if pids is None else [pid for pid in pids.stdout.split() if is_ours(int(pid))]
    return cluster.available_resources().get("GPU", 0) == 1 and not left


def is_ours(pid: int) -> bool:
    with suppress(OSError):
        return "ScoringActor" in Path(f"/proc/{pid}/cmdline").read_text()
    return False
