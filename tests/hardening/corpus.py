"""One good file of every kind that is read, and ways to spoil it."""

from __future__ import annotations

import copy
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from hypothesis import settings
from hypothesis import strategies as st

from dcs.data.importers import import_file
from dcs.data.table import ProbabilityTable
from dcs.errors import DCSError, SchemeError, TableError, TrackingError
from dcs.prompting import get_task
from dcs.schemes.corrections import Membership, Weight
from dcs.schemes.scheme import CorrectionScheme
from tests.workflows.conftest import biased_table
from tracking import Archive
from tracking.archive import Sweep
from tracking.records import CellRecord, TrialRecord
from workflows.config.sweep import load_config
from workflows.tables import ProbabilityStore

EXAMPLES = int(os.environ.get("DCS_HARDENING_EXAMPLES", "8"))
"""Examples per property; 8 take a second or two, 2000 minutes."""

thorough = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
brief = settings(thorough, max_examples=max(3, EXAMPLES // 4))


def table(n_rows: int = 40, classes: tuple[str, ...] = ("Anger", "Fear", "Joy")) -> Any:
    """Return a small table in which the first class is predicted too often."""
    return biased_table(n_rows, seed=3, classes=classes)


def scheme(classes: tuple[str, ...] = ("Anger", "Fear", "Joy")) -> CorrectionScheme:
    """Return a scheme with both sorts of corrections."""
    kinds = (Weight(0.5), Membership(0.0, 0.5, 1.0), Membership(0.0, 1.0, 1.0))
    return CorrectionScheme(classes, tuple(kinds[k % 3] for k in range(len(classes))), {"n": 1})


def record(key: str = "abc123") -> CellRecord:
    """Return a finished cell."""
    names = ("test/accuracy", "test/cobias")
    return CellRecord(
        key=key,
        sweep="s",
        identity={"model": "m", "task": "t", "shots": 1, "seed": 0, "method": "dcs"},
        params={"beta": 0.5},
        metrics={f"{name}{end}": 0.5 for name in names for end in ("", "_low", "_high", "_p")}
        | {f"uncorrected/{name}": 0.4 for name in names},
        scheme=scheme().to_dict(),
        class_accuracies={"class": ["a", "b"], "before": [0.1, 0.9], "after": [0.5, None]},
        trials=(
            TrialRecord(
                number=0, params={"x": 1}, metrics={}, state="COMPLETE", seconds=1.0, started_ms=1
            ),
        ),
        trace=((1.0, 0.5, 0.5, 0.9),),
        started_ms=1,
        finished_ms=2,
    )


TASK = {
    "name": "mood",
    "title": "Moods",
    "classes": ["sad", "glad"],
    "instruction": "Name the mood.",
    "template": "Text: {text}\nMood:",
    "replace": [["&amp;", "&"]],
    "sizes": {"test": 3},
    "files": {
        "format": "jsonl",
        "optimization": "opt.jsonl",
        "test": "opt.jsonl",
        "fields": {"text": "text"},
        "label": "label",
    },
}
TEXTS = [{"text": f"so {w}", "label": k % 2} for k, w in enumerate(("bad", "good", "sad", "new"))]
SWEEP = {
    "name": "s",
    "models": ["tiny_lm"],
    "tasks": ["helpdesk"],
    "shots": [1, "N"],
    "seeds": [0, 1],
    "methods": ["icl", "dcs"],
    "limit": 40,
    "tuner": {"protocol": "paper", "trials": 2, "development": 0.2, "max_beta": 1.0},
    "tracking": {"trials": "none"},
}
_SWEEP = Sweep(experiment="s", sweep_key="k")


def _bytes_of(write: Callable[[Any], Any]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def _parquet(columns: dict[str, Any]) -> bytes:
    return _bytes_of(lambda buffer: pq.write_table(pa.table(columns), buffer))


def _table_file() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.parquet"
        table(6).write(path)
        return path.read_bytes()


def _lines(rows: list[Any]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def _read_task(path: Path) -> Any:
    (path.parent / "opt.jsonl").write_bytes(_lines(TEXTS))
    return get_task(str(path)).examples("test")


def _read_texts(path: Path) -> Any:
    described = yaml.safe_dump({**TASK, "files": {**TASK["files"], "test": path.name}})
    (path.parent / "task.yaml").write_text(described)
    (path.parent / "opt.jsonl").write_bytes(_lines(TEXTS))
    return get_task(str(path.parent / "task.yaml")).examples("test")


def _read_sweep(path: Path) -> object:
    """Put the file where an archive has it, and read it there."""
    there = path.parent / "sweeps" / path.name
    there.parent.mkdir(exist_ok=True)
    path.rename(there)
    try:
        return Archive(path.parent).sweeps()
    finally:
        there.rename(path)


def _read_record(path: Path) -> CellRecord:
    archive = Archive(path.parent)
    archive.cells.mkdir(exist_ok=True)
    path.rename(archive.path("abc123"))
    try:
        return archive.read("abc123")
    except DCSError as error:
        # The message names the file where it lies now.
        raise TrackingError(str(error).replace("abc123.json", path.name)) from None


def _read_note(path: Path) -> Any:
    store = ProbabilityStore(path.parent)
    for split in ("optimization", "test"):
        store.path("k", split).parent.mkdir(exist_ok=True)
        store.path("k", split).touch()
    path.rename(path.parent / "k" / path.name)
    return store.scoring("k")


@dataclass(frozen=True)
class Kind:
    """A kind of file: a good one, what reads it, and what it raises for a bad one."""

    name: str
    file: str
    good: bytes
    read: Callable[[Path], Any]
    error: type[DCSError] = DCSError
    #: The content of structured files, to be spoiled node by node.
    content: Any = None
    dump: Callable[[Any], str] = json.dumps

    def written(self, folder: Path, data: bytes) -> Path:
        path = folder / self.file
        path.write_bytes(data)
        return path


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


_VALUES = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
_LOG = [
    {
        "doc_id": k,
        "target": str(k),
        "arguments": [["q", " no"], ["q", " yes"]],
        "filtered_resps": [["-1.5", "False"], ["-0.5", "True"]],
        "filter": "none",
        "acc": k,
    }
    for k in range(2)
]
_NOTE = {
    "model": "m",
    "seconds": 1.0,
    "rows": 8,
    "gpus": 0.0,
    "digests": {"optimization": "a", "test": "b"},
}

KINDS = (
    Kind("table", "t.parquet", _table_file(), ProbabilityTable.read, TableError),
    Kind(
        "npz",
        "t.npz",
        _bytes_of(
            lambda buffer: np.savez(
                buffer, probs=_VALUES, labels=np.array([0, 2]), classes=np.array(["a", "b", "c"])
            )
        ),
        lambda path: import_file("npz", path),
        TableError,
    ),
    Kind(
        "csv",
        "t.csv",
        b"id,label,p:a,p:b\nx,a,0.25,0.75\n\xc3\xa4,b,1,0\n",
        lambda path: import_file("csv", path),
        TableError,
    ),
    Kind(
        "parquet columns",
        "t.parquet",
        _parquet({"label": ["a", "b"], "p:a": [0.5, 0.25], "p:b": [0.5, 0.75]}),
        lambda path: import_file("parquet", path),
        TableError,
    ),
    Kind(
        "vectors",
        "test.txt",
        b"0 1 1 0.25 0.75\n1 0 0 0.5 0.5\n",
        lambda path: import_file("vectors", path),
        TableError,
    ),
    Kind(
        "logits",
        "t.csv",
        b"label,p:a,p:b\n0,-3.5,2\n1,-inf,0\n",
        lambda path: import_file("csv", path, logits=True),
        TableError,
    ),
    Kind(
        "lm-eval",
        "samples_t_2026-01-01T00-00-00.jsonl",
        _lines(_LOG),
        lambda path: import_file("lm-eval", path),
        TableError,
        content=_LOG,
        dump=lambda rows: _lines(rows if isinstance(rows, list) else [rows]).decode(),
    ),
    Kind(
        "scheme",
        "scheme.json",
        scheme().to_json().encode(),
        CorrectionScheme.load,
        SchemeError,
        content=_plain(scheme().to_dict()),
    ),
    Kind(
        "scheme with calibration",
        "scheme.json",
        b"",
        CorrectionScheme.load,
        SchemeError,
        content=_plain(
            {
                **scheme().to_dict(),
                "version": 2,
                "calibration": {
                    "name": "vector",
                    "matrix": np.eye(3).tolist(),
                    "offset": [0.0, 1.0, -1.0],
                    "floor": 1e-4,
                },
            }
        ),
    ),
    Kind(
        "task",
        "mood.yaml",
        yaml.safe_dump(TASK).encode(),
        _read_task,
        content=TASK,
        dump=yaml.safe_dump,
    ),
    Kind("texts", "texts.jsonl", _lines(TEXTS), _read_texts, content=TEXTS),
    Kind(
        "sweep",
        "s.yaml",
        yaml.safe_dump(SWEEP).encode(),
        load_config,
        content=SWEEP,
        dump=yaml.safe_dump,
    ),
    Kind(
        "record",
        "abc123.json",
        record().to_json().encode(),
        _read_record,
        TrackingError,
        content=json.loads(record().to_json()),
    ),
    Kind(
        "sweep",
        "k.json",
        b"",
        _read_sweep,
        TrackingError,
        content=_SWEEP.model_dump(),
    ),
    Kind("note", "scoring.json", json.dumps(_NOTE).encode(), _read_note, content=_NOTE),
)
KINDS = tuple(
    kind if kind.good else Kind(**{**vars(kind), "good": kind.dump(kind.content).encode()})
    for kind in KINDS
)

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**70, -(2**70), 10**400, 0.5, -0.5, 1e308, 1e-320),
    *("", " ", "a", "0", "-1", "NaN", "é", "\x1b[2J", "[/bold]", "a\nb", "x" * 300, "../../x"),
    *("/etc/passwd", "~", "N", "{", "%s", "\u202e"),
    *([], {}, [[]], [None], {"": 0}, {"a": {"b": []}}, [1, "a"], ["a", "a"], [0.5, 0.5]),
)
"""Values that stand where others are expected."""


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """Return what is left of a file: cut, with flipped bits, other bytes, or another encoding."""
    how = draw(st.sampled_from(("cut", "flip", "insert", "remove", "bytes", "encode", "repeat")))
    at = draw(st.integers(0, max(0, len(good) - 1)))
    if how == "cut":
        return good[:at]
    if how == "flip":
        spoiled = bytearray(good)
        for place in draw(st.lists(st.integers(0, len(good) - 1), min_size=1, max_size=4)):
            spoiled[place] ^= 1 << draw(st.integers(0, 7))
        return bytes(spoiled)
    if how == "insert":
        return good[:at] + draw(st.binary(min_size=1, max_size=8)) + good[at:]
    if how == "remove":
        return good[:at] + good[at + draw(st.integers(1, 20)) :]
    if how == "encode":
        text = good.decode("utf-8", "replace")
        codec = draw(st.sampled_from(("utf-16", "utf-32", "latin-1", "utf-8-sig", "utf-16-le")))
        return text.encode(codec, "replace")
    if how == "repeat":
        return good + good
    return draw(st.binary(max_size=64))


@st.composite
def spoiled(draw: st.DrawFn, content: Any) -> Any:
    """Return content with one or two of its nodes replaced, removed or renamed."""
    changed = copy.deepcopy(content)
    for _ in range(draw(st.integers(1, 2))):
        parent, key = None, None
        node = changed
        while isinstance(node, (dict, list)) and node:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            parent, key = node, draw(st.sampled_from(keys))
            node = parent[key]
            if draw(st.integers(0, 2)) == 0:
                break
        odd = copy.deepcopy(draw(st.sampled_from(ODD)))
        if parent is None:
            return odd
        how = draw(st.sampled_from(("replace", "replace", "remove", "add")))
        if how == "replace":
            parent[key] = odd
        elif how == "remove":
            del parent[key]
        elif isinstance(parent, dict):
            parent[draw(st.sampled_from(("", "x", "format", "version", "é")))] = odd
        else:
            parent.append(odd)
    return changed
