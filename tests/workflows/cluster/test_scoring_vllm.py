"""vLLM in a Ray actor, as sweeps run it. Runs in an environment of its own: make test-vllm."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from dcs.scoring.base import Prompts
from dcs_workflows.cluster.connect import place
from dcs_workflows.cluster.scoring import ScoringActor, TableScoring
from dcs_workflows.config.scoring import ScoringSettings
from dcs_workflows.sources.scored import TableRequest
from tests.faults.processes import wait_for

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
    actor = cluster.remote(ScoringActor).options(**options)
    actor = actor.remote("tiny_lm", tmp_path / "shards", SCORING)
    info = cluster.get(actor.load.remote())
    assert cluster.available_resources().get("GPU", 0) == 0
    assert info.version.startswith(f"vllm {vllm.__version__}")
    assert vllm.__version__.partition("+")[0] in SCORING.identity("tiny_lm")["versions"]["vllm"]
    prefix, queries, words = TableScoring("k", REQUEST).prompts.prompts()
    halves = [Prompts(prefix, half, words) for half in (queries[:50], queries[50:])]
    results = cluster.get([actor.score.remote(half) for half in halves])
    assert sum(result.scored for result in results) == len(queries)

    with closing(ScoringSettings(device="cpu").load("tiny_lm")) as plain:
        expected = plain.score(prefix, queries, words)
    probs = np.concatenate([result.probs for result in results])
    np.testing.assert_allclose(probs, expected, atol=1e-3)

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
