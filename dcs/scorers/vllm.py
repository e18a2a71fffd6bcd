"""The vLLM engine: large models on one or several GPUs, with its prefix cache.

The next-token log-probabilities of the label tokens alone are asked for, by token id. Where the
installed vLLM cannot do that, the next token is restricted to the label tokens instead and the
processed log-probabilities are read: the restriction adds a constant to each row, which the
normalisation over classes cancels.
"""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dcs._files import suggest
from dcs.errors import ConfigError, MissingDependencyError, ScoringError
from dcs.scorers.base import Progress
from dcs.scorers.label_tokens import (
    LabelRule,
    check_label_rule,
    class_probabilities,
    read_label_words,
)
from dcs.scorers.models import ModelReference, resolve_model

__all__ = ["ReadPath", "VLLMScorer"]

ReadPath = Literal["token_ids", "allowed"]
"""How the log-probabilities are read: by token id, or with the next token restricted."""

_MOST_TOKEN_IDS = 128  # what vLLM allows by token id
_BATCH = 1024  # prompts handed over at once, so that progress shows


class VLLMScorer:
    """Reads class probabilities off a model that vLLM runs.

    Parameters
    ----------
    model : ModelReference, str or path-like
        The model; see :func:`dcs.scorers.resolve_model`.
    dtype : str, optional
        Precision; by default bfloat16 on a GPU and float32 on a CPU.
    tensor_parallel : int
        GPUs that share the model. In a Ray actor, give the actor as many.
    label_rule : {"auto", "mean", "first"}
        How a label word of several tokens is read. One position is read, so that ``joint`` is
        not to be had here, and ``auto`` is the mean.
    path : {"token_ids", "allowed"}, optional
        How to read; by default by token id where the installed vLLM can.
    memory : float, optional
        Share of each GPU's memory for weights and cache.
    max_length : int, optional
        Most tokens of a prompt; by default what the model reads.

    Raises
    ------
    ConfigError
        If an option is not allowed.
    ScoringError
        If the model cannot be found or loaded.
    MissingDependencyError
        If vllm is not installed.
    """

    name = "vllm"
    packages = ("vllm", "torch")

    def __init__(
        self,
        model: ModelReference | str | os.PathLike[str],
        *,
        dtype: str | None = None,
        tensor_parallel: int = 1,
        label_rule: LabelRule = "auto",
        path: ReadPath | None = None,
        memory: float | None = None,
        max_length: int | None = None,
    ) -> None:
        check_label_rule(label_rule, ("auto", "mean", "first"))
        if path is not None and path not in get_args(ReadPath):
            raise ConfigError(
                f"path {path!r}{suggest(path, get_args(ReadPath))}: allowed are "
                f"{', '.join(get_args(ReadPath))}"
            )
        if tensor_parallel < 1:
            raise ConfigError(f"tensor_parallel {tensor_parallel}: allowed are 1 or more")
        reference = model if isinstance(model, ModelReference) else resolve_model(model)
        self._vllm = _require_vllm()
        torch = importlib.import_module("torch")
        has_gpu = torch.cuda.is_available()
        precision = dtype or ("bfloat16" if has_gpu else "float32")
        self._by_id = _has_token_ids(self._vllm) if path is None else path == "token_ids"
        options: dict[str, Any] = {
            "model": reference.location,
            "dtype": precision,
            "tensor_parallel_size": tensor_parallel,
            "enable_prefix_caching": True,
            "max_logprobs": _MOST_TOKEN_IDS,
            "logprobs_mode": "raw_logprobs" if self._by_id else "processed_logprobs",
            "seed": 0,
        }
        if not has_gpu:
            options["enforce_eager"] = True
        if memory is not None:
            options["gpu_memory_utilization"] = memory
        if max_length is not None:
            options["max_model_len"] = max_length
        try:
            self._engine: Any = self._vllm.LLM(**options)
        except Exception as error:
            # vLLM and the libraries below it raise errors of many unrelated classes.
            reason = next((part.strip() for part in str(error).splitlines() if part.strip()), "")
            raise ScoringError(
                f"model {reference.name!r} cannot be loaded by vllm "
                f"({type(error).__name__}: {reason}); check its memory (tensor_parallel, memory, "
                "max_length) and whether vllm supports its architecture"
            ) from error
        self._tokenizer = self._engine.get_tokenizer()
        config = self._engine.llm_engine.model_config
        self._max_length = int(config.max_model_len)
        self._label_rule: LabelRule = "mean" if label_rule == "auto" else label_rule
        self.model = reference.name
        self.revision = (
            reference.revision or getattr(config.hf_config, "_commit_hash", None) or "unknown"
        )
        self.version = f"vllm {self._vllm.__version__}, torch {torch.__version__}"
        self.settings: Mapping[str, str] = {"dtype": precision, "label_rule": self._label_rule}

    def score(
        self,
        prefix: str,
        queries: Sequence[str],
        label_words: Sequence[str],
        *,
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        """Return the class probabilities of the prompts ``prefix + query``.

        See :meth:`dcs.scorers.Scorer.score`.
        """
        if self._engine is None:
            raise ScoringError(f"model {self.model!r} has been closed; load it again")
        if not queries:
            return np.zeros((0, len(label_words)))
        token_ids, _ = read_label_words(
            prefix + queries[0],
            label_words,
            encode=self._encode,
            describe=lambda token: str(self._tokenizer.decode([token])),
            rule=self._label_rule,
        )
        wanted = sorted({*sum(token_ids, ())})
        if len(wanted) > _MOST_TOKEN_IDS:
            raise ScoringError(
                f"{len(wanted)} label tokens: vllm reads at most {_MOST_TOKEN_IDS}; use the rule "
                "first, or fewer classes"
            )
        # Tokenised here, so that every prompt has the one start token it should have.
        prompts = [self._encode(prefix + query) for query in queries]
        self._check_lengths(prompts)
        sampling = self._sampling(wanted)
        logits = np.empty((len(queries), len(wanted)))
        for start in range(0, len(prompts), _BATCH):
            part = [{"prompt_token_ids": ids} for ids in prompts[start : start + _BATCH]]
            answers = self._engine.generate(part, sampling, use_tqdm=False)
            for row, answer in enumerate(answers, start):
                logits[row] = self._values(row, answer, wanted)
            if progress is not None:
                progress(len(answers))
        return class_probabilities(logits, token_ids)

    def close(self) -> None:
        """Shut the engine down and free the GPUs. The scorer cannot be used afterwards."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        # There is no public way: ask the engine core, if it is where it is known to be.
        core = getattr(getattr(engine, "llm_engine", None), "engine_core", None)
        shutdown = getattr(core, "shutdown", None)
        if callable(shutdown):
            shutdown()
        del engine, core, shutdown
        gc.collect()
        torch = importlib.import_module("torch")
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text)["input_ids"])

    def _check_lengths(self, prompts: list[list[int]]) -> None:
        for row, ids in enumerate(prompts):
            # One token more is generated.
            if not ids or len(ids) + 1 > self._max_length:
                raise ScoringError(
                    f"query {row}: its prompt has {len(ids)} tokens, model {self.model!r} reads "
                    f"1 to {self._max_length - 1}; use fewer shots or shorter texts"
                )

    def _sampling(self, wanted: list[int]) -> Any:
        # One for all prompts of a call: vLLM spoils mixed batches silently.
        common = {"max_tokens": 1, "detokenize": False, "logprobs": len(wanted)}
        if self._by_id:
            return self._vllm.SamplingParams(temperature=0, logprob_token_ids=wanted, **common)
        return self._vllm.SamplingParams(temperature=1, allowed_token_ids=wanted, **common)

    def _values(self, row: int, answer: Any, wanted: list[int]) -> list[float]:
        shown = answer.outputs[0].logprobs[0]
        absent = [token for token in wanted if token not in shown]
        if absent:
            names = ", ".join(repr(self._tokenizer.decode([token])) for token in absent)
            raise ScoringError(
                f"query {row}: vllm gives no log-probability of the label tokens {names}; try "
                f"path={'allowed' if self._by_id else 'token_ids'}"
            )
        return [float(shown[token].logprob) for token in wanted]


def _has_token_ids(vllm: Any) -> bool:
    fields = getattr(vllm.SamplingParams, "__struct_fields__", ())
    return "logprob_token_ids" in fields


def _require_vllm() -> Any:
    try:
        return importlib.import_module("vllm")
    except ImportError as error:
        raise MissingDependencyError(
            f"vllm is not installed ({error}), which the vllm engine needs; install it with: "
            "pip install 'dcs-debias[vllm]'"
        ) from None
