"""Forward passes over many prompts: batches, the shared part run once, memory that runs out."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ScoringError
from dcs.scorers._caches import (
    Run,
    bears_padding,
    is_out_of_memory,
    is_plain_layer,
    repeat_cache,
    shared_length,
)
from dcs.scorers.base import Progress
from dcs.scorers.loading import require

__all__ = ["ForwardPasses"]

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
