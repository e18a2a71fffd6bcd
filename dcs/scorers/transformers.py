"""The Transformers engine: any causal language model that torch can run here."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.errors import MissingDependencyError, ScoringError
from dcs.scorers.base import Progress
from dcs.scorers.label_tokens import class_probabilities, label_token_ids
from dcs.scorers.models import ModelReference, resolve_model

__all__ = ["TransformersScorer", "load_tokenizer"]

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
    token_budget : int, optional
        Tokens run at once; less takes less memory.
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

    def __init__(
        self,
        model: ModelReference | str | os.PathLike[str],
        *,
        device: str | None = None,
        token_budget: int | None = None,
        reuse_prefix: bool = True,
    ) -> None:
        reference = model if isinstance(model, ModelReference) else resolve_model(model)
        torch, transformers = _require("torch"), _require("transformers")
        self._device = _find_device(torch, device)
        self._token_budget = token_budget or _TOKEN_BUDGET.get(self._device.type, 1536)
        self._reuse_prefix = reuse_prefix
        dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        with _loading(reference, transformers):
            self._tokenizer, self._model = _load(transformers, reference, dtype)
        self._model.to(self._device).eval()
        self.model = reference.name
        self.revision = (
            reference.revision or getattr(self._model.config, "_commit_hash", None) or "unknown"
        )
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
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
        token_ids = label_token_ids(
            prefix + queries[0],
            label_words,
            encode=lambda text: self._encode([text])[0],
            describe=lambda token: str(self._tokenizer.decode([token])),
        )
        wanted = sorted({*sum(token_ids, ())})
        prompts = self._encode([prefix + query for query in queries])
        self._check_lengths(prompts)
        # Tokenised whole and split afterwards, so that the tokens are those the model would
        # see without the cache, whatever the tokenizer does at the boundary.
        shared = _shared_length(prompts) if self._reuse_prefix else 0
        logits = np.empty((len(queries), len(wanted)))
        torch = _require("torch")
        try:
            with torch.inference_mode():
                cache = self._run_shared(torch, prompts[0][:shared])
                shared = shared if cache is not None else 0
                lengths = [len(ids) - shared for ids in prompts]
                for rows in self._batches(lengths, shared, pad=_bears_padding(cache)):
                    tails = [prompts[row][shared:] for row in rows]
                    logits[rows] = self._run_tails(torch, tails, wanted, shared, cache)
                    if progress is not None:
                        progress(len(rows))
        except torch.OutOfMemoryError:
            raise ScoringError(
                f"model {self.model!r} ran out of memory on {self._device} with a token budget "
                f"of {self._token_budget}; give a smaller token_budget or another device"
            ) from None
        return class_probabilities(logits, token_ids)

    def close(self) -> None:
        """Free the model's memory."""
        self._model = None
        torch = _require("torch")
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
        output = self._model(input_ids=batch, use_cache=True, **self._last_only())
        cache = getattr(output, "past_key_values", None)
        return cache if hasattr(cache, "layers") else None

    def _run_tails(
        self, torch: Any, tails: list[list[int]], wanted: list[int], shared: int, cache: Any
    ) -> NDArray[np.float64]:
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
            inputs["past_key_values"] = _repeat(cache, len(rows))
        output = self._model(**inputs, use_cache=cache is not None, **self._last_only())
        values: NDArray[np.float64] = output.logits[:, -1, wanted].double().cpu().numpy()
        return values

    def _last_only(self) -> dict[str, int]:
        return {"logits_to_keep": 1} if "logits_to_keep" in self._accepted else {}


def _shared_length(prompts: list[list[int]]) -> int:
    """Return how many tokens all prompts begin with; at least one of each is left to run."""
    # The lexicographic extremes differ wherever any two prompts do.
    first, last = min(prompts), max(prompts)
    most = min(len(ids) for ids in prompts) - 1
    for position in range(most):
        if first[position] != last[position]:
            return position
    return most


def _is_plain(layer: Any) -> bool:
    return type(layer).__name__ == "DynamicLayer"


def _bears_padding(cache: Any) -> bool:
    """Return whether padding may stand between the cached tokens and the rest.

    Layers of a sliding window count it as tokens, and would look less far back.
    """
    return cache is None or all(_is_plain(layer) for layer in cache.layers)


def _repeat(cache: Any, times: int) -> Any:
    """Return a copy of the cache of one row for `times` rows; the model writes to it."""
    repeated = copy.deepcopy(cache)
    for layer in repeated.layers:
        if _is_plain(layer):
            # A view will do: this layer joins new keys to old ones in a new tensor.
            layer.keys = layer.keys.expand(times, -1, -1, -1)
            layer.values = layer.values.expand(times, -1, -1, -1)
        else:
            layer.batch_repeat_interleave(times)
    return repeated


def _require(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingDependencyError(
            f"{package} is not installed ({error}), which the transformers engine needs; "
            f"install it with: pip install {package}"
        ) from None


def _find_device(torch: Any, device: str | None) -> Any:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ScoringError(
            f"device {device!r} cannot be used here; give cpu, or cuda where torch finds a GPU"
        ) from None
    return found


def load_tokenizer(model: ModelReference | str | os.PathLike[str]) -> Any:
    """Load a model's tokenizer alone.

    Raises
    ------
    ScoringError
        If the model cannot be found or its tokenizer cannot be loaded.
    MissingDependencyError
        If transformers is not installed.
    """
    reference = model if isinstance(model, ModelReference) else resolve_model(model)
    transformers = _require("transformers")
    with _loading(reference, transformers):
        return transformers.AutoTokenizer.from_pretrained(reference.location)


def _load(transformers: Any, reference: ModelReference, dtype: Any) -> tuple[Any, Any]:
    def load(local_files_only: bool) -> tuple[Any, Any]:
        place = {
            "pretrained_model_name_or_path": reference.location,
            "local_files_only": local_files_only,
        }
        tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
        return tokenizer, transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=dtype)

    try:
        # What has been fetched before is used as it is: the same weights on every run.
        return load(local_files_only=True)
    except OSError:
        if reference.is_local:
            raise
    hub = importlib.import_module("huggingface_hub")
    # One question without retries: out of reach is known in seconds, not in a minute.
    hub.get_session().head(hub.constants.ENDPOINT, timeout=10)
    return load(local_files_only=False)


@contextmanager
def _loading(reference: ModelReference, transformers: Any) -> Iterator[None]:
    """Load quietly, and say in one line why it failed."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    except Exception as error:
        # Tokenizer, weights and network libraries raise errors of many unrelated classes.
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        advice = (
            "give a folder as written by save_pretrained, tokenizer included"
            if reference.is_local
            else "there is no folder of that name either; check the name and the network"
        )
        where = "from its folder" if reference.is_local else "from the model hub"
        raise ScoringError(
            f"model {reference.name!r} cannot be loaded {where} "
            f"({type(error).__name__}: {reason}); {advice}"
        ) from error
    finally:
        if shown:
            logging.enable_progress_bar()
