"""Files as frames with one row per record: text, JSON, Parquet, Arrow, NumPy, archives of them."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dcs.data.checks import MOST_VALUES, affixes, checked_classes, checked_shape, refuse_too_large
from dcs.data.columns import PREFIX, Reading
from dcs.data.labels import in_own_order
from dcs.data.names import is_label
from dcs.data.table import ProbabilityTable, Provenance, open_parquet
from dcs.errors import TableError, escaped, quoted, reason, show
from dcs.io import existing_file, parse_json, parse_json_lines, read_json, read_text, readable

if TYPE_CHECKING:
    import pandas as pd

#: What to do about a log of Inspect, whose own function writes rows.
OF_INSPECT: Final = "give the rows of inspect_ai.analysis.samples_df as .csv or .parquet"

#: Maximum size of a text file: its parsed content takes several times that much memory.
TEXT_BYTES: Final = 2**32

#: Suffixes of the files of a folder that are read, perhaps before that of a compression.
SUFFIXES: Final = (".parquet", ".npz", ".csv", ".tsv", ".jsonl", ".feather")

#: What the names of files say of the rows in them.
STEMS: Final = dict.fromkeys(("optimization", "opt", "train"), "optimization") | {"test": "test"}
_DECIMAL: Final = re.compile(r"[+-]?\d+(?:[.,]\d*)?(?:e-?\d+)?%?", re.I)
_LOG: Final = re.compile(r"samples_(?P<task>.+)_(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9.:-]+)")


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a file.

    Attributes
    ----------
    frame : DataFrame
        A row per record; cells can be lists or objects.
    told : mapping of str to object
        Fields of :class:`dcs.data.columns.Reading` that the file and the user determine.
    origin : Provenance
        What the file and its name say of its origin.
    documented : bool
        Whether numbers as labels are documented to be positions from 0.
    table : ProbabilityTable, optional
        The table, if the file was written by :meth:`ProbabilityTable.write`.
    """

    frame: pd.DataFrame
    told: Mapping[str, Any] = field(default_factory=dict)
    origin: Provenance = Provenance()
    documented: bool = False
    table: ProbabilityTable | None = None


def suffix_of(path: Path) -> str:
    """Return the suffix of a file in lower case, or of what is compressed in it."""
    suffixes = [each.lower() for each in path.suffixes]
    if suffixes and suffixes[-1] in (".gz", ".zip"):
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def read_records(path: Path, given: Reading, *, text: str | None = None) -> Records:
    """Return the records of a file; `text` is its content if it comes from a pipe.

    Raises
    ------
    TableError
        If it cannot be read.
    """
    source, suffix = escaped(path), path.suffix.lower()
    if text is None:
        existing_file(path, error=TableError)
        if suffix in (".parquet", ".feather"):
            return _from_arrow(path, source)
        if suffix in (".npz", ".npy"):
            return _from_numpy(path, given, source)
        if suffix == ".eval":
            raise TableError(f"{source}: is a log of Inspect; {OF_INSPECT}")
        if suffix in (".gz", ".zip"):
            text = _unpacked(path, source)
        else:
            text = read_text(path, error=TableError, limit=TEXT_BYTES)
    suffix, head = suffix_of(path), text.split("\n", 1)[0]
    if suffix == ".txt" and not any(mark in head for mark in "\t,;|"):
        return _from_vectors(path, text)
    objects = suffix not in (".csv", ".tsv") and re.match(r"\s*[\[{]", text)
    if objects or suffix in (".jsonl", ".json", ".ndjson"):
        return Records(_json_frame(text, source), {}, _log_origin(path))
    return Records(*_separated(text, source, suffix, given), Provenance(source=path.name))


def _unpacked(path: Path, source: str) -> str:
    """Return the text of a compressed file, or of the only file of an archive."""
    with readable(source, "unpack it, and give its file", error=TableError):
        if path.suffix.lower() == ".gz":
            with gzip.open(path) as packed:
                content = packed.read(TEXT_BYTES + 1)
        else:
            with zipfile.ZipFile(path) as archive:
                names = [each.filename for each in archive.infolist() if not each.is_dir()]
                if len(names) != 1:
                    raise TableError(f"{source}: contains {quoted(names, 4)}; unpack one of them")
                with archive.open(names[0]) as member:
                    content = member.read(TEXT_BYTES + 1)
        if len(content) > TEXT_BYTES:
            raise TableError(f"{source}: is larger than {TEXT_BYTES >> 20} MiB when unpacked")
        return content.decode("utf-8-sig")


def _from_arrow(path: Path, source: str) -> Records:
    """Read a Parquet or a Feather file."""
    from pyarrow import feather

    if path.suffix.lower() == ".parquet":
        with open_parquet(path) as file:
            refuse_too_large(file.metadata.num_rows, file.metadata.num_columns, source=source)
            rows = file.read()
    else:
        with readable(source, "give another file, or write it again", error=TableError):
            rows = feather.read_table(path)
    own = ProbabilityTable.read(path) if b"dcs" in (rows.schema.metadata or {}) else None
    named = _with_names(rows, source)
    return Records(_frame_of(named, source), {}, Provenance(source=path.name), table=own)


def _with_names(table: Any, source: str) -> Any:
    """Return a `pyarrow.Table` with the names of labels that Hugging Face datasets keep aside."""
    import pyarrow as pa

    features: Any = {}
    with suppress(TableError, LookupError, TypeError):
        text = (table.schema.metadata or {})[b"huggingface"].decode("utf-8", "replace")
        features = parse_json(text, source=source, error=TableError)["info"]["features"]
    for name, feature in features.items() if isinstance(features, dict) else ():
        names = feature.get("names") if isinstance(feature, dict) else None
        if isinstance(names, list) and name in table.column_names:
            if affixes(table.column_names, [*map(str, range(len(names)))]):
                continue  # The classes are numbers in these rows.
            with suppress(pa.ArrowInvalid, LookupError, TypeError):
                known: dict[Any, Any] = {None: None, -1: None, **dict(enumerate(names))}
                cells = [known[k] for k in table[name].to_pylist()]
                place = table.column_names.index(name)
                table = table.set_column(place, name, pa.array(cells, pa.string()))
    return table


def _frame_of(table: Any, source: str) -> pd.DataFrame:
    """Return the frame of a `pyarrow.Table`: numbers, text, and nested values as plain Python.

    Raises
    ------
    TableError
        If a column cannot be converted; names it and its type.
    """
    import pandas as pd

    with readable(source, "write it again, with names in UTF-8", error=TableError):
        names: list[str] = table.column_names
    columns: list[pd.Series[Any]] = []
    for name, column in zip(names, table.columns, strict=True):
        about = f"{source}: column {show(name)} of type {column.type}"
        with readable(about, "drop it, or cast it to text or numbers", error=TableError):
            column.validate(full=True)  # text is UTF-8
            columns.append(_series(column))
    frame = pd.DataFrame(dict(enumerate(columns)), index=range(table.num_rows))
    return frame.set_axis(names, axis=1)


def _series(column: Any) -> pd.Series[Any]:
    """Return a column of Arrow as one of pandas; others than numbers and text as plain Python."""
    import pandas as pd
    import pyarrow as pa

    types, kind = pa.types, column.type
    numbers = types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind)
    if numbers or types.is_boolean(kind) or types.is_string(kind) or types.is_large_string(kind):
        return pd.Series(pd.arrays.ArrowExtensionArray(column))
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_dictionary(kind):
        # Text that is written as bytes, or once for each value; not pictures.
        with suppress(pa.ArrowInvalid):
            return _series(column.cast(pa.large_string()))
    return pd.Series(column.to_pylist(maps_as_pydicts="strict"), dtype=object)


def _separated(
    text: str, source: str, suffix: str, given: Reading
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Parse separated text under a header line, so that all rows have as many fields; all is text.

    Raises
    ------
    TableError
        If no separator and quoting give every row as many fields, or two ways of quoting give
        different rows.
    """
    import pandas as pd

    text = text.lstrip("\r\n")
    head = text.split("\n", 1)[0]
    marks = [given.separator] if given.separator else ["\t"] if suffix == ".tsv" else [*",;\t|"]
    quotings = [given.quoting] if given.quoting else ["double", "none"][: 1 + ('"' in text)]
    refuse_too_large(1, max(map(head.count, marks)) + 1, source=source)
    found: dict[str, tuple[str, list[list[str]]]] = {}
    fault = ""
    for quoting in quotings:
        for mark in (mark for mark in marks if mark in head):
            try:
                rows = split_rows(text, mark, quoting)
            except csv.Error as error:
                fault = fault or reason(error)
                continue
            if len(rows[0]) > (len(found[quoting][1][0]) if quoting in found else 1):
                found[quoting] = (mark, rows)
    if not found:
        fault = f"cannot be read as columns: {fault or 'no separator was found'}"
        answer = "specify --read separator=MARK or --read quoting=none (quotes are text)"
        raise TableError(f"{source}: {fault}; correct the row, or {answer}")
    if len(found) > 1 and len(found["double"][1]) != len(found["none"][1]):
        question = "there are other rows if quotes are text than if they enclose cells"
        raise TableError(f"{source}: {question}; specify --read quoting=double or quoting=none")
    quoting, (mark, rows) = next(iter(found.items()))
    names = [name.strip() for name in rows[0]]
    if _is_row(names, rows):
        raise TableError(f"{source}: the first line holds numbers; write column names there")
    frame = pd.DataFrame(rows[1:], columns=range(len(names)), dtype=str).set_axis(names, axis=1)
    return frame, {"separator": mark} | ({"quoting": "none"} if quoting == "none" else {})


def _is_row(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether names of columns are cells: numbers, perhaps beside a text of its column."""
    numbers = [name for name in names if _DECIMAL.fullmatch(name)]
    others = [k for k, name in enumerate(names) if name and name not in numbers]
    if len(numbers) < 2:
        return False
    precise = sum(len(name.partition(".")[2]) > 3 for name in numbers) > 1
    return not others or precise or any(row[k] == names[k] for row in rows[1:] for k in others)


def split_rows(text: str, mark: str, quoting: str) -> list[list[str]]:
    """Return the fields of all rows; raise csv.Error unless all have as many."""
    plain: dict[str, Any] = {"quoting": csv.QUOTE_NONE} if quoting == "none" else {}
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True, **plain)
    rows: list[list[str]] = []
    limit = csv.field_size_limit(2**31 - 1)
    try:
        for row in filter(None, reader):
            rows.append(row)
            if len(row) != len(rows[0]):
                raise csv.Error(f"{len(row)} fields, the first line has {len(rows[0])}")
    except csv.Error as error:
        raise csv.Error(f"line {reader.line_num}: {error}") from None
    finally:
        csv.field_size_limit(limit)
    return rows


def _json_frame(text: str, source: str) -> pd.DataFrame:
    """Parse JSON lines, a list of objects, or an object with a list of them or of columns."""
    import pandas as pd

    first, _, others = text.strip().partition("\n")
    # The first line of a list or an object on several lines does not end it.
    if others and first.rstrip().endswith(("}", "]")):
        rows = parse_json_lines(text, source=source, error=TableError)
    else:
        content = parse_json(text, source=source, error=TableError, finite=False)
        columns = [*content.values()] if isinstance(content, dict) else []
        if columns and {"columns", "data"} <= content.keys():
            raise TableError(f"{source}: rows are lists; write objects, by orient='records'")
        if len(columns) > 1 and all(map(partial(_alike, columns[0]), columns)):
            # The keys of objects are ids, unless they number the rows.
            frame = pd.DataFrame(content, dtype=object)
            numbers = [*map(str, range(len(frame)))]
            return frame if [*map(str, frame.index)] == numbers else frame.rename_axis("id")
        rows = content if isinstance(content, list) else [content]
    rows = [each for row in rows for each in _inside(row)]
    if rows and all(isinstance(row, list) and row and isinstance(row[0], dict) for row in rows):
        rows = [{"scores": row} for row in rows]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            expected = "expected an object with a key per column"
            raise TableError(f"{source}: line {number}: {expected}, got {show(row)}")
    return pd.DataFrame(rows, dtype=object)


def _alike(first: Any, column: Any) -> bool:
    """Whether two columns are lists of one length, or objects with the same keys."""
    if isinstance(first, dict) and isinstance(column, dict):
        return bool(first) and first.keys() == column.keys()
    lists = isinstance(first, list) and isinstance(column, list)
    return lists and len(first) == len(column) > 0


def _inside(row: Any) -> list[Any]:
    """Return the records in a response or a log, or the record itself."""
    for key in ("data", "samples") if isinstance(row, dict) else ():
        inner = row.get(key)
        alone = isinstance(inner, list) and (len(inner) == 1 or not any(map(is_label, row)))
        if alone and inner and all(isinstance(each, dict) for each in inner):
            # A response to one text may have been given its label.
            outer = {k: v for k, v in row.items() if k != key} if len(inner) == 1 else {}
            return [{**outer, **each} for each in inner]
    return [row]


_PROBS: Final = "probs pred_probs probabilities proba y_pred_proba y_proba y_prob y_score"

_OTHERS: Final = {"logits": "logits", "logprobs": "log-probabilities", "votes": "votes"}

#: Names of the arrays of an archive, by what they hold.
_VALUES: Final[dict[str, str]] = dict.fromkeys(_PROBS.split(), "probabilities") | _OTHERS
_TARGETS: Final = ("labels", "label", "y", "y_true", "target", "targets", "gold")


def _from_numpy(path: Path, given: Reading, source: str) -> Records:
    """Read an archive of arrays ``probs`` (or ``logits`` ...), ``labels``, ``classes``, ``ids``.

    Pickled objects are never loaded.
    """
    import pandas as pd

    with readable(source, "save probs and labels with numpy.savez", error=TableError):
        arrays = _arrays(path, source)
        found = [key for key in _VALUES if key in arrays]
        labels = [key for key in _TARGETS if key in arrays]
        if len(found) != 1 or len(labels) > 1:
            others = "optionally 'labels' (or 'y'), 'classes' and 'ids'"
            needed = f"one of {quoted([*_VALUES], 12)}, and {others}"
            raise TableError(f"{source}: has {quoted([*arrays])}; must have {needed}")
        values = checked_shape(arrays[found[0]], source=f"{source}: array {found[0]!r}")
        own = arrays["classes"].tolist() if "classes" in arrays else ()
        names = in_own_order(own, given.classes) or None
        classes = checked_classes(names, n_classes=values.shape[1], source=source)
        frame = pd.DataFrame(values, columns=[PREFIX + each for each in classes])
        for key, name in [*((key, "label") for key in labels), ("ids", "id")]:
            if key in arrays:
                frame.insert(0, name, arrays[key].ravel())
    kind = _VALUES[found[0]]
    # Labels are positions in the order of the file, whatever that of earlier rows is.
    told: dict[str, Any] = {} if names is None else {"classes": classes}
    if kind != "probabilities" and given.values is None:
        told["values"] = kind
    return Records(frame, told, Provenance(source=path.name), True)


def _arrays(path: Path, source: str) -> dict[str, Any]:
    """Return the arrays of a file that are read."""
    if path.suffix.lower() == ".npy":
        whole = np.load(path, allow_pickle=False, mmap_mode="r")
        refuse_too_large(whole.size, 1, source=source)
        return {"probs": np.array(whole)}
    known = {*_VALUES, *_TARGETS, "classes", "ids"}
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        # A small compressed file can hold very large arrays.
        members = [archive.zip.getinfo(f"{key}.npy") for key in known.intersection(archive.files)]
        if sum(member.file_size for member in members) > 8 * MOST_VALUES:
            raise TableError(f"{source}: the arrays are too large for one table")
        return {key: np.atleast_1d(archive[key]) for key in archive.files if key in known}


def _from_vectors(path: Path, text: str) -> Records:
    """Parse published vectors: lines ``id label prediction p_0 ... p_{N-1}``."""
    import pandas as pd

    spaced = "\n".join(" ".join(line.split()) for line in text.split("\n"))
    advice = "each line must have id, label, prediction and at least 2 probabilities"
    with readable(escaped(path), advice, error=TableError):
        rows = split_rows(spaced, " ", "none")
        size = max([2, *(len(row) - 3 for row in rows)])
        names = ["id", "label", "prediction", *(f"{PREFIX}class_{k}" for k in range(size))]
        frame = pd.DataFrame(rows, columns=names, dtype=object)
    return Records(frame, {}, Provenance(split=STEMS.get(path.stem), source=path.name), True)


def _log_origin(path: Path) -> Provenance:
    """Return the origin that the name of a sample log and the results file of its run tell."""
    origin = Provenance(source=path.name)
    if match := _LOG.fullmatch(path.stem):
        task, name = match["task"], f"results_{match['date']}.json"
        origin = replace(origin, task=task, scorer="lm-evaluation-harness")
        # The results file is optional, and can be of another program.
        with suppress(TableError, LookupError, TypeError, ValueError):
            results = read_json(path.with_name(name), error=TableError)
            model, shots = str(results["model_name"]), int(results["n-shot"][task])
            origin = replace(origin, model=model, shots=shots)
    return origin
