"""Label words: their tokens after a prompt, and class probabilities and votes from answers.

The class probability of the paper is read at one position: the next-token softmax after the answer
prefix. A label word of several tokens takes the mean of their probabilities at that same position,
as in the published code; the classes are then normalised. Two other rules are available: the first
token alone, and the joint probability of the whole word. Where a server returns only the most
probable tokens, or samples, the labels are found among them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from dcs.data.forms.logs import plain_of, texts_of
from dcs.data.labels import as_text, fold
from dcs.errors import ScoringError
from dcs.scoring.chat import Tokenizer

LabelRule = Literal["auto", "mean", "first", "joint"]
"""How a label word of several tokens is scored: the mean of their probabilities at the answer
position (as published), the first token alone, or the probability of the whole word. ``auto`` uses
the mean if the first tokens of the words differ, and the whole word otherwise."""


def read_label_words(
    tokenizer: Tokenizer, prompt: str, label_words: Sequence[str], rule: LabelRule
) -> tuple[tuple[tuple[int, ...], ...], LabelRule]:
    """Return the tokens of each label word as they follow a prompt, and resolve ``auto``.

    Parameters
    ----------
    tokenizer : Tokenizer
        The tokenizer of the model.
    prompt : str
        A prompt, up to where the label word follows.
    label_words : sequence of str
        The answer of each class, with the space between it and the prompt, if any.
    rule : {"auto", "mean", "first", "joint"}
        How the tokens are scored.

    Returns
    -------
    token_ids : tuple of tuples of int
        The token ids of each label word in order: the distinct ones (mean), the first alone
        (first), or all of them (joint).
    rule : {"mean", "first", "joint"}
        The rule that was applied.

    Raises
    ------
    ScoringError
        If two label words begin with the same token or have the same set of tokens, so that the
        model's answers to them cannot be distinguished. With the rule ``joint``, if the tokens
        of one word are a prefix of those of another, which could then never win.
    """
    if rule == "auto":
        try:
            return read_label_words(tokenizer, prompt, label_words, "mean")
        except ScoringError:
            rule = "joint"
    base, bare, *whole = tokenizer.encode([prompt, "", *(prompt + word for word in label_words)])
    found = []
    for word, joined in zip(label_words, whole, strict=True):
        if joined[: len(base)] == base and len(joined) > len(base):
            tokens = joined[len(base) :]
        else:
            # The tokenizer merges across the boundary: encode the word alone.
            tokens = [token for token in tokenizer.encode([word])[0] if token not in bare]
        if not tokens:
            raise ScoringError(
                f"label word {word.strip()!r} has no token in the model's tokenizer; choose "
                "another word"
            )
        found.append(tuple(tokens if rule == "joint" else dict.fromkeys(tokens)))
    for pair in combinations(zip(label_words, found, strict=True), 2):
        (_, ids), (_, other) = pair
        if _collide(ids, other, rule):
            words = " and ".join(
                f"{word.strip()!r} ({', '.join(map(repr, map(tokenizer.describe, tokens)))})"
                for word, tokens in pair
            )
            raise ScoringError(
                f"label words {words} have colliding tokens and cannot be distinguished by this "
                "model; choose words with different first tokens"
            )
    return tuple(ids[:1] for ids in found) if rule == "first" else tuple(found), rule


def _collide(ids: tuple[int, ...], other: tuple[int, ...], rule: LabelRule) -> bool:
    if rule == "joint":
        return all(a == b for a, b in zip(ids, other, strict=False))
    # Later tokens may be shared: their probability at the answer position is negligible.
    return ids[0] == other[0] or (rule == "mean" and set(ids) == set(other))


def class_probabilities(
    logits: NDArray[np.floating], token_ids: Sequence[tuple[int, ...]]
) -> NDArray[np.float64]:
    """Convert next-token logits (or log-probabilities) to class probabilities.

    Parameters
    ----------
    logits : float array [M, K]
        Values of the tokens ``sorted(set of all token ids)`` at the answer position, in that
        order. The result is invariant to a constant added to a row.
    token_ids : sequence of N tuples of int
        The tokens of each label word.

    Returns
    -------
    float64 array [M, N]
        Mean probability of each label word's tokens, normalised over the classes.

        NaN in rows with a value that is NaN or infinite; -inf is a probability of zero, if
        another is not.
    """
    values = usable_scores(logits)
    columns = {token: column for column, token in enumerate(sorted({*sum(token_ids, ())}))}
    # The normaliser of the softmax is one factor per row, which the normalisation over classes
    # cancels. Subtracting the largest logit suffices, and the winner cannot underflow.
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    means = np.stack(
        [weights[:, [columns[t] for t in ids]].mean(axis=1) for ids in token_ids], axis=1
    )
    return np.asarray(means / means.sum(axis=1, keepdims=True), dtype=np.float64)


UNUSABLE = "the model returned no finite values for label tokens; try another precision or device"


def usable_scores(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the values as float64, NaN in the rows that have no softmax."""
    values = np.array(logits, dtype=np.float64)
    wrong = ~(values < np.inf).all(axis=1) | (values == -np.inf).all(axis=1)
    values[wrong] = np.nan
    return values


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
    plain = plain_of(label_words)
    texts = texts_of([token for token, _ in shown], label_words)
    variants: Counter[bytes] = Counter()
    for text, (_, value) in zip(texts, shown, strict=True):
        variants[_encoded(plain(text))] += math.exp(value)  # type: ignore[assignment]
    spelled = [_encoded(plain(word)) for word in label_words]
    masses = np.zeros(len(spelled))
    for start, mass in variants.items():
        owners = [k for k, word in enumerate(spelled) if word.startswith(start)]
        if start and len(owners) == 1:
            masses[owners[0]] = max(masses[owners[0]], mass)
    return masses


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def fill_missing(masses: NDArray[np.float64], shown: Shown) -> NDArray[np.float64]:
    """Return class probabilities [N] from those of the returned labels; uniform if there is none.

    Each of the others has an equal share of the probability of all tokens that are not returned,
    at most that of the least probable returned token.

    Parameters
    ----------
    masses : float64 array [N]
        See :func:`label_masses`.
    shown : sequence of (str, float)
        The returned tokens and their log-probabilities.
    """
    absent = masses == 0.0
    if absent.all():
        return np.full(masses.size, 1.0 / masses.size)
    if absent.any():
        returned = [math.exp(value) for _, value in shown]
        share = min(*returned, max(0.0, 1.0 - sum(returned)) / absent.sum())
        masses = np.where(absent, share, masses)
    return np.asarray(masses / masses.sum(), dtype=np.float64)


#: Version of the rules by which answers are read, so that answers read by others are not mixed in.
ANSWER_READING: Final = "2"


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
    # In any case, so that "Non-toxic" is not "toxic", which is spelled alike.
    for m in re.finditer(pattern, text, re.I):
        if m[0] in indices:
            negated = _NEGATION.search(text[: m.start()]) is not None
            named[indices[m[0]]] = negated or named.get(indices[m[0]], False)
    begin = re.match(rf"[\W_]*?({pattern})", text, re.I)
    first = None if begin is None else indices.get(begin[1])
    if begin is not None and first is not None and len(named) > 1:
        goes_on = _AS_ARTICLE if re.fullmatch(r"[^\W\d_]", begin[1]) else _LIST
        if re.compile(goes_on.format(words), re.I).match(text, begin.end()):
            first = None
    return first, named


#: What reverses the label that follows, a few words later or at once.
_NEGATION: Final = re.compile(
    r"(?:\b(?:not|never|hardly|nicht|kein\w*|pas|nunca|не)|n['’]t)(?:\s+\w+){0,4}\W?\s*$"
    r"|\b(?:no|non|neither|nor|without|rather than|instead of|far from)(?:\s+\w+)?\W?\s*$"
    r"|(?:不[是太算够]|并非|没有)\s*$",
    re.I,
)

#: What asks about the label before it, or denies it.
_DENIED: Final = (
    r"(?![^\w.,;:!\n]{0,3}[?？]"
    r"|[^\w,;\n]{0,3}[:=][^\w,;\n]{0,3}(?:false|no|none|0)\b[^\w,;}\n]{0,3}(?:[,;}\n]|$)"
    r"|\s*(?:では|じゃ)(?:ない|なく|あり)|[이가]?\s*아[니닙])"
)

#: A label followed by another, or by a share, is not an answer: ``Yes/no``, ``A: 0.7, B: 0.3``.
#: The fraction of a scale is one: ``3/5``.
_LIST: Final = (
    r"[^\w,/|&~–-]{{0,3}}"
    r"(?:(?<!\d)/|[,|&]|(?<=\d)\s?[~–-]|\b(?:or|and|nor|oder|und|ou|et|y)\b|[或和与與、])"
    r"\W{{0,4}}(?:{0})|[^\w,;\n]{{0,3}}[:=]\W{{0,3}}[.\d]"
)
_AS_ARTICLE: Final = _LIST + r"|\s+[^\W\d_]"

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
