"""The Transformers engine, for any causal language model that torch can run locally."""

from __future__ import annotations

import copy
import inspect
import logging
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ScoringError
from dcs.scoring.base import Advance, LocalOptions, Prompts, Scores, TokenEngine
from dcs.scoring.models import LoadedModel, ModelReference, is_out_of_memory, load_model, require

_log = logging.getLogger(__name__)

#: Tokens of a batch, which is halved when out of memory; on a CPU, batches that fit into its
#: caches are fastest.
_TOKEN_BUDGET = {"cpu": 1536, "cuda": 32768}

_CONTEXT_SHARE = 4  # number of cached prefix tokens that cost as much as one new token


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The number of tokens shared by all prompts, and their keys and values."""

    length: int = 0
    cache: Any = None

    @property
    def supports_padding(self) -> bool:
        """Whether padding may follow: it would count towards a sliding attention window."""
        layers = () if self.cache is None else self.cache.layers
        return all(type(layer).__name__ == "DynamicLayer" for layer in layers)


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
        If the model cannot be loaded.
    MissingDependencyError
        If torch or transformers is not installed.
    """

    name = "transformers"
    packages = ("transformers", "torch")
    options = TransformersOptions
    indecisive = frozenset({"device"})

    def __init__(self, model: ModelReference | LoadedModel, **options: Any) -> None:
        super().__init__(**options)
        asked = self._asked
        if not isinstance(model, LoadedModel):
            model = load_model(model, device=asked.device, dtype=asked.dtype)
        self._torch, transformers = require("torch"), require("transformers")
        self._model = model.weights.eval()
        self._device = self._model.device
        self._budget: float = _TOKEN_BUDGET.get(self._device.type, _TOKEN_BUDGET["cpu"])
        self._limit = getattr(self._model.config, "max_position_embeddings", None)
        self._accepted = frozenset(inspect.signature(self._model.forward).parameters)
        # Its name since Transformers 5.24, and before.
        self._cache = "cache" if "cache" in self._accepted else "past_key_values"
        self.model, self.revision = model.name, model.revision
        self.version = f"transformers {transformers.__version__}, torch {self._torch.__version__}"
        self._use_tokenizer(model.tokenizer, dtype=str(self._model.dtype).removeprefix("torch."))

    def _score(self, prompts: Prompts, progress: Advance) -> Scores:
        try:
            with self._torch.inference_mode():
                return super()._score(prompts, progress)
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
        prefix = self._run_shared(prompts)
        tails = [ids[prefix.length :] for ids in prompts]
        # Sort to minimise padding; longest first, so that a token budget that exceeds the memory
        # fails immediately.
        pending = sorted(range(len(tails)), key=lambda row: -len(tails[row]))
        while pending:
            longest = len(tails[pending[0]])
            cost = longest + prefix.length / _CONTEXT_SHARE
            rows = pending[: max(1, int(self._budget / cost))]
            if not prefix.supports_padding:
                rows = [row for row in rows if len(tails[row]) == longest]
            try:
                values = self._scores([tails[row] for row in rows], prefix, wanted, normalised)
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
        self, tails: list[list[int]], prefix: _Prefix, wanted: list[int], normalised: bool
    ) -> NDArray[np.float64]:
        logits = self._run(tails, prefix).logits[:, -1]
        if normalised:
            logits = logits.double().log_softmax(-1)
        return np.asarray(logits[:, wanted].double().cpu().numpy())

    def _run_shared(self, prompts: list[list[int]]) -> _Prefix:
        # At least one token of each prompt must remain.
        shared = min(len(os.path.commonprefix(prompts)), min(map(len, prompts)) - 1)
        if not shared:
            return _Prefix()
        output = self._run([prompts[0][:shared]], _Prefix(), keep_cache=True)
        cache = getattr(output, self._cache, None)
        return _Prefix(shared, cache) if hasattr(cache, "layers") else _Prefix()

    def _run(self, tails: list[list[int]], prefix: _Prefix, *, keep_cache: bool = False) -> Any:
        """Run each tail after the prefix and return the logits of the last position."""
        torch, device = self._torch, self._device
        width = max(map(len, tails))
        padding = [width - len(tail) for tail in tails]
        # The padding token is arbitrary: the mask hides it.
        rows = [[0] * pad + tail for pad, tail in zip(padding, tails, strict=True)]
        inputs: dict[str, Any] = {"input_ids": torch.tensor(rows, device=device)}
        if any(padding):
            pads = torch.tensor(padding, device=device).unsqueeze(1)
            columns = torch.arange(prefix.length + width, device=device).unsqueeze(0)
            seen = (columns < prefix.length) | (columns >= prefix.length + pads)
            inputs["attention_mask"] = seen.long()
            if "position_ids" in self._accepted:
                positions = (columns - pads)[:, prefix.length :]
                inputs["position_ids"] = positions.clamp(min=0)
        if prefix.cache is not None:
            # A copy, which the model may modify.
            inputs[self._cache] = repeated = copy.deepcopy(prefix.cache)
            repeated.batch_repeat_interleave(len(rows))
        if "logits_to_keep" in self._accepted:
            inputs["logits_to_keep"] = 1
        return self._model(**inputs, use_cache=keep_cache or prefix.cache is not None)

    def _free(self) -> None:
        del self._model
        self._torch.cuda.empty_cache()
