"""Debiasing at class and sample levels: fairer class accuracies from class probabilities.

The public names are imported on first use, so that ``import dcs`` stays fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcs.data.reader import read_table as read_table
    from dcs.data.table import ProbabilityTable as ProbabilityTable
    from dcs.data.table import Provenance as Provenance
    from dcs.errors import DCSError as DCSError
    from dcs.evaluation.metrics import ClassificationMetrics as ClassificationMetrics
    from dcs.evaluation.metrics import Objective as Objective
    from dcs.evaluation.metrics import cobias_score as cobias_score
    from dcs.methods.parameters import Hyperparameters as Hyperparameters
    from dcs.schemes.corrections import CorrectionSet as CorrectionSet
    from dcs.schemes.corrections import Membership as Membership
    from dcs.schemes.corrections import Weight as Weight
    from dcs.schemes.scheme import CorrectionScheme as CorrectionScheme
    from dcs.scoring.generation import Classifier as Classifier
    from dcs.search.annealing import AnnealingResult as AnnealingResult
    from dcs.search.annealing import anneal as anneal
    from dcs.search.schedule import Schedule as Schedule
    from dcs.selection.compare import SelectionSettings as SelectionSettings
    from dcs.selection.compare import fit_scheme as fit_scheme
    from dcs.selection.estimator import DCSClassifier as DCSClassifier
    from dcs.selection.front import FittedScheme as FittedScheme
    from dcs.selection.methods import get_method as get_method
    from dcs.selection.preference import Preference as Preference

_EXPORTS = {
    "dcs.data.reader": ("read_table",),
    "dcs.data.table": ("ProbabilityTable", "Provenance"),
    "dcs.errors": ("DCSError",),
    "dcs.evaluation.metrics": ("ClassificationMetrics", "Objective", "cobias_score"),
    "dcs.schemes.corrections": ("CorrectionSet", "Membership", "Weight"),
    "dcs.schemes.scheme": ("CorrectionScheme",),
    "dcs.scoring.generation": ("Classifier",),
    "dcs.search.annealing": ("AnnealingResult", "anneal"),
    "dcs.search.schedule": ("Schedule",),
    "dcs.selection.estimator": ("DCSClassifier",),
    "dcs.selection.compare": ("SelectionSettings", "fit_scheme"),
    "dcs.selection.front": ("FittedScheme",),
    "dcs.selection.preference": ("Preference",),
    "dcs.selection.methods": ("get_method",),
    "dcs.methods.parameters": ("Hyperparameters",),
}
_MODULES = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'dcs' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_MODULES)
