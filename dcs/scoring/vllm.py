"""The vLLM engine: large models on one or several GPUs, with its prefix cache.

Only the next-token log-probabilities of the label tokens are requested, by token id. Calls that
wait while the engine is busy are run together, so that it does not run dry at the end of each.
"""

from __future__ import annotations

import gc
import importlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ScoringError, named
from dcs.scoring.base import Progress, TokenEngine, VLLMOptions
from dcs.scoring.models import ModelReference, loaded_revision, require, resolve_model

_MAX_TOKEN_IDS = 128  # limit of vLLM for logprob_token_ids

#: Number of prompts up to which calls of several threads are run together.
_TOGETHER = 256


@dataclass(slots=True, eq=False)
class _Call:
    """Prompts of one thread and what it wants to know of them, until the engine has run them."""

    prompts: Sequence[list[int]]
    kind: object
    sampling: Any
    outputs: list[Any] | None = None


class VLLMScorer(TokenEngine):
    """Compute class probabilities with vLLM.

    Parameters
    ----------
    model : ModelReference, str or path-like
        The model; see :func:`dcs.scoring.resolve_model`.
    **options
        See :class:`dcs.scoring.base.VLLMOptions`.

    Raises
    ------
    InvalidInputError
        If an option is invalid.
    ScoringError
        If the model cannot be found or loaded.
    MissingDependencyError
        If vllm is not installed.
    """

    name = "vllm"
    packages = ("vllm", "torch")
    extra = "vllm"
    options = VLLMOptions
    indecisive = frozenset({"tensor_parallel", "memory", "max_length"})
    gpu_option = "tensor_parallel"
    in_flight = 8
    concurrent = True

    def __init__(
        self,
        model: ModelReference | str | os.PathLike[str],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        asked = self._asked
        tensor_parallel = asked.tensor_parallel
        self.repeatable = asked.batch_invariant
        # vLLM reads these when it is imported.
        if asked.batch_invariant:
            os.environ["VLLM_BATCH_INVARIANT"] = "1"
        if tensor_parallel == 1:
            # A process of the engine core would outlive a killed actor, and keep the GPU.
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        reference = resolve_model(model)
        self._vllm = require("vllm", "'dcs-debias[vllm]', or use the engine transformers")
        torch = importlib.import_module("torch")
        # Query vLLM instead of torch, which would initialise the GPU in this process too early.
        has_gpu = not importlib.import_module("vllm.platforms").current_platform.is_cpu()
        precision = asked.dtype or ("bfloat16" if has_gpu else "float32")
        if precision in ("float32", "float"):
            # On a GPU, kernels of Triton would round the factors of products to TF32.
            os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")
        limits = {
            "enforce_eager": None if has_gpu else True,
            # In a Ray actor vLLM would select Ray and wait for GPUs reserved by the actor.
            "distributed_executor_backend": "mp" if tensor_parallel > 1 else None,
            # On a CPU, seeds and parts of prompts do not go together.
            "enable_chunked_prefill": None if has_gpu or self.votes is None else False,
            "gpu_memory_utilization": asked.memory,
            "max_model_len": asked.max_length or -1,  # fitted to the memory
        }
        try:
            self._engine: Any = self._vllm.LLM(
                model=reference.location,
                dtype=precision,
                revision=reference.version,
                tokenizer_revision=reference.version,
                tensor_parallel_size=tensor_parallel,
                enable_prefix_caching=True,
                max_logprobs=_MAX_TOKEN_IDS,
                logprobs_mode="raw_logprobs",
                seed=0,
                **{option: value for option, value in limits.items() if value is not None},
            )
        except Exception as error:
            # vLLM and its dependencies raise errors of many unrelated classes.
            raise ScoringError(
                f"model {reference.name!r} cannot be loaded by vllm "
                f"({named(error)}); check its memory (tensor_parallel, memory, "
                "max_length) and whether vllm supports its architecture"
            ) from error
        # A thread takes turns except while it waits for the engine, which one at a time runs.
        self._turn = threading.Lock()
        self._running = threading.Lock()
        self._waiting: list[_Call] = []
        config = self._engine.llm_engine.model_config
        self._limit = int(config.max_model_len) - 1  # one more token is generated
        self.model = reference.name
        self.revision = loaded_revision(reference)
        self.version = f"vllm {self._vllm.__version__}, torch {torch.__version__}"
        same = {"batch_invariant": "true"} if asked.batch_invariant else {}
        self._use_tokenizer(self._engine.get_tokenizer(), dtype=precision, **same)

    def _scoring(self) -> threading.Lock:
        return self._turn

    def _next_scores(
        self,
        prompts: list[list[int]],
        wanted: list[int],
        progress: Progress,
        *,
        normalised: bool = True,
    ) -> NDArray[np.float64]:
        parts = [self._generate(prompts, part) for part in _chunks(wanted)]
        progress(len(prompts))
        return np.concatenate(parts, axis=1)

    def _sample(self, prompts: list[list[int]], votes: int, progress: Progress) -> list[list[str]]:
        sampling = [
            self._vllm.SamplingParams(
                n=votes,
                temperature=self._asked.temperature,
                max_tokens=self._asked.max_tokens,
                stop=self._stop,
                seed=self._seed(ids),
                # They may enclose a thought.
                skip_special_tokens=False,
            )
            for ids in prompts
        ]
        outputs = self._outputs(_Call(prompts, None, sampling))
        progress(len(prompts))
        return [[answer.text for answer in output.outputs] for output in outputs]

    def _generate(self, prompts: Sequence[list[int]], wanted: list[int]) -> NDArray[np.float64]:
        """Return the log-probabilities of at most 128 tokens after each prompt [M, K]."""
        sampling = self._vllm.SamplingParams(
            temperature=0,
            max_tokens=1,
            detokenize=False,
            logprobs=len(wanted),
            logprob_token_ids=wanted,
        )
        outputs = self._outputs(_Call(prompts, tuple(wanted), sampling))
        shown = [output.outputs[0].logprobs[0] for output in outputs]
        return np.array([[found[token].logprob for token in wanted] for found in shown])

    def _outputs(self, call: _Call) -> list[Any]:
        """Return the outputs of a call; other threads prepare theirs meanwhile."""
        self._waiting.append(call)
        self._turn.release()
        try:
            with self._running:
                if call.outputs is None:
                    self._run(call)
        finally:
            self._turn.acquire()
            self._waiting.remove(call)
        assert call.outputs is not None
        return call.outputs

    def _run(self, first: _Call) -> None:
        """Run a call and those of its kind that wait; if they fail, they are run alone."""
        calls, n_prompts = [first], len(first.prompts)
        for call in [*self._waiting]:
            fits = n_prompts + len(call.prompts) <= _TOGETHER
            if call is not first and call.outputs is None and call.kind == first.kind and fits:
                calls.append(call)
                n_prompts += len(call.prompts)
        requests = [{"prompt_token_ids": ids} for call in calls for ids in call.prompts]
        # One object for all prompts that ask for tokens: for batches that ask for different ones,
        # vLLM silently returns wrong values.
        sampling = first.sampling
        if first.kind is None:
            sampling = [each for call in calls for each in call.sampling]
        outputs = iter(self._engine.generate(requests, sampling, use_tqdm=False))
        for call in calls:
            call.outputs = [next(outputs) for _ in call.prompts]

    def _free(self) -> None:
        engine = self._engine
        del self._engine
        # vLLM has no public shutdown method: call that of the engine core if it exists.
        core = getattr(getattr(engine, "llm_engine", None), "engine_core", None)
        shutdown = getattr(core, "shutdown", None)
        if callable(shutdown):
            shutdown()
        del engine, core, shutdown
        gc.collect()
        torch = importlib.import_module("torch")
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _chunks(tokens: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(tokens), _MAX_TOKEN_IDS):
        yield tokens[start : start + _MAX_TOKEN_IDS]
