"""What is said while a sweep runs, and when it is done."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rich.console import Console

from dcs.errors import ConfigError
from tests.tracking.paper_cells import paper_cells
from workflows.cli.console import parse_duration
from workflows.cli.views import SweepView, results_tables


def _record(trials: int, moves: float) -> SimpleNamespace:
    return SimpleNamespace(trials=[None] * trials, moves=trials * moves)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("2h", 7200), ("1h30m", 5400), ("0.5d", 43_200)]
)
def test_lengths_of_time_are_read(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "0h", "h", "2 h", "-1h", "1w", "1h2"])
def test_what_is_no_length_of_time_is_refused(text):
    with pytest.raises(ConfigError):
        parse_duration(text)


def test_rates_and_time_left_are_those_of_this_run():
    now = [100.0]
    shown: list[str] = []
    view = SweepView(lambda seen: shown.append(seen.line), clock=lambda: now[0])
    view.tables(2, 4)
    view.cells(10, 50, 0)
    assert "left" not in view.rates
    view.machines(running=6, cpus_used=2, cpus=2, gpus_used=0, gpus=0)
    now[0] += 100  # The first cell waits for a table, and for code to be compiled.
    for done in range(11, 16):
        view.computed(_record(trials=10, moves=50_000.0))
        view.cells(done, 50, 1)
        assert ("left" in view.rates) == (done == 15)
        now[0] += 5
    # 5 cells in 125 s, of which the last 4 took 25 s, and 35 to go.
    view.cells(15, 50, 1)
    assert shown[-1] == (
        "tables 2/4, cells 15/50, 1 failed: 6 running · 0.4 trials/s · 20,000.0 moves/s · "
        "4 min left · CPUs 2/2"
    )


@pytest.mark.parametrize("width", [200, 40, 25])
def test_every_class_accuracy_is_shown_whatever_the_width(width):
    cells = paper_cells(tasks=("trec",), seeds=(0,))
    tables = results_tables(cells, width=width)
    assert (len(tables) == 1) == (width == 200)
    console = Console(width=width)
    with console.capture() as capture:
        console.print(*tables)
    words = capture.get().split()
    accuracies = cells[-1].class_accuracies
    assert {*accuracies["class"], *(f"{100 * each:.0f}" for each in accuracies["after"])} <= {
        *words
    }
