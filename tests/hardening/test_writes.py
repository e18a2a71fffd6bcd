"""Whatever happens while a file is written: the old one is there, or the whole new one."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcs.data.table import ProbabilityTable
from dcs.errors import DCSError
from dcs.io import atomic_path, atomic_write_bytes, atomic_write_text
from dcs.schemes.scheme import CorrectionScheme
from dcs.scoring.cache import ShardStore, query_hash
from tests.hardening.commands import checked, leftovers
from tests.hardening.corpus import record, scheme, table
from tracking import Archive
from tracking.store.destinations import DestinationInfo, read_info
from workflows.tables import ProbabilityStore

ROOT = Path(__file__).parents[2]
_INFO = DestinationInfo(tracking_uri=None, experiment="s", sweep_key="k")
_SETTINGS = {"label_words": ["a", "b"]}


def _shards(folder: Path) -> list[int]:
    group = ShardStore(folder).group(_SETTINGS)
    return [len(group.rows)] if group.rows else []


def _write_shard(folder: Path, version: int) -> None:
    hashes = [query_hash(f"{version} {k}") for k in range(100)]
    ShardStore(folder).group(_SETTINGS).write(hashes, np.full((100, 2), 0.5))


def _write_tables(folder: Path, version: int) -> None:
    pair = {split: table(30 + version) for split in ("optimization", "test")}
    ProbabilityStore(folder).write("k", pair, model="m", seconds=1.0, gpus=0.0)


def _tables(folder: Path) -> Any:
    store = ProbabilityStore(folder)
    # Without the note the tables count as not there.
    if store.scoring("k") is None:
        return None
    return [read.n_rows for read in store.read("k").values()]


def _destination(folder: Path, version: int) -> None:
    with Archive(folder).destination(_INFO) as destination:
        destination.save(run_name="x" * (500 + version))


#: By name: what writes version 1 or 2 into a folder, and what reads which one is there.
WRITERS: dict[str, tuple[Callable[[Path, int], object], Callable[[Path], object]]] = {
    "text": (
        lambda folder, n: atomic_write_text(folder / "t.txt", f"{n}" * 3000),
        lambda folder: (folder / "t.txt").read_text(),
    ),
    "table": (
        lambda folder, n: table(400 + n).write(folder / "t.parquet"),
        lambda folder: ProbabilityTable.read(folder / "t.parquet").n_rows,
    ),
    "scheme": (
        lambda folder, n: scheme(tuple(f"c{k}" for k in range(40 + n))).save(folder / "s.json"),
        lambda folder: len(CorrectionScheme.load(folder / "s.json").classes),
    ),
    "record": (
        lambda folder, n: Archive(folder).write(
            dataclasses.replace(record(), error=f"{n}" * 3000)
        ),
        lambda folder: Archive(folder).read("abc123").error,
    ),
    "destination": (
        _destination,
        lambda folder: [len(read_info(p).run_name or "") for p in folder.rglob("sweep.json")],
    ),
    "shards": (_write_shard, _shards),
    "tables": (_write_tables, _tables),
}
by_writer = pytest.mark.parametrize("name", WRITERS)


def found(name: str, folder: Path) -> object:
    """Return what is there now; None if nothing is."""
    try:
        return WRITERS[name][1](folder)
    except (DCSError, OSError) as error:
        assert "no such" in str(error).lower() or "no record" in str(error), error
        return None


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes, as on a disk that is nearly full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@by_writer
def test_a_full_disk_leaves_what_was_there(name: str, tmp_path: Path) -> None:
    write, _ = WRITERS[name]
    write(tmp_path, 1)
    before = found(name, tmp_path)
    assert before is not None
    for size in (0, 1, 40, 300):
        with largest_file(size), pytest.raises((DCSError, OSError)) as caught:
            write(tmp_path, 2)
        assert "\n" not in str(caught.value)
        assert leftovers(tmp_path) == []
        assert found(name, tmp_path) == before
    write(tmp_path, 2)
    assert found(name, tmp_path) != before


@by_writer
@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_an_interrupt_at_any_step(
    name: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, _ = WRITERS[name]
    write(tmp_path, 1)
    before = found(name, tmp_path)

    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*{"fsync": (os, "fsync")}.get(step, (Path, step)), interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, 2)
    assert leftovers(tmp_path) == []
    assert found(name, tmp_path) == before


def test_the_data_is_on_the_disk_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(handle: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"
        events.append(f"flush {kind} {Path(os.readlink(f'/proc/self/fd/{handle}')).name}"[:18])
        fsync(handle)

    def noted_replace(path: Path, target: Path) -> Path:
        events.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    atomic_write_bytes(tmp_path / "new" / "newer" / "t", b"x")
    assert events[0].startswith("flush file .t")
    assert events[1] == "rename"
    # The file's folder, and the folders that hold the two new ones.
    assert sorted(events[2:]) == sorted(
        ["flush folder newer", "flush folder new", f"flush folder {tmp_path.name}"[:18]]
    )


def test_a_killed_writer_leaves_one_whole_version(tmp_path: Path) -> None:
    code = (
        "import sys, itertools\n"
        "from dcs.io import atomic_write_text\n"
        "print('ready', flush=True)\n"
        "for n in itertools.cycle('ab'):\n"
        "    atomic_write_text(sys.argv[1], n * 200_000)\n"
    )
    path = tmp_path / "t.txt"
    for attempt in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, cwd=ROOT
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.01 + 0.007 * attempt)
            process.send_signal(signal.SIGKILL)
        if path.exists():
            text = path.read_text()
            assert text in ("a" * 200_000, "b" * 200_000)


@pytest.mark.parametrize("place", ["/dev/null", "/dev/full", "pipe"])
def test_no_file_takes_the_place_of_a_device(place: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    target = tmp_path / place  # An absolute path stays as it is.
    kind = stat.S_IFMT(target.stat().st_mode)
    with pytest.raises(OSError, match="not a regular file"), atomic_path(target):
        pass
    assert stat.S_IFMT(target.stat().st_mode) == kind


def test_names_as_long_as_the_system_allows(tmp_path: Path) -> None:
    for name in ("x" * 255, "é" * 127, "漢" * 85):
        atomic_write_text(tmp_path / name, "x")
        assert (tmp_path / name).read_text() == "x"


UNWRITABLE = (
    *("/proc/x", "/sys/x", "/dev/null", "/dev/full", "/dev/null/x"),
    *("loop/x", "file/x", "folder"),
)


@pytest.mark.parametrize("place", UNWRITABLE)
@pytest.mark.parametrize("command", ["apply", "import"])
def test_commands_on_places_that_cannot_be_written(
    command: str, place: str, tmp_path: Path
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    table().write(tmp_path / "t.parquet")
    scheme().save(tmp_path / "s.json")
    there = sorted(os.listdir(tmp_path))
    words = {
        "apply": ("apply", tmp_path / "s.json", tmp_path / "t.parquet"),
        "import": ("import", "parquet", tmp_path / "t.parquet"),
    }[command]
    outcome = checked(*words, "-o", tmp_path / place)
    assert outcome.code == 2
    assert Path(place).name in outcome.err
    assert sorted(os.listdir(tmp_path)) == there
    assert os.listdir(tmp_path / "folder") == []


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """Be somebody to whom something is forbidden, which nothing is to root."""
    is_root = os.geteuid() == 0
    if is_root:
        os.setegid(65534)
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
            os.setegid(0)


def test_folders_and_files_without_the_right_to_them(empty_store: Path) -> None:
    # Not tmp_path, whose parents are closed to others.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        good, unreadable, scheme_file = (folder / each for each in ("t.parquet", "u.parquet", "s"))
        for place in (good, unreadable):
            table().write(place)
        scheme().save(scheme_file)
        opened, closed = folder / "opened", folder / "closed"
        (opened / "o").mkdir(parents=True)
        shutil.copy(empty_store, opened / "o" / "mlflow.db")

        def commands(target: Path) -> list[tuple[object, ...]]:
            return [
                ("import", "parquet", good, "-o", target / "x"),
                ("apply", scheme_file, good, "-o", target / "x"),
                ("tune", good, "--method", "batch", "-o", target / "o"),
                ("evaluate", unreadable),
            ]

        # Once where it is allowed, since what is imported later cannot be read by others.
        for words in commands(opened):
            assert checked(*words).code == 0
        closed.mkdir(mode=0o555)
        unreadable.chmod(0)
        with nobody():
            for words in commands(closed):
                outcome = checked(*words)
                assert outcome.code == 2, outcome
                assert "ermission denied" in outcome.err, outcome
        assert list(closed.iterdir()) == []


def test_commands_on_a_full_disk(tmp_path: Path) -> None:
    table(2000).write(tmp_path / "t.parquet")
    scheme().save(tmp_path / "s.json")
    for words in (
        ("apply", tmp_path / "s.json", tmp_path / "t.parquet", "-o", tmp_path / "out" / "x"),
        ("tune", tmp_path / "t.parquet", "--method", "batch", "-o", tmp_path / "out"),
    ):
        with largest_file(2000):
            outcome = checked(*words)
        assert outcome.code == 2, outcome
        assert leftovers(tmp_path) == []
        whole = [p for p in (tmp_path / "out").rglob("*") if p.is_file() and p.stat().st_size]
        assert [p.name for p in whole if p.suffix in (".parquet", ".db", ".png")] == []


def test_output_that_cannot_be_printed() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from workflows.cli import main; main()", "tasks"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            check=False,
        )
    assert done.returncode == 2
    assert (
        done.stderr
        == "dcs: error: No space left on device; make room and run the same command again\n"
    )
