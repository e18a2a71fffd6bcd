"""What people see: signals, exit codes, schemes, and a sweep while it runs and when done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer

from dcs_workflows.cli.console import Stop, conclude, console, explained, new_table, prepare_output
from dcs_workflows.cli.views import progress_line, show_results
from dcs_workflows.plan import Progress
from tests.tracking.cells import paper_cells


@pytest.fixture
def stop():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    # Started in the background by a script, this process ignores some of them.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
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


def test_an_interrupt_while_the_commands_are_imported_is_not_lost():
    """Python itself would discard it in a finalizer, and the command would run."""
    code = (
        "import os, signal, sys\nfrom dcs_workflows.cli import main\n"
        "class Last:\n    __del__ = lambda self: os.kill(os.getpid(), signal.SIGINT)\n"
        "class Finder:\n    find_spec = staticmethod(lambda *more: (Last(), None)[1])\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Finder)\nmain()"
    )
    ended = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True)
    assert (ended.returncode, ended.stdout) == (-signal.SIGINT, b"")


def test_what_discards_exceptions_ends_before_the_command(stop):
    class Last:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)

    def start_process():
        once = [signal.SIGTERM]
        os.register_at_fork(before=lambda: once and os.kill(os.getpid(), once.pop()))
        subprocess.run("true", preexec_fn=os.getpid)

    for work in (Last, start_process):
        with pytest.raises(KeyboardInterrupt):
            work()
            signal.sigtimedwait([], 10)


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
def test_the_exit_code_says_what_is_missing(failed, pending, code, capsys, monkeypatch):
    monkeypatch.setattr(console, "stderr", True)
    try:
        conclude({"cells": 2}, failed=failed, pending=pending)
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
    said += explained(ValueError(hostile))
    assert said.count("gnp.exe") == 5
    assert all(c.isprintable() or c == "\n" for c in said)


def test_progress_shows_rates_and_time_left():
    seen = Progress(tables_done=2, tables_total=4, cells_total=50, running=6)
    recorder: Any = SimpleNamespace(progress=(0, 0, "cells"))
    seen.started, seen.first_cell, seen.cells_failed, seen.cells_done = 100.0, 155.0, 1, 20
    seen.work.update(trials=50, cells=6)
    seen.tables_done = 4
    assert "left" not in progress_line(seen, recorder, 220.0), "while the first cells run"
    seen.work.update(cells=1)
    assert progress_line(seen, recorder, 225.0) == (
        "tables 4/4, cells 20/50, 1 failed: 6 running · 0.4 trials/s · about 5 min left"
    )
    recorder.progress = (5, 30, "cells")
    assert "recording 30 cells · about 12 min left" in progress_line(seen, recorder, 225.0)
    seen.cells_done, recorder.progress = 50, (5, 0, "figures")
    assert progress_line(seen, recorder, 225.0).endswith("recording figures")


def test_what_is_printed_of_a_sweep_does_not_grow_with_its_cells(tmp_path, capsys):
    records = [
        replace(record, key=f"{record.key}{copy}", identity={**record.identity, "task": copy})
        for record in paper_cells(tasks=("trec",), seeds=(0, 1))
        for copy in map(str, range(20))
    ]
    failed = [replace(record, status="FAILED", error="no") for record in records[:9]]
    show_results([*failed, *records[9:]], tmp_path / "results.csv")
    said = capsys.readouterr().out
    assert len(said.splitlines()) <= 30
    assert "mean over these and seeds" in said and "9 failed" in said and "lacks 9" in said
    accuracies = [r.metrics["test/accuracy"] for r in records if r.identity["method"] == "dcs"]
    assert f"{100 * np.mean(accuracies):.1f}" in said
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 1 + len(records) - 9


@pytest.mark.parametrize("shots", [None, 1])
def test_a_column_of_shots_is_shown_where_they_are_known(shots, tmp_path, capsys):
    show_results(paper_cells(tasks=("trec",), shots=(shots,)), tmp_path / "results.csv")
    words = capsys.readouterr().out.split()
    assert ("shots" in words) == (shots is not None) and "None" not in words
