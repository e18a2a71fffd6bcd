"""Files as frames with one row per record: text, JSON, Parquet, Arrow, NumPy, archives of them."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dcs.data.arrow import frame_of, open_feather
from dcs.data.checks import MOST_VALUES, checked_classes, refuse_too_large
from dcs.data.columns import PREFIX, Reading
from dcs.data.table import Provenance, open_parquet
from dcs.errors import TableError, escaped, quoted, reason, show
from dcs.io import existing_file, parse_json, read_json, read_text

if TYPE_CHECKING:
    import pandas as pd

#: Maximum size of a text file: its parsed content takes several times that much memory.
TEXT_BYTES: Final = 2**32

_PACKED: Final[Mapping[str, Callable[..., Any]]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
SUFFIXES: Final = (".parquet", ".npz", ".csv", ".tsv", ".jsonl", ".feather")
"""Suffixes of the files of a folder that are read, perhaps before that of a compression."""

READABLE: Final = (
    "give a .parquet, .csv, .tsv, .jsonl, .feather or .npz file, or a folder with optimization.* "
    "and test.* or opt.txt and test.txt"
)

ORIGIN: Final = re.compile(
    r"(?P<task>[^_]+)_(?P<model>.+)_shot(?P<shots>[0-9]{1,6}|N)_seed(?P<seed>[0-9]{1,18})"
)
"""Names of files and folders that specify an origin."""

PARTS: Final = {
    "optimization": "optimization",
    "opt": "optimization",
    "train": "optimization",
    "dev": "development",
    "test": "test",
}
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
        Fields of :class:`dcs.data.columns.Reading` that the file determines.
    origin : Provenance
        What the file and its name say of its origin.
    documented : bool
        Whether numbers as labels are documented to be positions from 0.
    """

    frame: pd.DataFrame
    told: Mapping[str, Any] = field(default_factory=dict)
    origin: Provenance = Provenance()
    documented: bool = False


def suffix_of(path: Path) -> str:
    """Return the suffix of a file in lower case, or of what is compressed in it."""
    suffixes = [each.lower() for each in path.suffixes]
    if suffixes and suffixes[-1] in (*_PACKED, ".zip"):
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def read_records(path: Path, given: Reading, *, text: str | None = None) -> Records:
    """Return the records of a file; `text` is its content if it comes from a pipe.

    Raises
    ------
    TableError
        If it cannot be read.
    """
    name, suffix = escaped(path), path.suffix.lower()
    if text is None and suffix not in (*_BINARY, *_PACKED, ".zip", ".eval", *_TEXT):
        fault = "" if path.is_file() else "file or folder does not exist"
        if fault or path.is_dir():
            raise TableError(f"{name}: {'is a folder' if path.is_dir() else fault}; {READABLE}")
    if suffix in (".zip", ".eval"):
        return _from_zip(path, given)
    if suffix in _BINARY:
        return _BINARY[suffix](path, given)
    if suffix in _PACKED:
        with _unpacking(path), _PACKED[suffix](path, "rb") as packed:
            text = _unpacked(packed, name)
        suffix = suffix_of(path)
    if text is None:
        text = read_text(path, error=TableError, limit=TEXT_BYTES)
    head = text.split("\n", 1)[0]
    if suffix == ".txt" and not any(mark in head for mark in "\t,;|"):
        return _from_vectors(path, text)
    return _from_text(text, suffix, given, name, _log_origin(path))


@contextmanager
def _unpacking(path: Path) -> Iterator[None]:
    """Name the file in errors of what unpacks it."""
    existing_file(path, error=TableError)
    try:
        yield
    except (
        OSError,
        EOFError,
        RuntimeError,
        zlib.error,
        lzma.LZMAError,
        zipfile.BadZipFile,
    ) as error:
        raise TableError(
            f"{escaped(path)}: cannot be unpacked: {reason(error)}; unpack it, and give its file"
        ) from None


def _unpacked(packed: Any, source: str) -> str:
    """Return the text of a compressed file."""
    content: bytes = packed.read(TEXT_BYTES + 1)
    if len(content) > TEXT_BYTES:
        raise TableError(f"{source}: is larger than {TEXT_BYTES >> 20} MiB when unpacked")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TableError(f"{source}: contains no text; unpack it, and give its file") from None


def _from_zip(path: Path, given: Reading) -> Records:
    """Read the only file of an archive, or the samples of an Inspect log."""
    source = escaped(path)
    with _unpacking(path), zipfile.ZipFile(path) as archive:
        names = [each for each in archive.namelist() if not each.endswith("/")]
        if "header.json" in names:
            return _from_inspect(archive, names, source, path)
        if len(names) != 1:
            raise TableError(
                f"{source}: contains {len(names)} files ({quoted(names, 4)}); unpack it, and give "
                "one of them"
            )
        with archive.open(names[0]) as packed:
            text = _unpacked(packed, source)
    suffix = Path(names[0]).suffix.lower()
    return _from_text(text, suffix, given, source, Provenance(source=path.name))


def _from_inspect(archive: zipfile.ZipFile, names: list[str], source: str, path: Path) -> Records:
    """Read the samples and the header of an Inspect log."""
    files = [each for each in names if each.startswith("samples/") and each.endswith(".json")]
    if sum(archive.getinfo(each).file_size for each in files) > TEXT_BYTES:
        raise TableError(f"{source}: samples are larger than {TEXT_BYTES >> 20} MiB")
    rows = [
        parse_json(
            archive.read(each).decode(), source=f"{source}: {each}", error=TableError, finite=False
        )
        for each in files
    ]
    header = parse_json(archive.read("header.json").decode(), source=source, error=TableError)
    about = header.get("eval", {}) if isinstance(header, dict) else {}
    origin = Provenance(
        model=about.get("model"), task=about.get("task"), scorer="inspect", source=path.name
    )
    return Records(_records_frame(rows, source), {}, origin)


def _from_parquet(path: Path, given: Reading) -> Records:
    name = escaped(path)
    with open_parquet(path) as file:
        refuse_too_large(file.metadata.num_rows, file.metadata.num_columns, source=name)
        frame = frame_of(file.read(), name)
    return Records(frame, {}, Provenance(source=path.name))


def _from_feather(path: Path, given: Reading) -> Records:
    name = escaped(path)
    table = open_feather(path)
    refuse_too_large(table.num_rows, table.num_columns, source=name)
    return Records(frame_of(table, name), {}, Provenance(source=path.name))


def _from_text(text: str, suffix: str, given: Reading, source: str, origin: Provenance) -> Records:
    if suffix in (".jsonl", ".json", ".ndjson") or (
        suffix not in (".csv", ".tsv") and text.lstrip()[:1] in ("{", "[")
    ):
        return Records(_json_frame(text, source), {}, origin)
    frame, told = _separated(text, source, suffix, given)
    return Records(frame, told, origin)


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
    faults: list[str] = []
    for quoting in quotings:
        for mark in (mark for mark in marks if mark in head):
            rows, fault = _fields(text, mark, quoting)
            faults += [fault] if fault else []
            most = len(found[quoting][1][0]) if quoting in found else 1
            if not fault and len(rows[0]) > most:
                found[quoting] = (mark, rows)
    if not found:
        fault = next(iter(faults), "no separator of columns was found")
        raise TableError(
            f"{source}: cannot be read as columns: {fault}; correct the row, or specify the "
            "dialect with --read separator=MARK or --read quoting=none (quotes are text)"
        )
    if len(found) > 1 and len(found["double"][1]) != len(found["none"][1]):
        raise TableError(
            f"{source}: {len(found['double'][1]) - 1:,} rows if cells can be quoted, "
            f"{len(found['none'][1]) - 1:,} if quotes are text; specify --read quoting=double or "
            "quoting=none"
        )
    quoting, (mark, rows) = next(iter(found.items()))
    names = [name.strip() for name in rows[0]]
    if _is_row(names, rows):
        raise TableError(
            f"{source}: the first line holds numbers; a line of column names is needed"
        )
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


def _fields(text: str, mark: str, quoting: str) -> tuple[list[list[str]], str]:
    """Return the fields of all rows, and what is wrong with them."""
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=mark,
        quoting=csv.QUOTE_NONE if quoting == "none" else csv.QUOTE_MINIMAL,
        strict=True,
    )
    rows: list[list[str]] = []
    limit = csv.field_size_limit(2**31 - 1)
    try:
        for row in reader:
            if not row:
                continue
            if rows and len(row) != len(rows[0]):
                return [], (
                    f"line {reader.line_num} has {len(row)} fields, the header has {len(rows[0])}"
                )
            rows.append(row)
    except csv.Error as error:
        return [], f"line {reader.line_num}: {reason(error)}"
    finally:
        csv.field_size_limit(limit)
    return rows, "" if rows else "no rows"


def _json_frame(text: str, source: str) -> pd.DataFrame:
    """Parse JSON lines, a list of objects, or an object with a list of them or of columns."""
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and _is_json(lines[0][1]):
        rows = [
            parse_json(line, source=f"{source}: line {n}", error=TableError, finite=False)
            for n, line in lines
        ]
    else:
        content = parse_json(text, source=source, error=TableError, finite=False)
        rows = content if isinstance(content, list) else _rows_of_columns(content) or [content]
    return _records_frame([each for row in rows for each in _inside(row)], source)


def _is_json(line: str) -> bool:
    try:
        parse_json(line, source="", error=TableError, finite=False)
    except TableError:
        return False
    return True


def _rows_of_columns(content: Any) -> list[Any] | None:
    """Return the rows of an object with a list per column."""
    lists = [*content.values()] if isinstance(content, dict) else []
    if lists and {"columns", "data"} <= content.keys() and all(isinstance(v, list) for v in lists):
        rows = [row for row in content["data"] if isinstance(row, list)]
        return [dict(zip(map(str, content["columns"]), row, strict=False)) for row in rows]
    if lists and all(isinstance(each, dict) and each.keys() == lists[0].keys() for each in lists):
        lists = [[*each.values()] for each in lists]
    if len(lists) < 2 or not all(isinstance(each, list) and each for each in lists):
        return None
    if len({*map(len, lists)}) > 1:
        return None
    return [dict(zip(content, row, strict=True)) for row in zip(*lists, strict=True)]


def _inside(row: Any) -> list[Any]:
    """Return the records in a response or a log, or the record itself."""
    for key in ("data", "samples") if isinstance(row, dict) else ():
        inner = row.get(key)
        if isinstance(inner, list) and inner and all(isinstance(each, dict) for each in inner):
            # A response to one text may have been given its label.
            outer = {k: v for k, v in row.items() if k != key} if len(inner) == 1 else {}
            return [{**outer, **each} for each in inner]
    return [row]


def _records_frame(rows: list[Any], source: str) -> pd.DataFrame:
    import pandas as pd

    if rows and all(isinstance(row, list) and row and isinstance(row[0], dict) for row in rows):
        rows = [{"scores": row} for row in rows]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise TableError(
                f"{source}: line {number}: expected an object with a key per column, got "
                f"{show(row)}"
            )
    refuse_too_large(len(rows), max(map(len, rows), default=0), source=source)
    return pd.DataFrame(rows, dtype=object)


_PROBS: Final = "probs pred_probs probabilities proba y_pred_proba y_proba y_prob y_score"

#: Names of the arrays of an archive, by what they hold.
_VALUES: Final[dict[str, str]] = {
    **dict.fromkeys(_PROBS.split(), "probabilities"),
    "logits": "logits",
    "logprobs": "log-probabilities",
    "votes": "votes",
}
_TARGETS: Final = ("labels", "label", "y", "y_true", "target", "targets", "gold")
_KEYS: Final = frozenset({*_VALUES, *_TARGETS, "classes", "ids"})


def _from_npz(path: Path, given: Reading) -> Records:
    """Read an archive of arrays ``probs`` (or ``logits`` ...), ``labels``, ``classes``, ``ids``.

    An ``index.json`` in the same folder, a list of entries with a key ``file``, specifies class
    names, model and task of the files it lists. Pickled objects are never loaded.
    """
    source, file = escaped(path), existing_file(path, error=TableError)
    try:
        if path.suffix.lower() == ".npy":
            whole = np.load(file, allow_pickle=False, mmap_mode="r")
            refuse_too_large(whole.size, 1, source=source)
            arrays, names = {"probs": np.array(whole)}, ["probs"]
        else:
            arrays, names = _arrays(file, source)
    except TableError:
        raise
    except Exception as error:
        # Corrupt archives fail in zipfile, zlib, struct, the header parser or the allocator.
        raise TableError(
            f"{source}: not an npz archive of plain arrays, or corrupt: {reason(error)}; save "
            "probs and labels with numpy.savez"
        ) from error
    found = [key for key in _VALUES if key in arrays]
    labels = [key for key in _TARGETS if key in arrays]
    if len(found) != 1 or len(labels) > 1:
        raise TableError(
            f"{source}: arrays are {quoted(names)}; must be one of {quoted([*_VALUES], 12)}, and "
            "optionally 'labels' (or 'y'), 'classes' and 'ids'"
        )
    entry = _index_entry(path)
    own = arrays["classes"].tolist() if "classes" in arrays else entry.get("classes")
    frame = _array_frame(arrays[found[0]], found[0], given.classes or own, source)
    for key, name in ((labels[0] if labels else "", "label"), ("ids", "id")):
        if key in arrays:
            if arrays[key].size == len(frame):
                arrays[key] = arrays[key].ravel()  # a column
            if arrays[key].shape != (len(frame),):
                raise TableError(
                    f"{source}: {key} have shape {arrays[key].shape}; must be one for each of "
                    f"{len(frame)} rows"
                )
            frame.insert(0, name, arrays[key])
    kind = _VALUES[found[0]]
    origin = Provenance(model=entry.get("model"), task=entry.get("task"), source=path.name)
    return Records(frame, {} if kind == "probabilities" else {"values": kind}, origin, True)


def _arrays(file: Path, source: str) -> tuple[dict[str, Any], list[str]]:
    """Return the arrays of an archive that are read, and the names of all."""
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        # A small compressed file can hold very large arrays.
        members = [archive.zip.getinfo(f"{key}.npy") for key in _KEYS.intersection(archive.files)]
        if sum(member.file_size for member in members) > 8 * MOST_VALUES:
            raise TableError(f"{source}: the arrays are too large for one table")
        found = {key: np.atleast_1d(archive[key]) for key in archive.files if key in _KEYS}
        return found, [*archive.files]


def _array_frame(values: Any, name: str, classes: Any, source: str) -> pd.DataFrame:
    """Return a frame of an array [rows, classes]."""
    import pandas as pd

    if values.ndim != 2 or values.dtype.kind not in "fiu" or values.shape[1] < 2:
        raise TableError(
            f"{source}: array {name!r} has shape {values.shape} and type {values.dtype}; must "
            "be numbers [rows, classes] with at least two classes; save it and the labels with "
            "numpy.savez(FILE, probs=..., labels=...)"
        )
    refuse_too_large(*values.shape, source=source)
    found = checked_classes(classes, n_classes=values.shape[1], source=source)
    return pd.DataFrame(values, columns=[PREFIX + each for each in found])


def _index_entry(path: Path) -> dict[str, Any]:
    """Return the entry of the file in ``index.json``, if it exists and lists the file."""
    try:
        entries = read_json(path.parent / "index.json", error=TableError)
        entry = next(entry for entry in entries if entry["file"] == path.name)
    except (TableError, LookupError, TypeError, StopIteration):
        # Many programs write an index.json; ignore one that is not a list of files.
        return {}
    return {key: entry[key] for key in ("model", "task", "classes") if entry.get(key)}


def _from_vectors(path: Path, text: str) -> Records:
    """Parse published vectors: lines ``id label prediction p_0 ... p_{N-1}``."""
    import pandas as pd

    lines = [(n, line.split()) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    size = len(lines[0][1]) if lines else 0
    odd = [
        f"line {n} has {len(row)} columns, others have {size}"
        for n, row in lines
        if len(row) != size
    ]
    if odd or size < 5:
        fault = next(
            iter(odd),
            f"{size} columns; must be id, label, prediction and at least 2 probabilities",
        )
        raise TableError(f"{escaped(path)}: cannot be read as vectors: {fault}")
    names = ["id", "label", "prediction", *(f"{PREFIX}class_{k}" for k in range(size - 3))]
    frame = pd.DataFrame([row for _, row in lines], columns=names, dtype=object)
    return Records(frame, {}, _folder_origin(path), True)


def _folder_origin(path: Path) -> Provenance:
    """Return what the names of a published file and its folder specify."""
    split = PARTS.get(path.stem)
    # Make the path absolute, so that a relative path inside the folder gives the same provenance.
    folder = path.absolute().parent.name
    match = ORIGIN.fullmatch(folder)
    if match is None:
        return Provenance(split=split, source=path.name)
    shots = match["shots"]
    return Provenance(
        model=match["model"],
        task=match["task"],
        shots=shots if shots == "N" else int(shots),
        demonstration_seed=int(match["seed"]),
        split=split,
        source=f"{folder}/{path.name}",
    )


def log_name(path: Path) -> re.Match[str] | None:
    """Return task and date if a file is named as sample logs of lm-evaluation-harness are."""
    return _LOG.fullmatch(path.stem) if path.suffix == ".jsonl" else None


def _log_origin(path: Path) -> Provenance:
    """Return the origin that the name of a sample log and the results file of its run tell."""
    match = log_name(path)
    if match is None:
        return Provenance(source=path.name)
    model = shots = None
    try:
        results = read_json(path.with_name(f"results_{match['date']}.json"), error=TableError)
        model, shots = results.get("model_name"), results.get("n-shot", {}).get(match["task"])
    except (TableError, AttributeError):
        pass  # The results file is optional, and can be of another program.
    return Provenance(
        model=model if isinstance(model, str) else None,
        task=match["task"],
        shots=shots if isinstance(shots, int) else None,
        scorer="lm-evaluation-harness",
        source=path.name,
    )


_BINARY: Final[Mapping[str, Callable[[Path, Reading], Records]]] = {
    ".parquet": _from_parquet,
    ".feather": _from_feather,
    ".arrow": _from_feather,
    ".npz": _from_npz,
    ".npy": _from_npz,
}
_TEXT: Final = (".csv", ".tsv", ".txt", ".jsonl", ".json", ".ndjson")
