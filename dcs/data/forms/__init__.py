"""The forms of rows that are read: one module each, tried in the order of `FORMS`.

A file gives a frame with one row per record (:mod:`dcs.data.files`). The first form that
recognises it turns it into a column per class, which :mod:`dcs.data.columns` reads; a frame that
no form recognises has them already.
"""

from __future__ import annotations

from typing import Final

from dcs.data.forms import (
    chat,
    classify,
    inspect_ai,
    lighteval,
    lm_eval,
    long,
    nested,
    runs,
    scores,
    single,
)
from dcs.data.forms.base import Form, Rows

FORMS: Final[tuple[Form, ...]] = (
    lm_eval.FORM,
    lighteval.FORM,
    inspect_ai.FORM,
    chat.FORM,
    classify.FORM,
    scores.FORM,
    nested.FORM,
    runs.FORM,
    long.FORM,
    single.FORM,
)
"""Structures that no other program writes come first, those of plain columns last."""

__all__ = ["FORMS", "Form", "Rows"]
