"""What the names of columns say of their cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final


def _matches(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether a name, in lower case, matches a pattern."""
    compiled = re.compile(pattern)
    return lambda name: compiled.fullmatch(name.strip().lower()) is not None


#: Whether a column is named as labels are; of several, ``label`` goes first.
is_label: Final = _matches(
    r"label|labels|gold|target|truth|true|y|class|category|answer|actual|annotation"
    r"|ground[ _-]?truth|(true|gold|actual|target|correct)[ _-](label|class|answer|category)"
    r"|y_true|(label|class)_id"
)

#: Whether a column is named as ids are.
is_id: Final = _matches(
    r"|id|ids|unnamed: 0|index|idx|row|key|sample|uid|uuid|guid|.*[ _-]id|id[ _-].*"
)

#: Whether a column is named as predictions are.
names_predictions: Final = _matches(
    r"(?!(expected|gold|ideal|reference)[ _.-])"
    r".*(suggest|pseudo|pred|output|guess|argmax|answered|prédi|vorhersag|предсказ|прогноз"
    r"|预测|預測|予測|예측).*"
    r"|y_?hat"
)

#: Whether a column may hold what a program answered.
names_program: Final = _matches(
    r"(.*[ _.-])?(gpt|llm|model|judge|verdict|decision|machine|system|baseline|auto)\d*([ _.-].*)?"
)

#: Whether a column may hold the truth, beside one that is named as labels are.
names_truth: Final = _matches(
    r"(.*[ _.-])?(true|truth|gt|gold|targets|solution|y_test|human|manual|expert|expected|ideal"
    r"|reference|annot\w*|clean(ed)?|corrected|adjudicated|revised|verified)"
    r"([ _.-].*)?"
    r"|(final|new|fixed|resolved|agreed|consensus|majority)[ _.-]?(label|class|answer|category)"
    r"|relabel\w*|label[ _.-]?v?\d+"
)

_NUMBERED: Final = re.compile(r"(.*?)(\d{1,6})")


def numbered(
    names: Iterable[str], pattern: re.Pattern[str] = _NUMBERED
) -> dict[str, list[tuple[int, str]]]:
    """Return names that end in a number with it, in its order, by what precedes it.

    Names with the same number stay in the order in which they are given.
    """
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        if match := pattern.fullmatch(name):
            groups.setdefault(match[1], []).append((int(match[2]), name))
    return {stem: sorted(own, key=lambda each: each[0]) for stem, own in groups.items()}
