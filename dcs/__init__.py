"""Debiasing at class and sample levels: fairer class accuracies from class probabilities.

The names below are the public face; each is imported when first used, so that ``import dcs``
costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcs.data.table import ProbabilityTable, Provenance
    from dcs.errors import DCSError
    from dcs.evaluation.metrics import ClassificationMetrics
    from dcs.evaluation.objective import Objective
    from dcs.schemes.corrections import CorrectionSet, Membership, Weight
    from dcs.schemes.scheme import CorrectionScheme
    from dcs.search.annealing import AnnealingResult, Schedule, anneal
    from dcs.search.exact import exact_search
    from dcs.selection.estimator import DCSClassifier
    from dcs.selection.fit import FittedScheme, SelectionSettings, fit_scheme
    from dcs.selection.front import Preference
    from dcs.selection.methods import get_method
    from dcs.selection.settings import Hyperparameters

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
    "AnnealingResult": "dcs.search.annealing",
    "ClassificationMetrics": "dcs.evaluation.metrics",
    "CorrectionScheme": "dcs.schemes.scheme",
    "CorrectionSet": "dcs.schemes.corrections",
    "DCSClassifier": "dcs.selection.estimator",
    "DCSError": "dcs.errors",
    "FittedScheme": "dcs.selection.fit",
    "Hyperparameters": "dcs.selection.settings",
    "Membership": "dcs.schemes.corrections",
    "Objective": "dcs.evaluation.objective",
    "Preference": "dcs.selection.front",
    "ProbabilityTable": "dcs.data.table",
    "Provenance": "dcs.data.table",
    "Schedule": "dcs.search.annealing",
    "SelectionSettings": "dcs.selection.fit",
    "Weight": "dcs.schemes.corrections",
    "anneal": "dcs.search.annealing",
    "exact_search": "dcs.search.exact",
    "fit_scheme": "dcs.selection.fit",
    "get_method": "dcs.selection.methods",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dcs' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
