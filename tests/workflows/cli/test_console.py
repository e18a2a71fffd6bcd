"""Signals end a command in order, closed pipes do not; summaries and exit codes for programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings

import pytest
import typer

from dcs_workflows.cli.console import (
    Stop,
    conclude,
    console,
    explained,
    new_table,
    prepare_output,
)


@pytest.fixture
def stop():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in numbers}
    stop = Stop()
    stop.listen()
    yield stop
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts(stop, number):
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    assert stop.number == number


def test_an_import_ends_before_the_command(stop, tmp_path, monkeypatch):
    (tmp_path / "slow_module.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGTERM)\n"
        "except KeyboardInterrupt:\n    pass\n"
        "ended = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        import slow_module  # noqa: F401

        signal.sigtimedwait([], 10)
    assert sys.modules["slow_module"].ended
    assert stop.number == signal.SIGTERM


def test_work_goes_on_when_nobody_reads(tmp_path):
    code = """if 1:
        import pathlib, sys
        from dcs_workflows.cli.console import console
        for _ in range(3000):
            console.print("x" * 100)
        pathlib.Path(sys.argv[1]).touch()"""
    command = [sys.executable, "-c", code, str(tmp_path / "written")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.read(10)
    process.stdout.close()
    _, said = process.communicate()
    assert (process.returncode, said) == (0, b"")
    assert (tmp_path / "written").exists()


@pytest.mark.parametrize(
    ("failed", "pending", "code"), [({}, False, 0), ({}, True, 3), ({"key": "no"}, True, 1)]
)
def test_the_exit_code_says_what_is_missing(failed, pending, code, capsys):
    try:
        conclude({"cells": 2}, as_json=True, failed=failed, pending=pending)
    except typer.Exit as end:
        assert end.exit_code == code
    said = json.loads(capsys.readouterr().out)
    assert (said["cells"], said["exit_code"], said["seconds"] > 0) == (2, code, True)


def test_an_error_without_a_path_names_its_place():
    with pytest.raises(FileNotFoundError) as caught:
        raise FileNotFoundError(2, "No such file or directory")
    assert __file__ in explained(caught.value)


def test_what_is_printed_holds_nothing_that_turns_or_hides_it(capsys, monkeypatch):
    for owner, name in ((sys, "excepthook"), (warnings, "formatwarning")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    prepare_output()
    hostile = "\u202egnp.exe\u2066\x1b[2J"
    table = new_table(hostile)
    table.add_row(hostile)
    console.print(hostile)
    console.print(table)
    said = capsys.readouterr().out
    said += warnings.formatwarning(hostile, UserWarning, "file", 1)
    assert said.count("gnp.exe") == 4
    assert all(c.isprintable() or c == "\n" for c in said)
