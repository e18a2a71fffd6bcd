"""What the importers share: options, labels by name, logits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcs.data.checks import Named, checked_classes, checked_ids, checked_shape, softmax
from dcs.data.table import ProbabilityTable, Provenance
from dcs.errors import TableError
from dcs.io import read_text
from dcs.messages import listing
from dcs.validation import Strict

TargetKind: TypeAlias = Literal["auto", "index", "text"]

#: Largest file of text: the numbers read from it take several times its size.
_TEXT_BYTES: Final = 2**32


class ImportOptions(Strict):
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
        Column by name, or by number from 0; ``id`` and ``label``, if there, when not given.
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


def build_table(
    values: ArrayLike,
    labels: Sequence[Any],
    *,
    classes: Sequence[Any] | None,
    ids: Sequence[Any] | None,
    provenance: Provenance,
    options: ImportOptions,
    source: str,
    logits: bool = False,
) -> ProbabilityTable:
    """Make a table from what a file holds: labels may be names or missing, values logits."""
    array = checked_shape(values, source=source)
    n_rows, n_classes = array.shape
    given = options.classes or classes
    names = Named(
        source,
        checked_classes(given, n_classes=n_classes, source=source),
        checked_ids(ids, n_rows=n_rows, source=source),
    )
    return ProbabilityTable.from_arrays(
        _probabilities(array, names) if logits or options.logits else array,
        _label_numbers(labels, names, named=given is not None),
        classes=names.classes,
        ids=names.ids,
        provenance=provenance,
        normalise=options.normalise,
        source=source,
    )


def _label_numbers(labels: Sequence[Any], names: Named, *, named: bool) -> Sequence[Any]:
    """Return labels that are texts as class numbers; leave others as they are.

    If every text is a class name, the texts are names. If not, every text must be an integer
    ``0 .. N-1``. What is empty or -1 is no label.
    """
    labels = ["" if label is None or label != label else label for label in labels]
    if len(labels) != len(names.ids) or not all(isinstance(text, str) for text in labels):
        return [None if label == "" else label for label in labels]
    stripped = [text.strip() for text in labels]
    none = {"": -1, "-1": -1}
    numbers = none | {str(k): k for k in range(len(names.classes))}
    known = numbers
    if named:
        known = none | {name.strip(): k for k, name in enumerate(names.classes)}
    for reading in (known, numbers):
        if all(text in reading for text in stripped):
            return [reading[text] for text in stripped]
    # A row that is neither is the fault, even if rows before it are only one of the two.
    neither = [text not in known and text not in numbers for text in stripped]
    mixed = [text not in numbers for text in stripped]
    names.refuse(
        np.array(neither if any(neither) else mixed),
        labels,
        f"allowed are 0..{len(names.classes) - 1} or "
        + (listing(names.classes) if named else "class names if --classes names the columns"),
        what="label",
    )
    return labels


def _probabilities(logits: NDArray[np.float64], names: Named) -> NDArray[np.float64]:
    """Return probabilities [M, N] of logits or log-probabilities; ``-inf`` becomes 0."""
    wrong = np.isnan(logits) | (logits == np.inf)
    names.refuse(wrong, logits, "a finite number or -inf is needed")
    largest = logits.max(axis=1)
    one = "at least one must be finite"
    names.refuse(np.isneginf(largest), largest, one, what="the largest logit")
    return softmax(logits)


def text_of(path: Path) -> str:
    """Return the text of a file."""
    return read_text(path, error=TableError, limit=_TEXT_BYTES)
