"""The Transformers engine against forward passes with nothing clever."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dcs.errors import ScoringError
from dcs.prompting import Shots, get_task, render_prefix, render_query, select_demonstrations
from dcs.scoring import LabelRule, load_scorer, resolve_model
from dcs.scoring.models import LoadedModel
from dcs.scoring.transformers import TransformersScorer

TINY = resolve_model("tiny_lm").location
TASK = get_task("helpdesk")
QUERIES = [render_query(TASK, e.text) for e in TASK.examples("test")[:12]]
QUERIES[3] = render_query(TASK, "Help.")
WORDS = ("good", "quixotry", "zebra crossing", "zebra stripes")
SETTINGS: list[dict[str, Any]] = [
    {},
    {"reuse_prefix": False},
    {"token_budget": 100},
    {"token_budget": 1},
]


def prefix_of(shots: Shots) -> str:
    return render_prefix(TASK, select_demonstrations(TASK, shots, seed=1))


def plain_forward(
    folder: str, prompts: Sequence[str], words: Sequence[str], rule: LabelRule
) -> NDArray[np.float64]:
    """Score one whole prompt at a time: the next token, or word by word."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    labels = [tokenizer(f" {word}", add_special_tokens=False)["input_ids"] for word in words]

    if rule == "first":
        labels = [label[:1] for label in labels]

    def log_softmax(ids: list[int]) -> Any:
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0].double().log_softmax(-1)

    rows = []
    for prompt in prompts:
        ids = tokenizer(prompt)["input_ids"]
        if rule == "joint":
            steps = [log_softmax(ids + label)[len(ids) - 1 : -1] for label in labels]
            logs = [sum(s[k, t] for k, t in enumerate(ls)) for s, ls in zip(steps, labels)]  # noqa: B905
            rows.append([float(value.exp()) for value in logs])
        else:
            last = log_softmax(ids)[-1].exp()
            rows.append([float(last[label].mean()) for label in labels])
    probs = np.array(rows)
    return np.asarray(probs / probs.sum(axis=1, keepdims=True))


def check(folder: str, prefix: str, words: Sequence[str], rule: LabelRule = "mean") -> None:
    expected = plain_forward(folder, [prefix + q for q in QUERIES], words, rule)
    for settings in SETTINGS:
        scorer = load_scorer(folder, device="cpu", label_rule=rule, **settings)
        probs = scorer.score(prefix, QUERIES, words)
        np.testing.assert_allclose(probs, expected, atol=1e-5, err_msg=str(settings))


class TestEqualsThePlainForward:
    @pytest.mark.parametrize("shots", [0, 1, "N"])
    def test_of_single_tokens(self, shots: Shots) -> None:
        check(TINY, prefix_of(shots), TASK.label_words)

    @pytest.mark.parametrize("rule", ["mean", "first"])
    def test_of_several_tokens(self, rule: LabelRule) -> None:
        check(TINY, "", ("quixotry", "abbreviation", "zebra crossing"), rule)

    def test_of_whole_words(self) -> None:
        check(TINY, prefix_of(1), WORDS, "joint")

    @pytest.mark.parametrize(("rule", "words"), [("mean", TASK.label_words), ("joint", WORDS)])
    def test_of_other_architectures(
        self, other_model: Path, rule: LabelRule, words: Sequence[str]
    ) -> None:
        check(str(other_model), prefix_of(2), words, rule)


def test_prefix_and_query_may_share_a_token() -> None:
    scorer = TransformersScorer("tiny_lm", device="cpu")
    whole = scorer.score("", [f"A network cable. {q}" for q in QUERIES], TASK.label_words)
    split = scorer.score("A netw", [f"ork cable. {q}" for q in QUERIES], TASK.label_words)
    np.testing.assert_allclose(split, whole, atol=1e-6)


def test_a_model_in_memory() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = (
        kind.from_pretrained(TINY) for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    scorer = TransformersScorer(LoadedModel(model, tokenizer, "mine"))
    loaded = TransformersScorer("tiny_lm", device="cpu")
    assert (scorer.model, scorer.revision) == ("mine", "unknown")
    assert scorer.settings == loaded.settings
    np.testing.assert_array_equal(
        scorer.score("", QUERIES, TASK.label_words), loaded.score("", QUERIES, TASK.label_words)
    )


def test_closed_scorer() -> None:
    scorer = TransformersScorer("tiny_lm", device="cpu")
    scorer.close()
    with pytest.raises(ScoringError, match="closed"):
        scorer.score("", QUERIES, TASK.label_words)


class TestOutOfMemory:
    """The model's forward pass fails as told: a scorer of a model in memory."""

    @staticmethod
    def scorer(failure: Callable[[int], Exception | None], **options: Any) -> TransformersScorer:
        """Return a scorer whose model fails on batches for which `failure` gives an error."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(TINY)
        forward = model.forward

        def limited(*args: Any, **inputs: Any) -> Any:
            error = failure(inputs["input_ids"].shape[0])
            if error is not None:
                raise error
            return forward(*args, **inputs)

        model.forward = limited
        tokenizer = AutoTokenizer.from_pretrained(TINY)
        return TransformersScorer(LoadedModel(model, tokenizer, "small"), **options)

    @pytest.mark.parametrize("rule", ["mean", "joint"])
    @pytest.mark.parametrize(
        "said", [None, "CUBLAS_STATUS_ALLOC_FAILED", "can't allocate memory: 9 GB"]
    )
    def test_halves_the_batch_and_goes_on(
        self, rule: str, said: str | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        import torch

        def failure(rows: int) -> Exception | None:
            error = torch.OutOfMemoryError("full") if said is None else RuntimeError(said)
            return error if rows > 2 else None

        steps: list[int] = []
        with caplog.at_level(logging.WARNING):
            probs = self.scorer(failure, label_rule=rule).score(
                prefix_of(1), QUERIES, TASK.label_words, progress=steps.append
            )
        expected = load_scorer("tiny_lm", device="cpu", label_rule=rule)
        np.testing.assert_allclose(
            probs, expected.score(prefix_of(1), QUERIES, TASK.label_words), atol=1e-5
        )
        assert (sum(steps), max(steps) <= 2) == (len(QUERIES), True)
        assert "out of memory" in caplog.text

    @pytest.mark.parametrize(
        ("said", "kind"),
        [("shapes do not match", RuntimeError), ("can't allocate memory", ScoringError)],
    )
    def test_other_failures_and_one_prompt_that_does_not_fit(
        self, said: str, kind: type[Exception]
    ) -> None:
        scorer = self.scorer(lambda rows: RuntimeError(said))
        with pytest.raises(kind):
            scorer.score("", QUERIES, TASK.label_words)

    def test_a_model_that_does_not_fit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        def full(*args: Any, **kwargs: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20 GiB")

        monkeypatch.setattr(torch.nn.Module, "to", full)
        with pytest.raises(ScoringError, match="'tiny_lm'") as caught:
            load_scorer("tiny_lm", device="cpu")
        assert "\n" not in str(caught.value)
