"""What the columns of a file hold: classes, labels, ids, and the kind of their values.

Everything is inferred from the names and the values, by rules that prefer a question to a guess:
columns are class probabilities if they are a distribution under some reading, or if they are named
by the classes.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from dcs.data.checks import SEPARATORS, affixes, classes_of, spellings
from dcs.data.labels import TELLING, Counting, are_positions, as_text, comparable, fold, hashable
from dcs.data.names import is_id, is_label, names_predictions, names_program, names_truth, numbered
from dcs.data.values import ROUNDING, Mark, Number, Values, fitting, likeliest, to_number
from dcs.errors import Named, TableError, quoted, show, suggest
from dcs.io import Strict

if TYPE_CHECKING:
    import pandas as pd

#: Prefix of the columns that hold class probabilities.
PREFIX: Final = "p:"

#: Prefix of the columns that hold corrected probabilities.
CORRECTED: Final = "corrected:"

#: Names of columns of class probabilities, which others may be beside.
_SCORE: Final = re.compile(r"(.*[ _.:-])?(p|prob\w*|scores?|logits?)([ _.:(-].*)?", re.IGNORECASE)

#: Names of columns and classes, spelled in Unicode NFC.
_Name: TypeAlias = Annotated[str, AfterValidator(as_text)]


class Reading(Strict):
    """How rows are read from columns: what the user specifies, and what is inferred.

    Parameters
    ----------
    columns : tuple of str, optional
        Columns of class probabilities, in class order; patterns such as ``prob_*`` are allowed.
    classes : tuple of str, optional
        Class names in the order of the columns.
    label, id : str, optional
        Columns of the true classes and of the row ids.
    values : str, optional
        ``"probabilities"`` (sum 1), ``"percent"`` (sum 100), ``"votes"``, ``"scores"`` (to be
        divided by their sum), ``"log-probabilities"``, ``"log2"``, ``"log10"``, ``"logits"``.
    labels : {"names", "from-0", "from-1"}, optional
        Whether labels are names of classes, or positions that count from 0 or from 1.
    filter : str, optional
        Filter whose responses are read from a log of lm-evaluation-harness.
    separator, decimal : str, optional
        Separator and decimal mark of text.
    quoting : {"double", "none"}, optional
        Whether cells of text can be in double quotes, or quotes are part of them.
    """

    columns: tuple[_Name, ...] | None = None
    classes: tuple[_Name, ...] | None = None
    label: _Name | None = None
    id: _Name | None = None
    values: Values | None = None
    labels: Counting | None = None
    filter: str | None = None
    separator: str | None = None
    decimal: Literal[".", ","] | None = None
    quoting: Literal["double", "none"] | None = None


def infer(
    frame: pd.DataFrame, given: Reading, *, source: str, known: Reading | None = None
) -> tuple[Reading, NDArray[np.float64]]:
    """Infer what the columns of a frame hold.

    Parameters
    ----------
    frame : DataFrame
        The rows; cells are text or numbers.
    given : Reading
        What the user specifies.
    source : str
        Name with which error messages begin.
    known : Reading, optional
        How earlier rows of the same kind were read: it is followed where it fits.

    Returns
    -------
    reading : Reading
        The reading, complete.
    numbers : float64 array [M, N]
        Values of the class columns; NaN for empty cells.

    Raises
    ------
    TableError
        If something is missing, ambiguous or not a distribution: says what to specify.
    """
    finder = _Finder(frame, given, source, known or Reading())
    label = finder.label()
    columns, classes = finder.class_columns(label)
    kind = finder.kind(columns)
    label = finder.truth(label, classes, columns)
    finder.refuse_answers_and_ranks(kind, label, classes, columns)
    found: dict[str, Any] = {"columns": columns, "classes": classes, "label": label}
    found |= {"id": finder.id({*columns, label}), "values": kind}
    found["decimal"] = "," if any(finder.number(each).mark == "," for each in columns) else "."
    return given.model_copy(update=found), finder.matrix(columns)


def is_usual_order(known: Reading) -> bool:
    """Whether rows whose columns name no class surely have the classes in their earlier order.

    Names of columns can have told any order, while columns without names are in that of earlier
    ones, or sorted.
    """
    classes = known.classes or ()
    return not affixes(known.columns or (), classes) or [*classes] == sorted(classes)


#: The classes that groups of columns are named by.
_Classes: TypeAlias = dict[tuple[str, ...], tuple[str, ...]]


class NoClassColumnsError(TableError):
    """No columns of a frame are class probabilities."""


def has_class_columns(frame: pd.DataFrame, given: Reading) -> bool:
    """Whether a frame has a column per class, whatever they hold."""
    finder = _Finder(frame, given, "", Reading())
    try:
        finder.class_columns(finder.label())
    except TableError as error:
        return not isinstance(error, NoClassColumnsError)
    return True


class _Finder:
    """Finds the columns of a frame; remembers each column read as numbers."""

    def __init__(self, frame: pd.DataFrame, given: Reading, source: str, known: Reading) -> None:
        self.frame, self.given, self.source, self.known = frame, given, source, known
        self.names = [str(name) for name in frame.columns]
        self._classes = given.classes or self.known.classes
        self._numbers: dict[str, Number] = {}

    def number(self, name: str) -> Number:
        if name not in self._numbers:
            mark = self.given.decimal or ("," if self.known.decimal == "," else "")
            self._numbers[name] = to_number(self.frame[name], mark)
        return self._numbers[name]

    def matrix(self, columns: Sequence[str]) -> NDArray[np.float64]:
        return np.column_stack([self.number(name).values for name in columns])

    def _existing(self, name: str, key: str) -> str:
        if name not in self.names:
            missing = f"no column {show(name)}{suggest(name, self.names)}"
            raise self._ask(missing, f"{key}=COLUMN", self.names)
        return name

    def _ask(self, question: str, key: str, columns: Sequence[str]) -> TableError:
        answer = f"specify it with --read {key} (columns: {quoted(columns, 12)})"
        return TableError(f"{self.source}: {question}; {answer}")

    def label(self) -> str | None:
        """Return the label column by its name."""
        if self.given.label is not None:
            return self._existing(self.given.label, "label")
        if self.known.label in self.names:
            return self.known.label
        bare = {*(self._classes or ())}
        others = {*(self.given.columns or ()), *(bare if bare <= {*self.names} else ())}
        named = [name for name in self.names if is_label(name) and name not in others]
        return min(named, key=lambda name: name.strip().lower() != "label", default=None)

    def truth(
        self, label: str | None, classes: Sequence[str], columns: Sequence[str]
    ) -> str | None:
        """Return the label column: that of earlier rows, or by name or content; no predictions."""
        later = self.known.columns is not None
        if self.given.label is not None or (later and label is None):
            return label
        rest = [n for n in self.names if n not in columns and not names_predictions(n)]
        naming = [n for n in rest if name_classes(cells_in(self.frame[n]), classes)]
        named = [n for n in rest if is_label(n) or names_truth(n)]
        best = np.nan_to_num(self.matrix(columns), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        top, tops = best.argmax(axis=1), best == best.max(axis=1, keepdims=True)
        own = [] if label is None else [label]
        cells = {n: comparables(cells_in(self.frame[n])) for n in {*own, *naming, *named}}
        followed = later and label == self.known.label
        beside = {*naming} & {*named} - {label}
        if followed and not beside and not same_as_top(cells[own[0]], tops, classes):
            return label
        known = {*map(comparable, classes), *range(len(classes) + 1)}
        if later and not followed and known.isdisjoint(cells[own[0]]):
            return None
        if label is not None and label not in naming:
            # Names beside numbers say which class each number is.
            label = next((n for n in naming if _are_codes(cells[label], cells[n])), label)
        # Other numbers may be those of something else.
        found = naming if label is None else [label, *([] if label in naming else naming)]
        numbers = [n for n in named if are_positions(cells[n], top, len(classes))]
        numbers = [n for n in numbers if not any(_are_codes(cells[n], cells[o]) for o in found)]
        found += [n for n in named if n not in found and n in (*naming, *numbers)]
        others = [name for name in found if not same_as_top(cells[name], tops, classes)]
        unlike = {tuple(cells[name]): name for name in reversed(others)}
        rest = [name for name in self.names if name not in columns]
        for group in () if found else spellings(rest, classes):
            if marks_one(zip(*(cells_in(self.frame[name]) for name in group), strict=True)):
                fault = f"columns {quoted(group)} mark a class of each row"
                advice = "write one column of labels, or drop them if they are predictions"
                raise TableError(f"{self.source}: {fault}; {advice}")
        if len(unlike) > 1:
            several = sorted(unlike.values(), key=found.index)
            raise self._ask("which column holds the labels", "label=COLUMN", several)
        for name in () if later else (n for n in unlike.values() if n not in named):
            numerals = all(cell == "" or isinstance(cell, Decimal) for cell in cells[name])
            if numerals or names_program(name):
                question = f"cells of {show(name)} can be labels; if they are not, drop it"
                raise self._ask(question, f"label={name}", self.names)
        labels = [*unlike.values(), *([] if later and not followed else found)]
        if not (labels or later):
            self._refuse_partly_labels(rest, {each for each in known if isinstance(each, str)})
        return next(iter(labels), None)

    def _refuse_partly_labels(self, columns: Sequence[str], classes: set[Hashable]) -> None:
        """Refuse a column of which most cells are classes, and others are not."""
        for name in columns:
            filled = [cell for cell in comparables(cells_in(self.frame[name])) if cell != ""]
            others = [cell for cell in filled if cell not in classes]
            if 0 < len(others) < len(filled) / 2 and not names_predictions(name):
                unknown = quoted(sorted({*map(str, others)}), 4)
                fault = f"most cells of {show(name)} are classes, but not {unknown}"
                advice = "correct or empty these, or drop the column if it holds no labels"
                raise TableError(f"{self.source}: {fault}; {advice}")

    def refuse_answers_and_ranks(
        self, kind: Values, label: str | None, classes: Sequence[str], columns: Sequence[str]
    ) -> None:
        """Refuse whole numbers of which it is unclear whether they are numbers of votes."""
        if kind != "votes" or self.given.values or self.known.columns:
            return
        numbers = np.nan_to_num(self.matrix(columns))
        known = {*map(comparable, classes if label is None else cells_in(self.frame[label]))}
        ordered = np.sort(numbers, axis=1)
        doubt = ""
        if np.ptp(numbers.sum(axis=1)) and {*map(comparable, np.unique(numbers))} <= known:
            doubt = "answers, as all of them are labels (then name the columns run_1, run_2, ...)"
        elif len(numbers) >= TELLING and not np.ptp(ordered, axis=0).any() and ordered[0, 0] > 0:
            doubt = "ranks, as every row has the same ones"
        if doubt:
            raise self._ask(f"numbers can be of votes, or {doubt}", "values=votes", columns)

    def id(self, others: set[str | None]) -> str | None:
        """Return the id column: named as one, with a different value in every row."""
        if self.given.id is not None:
            return self._existing(self.given.id, "id")
        named = [name for name in self.names if is_id(name)]
        for name in sorted({*named} - others, key=lambda name: (name.lower() != "id", name)):
            cells = self.frame[name]
            whole = cells.map(lambda cell: isinstance(cell, str | int) and cell != "").all()
            if whole and cells.map(str).is_unique and not self._has_fractions(name):
                return name
        return None

    def _has_fractions(self, name: str) -> bool:
        """Whether a column has numbers as ids have none: a class may be called so."""
        number = self.number(name)
        return number.plausible and bool((np.nan_to_num(number.values) % 1.0 > 0.0).any())

    def class_columns(self, label: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the class columns, and the classes."""
        given, names, classes = self.given, self.names, self._classes
        if given.columns is not None:
            chosen = tuple(each for pattern in given.columns for each in self._matching(pattern))
            if len(set(chosen)) < len(chosen) or len(chosen) < 2:
                question = "columns must be two or more, each given once"
                raise self._ask(question, "columns=A,B,...", names)
            own = spellings(chosen, given.classes or ())
            if own and chosen != own[0]:
                orders = f"two orders, {quoted(chosen, 4)} and {quoted(own[0], 4)}"
                raise TableError(f"{self.source}: columns= and classes= give {orders}; remove one")
            return chosen, given.classes or tuple(classes_of(chosen))
        known = self.known.columns
        if known and {*known} <= {*names} and not given.classes:
            return known, self.known.classes or known
        if classes is None:
            return self._prefixed() or self._guessed(label)
        found = [own for own in spellings(names, classes) if label not in own]
        spelled = found or self._numbered(label, len(classes))
        if not spelled:
            fault = f"{self.source}: no column for each of the classes {quoted(classes)}"
            advice = "name them p:<class>, or with another common prefix"
            raise NoClassColumnsError(f"{fault}; {advice} (columns: {quoted(names, 12)})")
        sure = [each for each in spelled if self._fits(each, named=bool(found))]
        sure = [each for each in sure if not each[0].startswith(CORRECTED)] or sure
        numeric = [own for own in spelled if all(self.number(name).plausible for name in own)]
        sure += self._rivals(sure[0], sure, numeric) if sure else []
        columns = self._only(sure or numeric or spelled[-1:])
        if not (found or given.classes or is_usual_order(self.known)):
            orders = f"{quoted(classes)} as in earlier rows, or {quoted(sorted(classes))}"
            question = f"columns {quoted(columns, 4)} name no class; are they {orders}"
            raise self._ask(question, "classes=A,B,...", names)
        return columns, classes

    def _only(self, groups: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        """Return the only group of columns, or ask which one is to be read."""
        if len(groups) > 1:
            pair = f"{quoted(groups[0], 3)} and {quoted(groups[1], 3)}"
            question = f"columns {pair} are both class probabilities; which are to be read"
            raise self._ask(question, "columns=A,B,...", self.names)
        return groups[0]

    def _prefixed(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Return the columns that our own prefixes mark, and the classes."""
        both = [tuple(n for n in self.names if n.startswith(s)) for s in (PREFIX, CORRECTED)]
        found = [own for own in both if len(own) > 1]
        if not found:
            return None
        columns = found[-1]
        classes = tuple(name.partition(":")[2] for name in columns)
        if len(found) > 1 or (columns[0].startswith(CORRECTED) and {*classes} <= {*self.names}):
            question = "columns hold corrected and uncorrected probabilities; which are to be read"
            raise self._ask(question, "columns=corrected:* or columns=A,B,...", self.names)
        return columns, classes

    def _matching(self, pattern: str) -> Sequence[str]:
        """Return the column of a name, or those that match a pattern."""
        if pattern in self.names:
            return [pattern]
        found = [name for name in self.names if fnmatchcase(name, pattern)]
        ordered = [[name for _, name in own] for own in numbered(found).values()]
        if len(ordered) == 1 and len(ordered[0]) == len(found):
            return ordered[0]
        return found or [self._existing(pattern, "columns")]

    def _guessed(self, label: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return class columns that the labels name, or that are a distribution."""
        numeric = [n for n in self.names if n != label and self.number(n).plausible]
        numeric = [n for n in numeric if not is_id(n) or self._has_fractions(n)]
        by_label = {} if label is None else self._named_by(label, numeric)
        guesses = [name for name in self.names if names_predictions(name)]
        by_guess = {k: v for n in guesses for k, v in self._named_by(n, numeric).items()}
        # Without a column that is named as labels are, any may hold names of classes.
        texts = [name for name in self.names if label is None and name not in numeric]
        by_other = {k: v for n in texts for k, v in self._named_by(n, numeric, 2).items()}
        groups: dict[str, list[str]] = {}
        for name in numeric:
            for at, mark in enumerate(name):
                if mark in SEPARATORS and at + 1 < len(name):
                    groups.setdefault(name[: at + 1], []).append(name)
        shared = sorted((g for g in groups.values() if len(g) > 1), key=len, reverse=True)
        by_prefix = [self._without_total(each) for each in shared]
        rest = [name for name in numeric if name not in guesses]
        every = [self._without_total(each) for each in (numeric, rest) if len(each) > 1]
        for candidates in ([*by_label], by_prefix, [*by_guess], every):
            named = candidates == [*by_label]
            sure = [e for e in dict.fromkeys(candidates) if self._fits(e, named=named)]
            widest = max(sure, key=len, default=())
            parts = [each for each in sure if {*each} < {*widest}]
            if named and all(self._error(widest) < self._error(each) for each in parts):
                # The others are classes too, of which no row is labelled.
                sure = [each for each in sure if each not in parts]
            if sure:
                own = self._only([*sure, *self._rivals(widest, sure, candidates)])
                names = by_label.get(own) or by_guess.get(own) or by_other.get(own)
                told = set() if label is None else {*comparables(cells_in(self.frame[label]))}
                if not names:
                    self._refuse_named_after(own)
                    others = tuple(n for n in rest if n not in own)
                    fit = len(others) > 1 and self._fits(others, named=False)
                    scored, rival = (any(map(_SCORE.fullmatch, each)) for each in (own, others))
                    if (fit or rival) and not scored:
                        question = f"are {quoted(own, 3)} class probabilities, or others"
                        raise self._ask(question, "columns=A,B,...", self.names)
                if not names and len(told - {"", -1}) < len(own):
                    self._refuse_additional(own)
                return own, names or tuple(classes_of(own))
        if by_label:
            own = self._only([*by_label])
            return own, by_label[own]
        question = "no columns are class probabilities, or named by the labels; which are they"
        answers = "classes=A,B,..., with --read id=COLUMN if a text has several rows"
        key = f"columns=A,B,... or columns=prob_*; or, if cells are answers, {answers}"
        raise NoClassColumnsError(str(self._ask(question, key, self.names)))

    def _rivals(
        self, own: tuple[str, ...], sure: Sequence[Any], groups: Iterable[tuple[str, ...]]
    ) -> list[tuple[str, ...]]:
        """Return other groups of the classes of columns, with other most probable ones."""
        whole = [e for e in dict.fromkeys(groups) if not any({*e} < {*more} for more in groups)]
        alike = [e for e in whole if e not in sure and classes_of(e) == classes_of(own)]
        corrected, top = own[0].startswith(CORRECTED), self.matrix(own).argmax(axis=1)
        alike = [e for e in alike if e[0].startswith(CORRECTED) == corrected]
        return [e for e in alike if (self.matrix(e).argmax(axis=1) != top).any()]

    def _refuse_additional(self, columns: tuple[str, ...]) -> None:
        """Refuse columns without which the others are a distribution at least as exactly."""
        most = min(self._error(columns), ROUNDING)
        added = [n for n in columns if self._error([c for c in columns if c != n]) <= most]
        if added and len(columns) - len(added) > 1:
            question = f"the others are a distribution without {quoted(added, 4)}; is it a class"
            raise self._ask(question, "columns=A,B,...", columns)

    def _refuse_named_after(self, columns: tuple[str, ...]) -> None:
        """Refuse columns whose names begin with that of a column of texts, which has the rest."""
        classes = [fold(each) for each in classes_of(columns)]
        for name in self.names:
            begin = not self.number(name).plausible and fold(name)
            if begin and all(each.startswith(begin) for each in classes):
                question = f"{quoted(columns, 3)} are of {show(name)}, but not named by its cells"
                raise self._ask(question, "label=COLUMN --read classes=A,B,...", self.names)

    def _error(self, columns: Sequence[str]) -> float:
        """Return the mean distance of the sums of probabilities, per cents or logarithms to 1."""
        numbers = self.matrix(columns)
        logs = bool((np.nan_to_num(numbers) <= 0.0).all())
        sums = np.nansum(np.exp(numbers) if logs else numbers, axis=1)
        return float(np.abs(sums / (100.0 if np.median(sums) > 50.0 else 1.0) - 1.0).mean())

    def _named_by(self, name: str, numeric: Sequence[str], least: int = 1) -> _Classes:
        """Return the numeric columns that `least` or more cells name, and the classes."""
        cells = filter(hashable, cells_in(self.frame[name]))
        texts = [text for text in dict.fromkeys(map(as_text, cells)) if text]
        found: _Classes = {}
        possible = least <= len(texts) <= len(numeric)
        for start, end in affixes(numeric, texts) if possible else ():
            fits = [n for n in numeric if n.startswith(start) and n.endswith(end)]
            # Others of the same prefix, or without any, need not be classes.
            exact = {f"{start}{text}{end}" for text in texts}
            both = [fits, [each for each in self.names if each in exact]]
            for each in (self._without_total(each) for each in both if len(each) > 1):
                found[each] = tuple(name[len(start) : len(name) - len(end)] for name in each)
        return found

    def _without_total(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return columns without those, equal in all rows, that are the sum of the others."""
        numbers = np.nan_to_num(self.matrix(columns))
        if len(columns) < 3 or len(numbers) < TELLING:
            return tuple(columns)

        def is_total(own: NDArray[np.float64]) -> bool:
            same = np.isclose(numbers.T, own).all(axis=1)
            return bool(np.isclose(numbers[:, ~same].sum(axis=1), own).all())

        return tuple(n for n, own in zip(columns, numbers.T, strict=True) if not is_total(own))

    def _numbered(self, label: str | None, size: int) -> list[tuple[str, ...]]:
        """Return the groups of as many columns as there are classes, of one name with numbers."""
        groups = numbered([name for name in self.names if name != label]).values()
        ways = ([*range(size)], [*range(1, size + 1)])
        return [tuple(n for _, n in own) for own in groups if [k for k, _ in own] in ways]

    def _settle_commas(self, columns: tuple[str, ...]) -> None:
        """Read commas that may separate thousands as the other columns show, or ask."""
        marks = {self.number(name).mark for name in columns}
        if "?" not in marks:
            return
        mark: Mark = "," if "," in marks else "."
        doubtful = self.given.separator == ";" or (np.nan_to_num(self.matrix(columns)) < 0.0).any()
        if marks & {",", "."} == {",", "."} or ("," not in marks and doubtful):
            question = "commas can be decimal marks, or separate thousands; which are they"
            raise self._ask(question, "decimal=, or --read decimal=.", columns)
        for name in columns:
            if self.number(name).mark == "?":
                self._numbers[name] = to_number(self.frame[name], mark)

    def _fits(self, columns: tuple[str, ...], *, named: bool = True) -> bool:
        """Whether most rows of columns are a distribution under a reading that shows it.

        Any whole numbers can be votes; unless columns are named by classes, rows have as many.
        """
        numbers = self.matrix(columns)
        best, share = likeliest(fitting(numbers))
        votes = best == "votes" and not named and np.ptp(np.nansum(numbers, axis=1)) > 0
        return share >= 0.5 and not votes

    def kind(self, columns: tuple[str, ...]) -> Values:
        """Return the kind of values that most rows are; refuse rows that are not."""
        names = Named(self.source, columns)
        for name in columns:
            rule = f"must be a number (column {show(name)})"
            names.refuse(self.number(name).wrong, self.frame[name].tolist(), rule)
        self._settle_commas(columns)
        numbers, wanted, known = self.matrix(columns), self.given.values, self.known.values
        fits = fitting(numbers)
        best, share = likeliest(fits)
        positive, sums = (np.nan_to_num(numbers) >= 0.0).all(axis=1), np.nansum(numbers, axis=1)
        fits["scores"] = positive & (sums > 0.0)
        fits["logits"] = (numbers < np.inf).all(axis=1) & (numbers.max(axis=1) > -np.inf)
        distributed = known == "logits" and share >= 0.5 and best in ("probabilities", "percent")
        kind: Values = wanted or best
        if wanted is None and known and fits[known].all() and not distributed:
            kind = known
        elif wanted is None and share < 0.5:
            kind = "probabilities" if (numbers >= 0.0).all() else "logits"
            inside = ((numbers >= 0.0) & (numbers <= 1.0)).all(axis=0)
            inside &= (numbers != numbers[0]).any(axis=0)
            if kind == "logits" and len(numbers) >= TELLING and inside.any():
                own = quoted([*np.array(columns)[inside]])
                question = f"only {own} are between 0 and 1: convert some, unless all are logits"
                raise self._ask(question, "values=logits", columns)
        for row, column in np.argwhere(np.isnan(numbers) & ~fits[kind][:, None]):
            fault = f"{columns[column]} is empty, and the row is no distribution without it"
            raise TableError(f"{self.source}: row {row}, {fault}; fill it in or drop the row")
        scores = "values=scores divides each row by its sum, if more is more probable"
        answer = f"specify their kind with --read values=KIND ({scores})"
        rule = f"its values are not {kind}; drop or correct it, or {answer}"
        names.refuse(~fits[kind], sums, rule, what="the sum of the row")
        return kind


def cells_in(column: pd.Series[Any]) -> list[Any]:
    """Return the cells of a column, with None for missing ones."""
    return list(column.astype(object).where(column.notna(), None).tolist())


def name_classes(cells: Iterable[Any], classes: Sequence[str]) -> bool:
    """Whether the cells of a column are names of classes, perhaps in several spellings."""
    distinct = {*filter(hashable, cells)}
    if len(distinct) > 3 * len(classes) + 9:
        return False
    names = {*map(comparable, distinct)} - {""}
    return bool(names) and names <= {*map(comparable, classes)}


def marks_one(rows: Iterable[Iterable[Any]]) -> bool:
    """Whether exactly one cell of every row is 1 or true, and the others are 0 or false."""
    several = [[comparable(cell) for cell in row] for row in rows]
    return all(row.count(1) == 1 and row.count(0) == len(row) - 1 for row in several)


def same_as_top(
    cells: Sequence[Hashable], tops: NDArray[np.bool_], classes: Sequence[str]
) -> bool:
    """Whether comparable labels of enough rows all are a most probable class of their rows."""
    known = [(cell, own) for cell, own in zip(cells, tops.tolist(), strict=True) if cell != ""]
    ways: list[list[Hashable]] = [[comparable(name) for name in classes], [*range(len(classes))]]
    return len(known) >= TELLING and any(
        all(cell in names and own[names.index(cell)] for cell, own in known) for names in ways
    )


def _are_codes(numbers: Sequence[Hashable], names: Sequence[Hashable]) -> bool:
    """Whether two columns tell the same groups of rows apart, and these are several."""
    pairs = {*zip(numbers, names, strict=True)} - {("", "")}
    return 1 < len(pairs) == len({*numbers} - {""}) == len({*names} - {""})


def comparables(cells: Sequence[Any]) -> list[Hashable]:
    """Return the cells of a column as they are compared; computes each distinct one once."""
    if not all(map(hashable, cells)):
        return [*map(comparable, map(str, cells))]
    known = {cell: comparable(cell) for cell in {*cells}}
    return [known[cell] for cell in cells]
