"""Answers of a model in words: the label that one names, or the shares that it states."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dcs.data.labels import as_text, fold, plain_of

#: The end of a thought, and its beginning, in the formats of current reasoning models.
_THOUGHT = r"think\w*|thought|reasoning|reflection"
_THOUGHT_END = re.compile(rf"[<\[◁]/(?:{_THOUGHT})[>\]▷]|<\|channel\|>final<\|message\|>", re.I)
_THOUGHT_BEGIN = re.compile(rf"[<\[◁](?:{_THOUGHT})[>\]▷]|<\|channel\|>analysis", re.I)


NO_DISTRIBUTION = "its answer states no share of each label, such as A: 70 %, B: 30 %"

#: Version of the rules by which answers are read, so that answers read by others are not mixed in.
ANSWER_READING: Final = "3"


def parse_vote(text: str, label_words: Sequence[str]) -> int | None:
    """Return the index of the label that an answer names, None if it is not clear.

    The text after a thought is read. It counts if it begins with a label, apart from punctuation,
    and does not go on to list another; or if it names exactly one without a negation. The case of
    the label words is tried first, then any case. Labels that are asked about (``toxic?``) or
    denied (``"toxic": false``) are not named.
    """
    *_, answer = _THOUGHT_END.split(text)
    if _THOUGHT_BEGIN.search(answer):
        return None  # The thought did not end.
    readings = [
        _named(answer, label_words, plain)
        for plain in (as_text, fold)
        if len({*map(plain, label_words)}) == len(label_words)
    ]
    for first, _ in readings:
        if first is not None:
            return first
    _, in_any_case = readings[-1]
    letters = {k for k in in_any_case if len(label_words[k].strip()) == 1}
    for _, named in readings:
        # In another case, a letter may be an article.
        if len(named) == 1 and in_any_case.keys() - named.keys() <= letters:
            ((k, negated),) = named.items()
            return None if negated else k
    return None


def _named(
    answer: str, label_words: Sequence[str], plain: Callable[[str], str]
) -> tuple[int | None, dict[int, bool]]:
    """Return the label with which an answer begins, and those it names: whether it negates it."""
    indices = {plain(word): k for k, word in enumerate(label_words)}
    longest = sorted(indices, key=len, reverse=True)
    pattern, words = "|".join(map(_as_word, longest)), "|".join(map(re.escape, longest))
    text = plain(answer)
    named: dict[int, bool] = {}
    listed = re.compile(_LIST.format(words), re.I)
    # In any case, so that "Non-toxic" is not "toxic", which is spelled alike.
    for m in re.finditer(pattern, text, re.I):
        if m[0] in indices:
            before = text[max(0, m.start() - _REACH) : m.start()]
            negated = _NEGATION.search(before) is not None
            named[indices[m[0]]] = negated or named.get(indices[m[0]], False)
            if listed.match(text, m.end()):
                named[_ANOTHER] = False
    begin = re.match(rf"[\W_]*?({pattern})", text, re.I)
    first = None if begin is None else indices.get(begin[1])
    if begin is not None and first is not None and len(named) > 1:
        goes_on = rf"{_LIST}|{_SHARE}"
        if re.fullmatch(r"[^\W\d_]", begin[1]):
            goes_on += r"|\s+[^\W\d_]"  # It may be an article.
        if re.compile(goes_on.format(words), re.I).match(text, begin.end()):
            first = None
    return first, named


#: What reverses the label that follows, a few words later or at once.
_NEGATION: Final = re.compile(
    r"(?:\b(?:not|never|cannot|(?:hard|bare)ly|i doubt|unlikely|far from|opposite of|nicht|kein\w*"
    r"|pas|nunca|не)|n['’]t)(?:\s+\w+){0,4}\W?\s*$|\b(?:no|non|neither|nor|without|nothing(?! but)"
    r"|(?:rather|other|less) than|anything but|instead of|except|rules out)(?:\s+\w+)?\W?\s*$"
    r"|(?:不[是太算够]|并非|没有)\s*$",
    re.I,
)

#: Number of characters in which it is looked for: long answers name labels many times.
_REACH: Final = 80

#: What asks about the label before it, or denies it.
_DENIED: Final = (
    r"(?![^\w.,;:!\n]{0,3}[?？]"
    r"|[^\w,;\n]{0,3}[:=][^\w,;\n]{0,3}(?:false|no|none|0)\b[^\w,;}\n]{0,3}(?:[,;}\n]|$)"
    r"|[^\w.,;:!\n]{1,4}(?:is|was|does|would)(?:n['’]t|\s+(?:be\s+)?(?:not|wrong|incorrect))\b"
    r"|\s*(?:では|じゃ)(?:ない|なく|あり)|[이가]?\s*아[니닙])"
)

#: A label followed by another is not an answer, ``Yes/no``, but the fraction of a scale: ``3/5``.
_LIST: Final = (
    r"[^\w,/|&~–-]{{0,3}}"
    r"(?:(?<!\d)/|[,|&]|(?<=\d)\s?[~–-]|\b(?:or|and|nor|oder|und|ou|et|y)\b|[或和与與、])"
    r"\W{{0,4}}(?:{0})"
)

#: Nor is one of several that are followed by shares: ``A: 0.7, B: 0.3``.
_SHARE: Final = r"[^\w,;\n]{{0,3}}[:=]\W{{0,3}}[.\d]"

#: What stands for the other labels of a list, which may be asked about.
_ANOTHER: Final = -1

#: Letters of scripts that are written without blanks between words, or with endings (Korean).
_BLANKLESS: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
)


def _as_word(word: str) -> str:
    """Return a pattern that matches a label as a word, or inside text without blanks."""
    before, after = rf"(?<![^\W{_BLANKLESS}])", rf"(?![^\W{_BLANKLESS}])"
    if re.match(f"[{_BLANKLESS}]", word):
        # A single letter is part of many words, and a negation before a word reverses it.
        before = r"(?<!\w)" if len(word) == 1 else "(?<![不非没沒無无未])"
    if word[:1].isdigit():
        before += r"(?<!\A-)(?<!\W-)(?<!\d[.,])"
    if word[-1:].isdigit():
        after += r"(?![.,](?!0+(?!\w))\d)"
    if re.search(f"[{_BLANKLESS}]$", word):
        after = ""
    return before + re.escape(word) + after + _DENIED


def count_votes(texts: Iterable[str], label_words: Sequence[str]) -> NDArray[np.float64]:
    """Return the number of answers that name each label [N]; see :func:`parse_vote`."""
    votes = [parse_vote(text, label_words) for text in texts]
    named = [vote for vote in votes if vote is not None]
    return np.bincount(named, minlength=len(label_words)).astype(np.float64)


def parse_distribution(text: str, label_words: Sequence[str]) -> NDArray[np.float64] | None:
    """Return the distribution that an answer states [N], None if it is not clear.

    After a thought, every label is followed by its share: ``A: 70 %, B: 30 %``, or ``{"A": 0.7}``.
    The shares have one unit, must add up to 1 within a tenth, and are normalised. Labels that are
    not named have none if the others add up, and the rest if there is one of them.
    """
    *_, answer = _THOUGHT_END.split(text.replace("\u2212", "-"))
    plain = plain_of(label_words)
    words = [*map(plain, label_words)]
    alternatives = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    label = rf"(?<![\w.,])({alternatives})(?!\w)"
    # Neither a range nor a fraction.
    share = (
        r"[^\w.,;%\n]{1,9}(?<![:=\s]-)(\d+(?:[.,]\d+)?|\.\d+)"
        r"(?!\w|[.,]\d|\s?[-–~/]\s?\d|\s(?:out\s)?of\b)\s?([%％]|percent\b)?"
    )
    flags = re.IGNORECASE if plain("A") == "a" else 0
    found: dict[str, set[float]] = {}
    units = set()
    for name, number, unit in re.findall(label + share, answer, flags):
        value = float(number.replace(",", "."))
        found.setdefault(plain(name), set()).add(value)
        if value:
            units.add(unit != "")
    rest = re.sub(label + share, "", answer, flags=flags)
    named = {plain(name) for name in re.findall(label, rest, flags)}
    clear = named <= found.keys() and all(len(each) == 1 for each in found.values())
    if len(units) != 1 or not clear or _THOUGHT_BEGIN.search(answer):
        return None
    shares = np.array([min(found.get(word, {math.nan})) for word in words])
    # Without a unit, 7 and 2 may be of ten: no rest is computed.
    of_hundred = np.nansum(shares) > 1.5
    shares /= 100.0 if of_hundred or units == {True} else 1.0
    absent, total = np.isnan(shares), np.nansum(shares)
    if absent.any():
        if (absent.sum() > 1 or units == {False} and of_hundred) and total < 0.98:
            return None
        shares[absent] = max(0.0, 1.0 - total) if absent.sum() == 1 else 0.0
        total = shares.sum()
    return shares / total if abs(total - 1.0) < 0.1 + 1e-9 else None


def mean_distribution(
    texts: Iterable[str], label_words: Sequence[str]
) -> tuple[NDArray[np.float64], int]:
    """Return the mean of the distributions that answers state [N], NaN if none; their number."""
    stated = [parse_distribution(text, label_words) for text in texts]
    clear = [each for each in stated if each is not None]
    return np.mean(clear or [np.full(len(label_words), np.nan)], axis=0), len(clear)
