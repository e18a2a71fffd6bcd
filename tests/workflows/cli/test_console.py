"""Signals end a command in order."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from dcs_workflows.cli.console import Stop


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
