"""Engines that read class probabilities off language models: one protocol, one file each."""

from __future__ import annotations

from dcs.scorers.base import Progress, Scorer
from dcs.scorers.models import PACKAGED_MODELS, ModelReference, resolve_model
from dcs.scorers.registry import engine_names, load_scorer

__all__ = [
    "PACKAGED_MODELS",
    "ModelReference",
    "Progress",
    "Scorer",
    "engine_names",
    "load_scorer",
    "resolve_model",
]
