"""Engines that read class probabilities off language models: one protocol, one file each.

Each is imported when it is first asked for. An installed package adds one as an entry point of
``dcs.engines``.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any, Final

from dcs.errors import ConfigError, check_choice
from dcs.plugins import find_named, plugin_names
from dcs.scoring.base import LabelRule, Progress, Scorer
from dcs.scoring.cache import StoredScorer, score_settings
from dcs.scoring.models import PACKAGED_MODELS, ModelReference, resolve_model

__all__ = [
    "PACKAGED_MODELS",
    "LabelRule",
    "ModelReference",
    "Progress",
    "Scorer",
    "StoredScorer",
    "engine_names",
    "engine_options",
    "engine_packages",
    "is_served",
    "load_scorer",
    "resolve_model",
    "score_settings",
]

_ENGINES: Final[dict[str, str | type[Any]]] = {
    "transformers": "dcs.scoring.transformers:TransformersScorer",
    "vllm": "dcs.scoring.vllm:VLLMScorer",
    "openai": "dcs.scoring.openai:OpenAIScorer",
}

SUMMARIES: Final = {
    "transformers": "Models of Hugging Face, on this machine's CPUs or GPUs.",
    "vllm": "The same models by vLLM, on GPUs.",
    "openai": "Any server with OpenAI's interface, asked over HTTP.",
}
"""What the engines that come along are, without importing them."""


def engine_names() -> tuple[str, ...]:
    """Return the names of the engines, those of installed packages last."""
    return tuple(dict.fromkeys((*_ENGINES, *plugin_names("dcs.engines"))))


def engine_class(engine: str) -> type[Scorer]:
    """Return the scorer of an engine.

    Raises
    ------
    ConfigError
        If there is no such engine.
    """
    found = find_named("dcs.engines", engine, _ENGINES, type, lacks=_lacks)
    scorer: type[Scorer] = resolve_name(found) if isinstance(found, str) else found
    return scorer


def _lacks(scorer: object) -> str:
    absent = (name for name in ("score", "close") if not callable(getattr(scorer, name, None)))
    return " and ".join(f"the method {name}" for name in absent)


def engine_packages(engine: str) -> tuple[str, ...]:
    """Return the packages whose versions decide the numbers of an engine."""
    return tuple(getattr(engine_class(engine), "packages", ()))


def is_served(engine: str) -> bool:
    """Return whether a server has the engine's models, so that none is loaded here."""
    return bool(getattr(engine_class(engine), "served", False))


def engine_options(engine: str) -> tuple[str, ...]:
    """Return the options of an engine, as :func:`load_scorer` takes them."""
    parameters = inspect.signature(engine_class(engine)).parameters
    return tuple(name for name in parameters if name != "model")


def load_scorer(
    model: str | os.PathLike[str],
    *,
    engine: str = "transformers",
    device: str | None = None,
    **options: Any,
) -> Scorer:
    """Load a model for scoring.

    Parameters
    ----------
    model : str or path-like
        ``"tiny_lm"``, a local model folder, or a hub id ``owner/name``; for a server, the name
        under which it serves the model.
    engine : str
        One of :func:`engine_names`.
    device : str, optional
        E.g. ``"cpu"``, ``"cuda:1"``; by default a GPU where there is one.
    **options
        What else the engine's scorer takes, e.g. ``label_rule="joint"``, ``base_url=...``.

    Returns
    -------
    Scorer
        Ready to score.

    Raises
    ------
    ConfigError
        If there is no such engine, or it has no such option.
    ScoringError
        If the model cannot be found or loaded.
    MissingDependencyError
        If the engine is not installed.
    """
    build: Callable[..., Scorer] = engine_class(engine)
    reference = os.fspath(model) if is_served(engine) else resolve_model(model)
    given = options | ({} if device is None else {"device": device})
    for name in given:
        check_choice(f"option of engine {engine}", name, engine_options(engine))
    scorer = build(reference, **given)
    for name in Scorer.__annotations__:
        if not hasattr(scorer, name):
            raise ConfigError(f"engine {engine!r}: its scorer lacks the attribute {name}")
    return scorer
