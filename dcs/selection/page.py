"""The page of a result: one HTML file without network, on which another point can be chosen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcs.evaluation.metrics import METRICS, ClassificationMetrics
from dcs.evaluation.uncertainty import (
    compare_predictions,
    design_effect,
    mcnemar_p,
    percent,
    sentence_of_chance,
)

#: Significance level of the statements of the verdict.
_SIGNIFICANT = 0.05


def result_page(content: dict[str, Any]) -> str:
    """Return the page as HTML.

    Parameters
    ----------
    content : dict
        Values that JSON can represent: ``name``, ``verdict``, ``guarantee``, ``words``, ``apply``,
        ``classes``, ``points``, and ``chosen``, the index of the chosen point.
    """
    template = files("dcs").joinpath("assets/result.html").read_text(encoding="utf-8")
    # The text of an element ends at "</", which JSON can write otherwise.
    data = json.dumps(content, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return template.replace(">DATA<", f">{data}<")


def verdict(
    labels: NDArray[np.int64],
    before: NDArray[np.int64],
    after: NDArray[np.int64],
    classes: Sequence[str],
    groups: NDArray[np.int64] | None = None,
) -> str:
    """Return what held-out rows show about a correction, in a sentence or two.

    Parameters
    ----------
    labels, before, after : array of int, shape [M]
        True classes, and the predictions before and after the correction.
    classes : sequence of str
        Class names.
    groups : array of int, shape [M], optional
        Group of copies of every row; by default no row is a copy.
    """
    old, new = (
        ClassificationMetrics.from_predictions(labels, each, len(classes))
        for each in (before, after)
    )
    rows = f"{labels.size:,} held-out rows"
    if np.array_equal(before, after):
        kept = f"accuracy {percent(old.accuracy)}, COBias {percent(old.cobias)}"
        return f"No prediction changes on {rows}: {kept}."
    comparison = compare_predictions(labels, before, after, len(classes), groups=groups)
    shown, unknown = [], []
    for name, found in comparison.items():
        about, first, last = METRICS[name], getattr(old, name), getattr(new, name)
        change = f"from {percent(first)} to {percent(last)} ({sentence_of_chance(found.p)})"
        if found.p < _SIGNIFICANT:
            better = (last > first) == about.maximize
            shown.append(f"{about.title} {'improves' if better else 'worsens'} {change}")
        else:
            unknown.append(f"the change of {about.title} {change}")
    chance = f"{' and '.join(unknown)} may be chance"
    worse = worse_classes(labels, before, after, classes, groups=groups)
    if not shown and not worse:
        return f"Nothing is proven on {rows}: {chance}."
    parts = [*([" and ".join(shown)] if shown else []), *([chance] if unknown else [])]
    less = f" Less accurate than before: {', '.join(worse)}." if worse else ""
    return f"On {rows}, {'; '.join(parts)}.{less}"


def worse_classes(
    labels: NDArray[np.int64],
    before: NDArray[np.int64],
    after: NDArray[np.int64],
    classes: Sequence[str],
    *,
    groups: NDArray[np.int64] | None = None,
) -> list[str]:
    """Return the classes whose accuracy falls significantly, with both accuracies.

    By McNemar's test on the rows of each class, at the level of 5 % over all classes (Bonferroni).

    Parameters
    ----------
    labels, before, after : array of int, shape [M]
        True classes, and two sets of predictions.
    classes : sequence of str
        Class names.
    groups : array of int, shape [M], optional
        Group of copies of every row, which count once.
    """
    found = []
    for index, name in enumerate(classes):
        own = labels == index
        first, second = before[own] == index, after[own] == index
        gained, lost = int((second & ~first).sum()), int((first & ~second).sum())
        effect = 1.0 if groups is None else design_effect(groups[own], first != second)
        if lost > gained and mcnemar_p(gained, lost, effect=effect) * len(classes) < _SIGNIFICANT:
            found.append(f"{name} ({percent(first.mean())} to {percent(second.mean())})")
    return found
