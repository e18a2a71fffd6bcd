"""Every command with odd arguments, as a person would type them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dcs.errors import DCSError
from tests.hardening.commands import checked, leftovers
from tests.hardening.corpus import KINDS, SWEEP, brief, scheme, table, thorough
from workflows.cli import app


def _commands() -> dict[str, Any]:
    found: dict[str, Any] = {}

    def walk(command: Any, names: tuple[str, ...]) -> None:
        if hasattr(command, "commands"):
            for name, child in command.commands.items():
                walk(child, (*names, name))
        else:
            found[" ".join(names)] = command

    walk(typer.main.get_command(app), ())
    return found


COMMANDS = _commands()

ODD_TEXTS = (
    *("", " ", "-", "--", "0", "-1", "nan", "inf", "1e999", "9" * 30, "0x10", "N", ",", "a,,b"),
    *("é", "\udcff", "a\0b", "\x1b[2J", "a\nb", "[/bold]", "[red]", "%s", "{}", "..", "../../x"),
    *("~", "x" * 300, "x" * 5000, "/", "/dev/null", "/dev/zero", "/dev/full", "/proc/self/mem"),
    *("http://[::1", "http://127.0.0.1:9", "sqlite:///", "file:///x", "postgresql://", "://"),
    *("s3://", "memory://x", "models=", "tasks=nope", "=", "beta=0.5"),
)

#: What a parameter of this name takes, so that not every command ends at its first one.
GOOD = {
    **dict.fromkeys(("run", "first", "second"), "abc123"),
    **dict.fromkeys(("address", "base_url"), "http://127.0.0.1:9"),
    "config": "sweep.yaml",
    "experiment": "e",
    "format": "parquet",
    "model": "tiny_lm",
    "name": "helpdesk",
    "path": "good.parquet",
    "runs": "recorded",
    "scheme": "scheme.json",
    "store": "recorded",
    "table": "good.parquet",
    "task": "helpdesk",
    "test": "good.parquet",
}

#: Given to every run of a command: what bounds its time.
ALWAYS = {
    "doctor": ("--quick",),
    "generate": ("--limit", "1"),
    "submit": ("--detach", "--address", "http://127.0.0.1:9"),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, one_recorded: Path) -> dict[str, str]:
    """Paths of every sort: good files, folders, loops, pipes, nothing."""
    root = tmp_path_factory.mktemp("places")
    table().write(root / "good.parquet")
    scheme().save(root / "scheme.json")
    (root / "sweep.yaml").write_text(yaml.safe_dump(SWEEP))
    (root / "empty").touch()
    (root / "folder").mkdir()
    (root / "loop").symlink_to(root / "loop")
    (root / "dangling").symlink_to(root / "nowhere")
    (root / "inside").symlink_to(root)
    os.mkfifo(root / "pipe")
    shutil.copytree(one_recorded, root / "recorded")
    for kind in KINDS:
        (root / "kinds").mkdir(exist_ok=True)
        (root / "kinds" / f"{kind.name} {kind.file}").write_bytes(kind.good)
    found = {path.name: str(path) for path in (*root.iterdir(), *(root / "kinds").iterdir())}
    return found | {"in a loop": str(root / "loop" / "x"), "in a file": str(root / "empty" / "x")}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory of its own, for paths that are relative."""
    folder = tmp_path_factory.mktemp("work")
    here = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(here)


@pytest.fixture(autouse=True)
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop where minutes of work would begin, or another program would take over."""
    stop = mock.Mock(side_effect=DCSError("stopped by the test"))
    monkeypatch.setattr("workflows.cli._sweeping._joined_ray", stop)
    monkeypatch.setattr(os, "execv", mock.Mock(side_effect=SystemExit(0)))


def _value(data: st.DataObject, name: str, places: dict[str, str]) -> str:
    good = GOOD.get(name)
    if good is not None and data.draw(st.booleans()):
        return places.get(good, good)
    return data.draw(
        st.one_of(st.sampled_from(ODD_TEXTS), st.sampled_from(sorted(places.values())))
    )


def _run(name: str, data: st.DataObject, places: dict[str, str], work: Path) -> None:
    arguments: list[str] = name.split()
    for parameter in COMMANDS[name].params:
        is_given = parameter.required or data.draw(st.integers(0, 3)) == 0
        if parameter.name == "output":
            arguments += [parameter.opts[0], str(work / "out")]
        elif parameter.name == "runs" or (is_given and parameter.name != "help"):
            if parameter.param_type_name == "option":
                arguments.append(data.draw(st.sampled_from(parameter.opts)))
            if not getattr(parameter, "is_flag", False):
                arguments.append(_value(data, parameter.name, places))
    checked(*arguments, *ALWAYS.get(name, ()))
    assert leftovers(work) == []


@pytest.mark.parametrize("name", COMMANDS)
@brief
@given(data=st.data())
def test_odd_arguments(name: str, data: st.DataObject, places: dict[str, str], work: Path) -> None:
    _run(name, data, places, work)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
@thorough
@given(data=st.data())
def test_more_odd_arguments(
    name: str, data: st.DataObject, places: dict[str, str], work: Path
) -> None:
    _run(name, data, places, work)


ODD_ADDRESSES = (
    *("", " ", "x", "://", "http://", "http://[::1", "http://h:port", "http://h:99999"),
    *("http://:0", "sqlite:///", "sqlite:////dev/null", "sqlite:////proc/x.db"),
    *("sqlite:///:memory:", "postgresql://[::1", "postgresql://h:port/x"),
    *("postgresql://127.0.0.1:1/x", "mysql://", "file:///x", "./mlruns"),
    *("http://127.0.0.1:1/\x1b[2J", "http://\udcff"),
)


@pytest.mark.parametrize("address", ODD_ADDRESSES)
def test_odd_addresses(address: str, work: Path) -> None:
    (work / "s.yaml").write_text(yaml.safe_dump(SWEEP))
    outcomes = [
        checked("table", "s", "--runs", work, "--tracking-uri", address),
        checked("doctor", "--quick", "-o", work, "--tracking-uri", address),
        checked("store", "ls", "--store", address),
        checked("submit", work / "s.yaml", "--detach", "--address", address),
    ]
    assert outcomes[0].code == 2
    assert leftovers(work) == []


READERS = (
    ("ui",),
    ("table", "quickstart"),
    ("report", "quickstart"),
    ("compare", "abcd", "efgh"),
    ("reproduce", "abcd"),
    ("register", "abcd", "--name", "m"),
    ("store", "ls"),
    ("store", "verify"),
    ("store", "gc"),
)


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_what_reads_makes_nothing(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = [(), ("--tracking-uri", "sqlite:///other.db")] if words[0] != "store" else [()]
    for options in missing:
        outcome = checked(*words, *options)
        assert outcome.code == 2
        assert "no such f" in outcome.err or "no MLflow database" in outcome.err
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seeds", ["-1", "0,-1", "", ",", "1.5", "0,,1", "²", "9" * 30])
def test_seeds_that_are_none(seeds: str, work: Path) -> None:
    outcome = checked("generate", "--model", "tiny_lm", "--task", "helpdesk", "--seeds", seeds)
    assert outcome.code == 2
    assert outcome.err.startswith(f"dcs: error: --seeds {seeds!r}: ")
