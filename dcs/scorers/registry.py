"""Engines by name. Each is imported when it is first asked for."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dcs._files import suggest
from dcs.errors import ConfigError
from dcs.scorers.base import Scorer
from dcs.scorers.models import resolve_model

__all__ = ["engine_names", "engine_options", "load_scorer"]


@dataclass(frozen=True, slots=True)
class _Engine:
    module: str
    scorer: str
    loads: bool = True  # whether it loads a model here, rather than asks a server for it


_ENGINES: dict[str, _Engine] = {
    "transformers": _Engine("dcs.scorers.transformers", "TransformersScorer"),
    "vllm": _Engine("dcs.scorers.vllm", "VLLMScorer"),
    "openai": _Engine("dcs.scorers.openai_compatible", "OpenAIScorer", loads=False),
}


def engine_names() -> tuple[str, ...]:
    """Return the names of the engines."""
    return tuple(_ENGINES)


def engine_options(engine: str) -> tuple[str, ...]:
    """Return the options of an engine, as :func:`load_scorer` takes them.

    Raises
    ------
    ConfigError
        If there is no such engine.
    """
    parameters = inspect.signature(_builder(engine)).parameters
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
    build = _builder(engine)
    found = _ENGINES[engine]
    reference = resolve_model(model) if found.loads else os.fspath(model)
    allowed = engine_options(engine)
    given = options | ({} if device is None else {"device": device})
    for name in given:
        if name not in allowed:
            raise ConfigError(
                f"engine {engine} has no option {name!r}{suggest(name, allowed)}: it has "
                f"{', '.join(allowed)}"
            )
    return build(reference, **given)


def _builder(engine: str) -> Callable[..., Scorer]:
    if engine not in _ENGINES:
        raise ConfigError(
            f"unknown engine {engine!r}{suggest(engine, _ENGINES)}: allowed are "
            f"{', '.join(_ENGINES)}"
        )
    found = _ENGINES[engine]
    build: Callable[..., Scorer] = getattr(importlib.import_module(found.module), found.scorer)
    return build
