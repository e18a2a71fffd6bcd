"""The options that choose and set an engine, for `dcs generate` and `dcs sweep`."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = [
    "ApiName",
    "BaseURL",
    "Concurrency",
    "Device",
    "Dtype",
    "Engine",
    "LabelRuleName",
    "Memory",
    "Missing",
    "Price",
    "Store",
    "TensorParallel",
    "TokenizerName",
    "TopLogprobs",
    "Yes",
]

_PANEL = "Engine"


def _option(text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        help=text, rich_help_panel=_PANEL, show_default=False
    )
    return option


Engine = Annotated[
    str | None,
    _option("transformers (default), vllm, or openai (any OpenAI-compatible server)."),
]
LabelRuleName = Annotated[
    str | None,
    _option(
        "Label words of several tokens: mean (as published), first, joint, or auto (default): "
        "the mean, or joint where first tokens collide."
    ),
]
Dtype = Annotated[str | None, _option("transformers, vllm: precision, e.g. bfloat16.")]
Device = Annotated[
    str | None, _option("transformers: cpu, cuda:1, ...; by default a GPU where there is one.")
]
TensorParallel = Annotated[int | None, _option("vllm: GPUs that share the model.")]
Memory = Annotated[float | None, _option("vllm: share of each GPU's memory to use, e.g. 0.8.")]
BaseURL = Annotated[
    str | None, _option("openai: address of the server, e.g. http://host:8000/v1.")
]
ApiName = Annotated[str | None, _option("openai: completions (default) or chat.")]
TopLogprobs = Annotated[int | None, _option("openai: next tokens to be shown; by default 20.")]
Missing = Annotated[
    str | None,
    _option("openai: labels missing from the answer: error (default), bound or zero."),
]
Concurrency = Annotated[int | None, _option("openai: requests at a time; by default 8.")]
TokenizerName = Annotated[
    str | None,
    _option("openai: model whose tokenizer counts prompt tokens for the estimate."),
]
Price = Annotated[
    float | None, _option("openai: price of a million prompt tokens, for an estimate.")
]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes", help="openai: do not ask before requests that cost money.", rich_help_panel=_PANEL
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Where scored prompts are kept: a folder, or a URL such as s3://bucket/dcs; by "
        "default the folder shards in --output.",
        show_default=False,
    ),
]
