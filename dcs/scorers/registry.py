"""Engines by name. Each is imported when it is first asked for."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable

from dcs._files import suggest
from dcs.errors import ConfigError
from dcs.scorers.base import Scorer
from dcs.scorers.models import resolve_model

__all__ = ["engine_names", "load_scorer"]

# name -> module and callable (model reference, device) -> Scorer
_ENGINES: dict[str, tuple[str, str]] = {
    "transformers": ("dcs.scorers.transformers", "TransformersScorer"),
}


def engine_names() -> tuple[str, ...]:
    """Return the names of the engines."""
    return tuple(_ENGINES)


def load_scorer(
    model: str | os.PathLike[str], *, engine: str = "transformers", device: str | None = None
) -> Scorer:
    """Load a model for scoring.

    Parameters
    ----------
    model : str or path-like
        ``"tiny_lm"``, a local model folder, or a hub id ``owner/name``.
    engine : str
        One of :func:`engine_names`.
    device : str, optional
        E.g. ``"cpu"``, ``"cuda:1"``; by default a GPU where there is one.

    Returns
    -------
    Scorer
        Ready to score.

    Raises
    ------
    ConfigError
        If there is no such engine.
    ScoringError
        If the model cannot be found or loaded.
    MissingDependencyError
        If the engine is not installed.
    """
    if engine not in _ENGINES:
        raise ConfigError(
            f"unknown engine {engine!r}{suggest(engine, _ENGINES)}: allowed are "
            f"{', '.join(_ENGINES)}"
        )
    reference = resolve_model(model)
    module, name = _ENGINES[engine]
    build: Callable[..., Scorer] = getattr(importlib.import_module(module), name)
    return build(reference, device=device)
