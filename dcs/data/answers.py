"""Answers of a model in words: the label that one names, or the shares that it states."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dcs.data.labels import as_text, plain_of

#: The end of a thought, and its beginning, in the formats of current reasoning models.
_THOUGHT = r"think\w*|thought|reasoning|reflection"
_THOUGHT_END = re.compile(rf"[<\[◁]/(?:{_THOUGHT})[>\]▷]|<\|channel\|>final<\|message\|>", re.I)
_THOUGHT_BEGIN = re.compile(rf"[<\[◁](?:{_THOUGHT})[>\]▷]|<\|channel\|>analysis", re.I)


#: Version of the rules by which answers are read, so that answers read by others are not mixed in.
ANSWER_READING: Final = "4"


def parse_vote(text: str, label_words: Sequence[str], *, cut: bool = False) -> int | None:
    """Return the index of the label that an answer names, None if it is not clear.

    The text after a thought is read. It counts if it begins with a label, apart from punctuation;
    or if it names exactly one without a negation. If it names another one, too, the label with
    which it begins must end its line or a sentence, or be followed by a bracket or a reason. The
    case of the label words is tried first; any case if no label is written in its own. Labels that
    are asked about (``toxic?``) or denied (``"toxic": false``) are not named. An answer that was
    `cut` may be a thought, unless it begins with a label.
    """
    *_, answer = _THOUGHT_END.split(text)
    if _THOUGHT_BEGIN.search(answer):
        return None  # The thought did not end.
    # In another case, a letter may be an article, and two a pronoun.
    common = {k for k, word in enumerate(label_words) if len(word.strip()) < 2 + word.isupper()}
    plain = plain_of(label_words)
    own = _named(as_text(answer), [*map(as_text, label_words)], set())
    loose = _named(plain(answer), [*map(plain, label_words)], common)
    first, named = own if own[1] and loose[1].keys() - own[1].keys() <= common else loose
    if first is None and not cut and len(named) == 1:
        first = next((k for k, negated in named.items() if not negated), None)
    return first


def _named(text: str, words: list[str], common: set[int]) -> tuple[int | None, dict[int, bool]]:
    """Return the label with which an answer begins, and those it names: whether it negates it.

    Those that are `common` words are not named if another word follows.
    """
    longest = sorted(words, key=len, reverse=True)
    pattern, either = "|".join(map(_as_word, longest)), "|".join(map(re.escape, longest))
    listed, alone = (re.compile(each.format(either), re.I) for each in (_LIST, _ALONE))
    named: dict[int, bool] = {}
    first, stands = None, False
    # In any case, so that "Non-toxic" is not "toxic", which is spelled alike.
    for m in re.finditer(pattern, text, re.I):
        k = words.index(m[0]) if m[0] in words else _ANOTHER
        # After the first label, "no errors" is no label.
        weak = k in common or (named and m[0].lower() == "no")
        if k == _ANOTHER or (weak and _GOES_ON.match(text, m.end())):
            continue
        # Long answers name labels many times.
        negated = _NEGATION.search(text, max(0, m.start() - 160), m.start()) is not None
        if not (negated or named) and not re.search(r"[^\W_]", text[: m.start()]):
            first, stands = k, alone.match(text, m.end()) is not None
        named[k] = negated or named.get(k, False)
        if not negated and listed.match(text, m.end()):
            named[_ANOTHER] = False
    stands = stands or all(named[k] for k in named.keys() - {first})
    return first if stands else None, named


#: What reverses the labels that follow in its clause, in many languages; and what a clause has.
_NOT: Final = (
    r"not(?!\s(?:only|just))|never|cannot|no(?!\s(?:doubt|question)|.*\b(?:é|são|foi)\b)|none|non"
    r"|neither|nor|nothing(?!\sbut)|without(?!\sa\sdoubt)|(?:hard|bare|scarce)ly|i\sdoubt|lack\w*"
    r"|un(?:likely|clear|able)|far\sfrom|opposite\sof|(?:rather|other|less)\sthan|anything\sbut"
    r"|instead\sof|except|rules\sout|reject|absence\sof|free\sof|ni|n[ée]|nunca|jam[aá]i?s|tampoco"
    r"|sin|nada|n[aã]o|nem|sem|nenhum\w*|ning[uú]n\w*|nessun\w*|senza|pas|gu[eè]re|sans|peu|aucune?"
    r"|nicht\w*|kein\w*|nie|niemals|weder|ohne|niet|geen|nooit|zonder|inte|ikke|aldrig|inge[nt]|nu"
    r"|nije|není|не|ни|нет|вряд|отнюдь|без|δεν|όχι|ليس\w*|غير|لا|لم|לא|tidak|bukan|không|नहीं|안|못"
)
_CLAUSE: Final = r"(?:(?!\bbut\b)[^.,;:!?\n。，；！？]|,(?=\s(?:that|da[sß]|что|że|že|hogy|ότι)))*"
_NEGATION: Final = re.compile(
    rf"(?i)(?:\b(?:{_NOT})(?!\w)|n['’]t\b|[不没沒無无未非](?![过過仅僅错錯常管论論])|[难難]以|ไม่):?"
    rf"(?:{_CLAUSE},{_CLAUSE},)?{_CLAUSE}\Z|(?:[❌✗✘✖☒🚫👎☐⬜□]|\[\s?\]|~~|(?<!\w)!"
    r"|\b(?:un|i[lmnr]|dis|anti|semi)-|(?<![\d.,])0\s?%)\W*\Z"
)

#: What asks about the label before it, or denies it.
_DENIED: Final = (
    r"(?!(?:\s\w+)?[^\w.,;:!\n]{0,3}[吗嗎か]?[?？]|\s(?:nicht|inte|ikke|niet)\b"
    r"|[^\w,;\n]{0,4}[❌✗✘✖☒🚫👎]|-(?:free|less)\b"
    r"|[^\w,;\n]{0,3}[:=][^\w,;\n]{0,3}(?:false|no|none|0)\b[^\w,;}\n]{0,3}(?:[,;}\n]|$)"
    r"|[^\w.,;:!\n]{1,4}(?:(?!it\b|this\b|that\b)\w+\s)?(?:cannot|(?:is|was|do(?:es)?|can|would"
    r"|could|should|seems?|appears?|ist|war|är|er|est|es|é)(?:n['’]t|(?:\s\w+){0,2}\s(?:wrong"
    rf"|incorrect|false|absent|ruled|{_NOT})))\b"
    r"|[^.,;:!?\n。，、；]{0,20}(?:değil|아[니닙님닌]|않|없|못|नहीं|نیست|不[是对對成]"
    r"|(?<!違い)(?:ない|なく|無い|ません|ありませ)))"
)

#: A label followed by another is not an answer, ``Yes/no``, but the fraction of a scale: ``3/5``.
_LIST: Final = (
    r"[^\w,/|&~–-]{{0,3}}(?:(?<!\d)/|[,|&~–-]|\b(?:or|and|nor|oder|und|ou|et|y)\b|[或和与與、])"
    r"\W{{0,4}}(?:{0})"
)

#: How a label stands alone that is followed by others: at the end of its line, or of a sentence
#: that it is, if none begins another line; before a bracket that has the others, a reason, or the
#: end of a scale.
_ALONE: Final = (
    r"(?<=[^\W\d_]{{2}})[\"'`*_)\]}}»”’]*+(?:[.!][\"'`*_»”’]*+\s|[。！])(?!(?s:.*\n)?\W*(?:{0}))|"
    r"[^\S\n]*+[\"'`*_.,;!)\]}}>»”’。，]*+[^\S\n]*+(?:\n(?!(?s:.*\n)?[^\w\n]*(?:{0}))"
    r"|[(\[（][^)\]）]*+(?!(?s:.*)(?:{0}))|\W*+(?:since|because)\b|(?:\w+\s)?(?:/|out\sof)\s?\d)"
)

#: What follows a word that is no label: another word.
_GOES_ON: Final = re.compile(r"['’\s]+[^\W\d_]")

#: What stands for the other labels of a list, which may be asked about.
_ANOTHER: Final = -1

#: Letters of scripts that are written without blanks between words, or with endings (Korean).
_JOINED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
)


def _as_word(word: str) -> str:
    """Return a pattern that matches a label as a word, or inside text without blanks."""
    before, after = rf"(?<![^\W{_JOINED}])", rf"(?![^\W{_JOINED}])"
    if re.match(f"[{_JOINED}]", word):
        # A single letter is part of many words, and a negation before a word reverses it.
        before = r"(?<!\w)" if len(word) == 1 else "(?<![不非没沒無无未])"
    if word[:1].isdigit():
        # Neither a part of a number nor that of an item: "1. It is".
        before += r"(?<!\A-)(?<!\W-)(?<!\d[.,])(?!(?<![^\n*#])\d+[.)][^\w\n]+[^\W\d_])"
    if word[-1:].isdigit():
        after += r"(?![.,](?!00?(?!\w))\d)"
    if re.search(f"[{_JOINED}]$", word):
        after = ""
    return before + re.escape(word) + after + _DENIED


def count_votes(texts: Iterable[str], label_words: Sequence[str]) -> NDArray[np.float64]:
    """Return the number of answers that name each label [N]; see :func:`parse_vote`."""
    votes = [vote for text in texts if (vote := parse_vote(text, label_words)) is not None]
    return np.bincount(votes, minlength=len(label_words)).astype(np.float64)


def parse_distribution(text: str, label_words: Sequence[str]) -> NDArray[np.float64] | None:
    """Return the distribution that an answer states [N], None if it is not clear.

    After a thought, every label is followed by its share: ``A: 70 %, B: 30 %``, or ``{"A": 0.7}``.
    The shares have one unit, must add up to 1 within a tenth, and are normalised. Labels that are
    not named have none if the others add up, and the rest if there is one of them and no other
    share is stated.
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
    units: set[bool] = set()
    parts = re.split(label + share, answer, flags=flags)
    for name, number, unit in zip(parts[1::4], parts[2::4], parts[3::4], strict=True):
        value = float(number.replace(",", "."))
        found.setdefault(plain(name), set()).add(value)
        units |= {unit is not None} if value else set()
    rest = "".join(parts[::4])
    named = {plain(name) for name in re.findall(label, rest, flags)}
    clear = named <= found.keys() and all(len(each) == 1 for each in found.values())
    clear = clear and not any(map(_NEGATION.search, parts[:-1:4]))  # That is of the others.
    if len(units) != 1 or not clear or _THOUGHT_BEGIN.search(answer):
        return None
    shares = np.array([min(found.get(word, {math.nan})) for word in words])
    # Without a unit, 7 and 2 may be of ten: no rest is computed.
    of_hundred = np.nansum(shares) > 1.5
    shares /= 100.0 if of_hundred or units == {True} else 1.0
    absent, total = np.isnan(shares), np.nansum(shares)
    if absent.any():
        # The rest may be stated, as that of other labels.
        others = re.search(rf"\w{share}|\d\s?[%％]|[.,]\d", rest)
        stated = others or (of_hundred and units == {False})
        if (absent.sum() > 1 or stated) and total < 0.98:
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
