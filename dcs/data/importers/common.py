"""What the importers share: options, lines of text, labels by name, logits."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcs.data.checks import at, check_classes, check_ids, check_shape, more, refuse_cells
from dcs.data.table import ProbabilityTable, Provenance
from dcs.errors import TableError
from dcs.io import text_file
from dcs.messages import escaped, reason, show
from dcs.numerics import softmax

TargetKind: TypeAlias = Literal["auto", "index", "text"]

COMMON_OPTIONS = frozenset({"model", "task"})

PARTS = {"opt": "optimization", "dev": "development", "test": "test"}
"""The part that a file's stem stands for."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What a person can say about a file to be imported.

    Parameters
    ----------
    normalise : bool
        Divide each row by its sum instead of refusing rows that do not sum to 1.
    logits : bool
        The values are logits or log-probabilities: apply a softmax to each row.
    classes : tuple of str, optional
        Class names in the order of the columns; they replace those the file gives.
    id_column, label_column : str, optional
        Column by name, or by number from 0. ``id`` (if there) and ``label`` when not given.
    class_columns : tuple of str, optional
        Columns of the classes by name or number, in class order; ``p:<class>`` when not given.
    filter : str, optional
        Which filter's responses to take where the log holds several.
    targets : {"auto", "index", "text"}
        Whether a target such as ``"1"`` is a choice's number or its text. ``auto`` decides where
        only one reading fits the log.
    model, task : str, optional
        Provenance that the file does not tell.
    """

    normalise: bool = False
    logits: bool = False
    classes: tuple[str, ...] | None = None
    id_column: str | None = None
    label_column: str | None = None
    class_columns: tuple[str, ...] | None = None
    filter: str | None = None
    targets: TargetKind = "auto"
    model: str | None = None
    task: str | None = None

    def given(self) -> list[str]:
        """Return the names of the options that are not at their default."""
        return [
            field.name
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]


def build_table(
    values: Any,
    labels: Any,
    *,
    classes: Sequence[str] | None,
    ids: Sequence[Any] | None,
    provenance: Provenance,
    options: ImportOptions,
    source: str,
    logits: bool = False,
) -> ProbabilityTable:
    """Make a table from what a file holds: labels may be names, values may be logits."""
    array = check_shape(values, source=source)
    n_rows, n_classes = array.shape
    names = check_classes(options.classes or classes, n_classes, source=source)
    row_ids = check_ids(ids, n_rows, source=source)
    if logits or options.logits:
        array = probabilities_of(array, classes=names, ids=row_ids, source=source)
    return ProbabilityTable.from_arrays(
        array,
        label_numbers(
            labels,
            classes=names,
            named=options.classes is not None or classes is not None,
            ids=row_ids,
            source=source,
        ),
        classes=names,
        ids=row_ids,
        provenance=provenance,
        normalise=options.normalise,
        source=source,
    )


def label_numbers(
    labels: Any, *, classes: Sequence[str], named: bool, ids: Sequence[str], source: str
) -> Any:
    """Return labels that are texts as class numbers; leave others as they are.

    If every text is a class name, the texts are names. If none of that holds, every text must be
    an integer ``0 .. N-1``.
    """
    texts = labels.tolist() if isinstance(labels, np.ndarray) else labels
    if not (isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)):
        return labels
    if len(texts) != len(ids):
        raise TableError(f"{source}: {len(texts)} labels for {len(ids)} rows; give one per row")
    stripped = [text.strip() for text in texts]
    numbers = {name.strip(): k for k, name in enumerate(classes)} if named else {}
    if len(numbers) == len(classes) and all(text in numbers for text in stripped):
        return [numbers[text] for text in stripped]
    wrong = [
        row
        for row, text in enumerate(stripped)
        if not _INTEGER.fullmatch(text) or not 0 <= int(text) < len(classes)
    ]
    if wrong:
        # A row that is neither is the fault, even if rows before it are only one of the two.
        row = next((row for row in wrong if stripped[row] not in numbers), wrong[0])
        if numbers:
            allowed = f"one of {show(list(classes))} or 0..{len(classes) - 1}"
        else:
            allowed = f"0..{len(classes) - 1}, or a class name if --classes names the columns"
        raise TableError(
            f"{source}: {at(row, ids)}: label {show(texts[row])} is not {allowed}"
            f"{more(len(wrong))}"
        )
    return [int(text) for text in stripped]


def probabilities_of(
    logits: NDArray[Any], *, classes: Sequence[str], ids: Sequence[str], source: str
) -> NDArray[np.float64]:
    """Return probabilities ``[M, N]`` of logits or log-probabilities; ``-inf`` becomes 0."""
    values = np.array(logits, dtype=np.float64)
    refuse_cells(
        np.isnan(values) | (values == np.inf),
        values,
        classes=classes,
        ids=ids,
        source=source,
        rule="a logit must be a finite number or -inf",
    )
    empty = np.flatnonzero(np.isneginf(values.max(axis=1)))
    if empty.size:
        raise TableError(
            f"{source}: {at(int(empty[0]), ids)}: all {len(classes)} logits are -inf; "
            f"at least one must be finite{more(empty.size)}"
        )
    return softmax(values)


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a UTF-8 file that are not blank, with their numbers from 1."""
    source = escaped(path)
    try:
        with text_file(path, error=TableError).open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except UnicodeDecodeError as error:
        raise TableError(f"{source}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    except OSError as error:
        raise TableError(f"{source}: cannot be read: {reason(error)}") from error
