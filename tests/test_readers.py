"""Whatever a file holds: it is read, or refused on one line that names it."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dcs.data.reader import read_table
from dcs.data.table import ProbabilityTable
from dcs.errors import DCSError
from dcs.prompting.files import get_task
from dcs.schemes.calibration import Calibration
from dcs.schemes.corrections import Membership, Weight
from dcs.schemes.scheme import CorrectionScheme
from dcs_tracking import Archive, Sweep
from dcs_workflows.config.sweep import load_config
from tests.dcs.data.test_lm_eval import asked, sample
from tests.dcs.prompting.test_files import OWN
from tests.tracking.cells import make_cell
from tests.workflows.conftest import biased_table

FUZZ = settings.get_current_profile_name() == "fuzz"
thorough = settings(max_examples=settings().max_examples if FUZZ else 12, deadline=None)

PLACE = {"optimization": "texts.jsonl", "test": "texts.jsonl", "label": "label"}
TASK = OWN | {"sizes": {"test": 3}, "replace": [["&amp;", "&"]], "files": OWN["files"] | PLACE}
TEXTS = [{"text": f"so {w}", "label": k % 2} for k, w in enumerate(("bad", "good", "sad", "new"))]
SWEEP = yaml.safe_load("""
name: s
models: [tiny_lm]
tasks: [helpdesk]
shots: [1, N]
seeds: [0, 1]
methods: [icl, dcs]
limit: 40
tuner: {trials: 2, judge: {development: 0.2}, space: {beta: [0.0, 1.0]}}
tracking: {trials: none}
""")
LOG = [sample(k, str(k), [-1.5, -0.5], **asked("no", "yes"), acc=k) for k in range(2)]
SCHEME = CorrectionScheme(
    ("Anger", "Fear", "Joy"),
    (Weight(0.5), Membership(0.0, 0.5, 1.0), Membership(0.0, 1.0, 1.0)),
    {"n": 1},
    Calibration("vector", np.eye(3), np.array([0.0, 1.0, -1.0]), 1e-4),
)
RECORD = make_cell()


def lines(rows: Any) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in (rows if isinstance(rows, list) else [rows]))


def written(write: Callable[[Path], object], name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / name)
        return (Path(folder) / name).read_bytes()


TABLE = written(biased_table(6).write, "t.parquet")
NPZ = {"probs": [[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], "labels": [0, 2], "classes": ["a", "b", "c"]}


def read_task(path: Path) -> Any:
    (path.parent / "texts.jsonl").write_text(lines(TEXTS))
    return get_task(str(path)).examples("test")


def read_texts(path: Path) -> Any:
    form = path.suffix[1:].replace("txt", "lines")
    files = {"format": form, "optimization": path.name, "test": path.name}
    task = TASK | {"files": TASK["files"] | files}
    (path.parent / "task.yaml").write_text(yaml.safe_dump(task))
    return get_task(str(path.parent / "task.yaml")).examples("test")


def read_record(path: Path) -> Any:
    archive = Archive(path.parent)
    archive.path(RECORD.key).parent.mkdir()
    path.rename(archive.path(RECORD.key))
    return archive.read(RECORD.key)


def read_sweeps(path: Path) -> Any:
    (path.parent / "sweeps").mkdir()
    path.rename(path.parent / "sweeps" / path.name)
    return Archive(path.parent).sweeps()


@dataclass(frozen=True)
class Kind:
    """A kind of file: a good one, and what reads it; structured ones by their content."""

    file: str
    read: Callable[[Path], Any]
    bytes: bytes = b""
    content: Any = None
    dump: Callable[[Any], str] = json.dumps

    @property
    def good(self) -> bytes:
        return self.bytes or self.dump(self.content).encode()


KINDS = {
    "table": Kind("t.parquet", ProbabilityTable.read, TABLE),
    "npz": Kind("t.npz", read_table, written(partial(np.savez, **NPZ), "t.npz")),
    "csv": Kind("t.csv", read_table, b"id,label,p:a,p:b\nx,a,0.25,0.75\n\xc3\xa4,b,1,0\n"),
    "parquet": Kind("t.parquet", read_table, TABLE),
    "vectors": Kind("test.txt", read_table, b"0 1 1 0.25 0.75\n1 0 0 1 0\n"),
    "logits": Kind(
        "t.csv", partial(read_table, values="logits"), b"label,p:a,p:b\n0,-3.5,2\n1,-inf,0\n"
    ),
    "jsonl": Kind("t.jsonl", read_table, b'{"id": "x", "label": "a", "p": {"a": 1, "b": 0}}\n'),
    "lm-eval": Kind("l.jsonl", read_table, content=LOG, dump=lines),
    "scheme": Kind("s.json", CorrectionScheme.load, content=SCHEME.to_dict()),
    "task": Kind("moods.yaml", read_task, content=TASK, dump=yaml.safe_dump),
    "texts": Kind("texts.jsonl", read_texts, content=TEXTS, dump=lines),
    "texts json": Kind("texts.json", read_texts, content=TEXTS),
    "texts csv": Kind("texts.csv", read_texts, b'label,text\nHappy,"tears, many"\nSad,a smile\n'),
    "texts lines": Kind("texts.txt", read_texts, b"Happy: a smile\nSad: tears, many\n"),
    "sweep": Kind("s.yaml", load_config, content=SWEEP, dump=yaml.safe_dump),
    "recorded sweep": Kind(
        "s1.json", read_sweeps, content=Sweep(experiment="s", sweep_key="s1").model_dump()
    ),
    "record": Kind(f"{RECORD.key}.json", read_record, content=json.loads(RECORD.to_json())),
}

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**70, -(2**70), 0.5, -0.5, 1e308, 1e-320),
    *("", " ", "a", "0", "-1", "NaN", "é", "\x1b[2J", "[/bold]", "a\nb", "a\0b"),
    *("x" * 300, "../../x", [], {}, [[]], [None], {"": 0}, {"a": {"b": []}}, [1, "a"]),
    *(["a", "a"], [0.5, 0.5]),
)
"""Values that stand where others are expected."""


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """Return what is left of a file: cut, with flipped bits, other bytes, or another encoding."""
    at = draw(st.integers(0, len(good) - 1))
    flipped = bytearray(good)
    flipped[at] ^= 1 << draw(st.integers(0, 7))
    noise = draw(st.binary(min_size=1, max_size=8))
    text = good.decode("utf-8", "replace")
    codec = draw(st.sampled_from(("utf-16", "utf-32", "latin-1", "utf-8-sig")))
    left = (good[:at], bytes(flipped), good[:at] + noise + good[at:], good + good, noise)
    return draw(
        st.sampled_from((*left, good[:at] + good[at + 9 :], text.encode(codec, "replace")))
    )


@st.composite
def spoiled(draw: st.DrawFn, content: Any) -> Any:
    """Return content with one of its nodes replaced, removed or renamed."""
    changed = copy.deepcopy(content)
    parent, key, node = None, None, changed
    while isinstance(node, dict | list) and node and (parent is None or draw(st.integers(0, 2))):
        keys = range(len(node)) if isinstance(node, list) else list(node)
        parent, key = node, draw(st.sampled_from(keys))
        node = node[key]
    odd = copy.deepcopy(draw(st.sampled_from(ODD)))
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


def read(kind: Kind, data: bytes) -> Any:
    """Read a file and use what was read; return the error if it is refused as it should be."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / kind.file
        path.write_bytes(data)
        try:
            found = kind.read(path)
        except DCSError as error:
            assert 0 < len(str(error)) < 3000
            assert "\n" not in str(error)
            # The file itself, or one beside it that it names.
            assert path.name in str(error) or f"{path.parent}/" in str(error), error
            return error
    if isinstance(found, ProbabilityTable):
        np.testing.assert_allclose(found.probs.sum(axis=1), 1, atol=1e-9)
    if isinstance(found, CorrectionScheme):
        applied = found.apply(np.eye(len(found.classes)))
        np.testing.assert_allclose(applied.sum(axis=1), 1, atol=1e-9)
        assert CorrectionScheme.from_dict(json.loads(found.to_json())) == found
    return found


@pytest.mark.parametrize("name", KINDS)
@thorough
@given(data=st.data())
def test_a_damaged_file(name: str, data: st.DataObject) -> None:
    kind = KINDS[name]
    read(kind, data.draw(damaged(kind.good)))


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.content])
@thorough
@given(data=st.data())
def test_a_file_with_other_values(name: str, data: st.DataObject) -> None:
    kind = KINDS[name]
    read(kind, kind.dump(data.draw(spoiled(kind.content))).encode())


@pytest.mark.parametrize("name", KINDS)
def test_a_good_file_is_read_and_a_huge_or_deep_one_refused(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    assert not isinstance(read(kind, kind.good), Exception)
    assert isinstance(read(kind, b'{"a":' * 5_000), DCSError)
    with (tmp_path / kind.file).open("wb") as file:
        file.truncate(200 * 2**30)  # Takes no room on the disk.
    with pytest.raises(DCSError):
        kind.read(tmp_path / kind.file)


@pytest.mark.parametrize("name", ["table", "npz"])
def test_every_cut_of_a_binary_file_is_refused(name: str) -> None:
    # Up to the last byte: a table that lost its last rows must not look like a smaller one.
    good = KINDS[name].good
    for end in [*range(0, len(good), len(good) // 100), len(good) - 1]:
        assert isinstance(read(KINDS[name], good[:end]), DCSError), end
