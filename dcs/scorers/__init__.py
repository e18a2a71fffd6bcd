"""Engines that read class probabilities off language models: one protocol, one file each."""

from __future__ import annotations

from dcs.scorers.base import Progress, Scorer
from dcs.scorers.label_tokens import LabelRule
from dcs.scorers.models import PACKAGED_MODELS, ModelReference, resolve_model
from dcs.scorers.registry import (
    engine_names,
    engine_options,
    engine_packages,
    is_served,
    load_scorer,
)
from dcs.scorers.stored import StoredScorer, score_settings

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
