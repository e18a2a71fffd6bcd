"""The page of a result: one HTML file without network, on which another point can be chosen."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import get_args

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
from dcs.selection.front import FittedScheme
from dcs.selection.preference import FrontPoint, Prefer, Preference

#: Significance level of the statements of the verdict.
_SIGNIFICANT = 0.05


def report_of(
    fitted: FittedScheme,
    *,
    name: str = "scheme",
    verdict: str = "",
    words: Sequence[str] = (),
    apply: str = "",
) -> str:
    """Return a page on which the points of a front can be compared and another one be chosen.

    Parameters
    ----------
    fitted : FittedScheme
        The front and the selected point.
    name : str, optional
        Title.
    verdict : str, optional
        What held-out rows show, see :func:`verdict`.
    words : sequence of str, optional
        The scheme in words; by default its explanation.
    apply : str, optional
        How to apply the scheme.

    Returns
    -------
    str
        HTML of one file, without network.
    """
    front = {id(point) for point in fitted.front}
    named = {f"--prefer {each}": fitted.pick(Preference(each)).chosen for each in get_args(Prefer)}
    points = [
        {
            "accuracy": point.accuracy,
            "cobias": point.lasting_cobias,
            "classes": [None if a != a else a for a in point.estimate.class_accuracies],
            "front": id(point) in front,
            "pick": _command(fitted, point, name, named),
        }
        for point in fitted.points
    ]
    content = {
        "name": name,
        "verdict": verdict or "Not evaluated on held-out rows.",
        "guarantee": fitted.guarantee,
        "words": [*words] or fitted.scheme.explain(),
        "apply": apply or "scheme.apply(probs)",
        "classes": list(fitted.scheme.classes),
        "points": points,
        "chosen": next(k for k, p in enumerate(fitted.points) if p is fitted.chosen),
    }
    template = files("dcs").joinpath("assets/result.html").read_text(encoding="utf-8")
    # The text of an element ends at "</", which JSON can write otherwise.
    data = json.dumps(content, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return template.replace(">DATA<", f">{data}<")


def _command(
    fitted: FittedScheme, point: FrontPoint, name: str, named: Mapping[str, FrontPoint]
) -> str:
    """Return the command that picks a point, or an empty text if no option does."""
    best = max(each.accuracy for each in fitted.points)
    bias = math.ceil(1000 * point.lasting_cobias) / 10
    loss = math.ceil(1000 * (best - point.accuracy)) / 10
    limits = {
        f"--max-cobias {bias:g}": Preference(max_cobias=bias),
        f"--max-accuracy-loss {loss:g}": Preference(max_accuracy_loss=loss),
        f"--prefer accuracy --max-cobias {bias:g}": Preference("accuracy", max_cobias=bias),
    }
    chosen = {**named, **{text: fitted.pick(rule).chosen for text, rule in limits.items()}}
    return next((f"dcs pick {name} {text}" for text, each in chosen.items() if each is point), "")


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
