"""Engines that compute class probabilities with language models, one module per engine.

Each engine is imported on first use. Installed packages can add engines with an entry point in
the group ``dcs.engines``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any, Final

from dcs.errors import ConfigError
from dcs.io import validated
from dcs.plugins import find_named
from dcs.scoring.base import Advance as Advance
from dcs.scoring.base import Engine
from dcs.scoring.base import Scorer as Scorer
from dcs.scoring.cache import StoredScorer as StoredScorer
from dcs.scoring.models import ModelReference as ModelReference
from dcs.scoring.models import resolve_model as resolve_model

PACKAGED_ENGINES: Final[dict[str, str | type[Any]]] = {
    "transformers": "dcs.scoring.transformers:TransformersScorer",
    "vllm": "dcs.scoring.vllm:VLLMScorer",
    "openai": "dcs.scoring.openai:OpenAIScorer",
}


def engine_class(engine: str) -> type[Scorer]:
    """Return the scorer class of an engine.

    Raises
    ------
    ConfigError
        If the engine does not exist, or that of a package cannot be imported.
    """
    found = find_named("dcs.engines", engine, PACKAGED_ENGINES, type)
    return resolve_name(found) if isinstance(found, str) else found


def engine_trait(engine: str, name: str) -> Any:
    """Return an attribute of an engine's class; see :class:`dcs.scoring.base.Engine`."""
    return getattr(engine_class(engine), name, getattr(Engine, name))


def load_scorer(
    model: str | os.PathLike[str], *, engine: str = "transformers", **options: Any
) -> Scorer:
    """Load a model for scoring.

    Parameters
    ----------
    model : str or path-like
        ``"tiny_lm"``, a local model folder, or a hub id ``owner/name``; for a server, its name
        for the model.
    engine : str
        ``transformers``, ``vllm``, ``openai``, or the engine of an installed package.
    **options
        Options of the engine, e.g. ``device="cpu"``, ``label_rule="joint"``, ``base_url=...``.

    Returns
    -------
    Scorer
        The loaded model.

    Raises
    ------
    ConfigError
        If the engine does not exist or does not accept an option.
    ScoringError
        If the model cannot be found or loaded.
    MissingDependencyError
        If the engine is not installed.
    """
    build: Callable[..., Scorer] = engine_class(engine)
    reference = os.fspath(model) if engine_trait(engine, "served") else resolve_model(model)
    accepted = engine_trait(engine, "options")
    validated(accepted, options, source=f"engine {engine}", error=ConfigError)
    scorer = build(reference, **options)
    for name in (*Scorer.__annotations__, "score", "close"):
        if not hasattr(scorer, name):
            raise ConfigError(f"engine {engine!r}: its scorer lacks {name!r}")
    return scorer
