"""One reader of class probabilities: of all files and forms of rows, and of data frames."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dcs.data.checks import (
    are_predictions,
    checked_classes,
    checked_ids,
    doubts_about,
    flat_names,
    refuse_too_large,
)
from dcs.data.columns import CORRECTED, PREFIX, Reading, cells_in, infer, is_usual_order
from dcs.data.files import OF_INSPECT, STEMS, SUFFIXES, Records, read_records, suffix_of
from dcs.data.forms.logs import CLASSIFY, LOGS
from dcs.data.forms.plain import PLAIN, SINGLE, Form
from dcs.data.labels import TELLING, as_text, fold, hashable, in_other_order, read_labels
from dcs.data.names import is_id
from dcs.data.splits import are_common, copied_rows, joined
from dcs.data.table import ProbabilityTable
from dcs.data.values import to_shares
from dcs.errors import ConfigError, Named, TableError, escaped, quoted, show
from dcs.io import validated

if TYPE_CHECKING:
    import pandas as pd

#: Forms in the order in which they are tried.
FORMS: Final[tuple[Form, ...]] = (*LOGS, *PLAIN)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A file of rows: its table, and all of its columns.

    Attributes
    ----------
    table : ProbabilityTable
        Its class probabilities and labels.
    frame : DataFrame
        All columns as they are in the file.
    reading : Reading
        How the columns were read.
    remark : str
        What was inferred, in one line; empty if nothing was.
    """

    table: ProbabilityTable
    frame: pd.DataFrame
    reading: Reading
    remark: str = ""


def read_table(source: Any, **reading: Any) -> ProbabilityTable:
    """Read class probabilities and labels from a file or a data frame.

    Parameters
    ----------
    source : path-like or DataFrame
        A file of rows in any form that docs/own-data.md lists, or a data frame.
    **reading
        Fields of :class:`dcs.data.columns.Reading`: ``columns``, ``classes``, ``label``, ``id``
        and ``values``; what is not specified is inferred from names and values.

    Returns
    -------
    ProbabilityTable
        The rows; ``table.provenance.reading`` is how they were read.

    Raises
    ------
    TableError
        If the content is ambiguous or invalid; the message names the file and the row, or says
        what to specify.

    Examples
    --------
    >>> frame = pd.DataFrame({"prob_no": ["90%", "20%"], "prob_yes": ["10%", "80%"]})
    >>> dcs.read_table(frame.assign(gold=["no", "yes"])).classes
    ('no', 'yes')
    """
    return open_source(source, as_reading(reading)).table


def as_reading(values: Mapping[str, Any], *, source: str = "reading") -> Reading:
    """Return the reading of plain values.

    Raises
    ------
    ConfigError
        If a key or value is invalid.
    """
    return validated(Reading, dict(values), source=source, error=ConfigError)


def open_source(
    source: Any, given: Reading | None = None, *, known: Reading | None = None
) -> Source:
    """Read a file or data frame with all of its columns.

    Parameters
    ----------
    source : path-like or DataFrame
        As in :func:`read_table`; ``-`` is CSV or JSON lines from standard input.
    given : Reading, optional
        What the user specifies.
    known : Reading, optional
        How earlier rows of the same kind were read; followed where it fits.

    Raises
    ------
    TableError
        As in :func:`read_table`.
    """
    given = given or Reading()
    if hasattr(source, "to_pandas"):  # of Arrow or Polars
        source = source.to_pandas()
    if hasattr(source, "columns"):
        return _interpret(Records(source), given, known, "data frame")
    if not isinstance(source, str | os.PathLike):
        raise TableError(f"rows are of type {type(source).__name__}; give a file or a data frame")
    path = Path(source)
    text = sys.stdin.read() if str(path) == "-" else None
    records = read_records(path, given, text=text)
    if records.table is None:
        return _interpret(records, given, known, escaped(path))
    table = records.table
    if given.classes is not None:
        table = table.with_classes(given.classes, source=escaped(path))
    columns = tuple(PREFIX + each for each in table.classes)
    own: dict[str, Any] = {"label": "label", "id": "id", "values": "probabilities"}
    reading = Reading(columns=columns, classes=table.classes, **own)
    for key, value in given:
        if value not in (None, getattr(reading, key)):
            raise TableError(f"{escaped(path)}: is a table of dcs, read as it is; remove {key}")
    doubts = doubts_about(table.labels, table.probs, 1, table.classes if known is None else ())
    remark = f"{escaped(path)}: warning: {'; '.join(doubts)}" if doubts else ""
    return Source(table, records.frame, reading, remark)


def _interpret(records: Records, given: Reading, known: Reading | None, source: str) -> Source:
    """Return the table of the records of a file."""
    frame = _plain(_without_index(records.frame, source), source)
    if not len(frame):
        raise TableError(f"{source}: cannot be read: no rows")
    if {"target", "output", "scores", "epoch"} <= {*frame.columns}:
        raise TableError(f"{source}: are samples of Inspect; {OF_INSPECT}")
    given = given.model_copy(update=records.told)
    frame, given, about = _in_columns(frame, given, known, source)
    frame = _plain(frame, source)
    reading, numbers = infer(frame, given, source=source, known=known)
    columns, kind = reading.columns or (), reading.values or "probabilities"
    classes = checked_classes(reading.classes, n_classes=len(columns), source=source)
    ids = None if reading.id is None else cells_in(frame[reading.id])
    names = Named(source, classes, checked_ids(ids, n_rows=len(frame), source=source))
    probs = to_shares(numbers, kind)
    found = f"classes {quoted(classes)} from columns {quoted(columns, 4)} ({kind})"
    remarks = [f"{source}: {about}{len(frame):,} rows, {found}"]
    remarks.append(f"labels from {show(reading.label)}" if reading.label else "no labels")
    remarks += [f"ids from {show(reading.id)}"] if reading.id else []
    if kind in ("probabilities", "percent"):
        sums = np.nansum(numbers, axis=1) / (100.0 if kind == "percent" else 1.0)
        if rounded := int((np.abs(sums - 1.0) > 1e-6).sum()):
            remarks.append(f"{rounded:,} rows were rounded, and are normalised")
    if empty := int(np.isnan(numbers).sum()):
        remarks.append(f"{empty:,} empty cells are 0")
    cells = [None] * len(frame) if reading.label is None else cells_in(frame[reading.label])
    way = given.labels or (known.labels if known else None)
    try:
        labels, how = read_labels(cells, probs, names, counting=way, documented=records.documented)
    except TableError:
        if way == given.labels:
            raise
        # The labels of these rows are written in another way than those of earlier ones.
        labels, how = read_labels(cells, probs, names, documented=records.documented)
    counted = [f"from-{k}" for k in (0, 1) if f"from {k}" in how]
    if way != given.labels and counted == [way] and (doubt := in_other_order(labels, probs)):
        said = f"{source}: {doubt} if labels count {way} as in earlier rows"
        raise TableError(f"{said}; specify --read labels=from-0, from-1 or names, or write names")
    reading = reading.model_copy(update={"labels": next(iter(counted), reading.labels)})
    if reading.label is not None:
        remarks[1] += f" {how}"
        if known is None and given.label is None and are_predictions(labels, probs):
            fault = f"column {show(reading.label)} names the most probable class of every row"
            answer = f"if it holds labels, specify --read label={reading.label}"
            raise TableError(f"{source}: {fault}: {answer}")
        # Later rows need not have all classes.
        named = classes if known is None else ()
        remarks += [f"warning: {doubt}" for doubt in doubts_about(labels, probs, 1, named)]
        if missing := int((labels < 0).sum()):
            remarks.append(f"{missing:,} rows without a label")
    scheme = "a scheme" if all(each.startswith(CORRECTED) for each in columns) else None
    origin = replace(records.origin, reading=reading, corrected_by=scheme)
    groups = _groups(frame, reading, cells)
    table = ProbabilityTable(probs, labels, classes, names.ids, origin, groups, source=source)
    if table.repeated:
        effect = "and stay with it when rows are divided; in variances they count once"
        remarks.append(f"{table.repeated:,} rows repeat the text or id of another, {effect}")
    return Source(table, frame, reading, "; ".join(remarks))


def _without_index(frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """Return a frame with the named levels of its index as columns."""
    names = [*frame.index.names]
    named = [name for name in names if name is not None and name not in frame]
    if len(named) < len(names) and len(names) > 1:
        raise TableError(f"{source}: levels of the index have no own names; call reset_index()")
    return frame.reset_index(drop=not named)


def _plain(frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """Return a frame with different texts as names of columns."""
    refuse_too_large(*frame.shape, source=source)
    frame = frame.set_axis(flat_names(frame.columns), axis=1)
    if repeated := [*frame.columns[frame.columns.duplicated()]]:
        raise TableError(f"{source}: column names are not unique: {quoted(repeated)}; rename one")
    return frame


def _in_columns(
    frame: pd.DataFrame, given: Reading, known: Reading | None, source: str
) -> tuple[pd.DataFrame, Reading, str]:
    """Return a frame with a column per class, what its form tells, and the name of the form."""
    told = {} if known is None else known.model_dump(include={"classes", "label", "id", "filter"})
    earlier = {key: own for key, own in told.items() if key not in ("label", "id") or own in frame}
    hint = Reading(**{**earlier, **given.model_dump(exclude_none=True)})
    # The labels of earlier rows do not say what is one here, nor can their order without names.
    hints = {CLASSIFY: hint.model_copy(update={"label": given.label})}
    if known is not None and given.classes is None and not is_usual_order(known):
        hints[SINGLE] = hint.model_copy(update={"classes": None})
    for form in FORMS:
        own = hints.get(form, hint)
        if found := form.sniff(frame, own):
            try:
                rows = form.rows(frame, own, found)
            except TableError as fault:
                raise TableError(f"{source}: {form.name}: {fault}") from None
            kept = given.model_dump(include={"label", "id", "values"}, exclude_none=True)
            about = f"{form.name}: " + (f"{rows.remark}; " if rows.remark else "")
            return rows.frame, given.model_copy(update={**rows.told, **kept}), about
    return frame, given, ""


def parts_of(folder: str | os.PathLike[str]) -> dict[str, Path]:
    """Return the files of a folder by part: ``optimization`` and ``test``, perhaps others."""
    found = {
        part: path
        for stem, part in STEMS.items()
        for suffix in (*SUFFIXES, ".txt")
        if (path := Path(folder) / f"{stem}{suffix}").is_file()
    }
    return found if {"optimization", "test"} <= found.keys() else {}


def source_files(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return the sources at a path: the path itself, or all in a folder, sorted.

    Raises
    ------
    TableError
        If a folder contains no tables.
    """
    root = Path(path)
    if not root.is_dir() or parts_of(root):
        return (root,)
    sources = (p for p in root.iterdir() if suffix_of(p) in SUFFIXES or parts_of(p))
    if found := tuple(sorted(sources)):
        return found
    needed = f"give {', '.join(SUFFIXES)} files, or opt.txt and test.txt"
    raise TableError(f"{escaped(root)}: contains no tables; {needed}")


def open_sources(
    path: str | os.PathLike[str],
    given: Reading | None = None,
    *,
    test: str | os.PathLike[str] | None = None,
) -> dict[str, Source]:
    """Read the optimization rows of a source, and its test rows if they are separate.

    Parameters
    ----------
    path : path-like
        A file, or a folder with two: ``optimization``, ``train`` or ``opt``, and ``test``, as
        written by `dcs generate` or as published.
    given : Reading, optional
        As in :func:`open_source`.
    test : path-like, optional
        The test rows, instead of those of the folder.

    Returns
    -------
    dict of str to Source
        ``"optimization"``, and ``"test"`` unless test rows still have to be held out.

    Raises
    ------
    TableError
        If the path is not a source, a table is invalid, the classes of a pair differ, or test
        rows are among the others: all rows, or their texts, or ids that are no row numbers.
    """
    parts = parts_of(path)
    if test is not None:
        parts |= {"test": parts_of(test).get("test", Path(test))}
    first = open_source(parts.get("optimization", path), given)
    if "test" not in parts:
        return {"optimization": first}
    second = open_source(parts["test"], given, known=first.reading)
    name = escaped(parts["test"])
    second = replace(second, table=second.table.with_classes(first.table.classes, source=name))
    shared = _refuse_shared_rows(first, second, name, by_values=test is not None)
    remark = "; ".join(filter(None, [second.remark, shared]))
    return {"optimization": first, "test": replace(second, remark=remark)}


#: Share of test rows among the fitted ones up to which they are chance, such as "thank you".
_CHANCE: Final = 0.01

_ADVICE: Final = "give other rows, or remove the test rows to have some held out"

#: Mean length, in characters, from which a column of different strings is the text of the rows.
_TEXT_LENGTH: Final = 12

#: Number of rows of a text, such as one per prompt, from which it is no longer that of a row.
_COPIES: Final = 11

#: Number of cells whose letters are counted.
_SOME: Final = 200


def _refuse_shared_rows(fitted: Source, test: Source, name: str, *, by_values: bool) -> str:
    """Refuse test rows that are among the fitted ones; return a remark on a few texts.

    Rows that are known by their probabilities only are found unless these coincide by chance.
    """
    first, second = fitted.table, test.table
    if np.array_equal(first.probs, second.probs) and np.array_equal(first.labels, second.labels):
        raise TableError(f"{name}: these are the rows to be fitted; {_ADVICE}")
    if by_values and second.labelled.any():
        groups = copied_rows(np.concatenate([first.probs, second.probs]))
        copies = int((groups[first.n_rows :] < first.n_rows).sum())
        if copies > _CHANCE * second.n_rows:
            rows = f"{copies} of {second.n_rows} rows have the probabilities of rows to be fitted"
            raise TableError(f"{name}: {rows}; {_ADVICE}")
    if not (_are_numbers(first.ids) or _are_numbers(second.ids)):
        refuse_shared_texts(first.ids, second.ids, name, what="ids", chance=0.0)
    shared = (
        refuse_shared_texts(map(str, fitted.frame[one]), [*map(str, test.frame[other])], name)
        for one in fitted.frame.columns
        if _is_text(fitted.frame, fitted.reading, one)
        for other in test.frame.columns
        if _is_text(test.frame, test.reading, other)
    )
    return next(filter(None, shared), "")


def refuse_shared_texts(
    fitted: Iterable[str],
    test: Sequence[str],
    name: str,
    *,
    advice: str = _ADVICE,
    what: str = "texts",
    chance: float = _CHANCE,
) -> str:
    """Refuse test texts that are among the fitted ones; return a remark on a few.

    Raises
    ------
    TableError
        If more than 1 % of the test texts are.
    """
    plain = fold if what == "texts" else str.strip
    known = {*map(plain, fitted)}
    shared = [text for text in test if plain(text) in known]
    found = f"{name}: {len(shared)} of {len(test)} {what} are among the rows to be fitted"
    if len(shared) > chance * len(test):
        raise TableError(f"{found}, such as {show(shared[0], 40)}; {advice}")
    return found if shared else ""


def texts_by_id(source: Source) -> dict[str, dict[str, str]]:
    """Return the text of every row by its id, for each column that holds texts or other ids."""
    frame, ids = source.frame, source.table.ids
    names = [name for name in frame.columns if _is_text(frame, source.reading, name)]
    others = (name for name in frame.columns if is_id(name) and name != source.reading.id)
    names += [name for name in others if 2 * len({*map(str, frame[name])}) > len(frame)]
    return {name: dict(zip(ids, map(str, frame[name]), strict=True)) for name in names}


def refuse_other_texts(members: Mapping[str, Mapping[str, Mapping[str, str]]]) -> None:
    """Refuse tables of the same rows in which an id belongs to another of their texts.

    Raises
    ------
    TableError
        If more than 1 % of the ids do.
    """
    (first, known), *others = members.items()
    for member, columns in others:
        for name in columns.keys() & known.keys():
            own, texts = known[name], {*known[name].values()}
            odd = [k for k, t in columns[name].items() if t in texts and own.get(k, t) != t]
            if len(odd) > _CHANCE * len(own):
                both = f"{show(columns[name][odd[0]], 40)}, in {first} {show(own[odd[0]], 40)}"
                fault = f"{member}: {show(name)} of row {show(odd[0], 40)} is {both}"
                advice = "rows are matched by id, or by number: give both files the same ids"
                raise TableError(f"{fault}; {advice}")


def _are_numbers(ids: Sequence[str]) -> bool:
    """Whether ids only number the rows."""
    numbers = {int(each) for each in ids} if all(map(str.isdecimal, ids)) else {2}
    return len(numbers) == max(numbers) - min(numbers) + 1 and min(numbers) <= 1


def _is_text(frame: pd.DataFrame, reading: Reading, name: str, copies: int = 2) -> bool:
    """Whether a column holds the texts of rows: strings that are long and mostly different.

    A third of their characters are letters, unlike those of numbers and dates. A text has fewer
    rows than the number of copies on average.
    """
    if name in (*(reading.columns or ()), reading.label, reading.id):
        return False
    cells = [each for each in frame[name].tolist() if isinstance(each, str) and each]
    long = sum(map(len, cells)) > _TEXT_LENGTH * len(cells)
    if copies * len({*cells}) <= len(frame) or not long:
        return False
    some = "".join(cells[:_SOME])
    return 3 * sum(map(str.isalpha, some)) > len(some)


def _groups(frame: pd.DataFrame, reading: Reading, labels: Sequence[Any]) -> NDArray[np.int64]:
    """Return numbers that are equal in rows of the same text or id.

    Ids that are mostly repeated are not those of rows, numbers that count the rows of several
    files say nothing of the others, and common texts, such as "thank you", coincide. Each of many
    that has as many rows, with one label, is that of a text under several prompts, for example.
    """
    found = [np.arange(len(frame))]
    for name in frame.columns:
        if is_id(name) or _is_text(frame, reading, name, _COPIES):
            texts = [as_text(cell) if hashable(cell) else "" for cell in cells_in(frame[name])]
            counts = Counter(filter(None, texts))
            few = counts.total() < 2 * len(counts) and not _are_numbers([*counts])
            even = len(counts) >= TELLING and counts.total() < _COPIES * len(counts)
            even = even and max(counts.values()) < _COPIES and reading.label is not None
            even = even and len({*zip(texts, map(str, labels), strict=True)}) == len({*texts})
            if len(counts) < counts.total() and (few or even):
                common = are_common(np.array([*counts.values()]), len(frame))
                numbers = {text: k for k, text in enumerate(counts) if not common[k]}
                group = [numbers.get(text, k) for k, text in enumerate(texts, len(texts))]
                found.append(np.array(group))
    return joined(*found)
