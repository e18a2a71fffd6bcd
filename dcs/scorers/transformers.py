"""The Transformers engine: any causal language model that torch can run here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.errors import ConfigError, ScoringError
from dcs.scorers._caches import is_out_of_memory
from dcs.scorers._engines import TokenEngine
from dcs.scorers._forward import ForwardPasses
from dcs.scorers._prompts import TokenizedPrompts
from dcs.scorers.base import Progress
from dcs.scorers.label_tokens import LabelRule, check_label_rule
from dcs.scorers.loading import find_device, load_model, loaded_revision, loading, require
from dcs.scorers.models import ModelReference, resolve_model

__all__ = ["TransformersScorer"]


class TransformersScorer(TokenEngine):
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
