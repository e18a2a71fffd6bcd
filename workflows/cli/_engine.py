"""The options that choose and set an engine, for `dcs generate` and `dcs sweep`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

__all__ = ["Yes", "with_engine_options"]

_PANEL = "Engine"

Yes = Annotated[
    bool,
    typer.Option(
        "--yes", help="openai: do not ask before requests that cost money.", rich_help_panel=_PANEL
    ),
]


def _option(kind: type, metavar: str, text: str) -> Any:
    option = typer.Option(help=text, metavar=metavar, rich_help_panel=_PANEL, show_default=False)
    return Annotated[kind | None, option]


#: By the name of the setting under `scoring`, which checks the values.
_OPTIONS = {
    "engine": _option(
        str, "NAME", "transformers (default), vllm, or openai (any OpenAI-compatible server)."
    ),
    "store": _option(
        str,
        "PLACE",
        "Where scored prompts are kept: a folder, or a URL such as s3://bucket/dcs; by default "
        "the folder shards in --output.",
    ),
    "label_rule": _option(
        str,
        "RULE",
        "Label words of several tokens: mean (as published), first, joint, or auto (default): "
        "the mean, or joint where first tokens collide.",
    ),
    "dtype": _option(str, "TYPE", "transformers, vllm: precision, e.g. bfloat16."),
    "device": _option(
        str, "DEVICE", "transformers: cpu, cuda:1, ...; by default a GPU where there is one."
    ),
    "tensor_parallel": _option(int, "GPUS", "vllm: GPUs that share the model."),
    "memory": _option(float, "SHARE", "vllm: share of each GPU's memory to use, e.g. 0.8."),
    "base_url": _option(str, "URL", "openai: address of the server, e.g. http://host:8000/v1."),
    "api": _option(str, "NAME", "openai: completions (default) or chat."),
    "top_logprobs": _option(int, "NUMBER", "openai: next tokens to be shown; by default 20."),
    "missing": _option(
        str, "RULE", "openai: labels missing from the answer: error (default), bound or zero."
    ),
    "concurrency": _option(int, "NUMBER", "openai: requests at a time; by default 8."),
    "tokenizer": _option(
        str, "MODEL", "openai: model whose tokenizer counts prompt tokens for the estimate."
    ),
    "price": _option(float, "PRICE", "openai: price of a million prompt tokens, for an estimate."),
}


def with_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the engine's options to a command, which gets those given as the mapping `scoring`."""

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        values = {name: given.pop(name) for name in _OPTIONS}
        scoring = {name: value for name, value in values.items() if value is not None}
        command(**given, scoring=scoring)

    signature = inspect.signature(command, eval_str=True)
    parameters = list(signature.parameters.values())
    at = [p.name for p in parameters].index("scoring")
    parameters[at : at + 1] = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in _OPTIONS.items()
    ]
    # What Typer reads: it knows no options but a function's own parameters.
    vars(with_options)["__signature__"] = signature.replace(parameters=parameters)
    with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_options
