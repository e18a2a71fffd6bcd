"""The Transformers engine: any causal language model that torch can run here."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ConfigError, ScoringError
from dcs.scorers._caches import (
    Run,
    bears_padding,
    is_out_of_memory,
    is_plain_layer,
    repeat_cache,
    shared_length,
)
from dcs.scorers.base import Progress
from dcs.scorers.label_tokens import (
    LabelRule,
    check_label_rule,
    class_probabilities,
    joint_probabilities,
    read_label_words,
)
from dcs.scorers.loading import find_device, load_model, loading, require
from dcs.scorers.models import ModelReference, resolve_model

__all__ = ["TransformersScorer"]

_log = logging.getLogger(__name__)

_TOKEN_BUDGET = {"cpu": 1536, "cuda": 32768}  # on a CPU, what stays in its caches is fastest
_CONTEXT_SHARE = 4  # how many cached prefix tokens weigh as much as one token to be run


class TransformersScorer:
    """Reads class probabilities off a Transformers model.

    The part that all prompts share is run once and its keys and values are used again for every
    query.

    Parameters
    ----------
    model : ModelReference, str or path-like
        The model; see :func:`dcs.scorers.resolve_model`.
    device : str, optional
        Default: the first GPU where there is one, else the CPU. bfloat16 on a GPU, float32 on
        the CPU.
    dtype : str, optional
        Precision, e.g. ``"float16"``, in place of that default.
    token_budget : int, optional
        Tokens run at once; less takes less memory. Halved when the memory does not suffice.
    label_rule : {"auto", "mean", "first", "joint"}
        How a label word of several tokens is read; see :data:`dcs.scorers.LabelRule`.
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
        self._device = find_device(torch, device)
        self._token_budget = token_budget or _TOKEN_BUDGET.get(self._device.type, 1536)
        self._reuse_prefix = reuse_prefix
        self._label_rule: LabelRule = label_rule
        precision = dtype or ("bfloat16" if self._device.type == "cuda" else "float32")
        if not isinstance(getattr(torch, precision, None), torch.dtype):
            raise ConfigError(f"dtype {precision!r}: allowed are bfloat16, float16 and float32")
        with loading(reference, transformers):
            tokenizer, loaded = load_model(transformers, reference, getattr(torch, precision))
        self._adopt(loaded.to(self._device), tokenizer)
        self.model = reference.name
        self.revision = (
            reference.revision or getattr(self._model.config, "_commit_hash", None) or "unknown"
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
        scorer._device = model.device
        scorer._token_budget = token_budget or _TOKEN_BUDGET.get(model.device.type, 1536)
        scorer._reuse_prefix = reuse_prefix
        scorer._label_rule = label_rule
        scorer._adopt(model, tokenizer)
        scorer.model, scorer.revision = name, revision
        return scorer

    def _adopt(self, model: Any, tokenizer: Any) -> None:
        torch, transformers = require("torch"), require("transformers")
        self._model, self._tokenizer = model.eval(), tokenizer
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self.settings: Mapping[str, str] = {
            "dtype": str(model.dtype).removeprefix("torch."),
            "label_rule": self._label_rule,
        }
        self._accepted = set(inspect.signature(self._model.forward).parameters)

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
        if self._model is None:
            raise ScoringError(f"model {self.model!r} has been closed; load it again")
        if not queries:
            return np.zeros((0, len(label_words)))
        token_ids, rule = read_label_words(
            prefix + queries[0],
            label_words,
            encode=lambda text: self._encode([text])[0],
            describe=lambda token: str(self._tokenizer.decode([token])),
            rule=self._label_rule,
        )
        prompts = self._encode([prefix + query for query in queries])
        self._check_lengths(prompts)
        # Tokenised whole and split afterwards, so that the tokens are those the model would
        # see without the cache, whatever the tokenizer does at the boundary.
        shared = shared_length(prompts) if self._reuse_prefix else 0
        torch = require("torch")
        with torch.inference_mode():
            try:
                cache = self._run_shared(torch, prompts[0][:shared])
            except RuntimeError as error:
                raise self._too_large(torch, error) from None
            run = Run(prompts, shared if cache is not None else 0, cache)
            wanted = sorted({*sum(token_ids, ())})

            def last(tails: list[list[int]]) -> Any:
                return self._run_tails(torch, tails, run).logits[:, -1, wanted].double()

            def joint(tails: list[list[int]]) -> Any:
                return self._joint(torch, tails, run, token_ids)

            values = self._read(torch, run, joint if rule == "joint" else last, progress)
        if rule == "joint":
            return joint_probabilities(values)
        return class_probabilities(values, token_ids)

    def _joint(
        self,
        torch: Any,
        tails: list[list[int]],
        run: Run,
        token_ids: Sequence[tuple[int, ...]],
    ) -> Any:
        """Return the log-probabilities of whole label words: [rows, N]."""
        longest = max(len(ids) for ids in token_ids)
        limit = getattr(self._model.config, "max_position_embeddings", None)
        if limit is not None and run.shared + max(map(len, tails)) + longest - 1 > limit:
            raise ScoringError(
                f"a prompt and its label word have more than {limit} tokens, which is what model "
                f"{self.model!r} reads; use fewer shots or shorter texts"
            )
        output = self._run_tails(torch, tails, run, keep_cache=True)
        total = output.logits[:, -1].double().log_softmax(-1)[:, [ids[0] for ids in token_ids]]
        cache: Any = getattr(output, "past_key_values", None)
        is_plain = hasattr(cache, "layers") and all(map(is_plain_layer, cache.layers))
        # Plain layers join new keys to old ones in new tensors, so that the old ones stay.
        kept = [(layer.keys, layer.values) for layer in cache.layers] if is_plain else []
        width = max(len(tail) for tail in tails)
        padding = torch.tensor([width - len(tail) for tail in tails], device=self._device)
        for column, ids in enumerate(token_ids):
            head, rest = list(ids[:-1]), list(ids[1:])
            if not head:
                continue
            if is_plain:
                # Only the word is run, on the keys and values of its prompt.
                past = run.shared + width
                grown = torch.arange(past + len(head), device=self._device).unsqueeze(0)
                seen = (grown < run.shared) | (grown >= run.shared + padding.unsqueeze(1))
                inputs = {
                    "input_ids": torch.tensor([head], device=self._device).repeat(len(tails), 1),
                    "attention_mask": seen.long(),
                    "past_key_values": cache,
                }
                if "position_ids" in self._accepted:
                    inputs["position_ids"] = grown[:, past:] - padding.unsqueeze(1)
                more = self._model(**inputs, use_cache=True, **self._last_only(len(head))).logits
                for layer, (keys, values) in zip(cache.layers, kept, strict=True):
                    layer.keys, layer.values = keys, values
            else:
                longer = [tail + head for tail in tails]
                more = self._run_tails(torch, longer, run, keep=len(head)).logits
            steps = list(range(len(head)))
            scores = more[:, -len(head) :].double().log_softmax(-1)
            total[:, column] += scores[:, steps, rest].sum(1)
        return total

    def _read(
        self,
        torch: Any,
        run: Run,
        read: Callable[[list[list[int]]], Any],
        progress: Progress | None,
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
                    if len(rows) == 1 or not is_out_of_memory(torch, error):
                        raise self._too_large(torch, error) from None
                else:
                    parts |= dict(zip(rows, values, strict=True))
                    if progress is not None:
                        progress(len(rows))
                    continue
                # Here the failed run's tensors are gone, which they are not while it is handled.
                self._halve(torch)
                middle = len(rows) // 2
                pending += [rows[middle:], rows[:middle]]
        return np.stack([parts[row] for row in range(len(run.prompts))])

    def _halve(self, torch: Any) -> None:
        self._token_budget = max(1, self._token_budget // 2)
        _log.warning(
            "model %s: out of memory on %s; going on with at most %d tokens at once",
            self.model,
            self._device,
            self._token_budget,
        )
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _too_large(self, torch: Any, error: RuntimeError) -> Exception:
        if not is_out_of_memory(torch, error):
            return error
        return ScoringError(
            f"model {self.model!r} ran out of memory on {self._device} with a single prompt; "
            "use fewer shots, another precision (dtype) or another device"
        )

    def close(self) -> None:
        """Free the model's memory."""
        self._model = None
        torch = require("torch")
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _encode(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self._tokenizer(
            texts, return_attention_mask=False, return_token_type_ids=False, verbose=False
        )["input_ids"]
        return ids

    def _check_lengths(self, prompts: list[list[int]]) -> None:
        limit = getattr(self._model.config, "max_position_embeddings", None)
        longest = max(range(len(prompts)), key=lambda row: len(prompts[row]))
        if limit is not None and len(prompts[longest]) > limit:
            raise ScoringError(
                f"query {longest}: its prompt has {len(prompts[longest])} tokens, model "
                f"{self.model!r} reads at most {limit}; use fewer shots or shorter texts"
            )
        if not all(prompts):
            raise ScoringError(
                f"query {[bool(ids) for ids in prompts].index(False)}: its prompt is empty"
            )

    def _batches(self, lengths: list[int], shared: int, *, pad: bool) -> Iterator[list[int]]:
        # Sorted, so that a batch needs little padding; longest first, so that a budget that is
        # too large for the memory shows at once.
        order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
        start = 0
        while start < len(order):
            longest = lengths[order[start]]
            size = max(1, int(self._token_budget / (longest + shared / _CONTEXT_SHARE)))
            rows = order[start : start + size]
            if not pad:
                rows = [row for row in rows if lengths[row] == longest]
            yield rows
            start += len(rows)

    def _run_shared(self, torch: Any, ids: list[int]) -> Any:
        if not ids:
            return None
        batch = torch.tensor([ids], device=self._device)
        output = self._model(input_ids=batch, use_cache=True, **self._last_only(1))
        cache = getattr(output, "past_key_values", None)
        return cache if hasattr(cache, "layers") else None

    def _run_tails(
        self,
        torch: Any,
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
        inputs: dict[str, Any] = {"input_ids": torch.tensor(rows, device=self._device)}
        if any(padding):
            pads = torch.tensor(padding, device=self._device).unsqueeze(1)
            columns = torch.arange(width, device=self._device).unsqueeze(0)
            seen = torch.ones((len(rows), shared), dtype=torch.long, device=self._device)
            inputs["attention_mask"] = torch.cat([seen, (columns >= pads).long()], dim=1)
            if "position_ids" in self._accepted:
                inputs["position_ids"] = shared + (columns - pads).clamp(min=0)
        if cache is not None:
            inputs["past_key_values"] = repeat_cache(cache, len(rows))
        use_cache = keep_cache or cache is not None
        return self._model(**inputs, use_cache=use_cache, **self._last_only(keep))

    def _last_only(self, keep: int) -> dict[str, int]:
        return {"logits_to_keep": keep} if "logits_to_keep" in self._accepted else {}
