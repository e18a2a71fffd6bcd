"""The Transformers engine: any causal language model that torch can run here."""

from __future__ import annotations

import copy
import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ScoringError, check_choice
from dcs.scoring.base import LabelRule, Progress, TokenEngine
from dcs.scoring.models import (
    LoadedModel,
    ModelReference,
    is_out_of_memory,
    load_model,
    require,
    resolve_model,
)

_log = logging.getLogger(__name__)

_TOKEN_BUDGET = {"cpu": 1536, "cuda": 32768}  # on a CPU, what stays in its caches is fastest

_CONTEXT_SHARE = 4  # how many cached prefix tokens weigh as much as one token to be run


@dataclass(frozen=True, slots=True)
class _Prefix:
    """How many tokens all prompts share, and the keys and values of those."""

    length: int = 0
    cache: Any = None

    @property
    def bears_padding(self) -> bool:
        """Whether padding may follow: a sliding window counts it, and would look less far back."""
        return self.cache is None or all(map(_is_plain, self.cache.layers))

    def repeated(self, times: int) -> Any:
        """Return a copy of the cache for several rows; the model writes to it."""
        repeated = copy.deepcopy(self.cache)
        for layer in repeated.layers:
            if _is_plain(layer):
                # A view will do: this layer joins new keys to old ones in a new tensor.
                layer.keys = layer.keys.expand(times, -1, -1, -1)
                layer.values = layer.values.expand(times, -1, -1, -1)
            else:
                layer.batch_repeat_interleave(times)
        return repeated


def _is_plain(layer: Any) -> bool:
    """Return whether a layer of a cache holds all keys and values, and nothing else."""
    return type(layer).__name__ == "DynamicLayer"


class TransformersScorer(TokenEngine):
    """Reads class probabilities off a Transformers model.

    The part that all prompts share is run once and its keys and values are used again for every
    query.

    Parameters
    ----------
    model : ModelReference, LoadedModel, str or path-like
        The model; see :func:`dcs.scoring.resolve_model`. One that is loaded stays where it is and
        as it is; a store takes equal names for equal weights.
    device : str, optional
        Default: the first GPU where there is one, else the CPU. bfloat16 on a GPU, float32 on
        the CPU.
    dtype : str, optional
        Precision, e.g. ``"float16"``, in place of that default.
    token_budget : int, optional
        Tokens run at once; less takes less memory. Halved when the memory does not suffice.
    label_rule : {"auto", "mean", "first", "joint"}
        How a label word of several tokens is read; see :data:`dcs.scoring.LabelRule`.
    reuse_prefix : bool
        Whether to run the shared part once. Off, every prompt is run whole.

    Raises
    ------
    ScoringError
        If the model cannot be loaded.
    MissingDependencyError
        If torch or transformers is not installed.
    """

    name = "transformers"
    packages = ("transformers", "torch")

    def __init__(
        self,
        model: ModelReference | LoadedModel | str | os.PathLike[str],
        *,
        device: str | None = None,
        dtype: str | None = None,
        token_budget: int | None = None,
        label_rule: LabelRule = "auto",
        reuse_prefix: bool = True,
    ) -> None:
        check_choice("label_rule", label_rule, get_args(LabelRule))
        if not isinstance(model, LoadedModel):
            model = load_model(resolve_model(model), device=device, dtype=dtype)
        self._torch, transformers = require("torch"), require("transformers")
        self._model, self._tokenizer = model.weights.eval(), model.tokenizer
        self._device = self._model.device
        self._budget: float = token_budget or _TOKEN_BUDGET.get(self._device.type, 1536)
        self._label_rule, self._reuse = label_rule, reuse_prefix
        self._limit = getattr(self._model.config, "max_position_embeddings", None)
        self._accepted = frozenset(inspect.signature(self._model.forward).parameters)
        self.model, self.revision = model.name, model.revision
        self.version = f"transformers {transformers.__version__}, torch {self._torch.__version__}"
        self.settings: Mapping[str, str] = {
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "label_rule": label_rule,
        }

    def _score(
        self, prompts: list[str], label_words: Sequence[str], progress: Progress
    ) -> NDArray[np.float64]:
        try:
            with self._torch.inference_mode():
                return super()._score(prompts, label_words, progress)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise ScoringError(
                f"model {self.model!r} ran out of memory on {self._device} with a single "
                "prompt; use fewer shots, another precision (dtype) or another device"
            ) from None

    def _next_scores(
        self, prompts: list[list[int]], wanted: list[int], progress: Progress
    ) -> NDArray[np.float64]:
        def read(tails: list[list[int]], prefix: _Prefix) -> Any:
            return self._run(tails, prefix).logits[:, -1, wanted].double()

        return self._in_batches(prompts, read, progress)

    def _word_scores(
        self, prompts: list[list[int]], words: Sequence[tuple[int, ...]], progress: Progress
    ) -> NDArray[np.float64]:
        read = partial(self._whole_words, words=words)
        return self._in_batches(prompts, read, progress)

    def _in_batches(
        self,
        prompts: list[list[int]],
        read: Callable[[list[list[int]], _Prefix], Any],
        progress: Progress,
    ) -> NDArray[np.float64]:
        """Return what `read` gives of the prompts' tails, whatever of them fits at once.

        The part that all prompts share is run once, the rest in batches of similar length; a
        batch that does not fit into the memory is halved.
        """
        found: dict[int, NDArray[np.float64]] = {}
        prefix = self._run_shared(prompts)
        tails = [ids[prefix.length :] for ids in prompts]
        # Sorted, so that a batch needs little padding; longest first, so that a budget that is
        # too large for the memory shows at once.
        waiting = sorted(range(len(tails)), key=lambda row: -len(tails[row]))
        while waiting:
            longest = len(tails[waiting[0]])
            cost = longest + prefix.length / _CONTEXT_SHARE
            rows = waiting[: max(1, int(self._budget / cost))]
            if not prefix.bears_padding:
                rows = [row for row in rows if len(tails[row]) == longest]
            try:
                values = read([tails[row] for row in rows], prefix).cpu().numpy()
            except RuntimeError as error:
                if len(rows) == 1 or not is_out_of_memory(error):
                    raise
            else:
                found |= dict(zip(rows, values, strict=True))
                progress(len(rows))
                del waiting[: len(rows)]
                continue
            # Here the failed run's tensors are gone, unlike while it is handled.
            self._budget = cost * (len(rows) // 2)
            _log.warning(
                "model %s: out of memory on %s; going on with at most %.0f tokens at once",
                *(self.model, self._device, self._budget),
            )
            self._torch.cuda.empty_cache()
        return np.stack([found[row] for row in range(len(prompts))])

    def _run_shared(self, prompts: list[list[int]]) -> _Prefix:
        # At least one token of each is left to run.
        shared = min(len(os.path.commonprefix(prompts)), min(map(len, prompts)) - 1)
        if not shared or not self._reuse:
            return _Prefix()
        output = self._run([prompts[0][:shared]], _Prefix(), keep_cache=True)
        cache = getattr(output, "past_key_values", None)
        return _Prefix(shared, cache) if hasattr(cache, "layers") else _Prefix()

    def _run(
        self,
        tails: list[list[int]],
        prefix: _Prefix,
        *,
        keep: int = 1,
        cache: Any = None,
        keep_cache: bool = False,
    ) -> Any:
        """Run the prefix continued by each tail; `keep` last positions give logits.

        With a `cache` of all that comes before those, they alone are run.
        """
        torch, device = self._torch, self._device
        width = max(map(len, tails))
        padding = [width - len(tail) for tail in tails]
        # Any token will do as padding: the mask hides it.
        rows = [[0] * pad + tail for pad, tail in zip(padding, tails, strict=True)]
        start = prefix.length if cache is None else prefix.length + width - keep
        ids = torch.tensor(rows, device=device)[:, start - prefix.length :]
        inputs: dict[str, Any] = {"input_ids": ids}
        if any(padding):
            pads = torch.tensor(padding, device=device).unsqueeze(1)
            columns = torch.arange(prefix.length + width, device=device).unsqueeze(0)
            seen = (columns < prefix.length) | (columns >= prefix.length + pads)
            inputs["attention_mask"] = seen.long()
            if "position_ids" in self._accepted:
                inputs["position_ids"] = (columns - pads)[:, start:].clamp(min=0)
        if cache is None and prefix.cache is not None:
            cache = prefix.repeated(len(rows))
        if cache is not None:
            inputs["past_key_values"] = cache
        if "logits_to_keep" in self._accepted:
            inputs["logits_to_keep"] = keep
        return self._model(**inputs, use_cache=keep_cache or cache is not None)

    def _whole_words(
        self, tails: list[list[int]], prefix: _Prefix, words: Sequence[tuple[int, ...]]
    ) -> Any:
        """Return the log-probabilities of whole label words [rows, N]."""
        output = self._run(tails, prefix, keep_cache=True)
        total = output.logits[:, -1].double().log_softmax(-1)[:, [ids[0] for ids in words]]
        cache: Any = getattr(output, "past_key_values", None)
        if not (hasattr(cache, "layers") and all(map(_is_plain, cache.layers))):
            cache = None
        # Plain layers join new keys to old ones in new tensors, so that the old ones stay.
        layers = [] if cache is None else [(each, each.keys, each.values) for each in cache.layers]
        for column, ids in enumerate(words):
            head, rest = list(ids[:-1]), list(ids[1:])
            if not head:
                continue
            longer = [tail + head for tail in tails]
            logits = self._run(longer, prefix, keep=len(head), cache=cache).logits
            scores = logits[:, -len(head) :].double().log_softmax(-1)
            total[:, column] += scores[:, list(range(len(head))), rest].sum(1)
            for layer, keys, values in layers:
                layer.keys, layer.values = keys, values
        return total

    def _free(self) -> None:
        del self._model
        self._torch.cuda.empty_cache()
