"""The Transformers engine: any causal language model that torch can run here."""

from __future__ import annotations

import copy
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ConfigError, ScoringError
from dcs.scoring.base import Progress
from dcs.scoring.engines import TokenEngine, TokenizedPrompts
from dcs.scoring.label_words import LabelRule, check_label_rule
from dcs.scoring.models import (
    ModelReference,
    find_device,
    load_model,
    loaded_revision,
    loading,
    require,
    resolve_model,
)

__all__ = [
    "ForwardPasses",
    "Run",
    "TransformersScorer",
    "bears_padding",
    "is_out_of_memory",
    "is_plain_layer",
    "repeat_cache",
    "shared_length",
]


@dataclass(frozen=True, slots=True)
class Run:
    """Prompts, how many tokens they share, and the keys and values of those."""

    prompts: list[list[int]]
    shared: int
    cache: Any


def is_out_of_memory(torch: Any, error: RuntimeError) -> bool:
    """Return whether torch failed for want of memory."""
    # On a CPU torch raises a plain RuntimeError, and so do the libraries below it on a GPU.
    return isinstance(error, torch.OutOfMemoryError) or any(
        sign in str(error) for sign in ("allocate memory", "ALLOC_FAILED")
    )


def shared_length(prompts: list[list[int]]) -> int:
    """Return how many tokens all prompts begin with; at least one of each is left to run."""
    # The lexicographic extremes differ wherever any two prompts do.
    first, last = min(prompts), max(prompts)
    most = min(len(ids) for ids in prompts) - 1
    for position in range(most):
        if first[position] != last[position]:
            return position
    return most


def is_plain_layer(layer: Any) -> bool:
    """Return whether a layer of a cache holds all keys and values, and nothing else."""
    return type(layer).__name__ == "DynamicLayer"


def bears_padding(cache: Any) -> bool:
    """Return whether padding may stand between the cached tokens and the rest.

    Layers of a sliding window count it as tokens, and would look less far back.
    """
    return cache is None or all(is_plain_layer(layer) for layer in cache.layers)


def repeat_cache(cache: Any, times: int) -> Any:
    """Return a copy of the cache of one row for `times` rows; the model writes to it."""
    repeated = copy.deepcopy(cache)
    for layer in repeated.layers:
        if is_plain_layer(layer):
            # A view will do: this layer joins new keys to old ones in a new tensor.
            layer.keys = layer.keys.expand(times, -1, -1, -1)
            layer.values = layer.values.expand(times, -1, -1, -1)
        else:
            layer.batch_repeat_interleave(times)
    return repeated


_log = logging.getLogger(__name__)

_TOKEN_BUDGET = {"cpu": 1536, "cuda": 32768}  # on a CPU, what stays in its caches is fastest

_CONTEXT_SHARE = 4  # how many cached prefix tokens weigh as much as one token to be run


@dataclass(slots=True)
class ForwardPasses:
    """A causal language model, run over prompts of which only the answer slot matters.

    Attributes
    ----------
    model : PreTrainedModel
        The model, on its device.
    name : str
        What it is called in messages.
    token_budget : int
        Tokens run at once; 0 for a default. Halved when the memory does not suffice.
    reuse_prefix : bool
        Whether the part that all prompts share is run once, and its keys and values used again.
    """

    model: Any
    name: str
    token_budget: int = 0
    reuse_prefix: bool = True
    torch: Any = field(init=False)
    device: Any = field(init=False)
    accepted: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.torch = require("torch")
        self.device = self.model.device
        self.token_budget = self.token_budget or _TOKEN_BUDGET.get(self.device.type, 1536)
        self.accepted = frozenset(inspect.signature(self.model.forward).parameters)

    def next_token_logits(
        self, prompts: list[list[int]], wanted: Sequence[int], progress: Progress
    ) -> NDArray[np.float64]:
        """Return the logits of some tokens after each prompt: [M, len(wanted)].

        Raises
        ------
        ScoringError
            If a single prompt is more than the memory holds.
        """
        return self._run(
            prompts,
            lambda tails, run: self._run_tails(tails, run).logits[:, -1, list(wanted)].double(),
            progress,
        )

    def word_log_probabilities(
        self,
        prompts: list[list[int]],
        words: Sequence[tuple[int, ...]],
        progress: Progress,
    ) -> NDArray[np.float64]:
        """Return the log-probabilities of whole words after each prompt: [M, len(words)].

        Raises
        ------
        ScoringError
            If a single prompt is more than the memory holds.
        """
        return self._run(prompts, lambda tails, run: self._joint(tails, run, words), progress)

    def _run(
        self,
        prompts: list[list[int]],
        read: Callable[[list[list[int]], Run], Any],
        progress: Progress,
    ) -> NDArray[np.float64]:
        shared = shared_length(prompts) if self.reuse_prefix else 0
        with self.torch.inference_mode():
            try:
                cache = self._run_shared(prompts[0][:shared])
            except RuntimeError as error:
                raise self._too_large(error) from None
            run = Run(prompts, shared if cache is not None else 0, cache)
            return self._read(run, lambda tails: read(tails, run), progress)

    def _read(
        self,
        run: Run,
        read: Callable[[list[list[int]]], Any],
        progress: Progress,
    ) -> NDArray[np.float64]:
        """Run all prompts; `read` gives what is needed of the prompts with some tails."""
        lengths = [len(ids) - run.shared for ids in run.prompts]
        parts: dict[int, NDArray[np.float64]] = {}
        for batch in self._batches(lengths, run.shared, pad=bears_padding(run.cache)):
            pending = [batch]
            while pending:
                rows = pending.pop()
                try:
                    found = read([run.prompts[row][run.shared :] for row in rows])
                    values = found.cpu().numpy()
                except RuntimeError as error:
                    if len(rows) == 1 or not is_out_of_memory(self.torch, error):
                        raise self._too_large(error) from None
                else:
                    parts |= dict(zip(rows, values, strict=True))
                    progress(len(rows))
                    continue
                # Here the failed run's tensors are gone, which they are not while it is handled.
                self._halve()
                middle = len(rows) // 2
                pending += [rows[middle:], rows[:middle]]
        return np.stack([parts[row] for row in range(len(run.prompts))])

    def _halve(self) -> None:
        self.token_budget = max(1, self.token_budget // 2)
        _log.warning(
            "model %s: out of memory on %s; going on with at most %d tokens at once",
            self.name,
            self.device,
            self.token_budget,
        )
        if self.device.type == "cuda":
            self.torch.cuda.empty_cache()

    def _too_large(self, error: RuntimeError) -> Exception:
        if not is_out_of_memory(self.torch, error):
            return error
        return ScoringError(
            f"model {self.name!r} ran out of memory on {self.device} with a single prompt; "
            "use fewer shots, another precision (dtype) or another device"
        )

    def _joint(
        self,
        tails: list[list[int]],
        run: Run,
        token_ids: Sequence[tuple[int, ...]],
    ) -> Any:
        """Return the log-probabilities of whole label words: [rows, N]."""
        output = self._run_tails(tails, run, keep_cache=True)
        total = output.logits[:, -1].double().log_softmax(-1)[:, [ids[0] for ids in token_ids]]
        cache: Any = getattr(output, "past_key_values", None)
        is_plain = hasattr(cache, "layers") and all(map(is_plain_layer, cache.layers))
        # Plain layers join new keys to old ones in new tensors, so that the old ones stay.
        kept = [(layer.keys, layer.values) for layer in cache.layers] if is_plain else []
        width = max(len(tail) for tail in tails)
        padding = self.torch.tensor([width - len(tail) for tail in tails], device=self.device)
        for column, ids in enumerate(token_ids):
            head, rest = list(ids[:-1]), list(ids[1:])
            if not head:
                continue
            if is_plain:
                # Only the word is run, on the keys and values of its prompt.
                past = run.shared + width
                grown = self.torch.arange(past + len(head), device=self.device).unsqueeze(0)
                seen = (grown < run.shared) | (grown >= run.shared + padding.unsqueeze(1))
                inputs = {
                    "input_ids": self.torch.tensor([head], device=self.device).repeat(
                        len(tails), 1
                    ),
                    "attention_mask": seen.long(),
                    "past_key_values": cache,
                }
                if "position_ids" in self.accepted:
                    inputs["position_ids"] = grown[:, past:] - padding.unsqueeze(1)
                more = self.model(**inputs, use_cache=True, **self._last_only(len(head))).logits
                for layer, (keys, values) in zip(cache.layers, kept, strict=True):
                    layer.keys, layer.values = keys, values
            else:
                longer = [tail + head for tail in tails]
                more = self._run_tails(longer, run, keep=len(head)).logits
            steps = list(range(len(head)))
            scores = more[:, -len(head) :].double().log_softmax(-1)
            total[:, column] += scores[:, steps, rest].sum(1)
        return total

    def _batches(self, lengths: list[int], shared: int, *, pad: bool) -> Iterator[list[int]]:
        # Sorted, so that a batch needs little padding; longest first, so that a budget that is
        # too large for the memory shows at once.
        order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
        start = 0
        while start < len(order):
            longest = lengths[order[start]]
            size = max(1, int(self.token_budget / (longest + shared / _CONTEXT_SHARE)))
            rows = order[start : start + size]
            if not pad:
                rows = [row for row in rows if lengths[row] == longest]
            yield rows
            start += len(rows)

    def _run_shared(self, ids: list[int]) -> Any:
        if not ids:
            return None
        batch = self.torch.tensor([ids], device=self.device)
        output = self.model(input_ids=batch, use_cache=True, **self._last_only(1))
        cache = getattr(output, "past_key_values", None)
        return cache if hasattr(cache, "layers") else None

    def _run_tails(
        self,
        tails: list[list[int]],
        run: Run,
        *,
        keep: int = 1,
        keep_cache: bool = False,
    ) -> Any:
        shared, cache = run.shared, run.cache
        width = max(len(tail) for tail in tails)
        padding = [width - len(tail) for tail in tails]
        # Any token will do as padding: the mask hides it.
        rows = [[0] * pad + tail for pad, tail in zip(padding, tails, strict=True)]
        inputs: dict[str, Any] = {"input_ids": self.torch.tensor(rows, device=self.device)}
        if any(padding):
            pads = self.torch.tensor(padding, device=self.device).unsqueeze(1)
            columns = self.torch.arange(width, device=self.device).unsqueeze(0)
            seen = self.torch.ones((len(rows), shared), dtype=self.torch.long, device=self.device)
            inputs["attention_mask"] = self.torch.cat([seen, (columns >= pads).long()], dim=1)
            if "position_ids" in self.accepted:
                inputs["position_ids"] = shared + (columns - pads).clamp(min=0)
        if cache is not None:
            inputs["past_key_values"] = repeat_cache(cache, len(rows))
        use_cache = keep_cache or cache is not None
        return self.model(**inputs, use_cache=use_cache, **self._last_only(keep))

    def _last_only(self, keep: int) -> dict[str, int]:
        return {"logits_to_keep": keep} if "logits_to_keep" in self.accepted else {}


class TransformersScorer(TokenEngine):
    """Reads class probabilities off a Transformers model.

    The part that all prompts share is run once and its keys and values are used again for every
    query.

    Parameters
    ----------
    model : ModelReference, str or path-like
        The model; see :func:`dcs.scoring.resolve_model`.
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
        model: ModelReference | str | os.PathLike[str],
        *,
        device: str | None = None,
        dtype: str | None = None,
        token_budget: int | None = None,
        label_rule: LabelRule = "auto",
        reuse_prefix: bool = True,
    ) -> None:
        check_label_rule(label_rule)
        reference = model if isinstance(model, ModelReference) else resolve_model(model)
        torch, transformers = require("torch"), require("transformers")
        place = find_device(torch, device)
        precision = dtype or ("bfloat16" if place.type == "cuda" else "float32")
        if not isinstance(getattr(torch, precision, None), torch.dtype):
            raise ConfigError(f"dtype {precision!r}: allowed are bfloat16, float16 and float32")
        with loading(reference, transformers):
            tokenizer, loaded = load_model(transformers, reference, getattr(torch, precision))
        self._adopt(
            _moved(torch, loaded, place, reference.name),
            tokenizer,
            name=reference.name,
            revision=loaded_revision(reference),
            token_budget=token_budget,
            label_rule=label_rule,
            reuse_prefix=reuse_prefix,
        )

    @classmethod
    def from_model(
        cls,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        revision: str = "unknown",
        token_budget: int | None = None,
        label_rule: LabelRule = "auto",
        reuse_prefix: bool = True,
    ) -> TransformersScorer:
        """Make a scorer of a model that is in memory already, where it is.

        Parameters
        ----------
        model, tokenizer : PreTrainedModel, PreTrainedTokenizerFast
            The model and its tokenizer.
        name, revision : str
            What to call them; a store takes equal names for equal weights.
        token_budget, label_rule, reuse_prefix
            As for the class.
        """
        check_label_rule(label_rule)
        scorer = cls.__new__(cls)
        scorer._adopt(
            model,
            tokenizer,
            name=name,
            revision=revision,
            token_budget=token_budget,
            label_rule=label_rule,
            reuse_prefix=reuse_prefix,
        )
        return scorer

    def _adopt(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        revision: str,
        token_budget: int | None,
        label_rule: LabelRule,
        reuse_prefix: bool,
    ) -> None:
        """Take a loaded model, and set all that a scorer has."""
        torch, transformers = require("torch"), require("transformers")
        self.model, self.revision = name, revision
        self._model, self._tokenizer = model.eval(), tokenizer
        self._label_rule = label_rule
        self._limit = getattr(model.config, "max_position_embeddings", None)
        self._passes = ForwardPasses(self._model, name, token_budget or 0, reuse_prefix)
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self.settings: Mapping[str, str] = {
            "dtype": str(model.dtype).removeprefix("torch."),
            "label_rule": label_rule,
        }

    def _read(self, tokens: TokenizedPrompts, progress: Progress) -> NDArray[np.float64]:
        if tokens.rule == "joint":
            return self._passes.word_log_probabilities(tokens.prompts, tokens.token_ids, progress)
        return self._passes.next_token_logits(tokens.prompts, tokens.wanted, progress)

    def _encode(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self._tokenizer(
            texts, return_attention_mask=False, return_token_type_ids=False, verbose=False
        )["input_ids"]
        return ids

    def _free(self) -> None:
        on_gpu = self._passes.device.type == "cuda"
        del self._model, self._passes
        if on_gpu:
            require("torch").cuda.empty_cache()


def _moved(torch: Any, model: Any, device: Any, name: str) -> Any:
    try:
        return model.to(device)
    except RuntimeError as error:
        if not is_out_of_memory(torch, error):
            raise
    raise ScoringError(
        f"model {name!r} does not fit into the memory of {device}; use the engine vllm with "
        "several GPUs (tensor_parallel), or another precision (dtype)"
    )
