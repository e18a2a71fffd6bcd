"""Arguments that are not allowed: each is refused on one line that names it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.exact import exact_search
from dcs.data.splits import stratified_choice
from dcs.data.table import ProbabilityTable
from dcs.errors import InvalidInputError
from dcs.evaluation.metrics import ClassificationMetrics, Objective, cobias_score
from dcs.methods.parameters import Hyperparameters
from dcs.schemes.calibration import mean_combination
from dcs.schemes.corrections import CorrectionSet, Weight
from dcs.schemes.scheme import CorrectionScheme
from dcs.scoring.openai import OpenAIScorer
from dcs.scoring.vllm import VLLMScorer
from dcs.search.annealing import anneal
from dcs.search.schedule import Schedule
from dcs.selection.compare import SelectionSettings, fit_scheme
from dcs.selection.estimator import DCSClassifier
from dcs.selection.methods import get_method
from dcs.selection.preference import Preference
from tests.dcs.biased import biased_table
from tests.dcs.refusals import refuses
from tests.dcs.solutions import coarse_problem

_PROBS, _LABELS = biased_table(40, 3)
_NAN = math.nan

_ON_ROWS: dict[str, Any] = {"probs": [[0.5, 0.5], [0.2, 0.8]], "labels": [0, 1]}


def _classify(**parameters: Any) -> DCSClassifier:
    settings = SelectionSettings(betas=(0.3,), folds=2)
    return DCSClassifier(**{"settings": settings, **parameters}).fit(_PROBS, _LABELS)


REFUSED: list[tuple[Callable[..., object], dict[str, list[Any]]]] = [
    (Schedule, {"initial_temperature": [0], "final_temperature": [1.0], "lambda1": [0]}),
    (Schedule, {"cooling_rate": [1.0, _NAN], "lambda2": ["6"], "restarts": [0]}),
    (Schedule, {"budget": [1.5], "moves": ["swap"], "start": ["anywhere"]}),
    (partial(anneal, **_ON_ROWS), {"probs": [[[0.5, 0.5], [_NAN, 1.0]]], "labels": [[0, 2]]}),
    # Names of classes are texts.
    (partial(anneal, **_ON_ROWS), {"classes": [["a", "a"], [0, 1], [3, 5]], "seed": [-1]}),
    (Objective, {"beta": [-1.0, _NAN], "tau": [-1.0, math.inf]}),
    (Objective, {"error_weight": [-1.0, "1"], "pseudo_count": [-1.0, 0, math.inf]}),
    (Hyperparameters, {"calibration": ["platt"], "corrections": ["all"], "spacing": ["cubic"]}),
    (Hyperparameters, {"ridge": [-1, 0, _NAN], "anchor": [-0.1, 1.1], "beta": [-0.1, math.inf]}),
    (Hyperparameters, {"weight_scale": [1, 1001, 2.5], "tau": ["0"], "error_weight": [-1]}),
    (Hyperparameters, {"pseudo_count": [0], "prior_rows": [-1], "memberships": [20]}),
    (SelectionSettings, {"development": [0.0, 1.0, -0.5, _NAN, "x"]}),
    (SelectionSettings, {"folds": [1], "candidates": [()]}),
    (Preference, {"prefer": ["speed"], "max_cobias": [101.0], "max_accuracy_loss": [-0.1]}),
    (Preference, {"margin": [-0.1, 101.0], "rate": [-0.1, _NAN], "confidence": [0.4, 1.0]}),
    (partial(Preference, "balance"), {"margin": [0.5]}),
    (partial(Preference, max_accuracy_loss=1.0), {"margin": [0.5]}),
    (_classify, {"prefer": ["speed"], "max_cobias": [-1.0], "labels": [[0, 1], [0], [], 3]}),
    (partial(OpenAIScorer, "x"), {"missing": ["bond"], "concurrency": [0]}),
    (partial(OpenAIScorer, "x"), {"base_url": ["localhost:8000"]}),
    (partial(VLLMScorer, "tiny_lm"), {"tensor_parallel": [0], "label_rule": ["jiont"]}),
    (partial(stratified_choice, [0, 1, 1], seed=0), {"size": [0, 4, 1.5, True]}),
    (Weight, {"value": [0, -1, 2e6, math.inf, _NAN, True, "0.5"]}),
    (CorrectionSet.dcs, {"weight_scale": [0, 2.5]}),
    (partial(CorrectionSet.logarithmic, count=3, smallest=0.5), {"count": [1], "smallest": [1]}),
    (CorrectionSet.furud().limited, {"memberships": [20]}),
    # Not a label of one type for each row.
    (partial(cobias_score, _LABELS), {"y_pred": [np.eye(3)[_LABELS], _LABELS[:-1]]}),
    (partial(cobias_score, _LABELS), {"y_pred": [_LABELS.astype(str), _LABELS * _NAN]}),
]


@pytest.mark.parametrize(
    ("call", "name", "value"),
    [(call, n, v) for call, options in REFUSED for n, values in options.items() for v in values],
)
def test_it_is_named(call: Callable[..., object], name: str, value: Any) -> None:
    refuses(InvalidInputError, call, names=[name], **{name: value})


def test_searches_refuse_what_would_take_for_ever() -> None:
    refuses(InvalidInputError, exact_search, *coarse_problem(300, 250), names=["250 classes"])
    probs, labels = coarse_problem(30, 8)
    refuses(InvalidInputError, exact_search, probs, labels, names=["8 classes"])


_FRAME = pd.DataFrame(_PROBS, columns=["a", "b", "c"])
_SERIES = pd.Series(_LABELS)
_TWO = CorrectionScheme.identity(
    ["a", "b", "c"], combination=mean_combination(2, 3), inputs=("first", "second")
)


@pytest.mark.parametrize(
    "call",
    [
        lambda rows: fit_scheme(rows, _SERIES),
        lambda rows: fit_scheme(rows, _LABELS, groups=_SERIES),
        lambda rows: get_method("prior").fit(rows, _SERIES),
        lambda rows: DCSClassifier().fit(rows, _SERIES.map(dict(enumerate("abc")))),
        lambda rows: ProbabilityTable.from_arrays(rows, _SERIES),
        lambda rows: ProbabilityTable.from_arrays(rows, None, ids=_SERIES.index.to_series()),
        lambda rows: _TWO.predict([_FRAME, rows]),
        lambda rows: cobias_score(_SERIES, rows["a"].argsort() % 3),
        lambda rows: ClassificationMetrics.from_predictions(_SERIES, rows["a"].argsort() % 3, 3),
    ],
)
def test_rows_that_an_index_orders_otherwise(call: Callable[[pd.DataFrame], object]) -> None:
    call(_FRAME)
    refuses(InvalidInputError, call, _FRAME.iloc[::-1], names=["index"])
