"""What people see while a command works and when it is done."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box, progress
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dcs.errors import ConfigError
from dcs.messages import escaped, show

if TYPE_CHECKING:
    from tracking import CellRecord
    from workflows.tables import Scoring

__all__ = [
    "SweepView",
    "column_tables",
    "console",
    "count_bar",
    "duration",
    "new_table",
    "parse_duration",
    "share_bar",
    "sweep_view",
    "width_of",
]

#: A file or a pipe has no width of its own: wide enough for a table of ten classes.
_PIPE_WIDTH = 130

#: How often a sweep tells how far it is in a file, which nobody watches.
_LINE_SECONDS = 30.0


class _Console(Console):
    """Shows names that come from files as they are, but for what could move the cursor."""

    def render_str(self, text: str, **options: Any) -> Text:
        visible = "\n".join(escaped(line) for line in text.split("\n"))
        return super().render_str(visible, **options)


#: Lines are left whole, for people to copy; tables are printed with ``soft_wrap=False``.
console = _Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
if not console.is_terminal:
    console.width = _PIPE_WIDTH


def new_table(*columns: str, dense: bool = False) -> Table:
    """Return an empty table in the one style; columns ending in a space are aligned left."""
    padding = (0, 1, 0, 0) if dense else (0, 1)
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, padding=padding)
    for name in columns:
        table.add_column(name.rstrip(), justify="left" if name.endswith(" ") else "right")
    return table


def column_tables(
    corner: str,
    rows: Sequence[str],
    columns: Mapping[str, Sequence[str]],
    *,
    width: int,
    ruled: int = 0,
) -> Iterator[Table]:
    """Lay columns out by their heads, as many on each table as fit; rule off the first rows."""
    widest = max(
        len(line) for head, texts in columns.items() for line in (*head.split("\n"), *texts)
    )
    number = max(1, (width - max(map(len, rows)) - 1) // (widest + 2))
    heads = list(columns)
    for start in range(0, len(heads), number):
        some = heads[start : start + number]
        table = new_table(corner, *some, dense=True)
        for i, name in enumerate(rows):
            table.add_row(name, *(columns[head][i] for head in some), end_section=i + 1 == ruled)
        yield table


def width_of(table: Table) -> int:
    """Return how many characters wide a table is where nothing is folded."""
    return Measurement.get(console, console.options.update(width=10_000), table).maximum


def duration(seconds: float) -> str:
    """Return a length of time for people: ``45 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def parse_duration(text: str) -> float:
    """Return the seconds of a length of time such as ``90s``, ``45m``, ``2h``, ``1d12h``.

    Raises
    ------
    ConfigError
        It is none.
    """
    units = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
    parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", text)
    seconds = sum(float(number) * units[unit] for number, unit in parts)
    if "".join(map("".join, parts)) != text or not seconds:
        raise ConfigError(f"{show(text)} is no length of time; write 90s, 45m, 2h or 1h30m")
    return seconds


def _progress(*columns: progress.ProgressColumn) -> progress.Progress:
    what = progress.TextColumn("{task.description}", markup=False)
    bar = progress.BarColumn(bar_width=28)
    return progress.Progress(progress.SpinnerColumn(), what, bar, *columns, console=console)


@contextmanager
def share_bar(description: str) -> Iterator[Callable[[float], None]]:
    """Show one bar of work of unknown units; call what is given with the share done, 0..1."""
    with _progress(progress.TimeElapsedColumn(), progress.TimeRemainingColumn()) as shown:
        bar = shown.add_task(description, total=1.0)
        yield lambda share: shown.update(bar, completed=share)
        shown.update(bar, completed=1.0)


@contextmanager
def count_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show one bar of `total` pieces of work; call what is given with the number just done."""
    times = progress.TimeElapsedColumn(), progress.TimeRemainingColumn()
    with _progress(progress.MofNCompleteColumn(), *times) as shown:
        bar = shown.add_task(description, total=total)
        yield lambda number: shown.advance(bar, number)


class SweepView:
    """Keeps count of a sweep, which tells it how far it is, and has it shown.

    Parameters
    ----------
    show : callable
        Called with this view after every change.
    clock : callable
        Seconds that only go up.
    """

    def __init__(
        self, show: Callable[[SweepView], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.tables_done = self.tables_total = 0
        self.cells_done = self.cells_total = self.cells_failed = 0
        self._computed = self._running = self._trials = self._moves = self._prompts = 0
        self._machines = ""
        self._show, self._clock, self._started = show, clock, clock()

    def tables(self, done: int, total: int) -> None:
        """Show that `done` of `total` tables are there."""
        self.tables_done, self.tables_total = done, total
        self._show(self)

    def cells(self, done: int, total: int, failed: int) -> None:
        """Show that `done` of `total` cells have ended."""
        self.cells_done, self.cells_total, self.cells_failed = done, total, failed
        self._show(self)

    def computed(self, record: CellRecord) -> None:
        """Count what went into a cell."""
        self._computed += 1
        self._trials += len(record.trials)
        self._moves += record.moves

    def scored(self, scoring: Scoring) -> None:
        """Count the prompts of a pair of tables."""
        self._prompts += scoring.rows

    def machines(
        self, *, running: int, cpus_used: float, cpus: float, gpus_used: float, gpus: float
    ) -> None:
        """Show how many cells are handed out and how much of the cluster is at work."""
        self._running = running
        self._machines = f"CPUs {cpus_used:.0f}/{cpus:.0f}"
        if gpus:
            self._machines += f" · GPUs {gpus_used:.0f}/{gpus:.0f}"
        self._show(self)

    @property
    def rates(self) -> str:
        """Work per second, time left if the rest is like what was done, and machines."""
        seconds = max(1e-9, self._clock() - self._started)
        parts = [f"{self._running} running"]
        if self._prompts:
            parts.append(f"{self._prompts / seconds:,.1f} prompts/s")
        if self._trials:
            parts.append(f"{self._trials / seconds:.1f} trials/s")
        if self._moves:
            parts.append(f"{self._moves / seconds:,.0f} moves/s")
        if self._computed:
            rest = self.cells_total - self.cells_done
            parts.append(f"{duration(seconds / self._computed * rest)} left")
        return " · ".join([*parts, *filter(None, [self._machines])])

    @property
    def line(self) -> str:
        """All of it on one line."""
        failed = f", {self.cells_failed} failed" if self.cells_failed else ""
        return (
            f"tables {self.tables_done}/{self.tables_total}, "
            f"cells {self.cells_done}/{self.cells_total}{failed}: {self.rates}"
        )


@contextmanager
def sweep_view() -> Iterator[SweepView]:
    """Show a sweep while the block runs: bars on a terminal, a line now and then in a file."""
    if not console.is_terminal:
        due = time.monotonic() + _LINE_SECONDS

        def show_line(view: SweepView) -> None:
            nonlocal due
            if time.monotonic() >= due:
                due = time.monotonic() + _LINE_SECONDS
                console.print(view.line)

        yield SweepView(show_line)
        return
    note = progress.TextColumn("{task.fields[note]}")
    counts = progress.MofNCompleteColumn(), progress.TimeElapsedColumn()
    with _progress(*counts, note) as shown:
        tables = shown.add_task("scoring prompts", total=None, note="")
        cells = shown.add_task("tuning cells", total=None, note="")

        def show_bars(view: SweepView) -> None:
            shown.update(tables, completed=view.tables_done, total=view.tables_total)
            failed = f"{view.cells_failed} failed · " if view.cells_failed else ""
            note = failed + (view.rates if view.cells_done < view.cells_total else "")
            shown.update(cells, completed=view.cells_done, total=view.cells_total, note=note)

        yield SweepView(show_bars)
