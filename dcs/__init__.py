"""Debiasing at class and sample levels: fairer class accuracies from class probabilities.

The names below are the public face; each is imported when first used, so that ``import dcs``
costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcs.annealing import AnnealingResult, Schedule, anneal
    from dcs.correction_sets import CorrectionSet
    from dcs.corrections import Membership, Weight
    from dcs.errors import DCSError
    from dcs.estimator import DCSClassifier
    from dcs.exact import exact_search
    from dcs.fitting import Hyperparameters
    from dcs.front import Preference
    from dcs.methods import get_method
    from dcs.metrics import ClassificationMetrics
    from dcs.objective import Objective
    from dcs.probabilities import ProbabilityTable
    from dcs.provenance import Provenance
    from dcs.scheme import CorrectionScheme
    from dcs.selection import FittedScheme, SelectionSettings, fit_scheme

__all__ = [
    "AnnealingResult",
    "ClassificationMetrics",
    "CorrectionScheme",
    "CorrectionSet",
    "DCSClassifier",
    "DCSError",
    "FittedScheme",
    "Hyperparameters",
    "Membership",
    "Objective",
    "Preference",
    "ProbabilityTable",
    "Provenance",
    "Schedule",
    "SelectionSettings",
    "Weight",
    "anneal",
    "exact_search",
    "fit_scheme",
    "get_method",
]

_HOME = {
    "AnnealingResult": "dcs.annealing",
    "ClassificationMetrics": "dcs.metrics",
    "CorrectionScheme": "dcs.scheme",
    "CorrectionSet": "dcs.correction_sets",
    "DCSClassifier": "dcs.estimator",
    "DCSError": "dcs.errors",
    "FittedScheme": "dcs.selection",
    "Hyperparameters": "dcs.fitting",
    "Membership": "dcs.corrections",
    "Objective": "dcs.objective",
    "Preference": "dcs.front",
    "ProbabilityTable": "dcs.probabilities",
    "Provenance": "dcs.provenance",
    "Schedule": "dcs.annealing",
    "SelectionSettings": "dcs.selection",
    "Weight": "dcs.corrections",
    "anneal": "dcs.annealing",
    "exact_search": "dcs.exact",
    "fit_scheme": "dcs.selection",
    "get_method": "dcs.methods",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dcs' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
