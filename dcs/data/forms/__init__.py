"""The forms of rows that are read, tried in the order of `FORMS`.

A file gives a frame with one row per record (:mod:`dcs.data.files`). The first form that
recognises it turns it into a column per class, which :mod:`dcs.data.columns` reads; a frame that
no form recognises has them already.
"""

from __future__ import annotations

from typing import Final

from dcs.data.forms.base import Form, Rows
from dcs.data.forms.logs import CHAT, CLASSIFY, INSPECT, LIGHTEVAL, LM_EVAL
from dcs.data.forms.plain import LONG, NUMBERS, RUNS, SCORES, SINGLE

FORMS: Final[tuple[Form, ...]] = (
    *(LM_EVAL, LIGHTEVAL, INSPECT),
    *(CHAT, CLASSIFY),
    *(SCORES, NUMBERS),
    *(RUNS, LONG, SINGLE),
)
"""Structures that no other program writes come first, those of plain columns last."""

__all__ = ["FORMS", "Form", "Rows"]
