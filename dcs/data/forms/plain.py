"""Forms of rows: how each is recognised, and how it becomes a column per class.

A file gives a frame with one row per record (:mod:`dcs.data.files`). The first form that
recognises it (:data:`dcs.data.reader.FORMS`) turns it into a column per class, which
:mod:`dcs.data.columns` reads; a frame that no form recognises has them already.

Here are the forms of plain columns that are not one per class: lists and objects, several rows per
text, runs, or one. Labels with scores are the output of pipelines of Transformers, of zero-shot
classification and of Argilla; lists or objects of numbers are columns of JSON or Parquet, or their
text in CSV.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcs.data.answers import parse_vote
from dcs.data.columns import PREFIX, Reading, cells_in, has_class_columns, marks_one, name_classes
from dcs.data.labels import EMPTY, TELLING, as_text, comparable, hashable
from dcs.data.names import is_id, is_label, names_predictions, names_truth, numbered
from dcs.data.values import fitting, to_number
from dcs.errors import Named, TableError, quoted, show

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class FormRows:
    """Rows with a column per class.

    Attributes
    ----------
    frame : DataFrame
        The columns; those that the form does not need are kept.
    told : mapping of str to object
        Fields of :class:`dcs.data.columns.Reading` that the form determines.
    remark : str
        What was left out or assumed, in a few words.
    """

    frame: pd.DataFrame
    told: Mapping[str, Any] = field(default_factory=dict)
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Form:
    """A form of rows that programs write.

    Attributes
    ----------
    name : str
        What the rows are called in messages.
    sniff : callable
        Returns what shows that a frame, one row per record of the file, has this form, such as the
        names of columns; something false if nothing does.
    rows : callable
        Returns the rows of a frame, given what `sniff` found, or raises a
        :class:`dcs.errors.TableError` whose message the names of file and form precede.
    """

    name: str
    sniff: Callable[[pd.DataFrame, Reading], Any]
    rows: Callable[[pd.DataFrame, Reading, Any], FormRows]


_NUMPY: Final = re.compile(r"np\.(?:float|int)\d+\(([^()]*)\)")


def parsed(cell: Any) -> Any:
    """Return a cell that is a list or an object, or the text of one, as plain Python."""
    if isinstance(cell, np.ndarray):
        return cell.tolist()
    if not isinstance(cell, str) or cell.strip()[:1] not in ("[", "{"):
        return None if cell == "" else cell
    text = _NUMPY.sub(r"\1", cell.strip())
    if re.fullmatch(r"\[[\d\s.e+-]*\]", text):
        text = re.sub(r"(?<=[\d.])\s+(?=[\d.-])", ",", text)  # as NumPy prints arrays
    text = re.sub(r"(?<=[\[ ,:])(?:nan|null)(?=[\], }])", "None", text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return cell


def parsed_cells(frame: pd.DataFrame, name: str) -> list[Any]:
    """Return the cells of a column as plain Python, None for missing ones."""
    cells = cells_in(frame[name])
    return [*map(parsed, cells)] if frame[name].dtype.kind == "O" else cells


def structured(frame: pd.DataFrame) -> dict[str, list[Any]]:
    """Return the cells of columns whose first one that is not empty is a list or an object."""
    found, kinds = {}, str | list | dict | np.ndarray
    for name in frame.columns:
        filled = (cell for cell in frame[name] if isinstance(cell, kinds) and len(cell))
        if frame[name].dtype.kind == "O" and isinstance(parsed(next(filled, None)), list | dict):
            found[name] = parsed_cells(frame, name)
    return found


def is_number(cell: Any) -> bool:
    """Whether a cell is a number."""
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def natural(name: str) -> list[Any]:
    """Return a key that sorts numbers in names by their value."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _unordered(given: Reading) -> dict[str, Any]:
    """Return that labels are names, if rows do not tell an order of the classes."""
    return {} if given.classes or given.labels else {"labels": "names"}


def with_scores(
    frame: pd.DataFrame,
    scores: Sequence[Mapping[str, Any]],
    classes: Sequence[str] = (),
    *,
    prefix: str = PREFIX,
    all_classes: bool = True,
) -> pd.DataFrame:
    """Return a frame with a column per class; by default, of all that have a score.

    Raises
    ------
    TableError
        If a row has scores of some classes only, and must have all.
    """
    import pandas as pd

    names = classes or sorted(dict.fromkeys(name for row in scores for name in row), key=natural)
    short = [row for row, each in enumerate(scores) if each and len(each) < len(names)]
    if short and all_classes:
        found = f"text {short[0]} has {len(scores[short[0]])} of {len(names)} classes"
        raise TableError(f"{found}; give a value for each, such as by top_k=None of a pipeline")
    columns = {prefix + name: [row.get(name) for row in scores] for name in names}
    added = pd.DataFrame(columns, index=frame.index, dtype=object)
    return pd.concat([frame, added], axis=1)


def label_of(frame: pd.DataFrame, given: Reading, but: Sequence[str | None]) -> str | None:
    """Return the label column: the given one, or the first that is named as one."""
    return given.label if given.label in frame else next(iter(label_columns(frame, but)), None)


def label_columns(frame: pd.DataFrame, but: Sequence[str | None] = ()) -> list[str]:
    """Return the columns that are named as labels."""
    return [name for name in frame.columns if is_label(name) and name not in but]


def with_votes(
    frame: pd.DataFrame, answers: Sequence[Sequence[Any]], label: str | None, given: Reading
) -> FormRows:
    """Return a frame with the number of answers by class, which labels or the reading name.

    Raises
    ------
    TableError
        If no classes are given, and an answer is not one of the labels.
    """
    classes = _classes(frame, given, label)
    known = {comparable(name): name for name in classes}
    counts = [dict.fromkeys(classes, 0) for _ in answers]
    odd: list[str] = []
    for row, several in enumerate(answers):
        for answer in filter(None, map(as_text, several)):
            if name := known.get(comparable(answer)):
                counts[row][name] += 1
            elif given.classes and (vote := parse_vote(answer, classes)) is not None:
                counts[row][classes[vote]] += 1
            else:
                odd.append(answer)
    blank = [n for n in classes if n in (*EMPTY, "?") and not any(row[n] for row in counts)]
    doubt = f"no answer is {quoted(blank)}: leave rows without a label empty" if blank else ""
    strange = quoted([*dict.fromkeys(odd)], 4)
    doubt = f"answers {strange} are no labels: correct them" if odd else doubt
    if doubt and given.classes is None:
        advice = f"name all classes with --read classes={','.join(classes)}"
        raise TableError(f"{doubt}, or {advice}; others are then texts that name one of them")
    if len(known) < max(2, len(classes)):
        raise TableError(f"must have two different classes, got {show(list(classes))}")
    remark = f"{len(odd):,} answers name no class" if odd else ""
    told = {"values": "votes", "classes": classes, "columns": None}
    return FormRows(with_scores(frame, counts, classes), told, remark)


_LABELS: Final = ("label", "class", "name")
_SCORES: Final = ("score", "probability", "prob", "confidence", "logprob")


_LISTS: Final = ("labels", "scores")

#: Labels and their scores.
_Pairs: TypeAlias = list[tuple[str, Any]]


def _lists(parts: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the names of the lists of labels and of scores: `_LISTS`, or the only ones."""
    if {*_LISTS} <= parts.keys():
        return _LISTS
    lists = {name: each for name, each in parts.items() if isinstance(each, list) and each}
    texts = [n for n, each in lists.items() if all(isinstance(cell, str) for cell in each)]
    numbers = [n for n, each in lists.items() if all(map(is_number, each))]
    if len(texts) == len(numbers) == 1 and len(lists[texts[0]]) == len(lists[numbers[0]]):
        return texts[0], numbers[0]
    return None


def _value(row: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Return the value of the first of some keys that a row has, None if it has none."""
    return next((row[key] for key in keys if key in row), None)


def _pairs(cell: Any) -> _Pairs:
    """Return the labels and scores of a cell; empty if it is something else."""
    if isinstance(cell, list) and len(cell) == 1 and isinstance(cell[0], list):
        (cell,) = cell  # of a pipeline that was given a list of one text
    labels: Any = None
    scores: Any = None
    if isinstance(cell, dict) and (names := _lists(cell)):
        labels, scores = (cell[name] for name in names)
    elif isinstance(cell, list | tuple) and all(isinstance(each, dict) for each in cell):
        labels, scores = ([_value(each, keys) for each in cell] for keys in (_LABELS, _SCORES))
    if not (isinstance(labels, list | tuple) and isinstance(scores, list | tuple)):
        return []
    if len(labels) != len(scores) or None in labels or not all(map(is_number, scores)):
        return []
    return [*zip(map(as_text, labels), scores, strict=True)]


def _scored(frame: pd.DataFrame, given: Reading) -> list[tuple[list[str], list[_Pairs]]]:
    """Return the columns that hold labels with scores, and the pairs of each row."""
    cells = structured(frame)
    parts = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    columns: dict[tuple[str, ...], list[Any]] = {(name,): own for name, own in cells.items()}
    scored: list[tuple[list[str], list[_Pairs]]] = []
    if both := next(filter(None, map(_lists, parts)), None):
        columns[both] = [{name: row[name] for name in both} for row in parts]
    for names, found in columns.items():
        pairs = [_pairs(cell) for cell in found]
        filled = zip(pairs, found, strict=True)
        if any(pairs) and all(each or cell is None for each, cell in filled):
            # Lists of other names may be tokens and what they cost.
            labels = {frozenset(label for label, _ in row) for row in pairs if row}
            named = all({*_LISTS} <= cell.keys() for cell in found if isinstance(cell, dict))
            if named or not (len(labels) > 1 or has_class_columns(frame, given)):
                scored.append(([*names], pairs))
    return scored


def _score_rows(frame: pd.DataFrame, given: Reading, found: Any) -> FormRows:
    columns, pairs = found[0]
    if len(found) > 1 or has_class_columns(frame, given):
        raise TableError(f"{quoted(columns)} and other columns hold class probabilities; drop one")
    for row, each in enumerate(pairs):
        if len(dict(each)) < len(each):
            raise TableError(f"row {row}: a label has two scores: {show([k for k, _ in each])}")
    rows = with_scores(frame.drop(columns=columns), [*map(dict, pairs)])
    return FormRows(rows, _unordered(given))


SCORES = Form("labels with scores", _scored, _score_rows)


def _inner(cell: Any) -> dict[str, Any]:
    """Return numbers by their key or place; empty if the cell is something else."""
    pairs = [*enumerate(cell)] if isinstance(cell, list | tuple) else []
    pairs = [*cell.items()] if isinstance(cell, dict) else pairs
    numbers = all(each is None or is_number(each) for _, each in pairs)
    return {str(key): each for key, each in pairs} if numbers else {}


#: Rows of numbers by their key or place, for each column.
_Numbers: TypeAlias = dict[str, list[dict[str, Any]]]


def _number_columns(frame: pd.DataFrame, given: Reading) -> _Numbers:
    """Return the columns whose cells are lists or objects of numbers; a label is neither."""
    found = {}
    for name, cells in structured(frame).items():
        rows = [] if name == given.label or is_label(name) else [*map(_inner, cells)]
        if any(rows) and all(row or cell is None for row, cell in zip(rows, cells, strict=True)):
            found[name] = rows
    # Numbers of tokens beside answers, for example, are no class probabilities.
    if not any(map(_are_shares, found.values())):
        rest = frame.drop(columns=[*found])
        others = any(form.sniff(rest, given) for form in (RUNS, LONG, SINGLE))
        return {} if others or has_class_columns(rest, given) else found
    lengths = {name: {len(row) for row in rows if row} for name, rows in found.items()}
    return {name: rows for name, rows in found.items() if len(lengths[name]) == 1}


def _are_shares(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether most rows of numbers are a distribution, other than of votes."""
    filled = [[*row.values()] for row in rows if row]
    if len(filled[0]) < 2 or any(len(row) != len(filled[0]) for row in filled):
        return False
    fits = fitting(np.array(filled, dtype=np.float64))
    return bool(max(own.mean() for kind, own in fits.items() if kind != "votes") >= 0.5)


def _number_rows(frame: pd.DataFrame, given: Reading, found: _Numbers) -> FormRows:
    columns, told = frame.drop(columns=[*found]), {}
    for name, rows in found.items():
        keys = list(dict.fromkeys(key for row in rows for key in row))
        if any([*row] != [key for key in keys if key in row] for row in rows):
            told = _unordered(given)
        listed = keys == [str(k) for k in range(len(keys))]
        columns = with_scores(columns, rows, keys, prefix=f"{name}.", all_classes=listed)
    return FormRows(columns, told)


NUMBERS = Form("lists or objects of numbers", _number_columns, _number_rows)


_CLASS: Final = re.compile(r"class(_name)?|category|label(_name)?|option|choice|candidate", re.I)
_VALUE: Final = re.compile(r"p|probs?|proba|probability|score|value|log_?prob|confidence", re.I)
_ANSWER: Final = re.compile(
    r"answer|response|vote|verdict|choice|completion|parsed(_answer)?", re.I
)


def _comparable(frame: pd.DataFrame, name: str) -> bool:
    """Whether no cell of a column is a list or an object."""
    return frame[name].dtype.kind != "O" or all(map(hashable, frame[name]))


def _constant(frame: pd.DataFrame, key: str, name: str) -> bool:
    """Whether a column has one value per id."""
    if not _comparable(frame, name):
        return False
    return bool(frame.groupby(key, sort=False)[name].nunique(dropna=False).max() == 1)


def _are_answers(frame: pd.DataFrame, key: str, name: str, given: Reading) -> bool:
    """Whether the cells of a column name classes, and not one class per id."""
    classes = _classes(frame, given, label_of(frame, given, (key, name)))
    return name_classes(cells_in(frame[name]), classes) and not _constant(frame, key, name)


#: The columns of ids, of classes or answers, and of probabilities.
_Long: TypeAlias = tuple[str, str, str | None]


def _long_columns(frame: pd.DataFrame, given: Reading) -> _Long | None:
    """Return the columns of ids, of classes or answers, and of probabilities, if any."""
    plain = [n for n in frame.columns if _comparable(frame, n)]
    ids = [n for n in plain if n == given.id] or [n for n in plain if is_id(n)]
    texts = [n for n in plain if n.lower() in ("text", "document")]
    keys = [n for n in ids or texts if 1 < frame[n].nunique() < len(frame)]
    if not keys:
        return None
    values = [n for n in frame.columns if _VALUE.fullmatch(n) and to_number(frame[n]).plausible]
    pattern = _CLASS if values else _ANSWER
    others = [n for n in plain if n not in (*keys, *values)]
    found = [n for n in others if pattern.fullmatch(n)]
    if given.columns and len(given.columns) == 1:
        found = [n for n in others if n in given.columns] or found
    if values:
        found = [n for n in found if not frame.duplicated([keys[0], n]).any()]
        found = [n for n in found if not _constant(frame, keys[0], n)]
    else:
        found += [n for n in others if names_predictions(n) and n not in found]
        found = found or [n for n in others if _are_answers(frame, keys[0], n, given)]
        found = [n for n in found if given.classes or label_of(frame, given, [n])][:1]
        given = given.model_copy(update={"columns": None})
    if len(found) != 1 or len(values) > 1 or has_class_columns(frame, given):
        return None
    return keys[0], found[0], next(iter(values), None)


def _long_rows(frame: pd.DataFrame, given: Reading, columns: _Long) -> FormRows:
    key, name, value = columns
    groups: dict[Any, list[int]] = {}
    for row, cell in enumerate(cells_in(frame[key])):
        groups.setdefault(cell, []).append(row)
    kept = [n for n in frame.columns if n not in (name, value) and _constant(frame, key, n)]
    labels = [n for n in label_columns(frame, (name, key)) if n not in kept]
    if labels:
        raise TableError(f"rows of one {key} have different values of {show(labels[0])}")
    first = frame.iloc[[rows[0] for rows in groups.values()]].reset_index(drop=True)
    first = first[[key, *[n for n in kept if n != key]]]
    cells = [as_text(cell) for cell in cells_in(frame[name])]
    if value is None:
        answers = [[cells[row] for row in rows] for rows in groups.values()]
        found = with_votes(first, answers, label_of(first, given, (name, key)), given)
        return replace(found, told={"id": key, **found.told})
    labelled = given.classes or label_of(first, given, (name, key))
    for n in () if labelled else frame.columns.difference([*kept, key, name, value]):
        marks = cells_in(frame[n])
        if not names_predictions(n) and marks_one([marks[r] for r in g] for g in groups.values()):
            advice = f"write its {name} as a column of labels, or drop it if it marks predictions"
            raise TableError(f"{show(n)} marks one row of each {key}; {advice}")
    numbers = cells_in(frame[value])
    scores = [{cells[row]: numbers[row] for row in rows} for rows in groups.values()]
    return FormRows(with_scores(first, scores), {"id": key, **_unordered(given)})


LONG = Form("several rows per text", _long_columns, _long_rows)


_OF_RUNS: Final = "run|answer|vote|pred|prediction|response|sample|seed|draw|output"
_RUN: Final = re.compile(rf"(\w*(?:{_OF_RUNS}))[ _.-]?(\d{{1,18}})", re.I)


def _runs(frame: pd.DataFrame, given: Reading) -> list[str]:
    """Return the columns of answers: of one name with numbers, and not fractions."""
    groups = numbered(frame.columns, _RUN).values()
    found = [[name for _, name in own] for own in groups if len(own) > 1]
    if len(found) != 1 or not (given.classes or label_of(frame, given, found[0])):
        return []
    numbers = [to_number(frame[name]) for name in found[0]]
    counts = re.search("vote|pred|output", found[0][0], re.I) and all(n.plausible for n in numbers)
    fractions = any(n.plausible and (n.values % 1 > 0).any() for n in numbers)
    if counts or fractions or has_class_columns(frame.drop(columns=found[0]), given):
        return []
    return found[0]


def _run_rows(frame: pd.DataFrame, given: Reading, runs: list[str]) -> FormRows:
    answers = [*zip(*(cells_in(frame[name]) for name in runs), strict=True)]
    return with_votes(frame.drop(columns=runs), answers, label_of(frame, given, runs), given)


RUNS = Form("a column per run", _runs, _run_rows)


_WORD: Final = "p|probs?|proba|probability|score|confidence|conf"
_BEFORE: Final = re.compile(rf"(?:{_WORD})[ _:.-](.+)", re.I)
_AFTER: Final = re.compile(rf"(.+)[ _:.-](?:{_WORD})", re.I)
_SCORE: Final = re.compile(rf"{_WORD}|{_BEFORE.pattern}|{_AFTER.pattern}", re.I)


#: The columns of values, of a prediction that they are the confidence of, and of labels.
_Single: TypeAlias = tuple[str, str | None, str | None]


def _single_columns(frame: pd.DataFrame, given: Reading) -> _Single | None:
    """Return the columns of the values, of a prediction they are the confidence of, of labels."""
    chosen = given.columns if given.columns and len(given.columns) == 1 else None
    scores = [n for n in frame.columns if (n in chosen if chosen else _SCORE.fullmatch(n))]
    if len(scores) != 1 or not to_number(frame[scores[0]]).plausible:
        return None
    guesses = [n for n in frame.columns if names_predictions(n) and n not in scores]
    labels = [given.label] if given.label in frame else label_columns(frame, scores)
    if "label" in labels and len(labels) > 1 and not guesses:
        # Of a pipeline that returns the first label only: {"label": ..., "score": ...}.
        guesses, labels = ["label"], [name for name in labels if name != "label"]
    guess, label = next(iter(guesses), None), next(iter(labels), None)
    two = len(_classes(frame, given, guess, label)) == 2
    plain = given.model_copy(update={"columns": None})
    if not (two or guess) or not (chosen or not has_class_columns(frame, plain)):
        return None
    return scores[0], guess, label


def _classes(frame: pd.DataFrame, given: Reading, *columns: str | None) -> tuple[str, ...]:
    """Return the given classes, or those that columns name, in order."""
    texts = {as_text(cell) for name in columns if name for cell in cells_in(frame[name])}
    return given.classes or tuple(sorted(texts - {""}, key=natural))


def _single_rows(frame: pd.DataFrame, given: Reading, columns: _Single) -> FormRows:
    score, guess, label = columns
    if guess == "label" and label and not (names_truth(label) or label in ("target", "y_true")):
        fault = f"{show(label)} can be the prediction and 'label' the truth, or the reverse"
        raise TableError(f"{fault}; name the prediction predicted")
    values, classes = to_number(frame[score]).values, _classes(frame, given, guess, label)
    wrong = ~((values >= 0.0) & (values <= 1.0))
    Named(score).refuse(wrong, frame[score].tolist(), "must be a probability")
    if len(classes) != 2:
        known = f"{score} is the confidence of {guess}, one of {quoted(classes, 4)}"
        raise TableError(f"{known}: the other classes have no values; give a column per class")
    keys = [*map(comparable, classes)]
    for name in frame.columns.difference([score, guess or "", label or ""]):
        if _CLASS.fullmatch(name) and name_classes(cells_in(frame[name]), classes):
            raise TableError(f"{show(name)} can name the class of each {score}; drop or pivot it")
    if len(values) >= 2 * TELLING and _are_pairs(values):
        fault = f"{score} of every two rows has the sum 1"
        answer = "if they are of one text, name the column of texts or ids with --read id=COLUMN"
        raise TableError(f"{fault}: {answer}; otherwise give a column per class")
    if keys[0] == keys[1]:
        raise TableError(f"classes {quoted(classes)} differ in case only; rename one")
    meanings: list[tuple[str, Any]] = [
        (f"the probability of {show(name)}", k) for k, name in enumerate(classes)
    ]
    if guess is None:
        place = _place(score, classes, given)
        remark, second = meanings[place]
        truth = [] if label is None else [*map(comparable, cells_in(frame[label]))]
        own, other = (values[[cell == keys[k] for cell in truth]] for k in (place, 1 - place))
        lower = min(own.size, other.size) >= TELLING and own.mean() < other.mean()
        # The classes may be those of earlier rows, which had predictions.
        sure = given.classes and not re.fullmatch("conf(idence)?", score, re.I)
        if not sure and (lower or (len(values) >= TELLING and values.min() >= 0.5)):
            ways = f"name it p_{classes[place]}" if given.classes else _ways(classes)
            fault = f"{score} is never below 0.5, or lower for {show(classes[place])}"
            answer = "if it is the confidence of a prediction, add the column predicted"
            raise TableError(f"{fault}: {answer}, or else {ways}")
    else:
        cells = [comparable(cell) for cell in cells_in(frame[guess])]
        wrong = np.array([cell not in keys for cell in cells])
        Named(guess).refuse(wrong, frame[guess].tolist(), f"must be one of {quoted(classes)}")
        guesses = np.array([keys.index(cell) for cell in cells])
        meanings = [(f"the confidence of {show(guess)}", guesses), *meanings[::-1]]
        # Under the right meaning, the more probable class is predicted.
        right = [np.where(k == guesses, values, 1.0 - values) >= 0.5 for _, k in meanings]
        fitting = [each for each, fits in zip(meanings, right, strict=True) if fits.all()]
        if not fitting:
            row = np.flatnonzero(values < 0.5)[0]
            fault = f"{score} is below 0.5, but {guess} is no less probable class"
            raise TableError(f"row {row}: {fault}; give a column per class")
        remark, second = fitting[0]
    remark = f"{show(score)} is {remark}"
    values = np.where(second == 1, values, 1.0 - values)
    scores = [dict(zip(classes, (1.0 - value, value), strict=True)) for value in values.tolist()]
    names = {"label": "predicted"} if guess == "label" else {}
    rest = frame.drop(columns=score).rename(columns=names)
    told = {"columns": None, "classes": classes} | ({"label": label} if label and guess else {})
    return FormRows(with_scores(rest, scores, classes), told, remark)


def _are_pairs(values: NDArray[np.float64]) -> bool:
    """Whether every row and its neighbour have two values with the sum 1, which differ."""
    if len(values) % 2 or (values == 0.5).all():
        return False
    return bool((np.abs(values[::2] + values[1::2] - 1.0) <= 0.01).all())


def _ways(classes: tuple[str, ...]) -> str:
    first, second = ",".join(classes), ",".join(classes[::-1])
    name = "name the class of the probability as the second"
    return f"{name}: --read classes={first} or classes={second}"


#: What is said of the class that is not the one of a column's name.
_NEGATIVE: Final = re.compile(r"(\w+[ _-])?0|neg(ative)?|no|false|no[nt]?[ _-].+", re.I)


def _place(score: str, classes: tuple[str, ...], given: Reading) -> int:
    """Return which class a column is the probability of."""
    keys = [*map(comparable, classes)]
    found = [pattern.fullmatch(score) for pattern in (_BEFORE, _AFTER)]
    named = {keys.index(name) for m in found if m and (name := comparable(m[1])) in keys}
    if len(named) == 1:
        return named.pop()
    other = any(m and _NEGATIVE.fullmatch(m[1]) for m in found)
    # The classes of earlier rows are given too, so that the name of the column goes first.
    usual = given.classes or (not named and keys in ([0, 1], [-1, 1]))
    if usual and not other:
        return 1
    raise TableError(f"{score} is the probability of one of {quoted(classes)}; {_ways(classes)}")


SINGLE = Form("one column for two classes", _single_columns, _single_rows)

#: Forms of plain columns, in the order in which they are tried.
PLAIN: Final = (SCORES, NUMBERS, RUNS, LONG, SINGLE)
