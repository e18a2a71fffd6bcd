"""Files that are small on the disk and huge in memory, deep, endless, or from elsewhere."""

from __future__ import annotations

import io
import itertools
import json
import os
import resource
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from dcs import io as _reading
from dcs.data.importers import import_file
from dcs.data.table import ProbabilityTable
from dcs.errors import DCSError, SchemeError, TableError
from dcs.prompting import get_task
from dcs.schemes.scheme import CorrectionScheme
from tests.hardening.commands import checked, soon
from tests.hardening.corpus import KINDS, SWEEP, TASK, record, scheme, table
from tracking import Recorder
from workflows.config.sweep import load_config

TEXT_KINDS = [kind for kind in KINDS if kind.name not in ("table", "npz", "parquet columns")]
by_text = pytest.mark.parametrize("kind", TEXT_KINDS, ids=lambda kind: kind.name)


@contextmanager
def little_memory(megabytes: int = 400) -> Iterator[None]:
    """Fail if the block's peak is so much above what there was before it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < megabytes, f"{grown:.0f} MB"


def _refused(call: Callable[[], object], *words: str) -> str:
    with soon(60), little_memory(), pytest.raises(DCSError) as caught:
        call()
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 2000
    for word in words:
        assert word in line, line
    return line


def _long_texts(path: Path, column: str, *, rows: int = 40_000) -> None:
    """Write 40 GB of text as one text of a megabyte that repeats: a file of some kilobytes."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * 2**20])
    columns = {
        "id": pa.array(range(rows), pa.int64()),
        "label": pa.array([0] * rows, pa.int64()),
        "p:a": pa.array([0.5] * rows),
        "p:b": pa.array([0.5] * rows),
    }
    pq.write_table(pa.table(columns | {column: texts}), path, compression="zstd")
    assert path.stat().st_size < 2e6


def test_a_label_column_of_forty_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    _long_texts(path, "label")
    _refused(lambda: import_file("parquet", path), "t.parquet", "GiB")


def test_an_id_column_of_forty_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    _long_texts(path, "id")
    _refused(lambda: ProbabilityTable.read(path), "t.parquet", "GiB")


def test_long_texts_that_are_not_of_the_table_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    _long_texts(path, "essay")
    with little_memory():
        assert ProbabilityTable.read(path).n_rows == 40_000


@pytest.mark.parametrize("format", ["csv", "vectors", "lm-eval"])
def test_ten_gigabytes_of_text_are_refused_unread(format: str, tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)  # Takes no room on the disk.
    _refused(lambda: import_file(format, path), "t.txt", "10.0 GiB")


@by_text
def test_a_huge_file_of_any_kind(kind, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / kind.file
    with path.open("wb") as file:
        file.truncate(200 * 2**30)
    _refused(lambda: kind.read(path))


def test_an_archive_that_unpacks_to_more_than_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.npz"
    np.savez_compressed(path, probs=np.zeros((2_000_000, 4)), labels=np.zeros(3, dtype=int))
    assert path.stat().st_size < 200_000
    monkeypatch.setattr("dcs.data.importers.npz.memory_bound", lambda: 2**20)
    _refused(lambda: import_file("npz", path), "t.npz", "unpacks to")


def test_an_array_that_claims_more_than_it_holds(tmp_path: Path) -> None:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "<f8", "fortran_order": False, "shape": (10**12, 4)}
    )
    path = tmp_path / "t.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("probs.npy", head.getvalue() + b"\0" * 64)
        archive.writestr("labels.npy", head.getvalue())
    _refused(lambda: import_file("npz", path), "t.npz")


def test_an_archive_with_names_that_lead_away(tmp_path: Path) -> None:
    path = tmp_path / "in" / "t.npz"
    path.parent.mkdir()
    np.savez(path, probs=np.full((2, 2), 0.5), labels=np.array([0, 1]))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../evil.npy", b"x")
        archive.writestr("/etc/evil.npy", b"x")
    assert import_file("npz", path).n_rows == 2
    assert sorted(os.listdir(tmp_path)) == ["in"]


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, probs=np.full((2, 2), 0.5), labels=np.array([print, 1], dtype=object))
    _refused(lambda: import_file("npz", path), "pickle")


@pytest.mark.parametrize("depth", [300, 1000, 500_000])
@pytest.mark.parametrize("brackets", ["[]", "{}"])
@by_text
def test_deep_nesting(kind, brackets: str, depth: int, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    opening, closing = ('{"a":', "}") if brackets == "{}" else ("[", "]")
    nest = f"{opening * depth}1{closing * depth}"
    texts = [nest]
    if isinstance(kind.content, dict):
        for key in list(kind.content)[:4]:
            # As the value of a key.
            marked = kind.dump({**kind.content, key: "NEST"})
            texts.append(marked.replace('"NEST"', nest).replace("NEST", nest))
    for text in texts if depth <= 1000 else texts[:1]:
        path = kind.written(tmp_path, text.encode())
        try:
            with soon(60):
                kind.read(path)
        except DCSError as error:
            assert "\n" not in str(error)
            assert len(str(error)) < 2000


def _bomb(levels: int) -> str:
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    for n in range(1, levels):
        lines.append(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]")
    return "\n".join(lines)


@pytest.mark.parametrize("read", [load_config, lambda p: get_task(str(p))], ids=["sweep", "task"])
def test_aliases_that_stand_for_billions_of_values(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(f"name: s\n{_bomb(10)}\ntasks: *l9\n")
    _refused(lambda: read(path), "s.yaml", "more than")
    path.write_text("name: s\ntasks: &a [*a]\n")
    _refused(lambda: read(path), "contains itself")
    merged = "\n".join(
        f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 10)}], k{n}: 1}}" for n in range(1, 10)
    )
    path.write_text(f"name: s\nm0: &m0 {{a: 1}}\n{merged}\n")
    _refused(lambda: read(path), "s.yaml")


def test_a_key_given_twice(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(SWEEP) + "seeds: [7]\n")
    _refused(lambda: load_config(path), "s.yaml", "'seeds'", "twice")


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system [touch /tmp/x]", "!!python/name:os.system", "!x y"]
)
def test_yaml_makes_no_objects(tag: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(f"name: {tag}\n")
    _refused(lambda: load_config(path), "s.yaml")


@pytest.mark.parametrize(
    "changes",
    [
        {"template": "Text: {text:>9999999999}\nMood:"},
        {"template": "Text: {text!r}\nMood:"},
        {"template": "Text: {text.__class__}\nMood:"},
        {"template": "Text: {text[0]}\nMood:"},
        {"replace": [["a", "a" * 1000]] * 50},
        {"name": "../../evil"},
        {"name": "/etc/evil"},
        {"name": "a/b"},
        {"name": ""},
        {"name": "x" * 300},
        {"files": {**TASK["files"], "test": "../secret.jsonl"}},  # type: ignore[dict-item]
        {"files": {**TASK["files"], "test": "/etc/passwd"}},  # type: ignore[dict-item]
        {"files": {**TASK["files"], "encoding": "zlib"}},  # type: ignore[dict-item]
    ],
)
def test_a_task_that_would_fill_the_memory_or_lead_away(
    changes: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "task").mkdir()
    path = tmp_path / "task" / "t.yaml"
    path.write_text(yaml.safe_dump({**TASK, **changes}))
    for place in ("task/opt.jsonl", "secret.jsonl"):
        (tmp_path / place).write_text('{"text": "aaa", "label": 0}\n{"text": "b", "label": 1}\n')
    _refused(lambda: get_task(str(path)).examples("test"), str(tmp_path))


def test_nul_and_lone_surrogates(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    for escape in ("\\0", "\\ud800"):
        path.write_text(f'name: "a{escape}"\ntasks: [helpdesk]\n')
        _refused(lambda: load_config(path), "s.yaml")
    scheme_path = tmp_path / "scheme.json"
    scheme_path.write_text(scheme().to_json().replace("Anger", "\\ud800"))
    _refused(lambda: CorrectionScheme.load(scheme_path), "scheme.json", "Unicode")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252"])
@by_text
def test_other_encodings(kind, encoding: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    # With a letter that is not ASCII, since those that are look alike in several of them.
    text = kind.good.decode() + "\n# ä\n"
    path = kind.written(tmp_path, text.encode(encoding))
    _refused(lambda: kind.read(path))


@by_text
def test_a_byte_order_mark_changes_nothing(kind, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    kind.read(kind.written(tmp_path, b"\xef\xbb\xbf" + kind.good))


def test_a_scheme_of_a_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({**scheme().to_dict(), "version": 99}))
    table().write(tmp_path / "t.parquet")
    outcome = checked("evaluate", tmp_path / "t.parquet", "--scheme", path)
    assert outcome.code == 2
    assert "s.json: key 'version' is 99" in outcome.err
    with pytest.raises(SchemeError, match="upgrade"):
        CorrectionScheme.load(path)


def test_a_scheme_for_other_classes(tmp_path: Path) -> None:
    scheme(("Anger", "Fear", "Envy")).save(tmp_path / "s.json")
    table().write(tmp_path / "t.parquet")
    outcome = checked(
        "apply", tmp_path / "s.json", tmp_path / "t.parquet", "-o", tmp_path / "x.parquet"
    )
    assert outcome.code == 2
    for word in ("s.json", "Envy", "Joy"):
        assert word in outcome.err
    assert not (tmp_path / "x.parquet").exists()


def test_links_that_lead_in_circles(tmp_path: Path) -> None:
    loop = tmp_path / "loop.parquet"
    loop.symlink_to(loop)
    for words in (
        ("evaluate", loop),
        ("import", "csv", loop, "-o", tmp_path / "x"),
        ("import", "vectors", loop, "-o", tmp_path / "x"),
        ("sweep", loop, "--dry-run"),
        ("table", "s", "--runs", loop),
        ("sync", "-o", loop / "x"),
    ):
        outcome = checked(*words)
        assert outcome.code == 2, (words, outcome)
        assert "loop.parquet" in outcome.err


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    for kind in KINDS:
        if kind.name == "note":
            continue  # One that is no regular file counts as not there.
        folder = tmp_path / kind.name
        folder.mkdir()
        os.mkfifo(folder / kind.file)
        with soon(20), pytest.raises(DCSError):
            kind.read(folder / kind.file)


@pytest.mark.parametrize("name", ["[bold] [red].csv", "a\x1b[2Jb.csv", "a\nb.csv", b"\xff.csv"])
def test_names_that_mean_something_to_a_terminal(name: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(name)
    classes = "p:[/bold],p:\x1b[2J"
    path.write_text(f"label,{classes}\n0,0.7,0.3\n1,0.6,0.4\n")
    out = path.with_suffix(".parquet")
    for words in (("import", "csv", path, "-o", out), ("evaluate", out)):
        outcome = checked(*words)
        assert outcome.code == 0, outcome
        assert "\x1b" not in outcome.out
    assert "[/bold]" in outcome.out


def test_a_clock_that_goes_backwards(output: Path) -> None:
    import dataclasses

    from tracking.store.client import open_client

    backwards = dataclasses.replace(record(), started_ms=2_000_000, finished_ms=1_000_000)
    with Recorder(None, output=output, experiment="e", sweep_key="k", sweep_params={}) as rec:
        rec.record(backwards)
        report = rec.finish()
    assert (report.recorded, report.pending) == (1, 0), report
    assert report.ended
    client = open_client(f"sqlite:///{output / 'mlflow.db'}")
    assert client.get_experiment_by_name("e") is not None


def test_commands_while_the_clock_goes_backwards(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = time.time, itertools.count()
    monkeypatch.setattr(time, "time", lambda: real() - 60 * next(calls))
    table(80).write(tmp_path / "t.parquet")
    for words in (
        ("tune", tmp_path / "t.parquet", "--method", "batch", "-o", output),
        ("table", "tune", "--runs", output),
        ("sync", "-o", output),
    ):
        outcome = checked(*words)
        assert outcome.code == 0, outcome
    assert next(calls) > 3


def test_the_bound_follows_the_machine() -> None:
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 2**30 <= _reading.memory_bound() <= max(2**30, physical // 4)


def test_reading_works_from_threads(tmp_path: Path) -> None:
    # Deep frames of a thread must not turn a limit on recursion into a crash.
    path = tmp_path / "s.json"
    path.write_text("[" * 100_000)
    errors: list[str] = []

    def read() -> None:
        try:
            CorrectionScheme.load(path)
        except SchemeError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 4
    with pytest.raises(TableError):
        ProbabilityTable.read(path)
