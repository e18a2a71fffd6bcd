"""The vLLM engine: large models on one or several GPUs, with its prefix cache.

Only the next-token log-probabilities of the label tokens are requested, by token id.
"""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dcs.errors import ScoringError, named
from dcs.scoring.base import LocalOptions, TokenEngine
from dcs.scoring.models import ModelReference, loaded_revision, require

_MAX_TOKEN_IDS = 128  # limit of vLLM for logprob_token_ids


class VLLMOptions(LocalOptions):
    """Options of the engine ``vllm``.

    Attributes
    ----------
    tensor_parallel : int
        Number of GPUs that share the model. A Ray actor reserves as many.
    memory : float or None
        Fraction of the memory of each GPU for weights and cache.
    max_length : int or None
        Maximum number of tokens of a prompt; by default as many as the context of the model and
        the memory allow.
    batch_invariant : bool
        Compute a prompt in the same way in every batch, so that resumed rows are the same bits;
        slower, and only on GPUs that vLLM supports (``VLLM_BATCH_INVARIANT``).
    """

    tensor_parallel: int = Field(default=1, ge=1)
    memory: float | None = Field(default=None, gt=0.0, le=1.0)
    max_length: int | None = Field(default=None, ge=1)
    batch_invariant: bool = False


class VLLMScorer(TokenEngine):
    """Compute class probabilities with vLLM.

    Parameters
    ----------
    model : ModelReference
        The model; :func:`dcs.scoring.load_scorer` takes its name.
    **options
        See :class:`VLLMOptions`.

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
    options = VLLMOptions
    indecisive = frozenset({"tensor_parallel", "memory", "max_length"})
    gpu_option = "tensor_parallel"

    def __init__(self, model: ModelReference, **options: Any) -> None:
        super().__init__(**options)
        asked = self._asked
        # vLLM reads these when it is imported.
        if asked.batch_invariant:
            os.environ["VLLM_BATCH_INVARIANT"] = "1"
        if asked.tensor_parallel == 1:
            # A process of the engine core would outlive a killed actor, and keep the GPU.
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        self._vllm = require("vllm", "'dcs-debias[vllm]', or use the engine transformers")
        torch = importlib.import_module("torch")
        # Query vLLM instead of torch, which would initialise the GPU in this process too early.
        has_gpu = not importlib.import_module("vllm.platforms").current_platform.is_cpu()
        precision = asked.dtype or ("bfloat16" if has_gpu else "float32")
        if precision == "float32":
            # On a GPU, kernels of Triton would round the factors of products to TF32.
            os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")
        limits = {
            "enforce_eager": None if has_gpu else True,
            # In a Ray actor vLLM would select Ray and wait for GPUs reserved by the actor.
            "distributed_executor_backend": "mp" if asked.tensor_parallel > 1 else None,
            "gpu_memory_utilization": asked.memory,
            "max_model_len": asked.max_length or -1,  # fitted to the memory
        }
        try:
            self._engine: Any = self._vllm.LLM(
                model=model.location,
                dtype=precision,
                revision=model.version,
                tokenizer_revision=model.version,
                tensor_parallel_size=asked.tensor_parallel,
                enable_prefix_caching=True,
                max_logprobs=_MAX_TOKEN_IDS,
                logprobs_mode="raw_logprobs",
                seed=0,
                **{option: value for option, value in limits.items() if value is not None},
            )
        except Exception as error:
            # vLLM and its dependencies raise errors of many unrelated classes.
            raise ScoringError(
                f"model {model.name!r} cannot be loaded by vllm "
                f"({named(error)}); check its memory (tensor_parallel, memory, "
                "max_length) and whether vllm supports its architecture"
            ) from error
        config = self._engine.llm_engine.model_config
        self._limit = int(config.max_model_len) - 1  # one more token is generated
        self.model = model.name
        self.revision = loaded_revision(model)
        self.version = f"vllm {self._vllm.__version__}, torch {torch.__version__}"
        same = {"batch_invariant": "true"} if asked.batch_invariant else {}
        self._use_tokenizer(self._engine.get_tokenizer(), dtype=precision, **same)

    def _next_scores(
        self, prompts: list[list[int]], wanted: list[int], *, normalised: bool = True
    ) -> NDArray[np.float64]:
        starts = range(0, len(wanted), _MAX_TOKEN_IDS)
        parts = [self._logs(prompts, wanted[k : k + _MAX_TOKEN_IDS]) for k in starts]
        return np.concatenate(parts, axis=1)

    def _logs(self, prompts: Sequence[list[int]], wanted: list[int]) -> NDArray[np.float64]:
        """Return the log-probabilities of at most 128 tokens after each prompt [M, K]."""
        logs = {"logprobs": len(wanted), "logprob_token_ids": wanted}
        sampling = self._vllm.SamplingParams(temperature=0, max_tokens=1, detokenize=False, **logs)
        # One object for all prompts: vLLM silently returns wrong values for a batch whose prompts
        # ask for different tokens.
        requests = [{"prompt_token_ids": ids} for ids in prompts]
        outputs: list[Any] = self._engine.generate(requests, sampling, use_tqdm=False)
        shown = [output.outputs[0].logprobs[0] for output in outputs]
        return np.array([[found[token].logprob for token in wanted] for found in shown])

    def _free(self) -> None:
        # vLLM has no public shutdown method: call that of the engine core if it exists.
        core = getattr(getattr(self._engine, "llm_engine", None), "engine_core", None)
        getattr(core, "shutdown", lambda: None)()
        del self._engine, core
        gc.collect()
        # Does nothing without a GPU.
        importlib.import_module("torch").cuda.empty_cache()
