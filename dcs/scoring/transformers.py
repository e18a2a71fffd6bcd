"""The Transformers engine, for any causal language model that torch can run locally."""

from __future__ import annotations

import copy
import inspect
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ScoringError, named
from dcs.scoring.base import Advance, LocalOptions, Prompts, Scores, TokenEngine
from dcs.scoring.models import LoadedModel, ModelReference, is_out_of_memory, load_model, require

_log = logging.getLogger(__name__)

#: Tokens of a batch, which is halved when out of memory; on a CPU, batches that fit into its
#: caches are fastest.
_TOKEN_BUDGET = {"cpu": 1536, "cuda": 32768}

_ATTENTION_LAYERS = {"DynamicLayer", "DynamicSlidingWindowLayer"}
_CONTEXT_SHARE = 4  # number of cached prefix tokens that cost as much as one new token


class TransformersOptions(LocalOptions):
    """Options of the engine ``transformers``.

    Attributes
    ----------
    device : str or None
        ``cpu``, ``cuda:1``, ...; by default a GPU if available.
    """

    device: str | None = None


class TransformersScorer(TokenEngine):
    """Compute class probabilities with a Transformers model.

    The prefix shared by all prompts is run once, and its keys and values are reused for every
    query.

    Parameters
    ----------
    model : ModelReference or LoadedModel
        The model; :func:`dcs.scoring.load_scorer` takes its name. A loaded model keeps its device
        and precision; a store assumes that equal names have equal weights.
    **options
        See :class:`TransformersOptions`.

    Raises
    ------
    ScoringError
        If the model cannot be loaded, or is not causal.
    MissingDependencyError
        If torch or transformers is not installed.
    """

    name = "transformers"
    packages = ("transformers", "torch")
    options = TransformersOptions
    indecisive = frozenset({"device"})

    def __init__(self, model: ModelReference | LoadedModel, **options: Any) -> None:
        super().__init__(**options)
        if not isinstance(model, LoadedModel):
            model = load_model(model, device=self._asked.device, dtype=self._asked.dtype)
        self._torch, transformers = require("torch"), require("transformers")
        self._model = model.weights.eval()
        self._device = self._model.device
        self._budget: float = _TOKEN_BUDGET.get(self._device.type, _TOKEN_BUDGET["cpu"])
        config = self._model.config
        self._padding = getattr(config, "pad_token_id", None)
        self._limit = getattr(config, "max_position_embeddings", None)
        self._limit = self._limit or getattr(config, "max_seq_len", None)
        self._accepted = frozenset(inspect.signature(self._model.forward).parameters)
        # Its name since Transformers 5.24, and before.
        self._cache = "cache" if "cache" in self._accepted else "past_key_values"
        self.model, self.revision = model.name, model.revision
        self.version = f"transformers {transformers.__version__}, torch {self._torch.__version__}"
        self._use_tokenizer(model.tokenizer, dtype=str(self._model.dtype).removeprefix("torch."))
        first, *others = [token for token in range(5) if token != self._padding]
        prompts, self._shares = [[first, *others], [first, others[1]]], False
        with self._inference():
            tokens = [*range(self._run([[first]], logits_to_keep=1).logits.shape[-1])]
            alone = np.concatenate([self._next_scores([ids], tokens) for ids in prompts])
        # Transformers also loads encoders, such as BERT, as causal language models.
        if not self._has_scores(prompts, alone):
            raise ScoringError(
                f"model {self.model!r} is not a causal language model: its scores of a token "
                "depend on the tokens after it; choose a decoder, such as GPT or Llama"
            )
        self._shares = True
        try:
            self._shares = self._has_scores(prompts, alone)
        except ScoringError:
            self._shares = False  # It cannot continue a cache.

    def _has_scores(self, prompts: list[list[int]], alone: NDArray[np.float64]) -> bool:
        """Return whether prompts have the scores in a batch that they have alone."""
        with self._inference():
            batch = self._next_scores(prompts, [*range(alone.shape[1])])
        known = np.isfinite(alone)
        # Equal up to rounding, which is coarse in bfloat16.
        rounding = 0.05 if self._model.dtype.itemsize < 4 else 0.001
        largest = np.max(np.abs(alone[known]), initial=0.0)
        return np.allclose(batch[known], alone[known], rtol=0.0, atol=rounding * largest)

    def _score(self, prompts: Prompts, progress: Advance) -> Scores:
        with self._inference():
            return super()._score(prompts, progress)

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """Run without gradients, and say so if the memory is full."""
        try:
            with self._torch.inference_mode():
                yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise ScoringError(
                f"model {self.model!r} ran out of memory on {self._device} with a single "
                "prompt; use fewer shots, another precision (dtype) or another device"
            ) from None

    def _next_scores(
        self, prompts: list[list[int]], wanted: list[int], *, normalised: bool = False
    ) -> NDArray[np.float64]:
        """Run the shared prefix once, and the rest of the prompts in batches of similar length.

        A batch that does not fit into memory is halved.
        """
        found: dict[int, NDArray[np.float64]] = {}
        shared, cache = self._run_shared(prompts)
        tails = [ids[shared:] for ids in prompts]
        # Sort to minimise padding; longest first, so that a token budget that exceeds the memory
        # fails immediately.
        pending = sorted(range(len(tails)), key=lambda row: -len(tails[row]))
        while pending:
            longest = len(tails[pending[0]])
            cost = longest + shared / _CONTEXT_SHARE
            rows = pending[: max(1, int(self._budget / cost))]
            try:
                values = self._scores([tails[row] for row in rows], cache, wanted, normalised)
            except RuntimeError as error:
                if len(rows) == 1 or not is_out_of_memory(error):
                    raise
            else:
                found |= dict(zip(rows, values, strict=True))
                del pending[: len(rows)]
                continue
            # The tensors of the failed run are only freed outside of the except block.
            self._budget = cost * (len(rows) // 2)
            fault = "model %s: out of memory on %s; continuing with at most %.0f tokens per batch"
            _log.warning(fault, self.model, self._device, self._budget)
            self._torch.cuda.empty_cache()
        return np.stack([found[row] for row in range(len(prompts))])

    def _scores(
        self, tails: list[list[int]], cache: Any, wanted: list[int], normalised: bool
    ) -> NDArray[np.float64]:
        lengths = self._torch.tensor([len(tail) for tail in tails], device=self._device)
        last, positions = (lengths - 1).unique(return_inverse=True)
        output = self._run(tails, cache, logits_to_keep=last)
        if "logits_to_keep" not in self._accepted:
            positions = lengths - 1
        logits = output.logits[range(len(tails)), positions]
        if normalised:
            logits = logits.double().log_softmax(-1)
        return np.asarray(logits[:, wanted].double().cpu().numpy())

    def _run_shared(self, prompts: list[list[int]]) -> tuple[int, Any]:
        """Return the number of tokens shared by all prompts, and their keys and values."""
        # At least one token of each prompt must remain.
        common = os.path.commonprefix(prompts)[: min(map(len, prompts)) - 1]
        # Models such as RoBERTa give padding tokens no position, except in a cached prefix.
        shared = common.index(self._padding) if self._padding in common else len(common)
        if not (shared and self._shares):
            return 0, None
        output = self._run([prompts[0][:shared]], use_cache=True, logits_to_keep=1)
        cache = getattr(output, self._cache, None)
        # The states of other layers, such as recurrent ones, cannot be repeated for each prompt.
        kinds = {type(layer).__name__ for layer in getattr(cache, "layers", ())}
        plain = type(cache).__name__ == "DynamicCache" and kinds <= _ATTENTION_LAYERS
        return (shared, cache) if plain else (0, None)

    def _run(self, tails: list[list[int]], cache: Any = None, **options: Any) -> Any:
        """Run each tail after the cached prefix."""
        width = max(map(len, tails))
        # The padding token is arbitrary: no earlier token sees it, whatever the architecture.
        rows = [tail + [0] * (width - len(tail)) for tail in tails]
        inputs = {"use_cache": cache is not None} | options
        inputs["input_ids"] = self._torch.tensor(rows, device=self._device)
        if cache is not None:
            # A copy, which the model may modify.
            inputs[self._cache] = repeated = copy.deepcopy(cache)
            repeated.batch_repeat_interleave(len(rows))
        if "logits_to_keep" not in self._accepted:
            del inputs["logits_to_keep"]
        try:
            return self._model(**inputs)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise ScoringError(
                f"model {self.model!r} cannot run these prompts ({named(error)}); use fewer "
                "shots, shorter texts or another model"
            ) from error

    def _free(self) -> None:
        del self._model
        self._torch.cuda.empty_cache()
