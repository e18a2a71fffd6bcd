"""Engines that read class probabilities off language models: one protocol, one file each."""

from __future__ import annotations

from dcs.scoring.base import Progress, Scorer
from dcs.scoring.cache import StoredScorer, score_settings
from dcs.scoring.label_words import LabelRule
from dcs.scoring.models import PACKAGED_MODELS, ModelReference, resolve_model
from dcs.scoring.registry import (
    engine_names,
    engine_options,
    engine_packages,
    is_served,
    load_scorer,
)

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
