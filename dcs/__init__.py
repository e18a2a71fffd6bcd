"""Debiasing at class and sample levels: fairer class accuracies from class probabilities.

The names below are the public face; each is imported when first used, so that ``import dcs``
costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcs.annealing import AnnealingResult, Schedule, anneal
    from dcs.corrections import CorrectionSet, Membership, Weight
    from dcs.errors import DCSError
    from dcs.exact import exact_search
    from dcs.metrics import ClassificationMetrics
    from dcs.objective import Objective
    from dcs.probabilities import ProbabilityTable, Provenance
    from dcs.scheme import CorrectionScheme

__all__ = [
    "AnnealingResult",
    "ClassificationMetrics",
    "CorrectionScheme",
    "CorrectionSet",
    "DCSError",
    "Membership",
    "Objective",
    "ProbabilityTable",
    "Provenance",
    "Schedule",
    "Weight",
    "anneal",
    "exact_search",
]

_HOME = {
    "AnnealingResult": "dcs.annealing",
    "ClassificationMetrics": "dcs.metrics",
    "CorrectionScheme": "dcs.scheme",
    "CorrectionSet": "dcs.corrections",
    "DCSError": "dcs.errors",
    "Membership": "dcs.corrections",
    "Objective": "dcs.objective",
    "ProbabilityTable": "dcs.probabilities",
    "Provenance": "dcs.probabilities",
    "Schedule": "dcs.annealing",
    "Weight": "dcs.corrections",
    "anneal": "dcs.annealing",
    "exact_search": "dcs.exact",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dcs' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
