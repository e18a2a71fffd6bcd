"""Class probabilities and votes from what a model answers: likely tokens, or sampled texts."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from dcs.data.labels import as_text, fold
from dcs.data.tokens import texts_of

MissingRule = Literal["spread", "bound"]
"""The probability of a label that a server does not return: an equal share of the probability of
all tokens that are not returned, at most that of the least probable returned token; or that upper
bound itself."""

#: The end of a thought, and its beginning, in the formats of current reasoning models.
_THOUGHT = r"think\w*|thought|reasoning|reflection"
_THOUGHT_END = re.compile(rf"[<\[◁]/(?:{_THOUGHT})[>\]▷]|<\|channel\|>final<\|message\|>", re.I)
_THOUGHT_BEGIN = re.compile(rf"[<\[◁](?:{_THOUGHT})[>\]▷]|<\|channel\|>analysis", re.I)


NO_DISTRIBUTION = "its answer states no share of each label, such as A: 70 %, B: 30 %"

Shown = Sequence[tuple[str, float]]
"""The tokens that a server returned, and their log-probabilities. A text may occur twice."""


def label_masses(shown: Shown, label_words: Sequence[str]) -> NDArray[np.float64]:
    """Return the probability of each label among the most probable tokens.

    A token belongs to the label word that it begins, if it begins no other. Equal texts, and
    variants with other blanks and case, are summed; of beginnings of different length, the most
    probable counts. Tokens may be written as in the vocabulary (``▁Yes``, ``ĠYes``, ``<0x59>``).

    Parameters
    ----------
    shown : sequence of (str, float)
        The returned tokens and their log-probabilities.
    label_words : sequence of str, length N
        The answer of each class; none is a prefix of another.

    Returns
    -------
    float64 array [N]
        0 if no token of the label was returned.
    """
    plain, words = _comparable(label_words)
    texts = texts_of([token for token, _ in shown], label_words)
    variants: Counter[bytes] = Counter()
    for text, (_, value) in zip(texts, shown, strict=True):
        variants[_encoded(plain(text))] += math.exp(value)  # type: ignore[assignment]
    masses, spelled = np.zeros(len(words)), [_encoded(word) for word in words]
    for start, mass in variants.items():
        owners = [k for k, word in enumerate(spelled) if word.startswith(start)]
        if start and len(owners) == 1:
            masses[owners[0]] = max(masses[owners[0]], mass)
    return masses


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def fill_missing(
    masses: NDArray[np.float64], shown: Shown, rule: MissingRule
) -> NDArray[np.float64]:
    """Return class probabilities [N] from those of the returned labels; uniform if there is none.

    Parameters
    ----------
    masses : float64 array [N]
        See :func:`label_masses`.
    shown : sequence of (str, float)
        The returned tokens and their log-probabilities.
    rule : {"spread", "bound"}
        See :data:`MissingRule`.
    """
    absent = masses == 0.0
    if absent.all():
        return np.full(masses.size, 1.0 / masses.size)
    if absent.any():
        returned = [math.exp(value) for _, value in shown]
        share = min(returned)
        if rule == "spread":
            share = min(share, max(0.0, 1.0 - sum(returned)) / absent.sum())
        masses = np.where(absent, share, masses)
    return np.asarray(masses / masses.sum(), dtype=np.float64)


def parse_vote(text: str, label_words: Sequence[str]) -> int | None:
    """Return the index of the label that an answer names, None if it is not clear.

    The text after a thought is read. It counts if it begins with a label, apart from punctuation,
    or names exactly one without a negation before it, with the case of the label words, otherwise
    in any case.
    """
    *_, answer = _THOUGHT_END.split(text)
    if _THOUGHT_BEGIN.search(answer):
        return None  # The thought did not end.
    for plain in (as_text, fold):
        indices = {plain(word): k for k, word in enumerate(label_words)}
        if len(indices) < len(label_words):
            continue
        longest = sorted(indices, key=len, reverse=True)
        pattern, text = "|".join(map(_as_word, longest)), plain(answer)
        # In any case, so that "Non-toxic" is not "toxic", which is spelled alike.
        places = [m for m in re.finditer(pattern, text, re.I) if m[0] in indices]
        first = re.match(rf"[\W_]*?({pattern})", text, re.I)
        if first is not None and first[1] in indices:
            return indices[first[1]]
        if len({m[0] for m in places}) == 1:
            denied = any(_NEGATION.search(text[: m.start()]) for m in places)
            return None if denied else indices[places[0][0]]
    return None


#: What reverses the label that follows.
_NEGATION: Final = re.compile(r"(?:\b(?:not|no|never)|n['’]t|不是|并非)\s*$", re.I)

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
    return before + re.escape(word) + ("" if re.search(f"[{_BLANKLESS}]$", word) else after)


def count_votes(texts: Iterable[str], label_words: Sequence[str]) -> NDArray[np.float64]:
    """Return the number of answers that name each label [N]; see :func:`parse_vote`."""
    votes = [parse_vote(text, label_words) for text in texts]
    named = [vote for vote in votes if vote is not None]
    return np.bincount(named, minlength=len(label_words)).astype(np.float64)


def parse_distribution(text: str, label_words: Sequence[str]) -> NDArray[np.float64] | None:
    """Return the distribution that an answer states [N], None if it is not clear.

    After a thought, every label is followed by its share: ``A: 70 %, B: 30 %``, or ``{"A": 0.7}``.
    The shares must add up to 1 within a tenth, and are normalised. Labels that are not named have
    none if the others add up, and the rest if there is one of them.
    """
    *_, answer = _THOUGHT_END.split(text)
    plain, words = _comparable(label_words)
    alternatives = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    label = rf"(?<![\w.,])({alternatives})(?!\w)"
    share = r"[^\w.,;%\n]{1,9}(?<![:=\s]-)(\d+(?:[.,]\d+)?|\.\d+)(?!\w|[.,]\d)"
    flags = re.IGNORECASE if plain("A") == "a" else 0
    found: dict[str, set[float]] = {}
    for name, number in re.findall(label + share, answer, flags):
        found.setdefault(plain(name), set()).add(float(number.replace(",", ".")))
    rest = re.sub(label + share, "", answer, flags=flags)
    named = {plain(name) for name in re.findall(label, rest, flags)}
    clear = named <= found.keys() and all(len(each) == 1 for each in found.values())
    if not found or not clear or _THOUGHT_BEGIN.search(answer):
        return None
    shares = np.array([min(found.get(word, {math.nan})) for word in words])
    shares /= 100.0 if "%" in answer or np.nansum(shares) > 1.5 else 1.0
    absent, total = np.isnan(shares), np.nansum(shares)
    if absent.any():
        if absent.sum() > 1 and total < 0.98:
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


def _comparable(label_words: Sequence[str]) -> tuple[Callable[[str], str], list[str]]:
    """Return a function that removes blanks and, if words stay distinct, case; and the words."""
    words = [word.strip().casefold() for word in label_words]
    if len({*words}) == len(words):
        return lambda text: text.strip().casefold(), words
    return str.strip, [word.strip() for word in label_words]
