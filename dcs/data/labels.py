"""A column of labels, read as one: which class its cells name, decided for all rows together."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Hashable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcs.errors import Named, TableError, quoted

Counting: TypeAlias = Literal["names", "from-0", "from-1"]

_NUMERAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?", re.ASCII | re.I)
_POSITION: Final = re.compile(r"(?:label_)?(\d{1,9})(?:\.0*)?", re.ASCII | re.I)

_MISSING: Final = Decimal(-1)

#: Cells without a value.
EMPTY: Final = ("", "NA", "N/A", "NaN", "nan", "null", "None", "<NA>", "-")

#: Standard errors by which one way of counting must agree better with the predictions.
_DECISIVE: Final = 3.0

#: Fewest rows that tell predictions from labels, and ways of counting from each other.
TELLING: Final = 20


def as_text(cell: Any) -> str:
    """Return a cell as text in Unicode NFC: whole numbers without decimals, missing ones empty.

    The sign ``−`` that typesetters write is a minus.
    """
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return ""
    if isinstance(cell, float | np.floating):
        number = float(cell)
        return "" if number != number else str(int(number)) if number.is_integer() else str(cell)
    text = cell.decode("utf-8", "replace") if isinstance(cell, bytes) else str(cell)
    if not text.isascii():
        text = unicodedata.normalize("NFC", text).strip().strip("\ufeff").replace("\u2212", "-")
    return text.strip()


def hashable(cell: Any) -> bool:
    """Whether a cell is no list, object or array."""
    return not isinstance(cell, list | dict | tuple | set | np.ndarray)


#: Marks that typesetters and language models write for those of a keyboard.
_MARKS: Final = str.maketrans("\u2010\u2018\u2019\u201c\u201d", "-''\"\"")


def fold(cell: Any) -> str:
    """Return a cell as text to be compared in any case, width and typography (Unicode NFKC).

    The letters i of Turkish are one.
    """
    text = as_text(cell)
    if text.isascii():
        return text.casefold()
    text = unicodedata.normalize("NFKC", text).translate(_MARKS).casefold()
    plain = unicodedata.normalize("NFD", text).replace("i\u0307", "i").replace("\u0131", "i")
    return unicodedata.normalize("NFC", plain)


def plain_of(classes: Sequence[str]) -> Callable[[Any], str]:
    """Return how tokens and classes are compared: in any case, if classes stay different."""
    return fold if len({*map(fold, classes)}) == len(classes) else as_text


def in_own_order(own: Sequence[str], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Return wanted classes, in the order in which a file names the same ones."""
    plain = plain_of(wanted or own)
    known, names = {plain(name): name for name in wanted or ()}, [*map(plain, own)]
    if len({*names}) == len(names) and known.keys() == {*names}:
        return tuple(known[name] for name in names)
    return tuple(wanted or own)


def comparable(cell: Any) -> Hashable:
    """Return numerals and truth values as numbers, so that 1.0 equals 1; other cells folded.

    So are the names ``LABEL_1`` of a Transformers model without names.
    """
    text = fold(cell)
    if _NUMERAL.fullmatch(number := text.removeprefix("label_")):
        return Decimal(number)
    return {"true": Decimal(1), "false": Decimal(0)}.get(text, text)


#: A function of labels and names that are compared, and what that is called.
_Way: TypeAlias = tuple[Callable[[Any], Hashable], str]

#: How labels name classes: the first way that fits all rows is taken.
_NAMES: Final[tuple[_Way, ...]] = (
    (as_text, "by name"),
    (fold, "by name, in any case"),
    (comparable, "by name, as equal numbers"),
)


def read_labels(
    cells: Sequence[Any],
    probs: NDArray[np.float64],
    names: Named,
    *,
    counting: Counting | None = None,
    documented: bool = False,
    option: bool = True,
) -> tuple[NDArray[np.int64], str]:
    """Return the class index of every label, -1 for missing ones, and how they were read.

    Labels are names of classes; if no cell is one, they are positions, counted from 0, or from 1
    if only that fits. Empty cells are missing labels, and so is -1, unless it is a class.

    Parameters
    ----------
    cells : sequence [M]
        Text or numbers.
    probs : float64 array [M, N]
        Probabilities, with which two ways of counting are compared.
    names : Named
        Source, classes and ids.
    counting : {"names", "from-0", "from-1"}, optional
        The only reading to consider.
    documented : bool, optional
        Whether numbers are documented to be positions from 0, as in arrays.
    option : bool, optional
        Whether questions can be answered by the option ``--read``.

    Raises
    ------
    TableError
        If no reading fits all labels, or two readings do.
    """
    nested = np.array([not hashable(cell) for cell in cells])
    names.refuse(nested, cells, "must be text or a number", what="label")
    texts = [*map(as_text, cells)]
    distinct = {text for text in {*texts} if text and comparable(text) != _MISSING}
    positions = {text: int(m[1]) for text in distinct if (m := _POSITION.fullmatch(text))}
    named: dict[str, int] = {}
    ask = partial(_ask, names, option)
    check = partial(_check, probs=probs, ask=ask)
    whole = documented and all(isinstance(cell, int) for cell in cells)
    counted = whole and _fits(distinct, positions, 0, len(names.classes))
    if counting in (None, "names"):
        found, how, named = _by_name(texts, names.classes)
        truths = {*map(fold, distinct)} <= {"true", "false"}
        if found is None and (counting == "names" or truths):
            found, how = by_number(texts, names.classes), "by the number in the name"
        numbered = [*map(comparable, names.classes)] == [*range(len(names.classes))]
        if found is not None and (lost := sorted({*EMPTY} & {*names.classes} - {*texts})):
            rule = f"may be the class {quoted(lost)}, read as empty; write it in another way"
            names.refuse(found < 0, [*cells], rule, what="label")
        if found is not None and not counted:
            if numbered and counting is None and positions and 0 not in positions.values():
                check(found, found - 1, ("from-0", "from-1"), documented=True)
            return found, how
        if found is not None and counting is None:
            places = np.array([positions.get(text, -1) for text in texts])
            check(places, found, ("from-0", "names"), documented=False)
        # The names of columns without names are their positions.
        named = {} if numbered else named
    if not distinct:
        return np.full(len(texts), -1), "none"
    size = len(names.classes)
    starts = [k for k in (0, 1) if counting in (None, f"from-{k}")]
    fitting = [k for k in starts if _fits(distinct, positions, k, size)]
    if not fitting:
        # Report a row that no reading allows, rather than an earlier one that some reading allows.
        least = 1 if counting == "from-1" else 0
        within = range(least, size + least) if counting != "names" else range(0)
        inside = {text for text, k in positions.items() if k in within}
        odd = distinct - {*named} - inside or distinct - {*named}
        wrong = np.array([text in odd for text in texts])
        allowed = f"one of {quoted(names.classes)}"
        allowed += f", or all in {within[0]}..{within[-1]}" if within else ""
        rule = f"must be {allowed}; empty if unlabelled"
        if not named:
            key = "--read classes=A,B,..." if option else "classes="
            rule += f"; name the classes in the order of the columns with {key}"
        names.refuse(wrong, [*cells], rule, what="label")
    start = fitting[0]
    found = np.array([positions[text] - start if text in distinct else -1 for text in texts])
    if counting is None:
        if named and not documented:
            both = f"{quoted(sorted(named), 3)}, not {quoted(sorted(distinct - {*named}), 3)}"
            question = f"some labels are classes ({both}): are all names, or positions"
            ask(question, ("names", f"from-{start}"))
        if size == 2 and {*positions.values()} == {1} and -1 in found:
            question = "labels are -1 and 1: is -1 the first class, or an unlabelled row"
            ask(question, ("from-0",), "classes=-1,1")
        if (other := by_number(texts, names.classes)) is not None:
            check(found, other, (f"from-{start}", "names"), documented=documented)
        minus = np.array([comparable(text) == _MISSING for text in texts])
        if minus.any() and max(positions.values()) == size - 2:
            other = np.where(minus, 0, np.where(found >= 0, found + 1, -1))
            check(found, other, ("from-0", "from--1"), documented=documented)
        if 0 not in positions.values() and not (start and len({*positions.values()}) == size):
            other = np.where(found >= 0, found + 2 * start - 1, -1)
            check(found, other, (f"from-{start}", f"from-{1 - start}"), documented=documented)
        if not documented and (doubt := in_other_order(found, probs)):
            question = f"labels are positions, and {doubt}: is that the order of the columns"
            ask(question, (f"from-{start}",), "classes=A,B,... in the order of the labels")
    return found, f"as positions from {start}, as no class has such a name"


_SIGNS: Final = {"yes": 1, "no": 0, "positive": 1, "negative": 0, "pos": 1, "neg": 0}


def _number_in(cell: Any, *, signs: bool) -> Hashable:
    """Return the number in a name such as ``5 stars``, or that of one of two such as ``yes``."""
    text = fold(cell)
    numbers = re.findall(r"(?<!\w)-?\d+|\d+", text)
    if len(numbers) == 1:
        return Decimal(numbers[0])
    return comparable(_SIGNS.get(text, text) if signs else text)


def by_number(texts: Sequence[str], classes: Sequence[str]) -> NDArray[np.int64] | None:
    """Return class indices if labels are numbers, and those in the names, such as ``5 stars``."""
    numerals = all(isinstance(comparable(text), Decimal) for text in {*texts} - {""})
    inside_of = partial(_number_in, signs=len(classes) == 2)
    return _by_name(texts, classes, ((inside_of, ""),))[0] if numerals else None


def _by_name(
    texts: Sequence[str], classes: Sequence[str], ways: Sequence[_Way] = _NAMES
) -> tuple[NDArray[np.int64] | None, str, dict[str, int]]:
    """Return indices if all labels name classes, how they do, and the labels that do."""
    partly: dict[str, int] = {}
    distinct = {*texts}
    for key, how in ways:
        table = {key(name): k for k, name in enumerate(classes)}
        if len(table) == len(classes):
            named = {text: table[key(text)] for text in distinct - {""} if key(text) in table}
            partly |= named
            rest = {text for text in distinct - {*named} if text and comparable(text) != _MISSING}
            if named and not rest:
                return np.array([named.get(text, -1) for text in texts]), how, named
    return None, "", partly


def _fits(distinct: set[str], positions: dict[str, int], start: int, size: int) -> bool:
    """Whether all labels are positions that count from a start."""
    whole = len(positions) == len(distinct)
    return whole and all(start <= k < size + start for k in positions.values())


def _check(
    found: NDArray[np.int64],
    rival: NDArray[np.int64],
    ways: tuple[str, str],
    *,
    probs: NDArray[np.float64],
    ask: Callable[[str, Sequence[str]], None],
    documented: bool,
) -> None:
    """Ask which of two readings is meant, unless the predictions speak for the first.

    If it is documented, they must not speak for the other one.
    """
    if np.array_equal(found, rival):
        return
    both = (found >= 0) & (rival >= 0)
    top = probs.argmax(axis=1)[both]
    own, other = int((top == found[both]).sum()), int((top == rival[both]).sum())
    if documented:
        sure = top.size < TELLING or own >= other
    else:
        sure = own > other and own - other >= _DECISIVE * np.sqrt(own + other)
    if not sure:
        first, second = (way.replace("from-", "counted from ", 1) for way in ways)
        question = f"labels of {own} rows are predicted if {first}, of {other} if {second}"
        ask(f"{question}: which is it", sorted({*ways} - {"from--1"}))


def below_chance(labels: NDArray[np.int64], probs: NDArray[np.float64]) -> int | None:
    """Return how many labels are predicted, if clearly fewer than by chance; otherwise None."""
    known = labels[labels >= 0]
    if known.size < TELLING:
        return None
    top, size = probs.argmax(axis=1)[labels >= 0], probs.shape[1]
    expected = np.bincount(known, minlength=size) @ np.bincount(top, minlength=size) / known.size
    own = int((top == known).sum())
    return own if own < expected - _DECISIVE * np.sqrt(expected) else None


def are_positions(cells: Sequence[Hashable], top: NDArray[np.int64], size: int) -> bool:
    """Whether comparable cells are positions, from 0 or 1, predicted more often than by chance."""
    if not {*cells} <= {"", -1, *range(size + 1)}:
        return False
    places = np.array([float(str(cell) or "-1") for cell in cells]).astype(np.int64)
    top, places = top[places >= 0], places[places >= 0]
    chance = np.bincount(top, minlength=size + 1) / max(1, top.size)
    pairs = [((top == own).sum(), chance[own].sum()) for own in (places, places - 1)]
    return top.size >= TELLING and any(n > by + _DECISIVE * np.sqrt(by) for n, by in pairs)


def in_other_order(labels: NDArray[np.int64], probs: NDArray[np.float64]) -> str:
    """Return why classes may be in another order than the labels, in words; empty if they are not.

    Beyond what the frequencies of labels and predictions explain, another order must be predicted
    at least twice as often as the given one.
    """
    if (own := below_chance(labels, probs)) is not None:
        return f"{own} of {(labels >= 0).sum()} rows are predicted, fewer than by chance"
    steps = np.diff(probs, axis=1) * np.sign(probs[0, -1] - probs[0, 0])
    if len(steps) >= TELLING and steps.shape[1] > 1 and (steps >= 0.0).all() and steps.any():
        return "the probabilities of every row are sorted"
    from scipy.optimize import linear_sum_assignment

    known, size = labels >= 0, probs.shape[1]
    if known.sum() < max(TELLING, 10 * size):
        return ""  # Some order fits few rows of each class by chance.
    # If all rows are predicted as one class, their distances from the mean row tell.
    own = probs[known] - probs[known].mean(axis=0) * (np.ptp(probs[known].argmax(axis=1)) == 0)
    counts = np.zeros((size, size))
    np.add.at(counts, (labels[known], own.argmax(axis=1)), 1.0)
    excess = counts - np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
    order = linear_sum_assignment(excess, maximize=True)
    right, other = int(np.trace(counts)), int(counts[order].sum())
    clear = other - right >= _DECISIVE * np.sqrt(right + other)
    if clear and excess[order].sum() > 2.0 * np.trace(excess):
        return f"{right} of {int(counts.sum())} rows are predicted, {other} in another order"
    return ""


def _ask(names: Named, option: bool, question: str, ways: Sequence[str], more: str = "") -> None:
    options = [f"labels={way}" for way in ways] + [more] * bool(more)
    answer = f"specify it with --read {' or '.join(options)}, or write" if option else "give"
    raise TableError(f"{names.source}: {question}; {answer} class names ({quoted(names.classes)})")
