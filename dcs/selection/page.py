"""The page of a result: one HTML file without network, on which another point can be chosen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from dcs.evaluation.uncertainty import percent, sentence_of_chance

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


def verdict(metrics: Mapping[str, float], n_rows: int) -> str:
    """Return what held-out rows show about a correction, in a sentence or two.

    Parameters
    ----------
    metrics : mapping of str to float
        ``test/accuracy``, ``test/cobias``, their p-values ``..._p`` and, prefixed with
        ``uncorrected/``, those before the correction.
    n_rows : int
        Number of labelled held-out rows.
    """
    shown, unknown = [], []
    for name, title, up in (("accuracy", "accuracy", True), ("cobias", "COBias", False)):
        before, after = metrics[f"uncorrected/test/{name}"], metrics[f"test/{name}"]
        p = metrics[f"test/{name}_p"]
        change = f"from {percent(before)} to {percent(after)} ({sentence_of_chance(p)})"
        if p < _SIGNIFICANT:
            shown.append(f"{title} {'improves' if (after > before) == up else 'worsens'} {change}")
        else:
            unknown.append(f"the change of {title} {change}")
    rows = f"{n_rows:,} held-out rows"
    if not shown:
        return f"Nothing is proven on {rows}: {' and '.join(unknown)} may be chance."
    rest = f"; {unknown[0]} may be chance" if unknown else ""
    return f"On {rows}, {' and '.join(shown)}{rest}."
