"""The engines on an NVIDIA GPU: make test-gpu, which also runs the tests of vLLM there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dcs.scoring import Scorer, load_scorer
from tests.dcs.scoring.test_contract import PREFIX, QUERIES, TASK, ScorerContract

pytestmark = pytest.mark.gpu

# What is compared are class probabilities: bfloat16 keeps 8 bits of each product's factors.
TOLERANCES = {"float32": 1e-4, "bfloat16": 0.03}


@pytest.fixture(scope="module")
def cuda() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no NVIDIA GPU")
    return torch.cuda


@pytest.fixture(scope="module", params=TOLERANCES)
def on_gpu(request: pytest.FixtureRequest, cuda: Any) -> Iterator[Scorer]:
    scorer = load_scorer("tiny_lm", device="cuda", dtype=request.param)
    yield scorer
    scorer.close()


class TestContract(ScorerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def scorer(cls, cuda: Any) -> Iterator[Scorer]:
        scorer = load_scorer("tiny_lm", device="cuda", dtype="float32")
        yield scorer
        scorer.close()


def test_agrees_with_float32_on_the_cpu(on_gpu: Scorer, tiny_scorer: Scorer) -> None:
    expected = tiny_scorer.score(PREFIX, QUERIES, TASK.label_words)
    probs = on_gpu.score(PREFIX, QUERIES, TASK.label_words)
    tolerance = TOLERANCES[on_gpu.settings["dtype"]]
    np.testing.assert_allclose(probs, expected, atol=tolerance)
    # Not a weak test by a weak model: queries differ by more than the tolerance.
    assert np.ptp(expected, axis=0).max() > 5 * tolerance


def test_bfloat16_is_the_default_and_the_memory_is_given_back(cuda: Any) -> None:
    def left() -> int:
        before = cuda.memory_allocated()
        scorer = load_scorer("tiny_lm")
        assert scorer.settings["dtype"] == "bfloat16"
        scorer.score(PREFIX, QUERIES, TASK.label_words)
        assert cuda.memory_allocated() > before
        scorer.close()
        return int(cuda.memory_allocated())

    # What torch's own libraries keep, they keep once.
    assert left() == left()


def test_too_large_a_batch_is_halved(cuda: Any, caplog: pytest.LogCaptureFixture) -> None:
    scorer = load_scorer("tiny_lm", device="cuda", dtype="float32")
    expected = scorer.score(PREFIX, QUERIES, TASK.label_words)
    # The keys and values of 350 prompts take more than that.
    share = (cuda.memory_reserved() + 2**25) / cuda.mem_get_info()[1]
    cuda.set_per_process_memory_fraction(share)
    try:
        probs = scorer.score(PREFIX, QUERIES * 200, TASK.label_words)
    finally:
        cuda.set_per_process_memory_fraction(1.0)
        scorer.close()
    assert "out of memory" in caplog.text
    np.testing.assert_allclose(probs[: len(QUERIES)], expected, atol=1e-4)
