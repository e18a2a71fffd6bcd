"""Sweeps in any order of runs, kills, losses and damage: the results are those of one run.

``make fuzz`` looks for new orders.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import event
from sqlalchemy.engine import Engine

from dcs import fit_scheme
from tests.faults.sweeps import kept, results
from tests.workflows.conftest import biased_table
from tracking import Archive, CellRecord, Recorder, sync
from tracking.store import queries
from tracking.store.client import open_experiment, search_runs
from workflows.cluster.sweep import run_here
from workflows.config.sweep import SweepConfig
from workflows.plan import plan_sweep, sweep_key
from workflows.study.study import open_storage

pytestmark = pytest.mark.slow

FOLDERS = ("a", "b")
METHODS = ("icl", "batch", "dnip")
_CONTEXT = multiprocessing.get_context("fork")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def apart(*works: Callable[[], Any]) -> list[Any]:
    """Return what each returns in a process of its own, at the same time; None if killed."""
    running = []
    for work in works:
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(target=lambda end, do: end.send(do()), args=(theirs, work))
        process.start()
        theirs.close()
        running.append((process, ours))
    values = []
    for process, ours in running:
        try:
            values.append(ours.recv())
        except EOFError:
            values.append(None)
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL), "see the traceback"
    return values


def die_at(step: int) -> None:
    """End this process at the given one of its next changes of files and commits."""
    left = [step]

    def count(*_: Any) -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(name: str, arguments: tuple[Any, ...]) -> None:
        if name in ("os.rename", "os.remove", "os.mkdir") or (
            name == "open" and (arguments[2] or 0) & _WRITES
        ):
            count()

    sys.addaudithook(audit)
    event.listen(Engine, "commit", count)


def config(table: Path, methods: tuple[str, ...] = METHODS) -> SweepConfig:
    return SweepConfig(
        name="siege",
        tables=[str(table)],
        seeds=(0, 1),
        methods=methods,
        tuner={"trials": 8, "judge": {"development": 0.3}},
        tracking={"figures": "none"},
    )


def run(sweep: SweepConfig, output: Path, uri: str, last_step: int | None = None) -> bool:
    """Run what is missing, as ``dcs sweep`` does; return whether all is recorded."""
    if last_step is not None:
        die_at(last_step)
    plan = plan_sweep(sweep, output)
    with Recorder(
        uri,
        output=output,
        experiment=sweep.name,
        sweep_key=sweep_key(sweep),
        sweep_params=sweep.model_dump(mode="json"),
        figures="none",
    ) as recorder:
        run_here(plan, recorder, lambda share: None)
        return recorder.finish().pending == 0


def synced(output: Path, uri: str) -> bool:
    return all(report.pending == 0 for report in sync(output, tracking_uri=uri))


def stored(uri: str) -> tuple[Counter[str], dict[str, float]]:
    """Return how many runs a store has of each cell, and the accuracies that queries give."""
    runs = search_runs(*open_experiment(uri, "siege"), "tags.`dcs.kind` = 'cell'")
    number = Counter(str(each.data.tags["dcs.cell_key"]) for each in runs)
    frame = queries.cells(uri, "siege")
    finished = frame[frame["status"] == "FINISHED"]
    return number, dict(zip(finished["cell_key"], finished["test/accuracy"], strict=True))


def trials_of(output: Path) -> dict[str, list[Any]]:
    """Return number, parameters and values of all trials in the journal, by study."""
    storage = open_storage(str(output / "optuna.journal"))
    return {
        name: [
            (trial.number, trial.params, trial.values)
            for trial in optuna.load_study(study_name=name, storage=storage).trials
        ]
        for name in optuna.get_all_study_names(storage)
    }


@cache
def undisturbed() -> tuple[Path, list[dict], dict[str, list[Any]]]:
    """Return the table, and the results and trials of one run, in which nothing happens."""
    root = Path(tempfile.mkdtemp(prefix="dcs-lifecycle-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    table = biased_table(200)
    table.write(root / "my.parquet")
    # Forked processes then need not load the compiled search.
    fit_scheme(table.probs, table.labels, classes=table.classes)
    uri = f"sqlite:///{root / 'store.db'}"
    assert apart(lambda: run(config(root / "my.parquet"), root / "runs", uri)) == [True]
    return (
        root / "my.parquet",
        results(kept(root / "runs")),
        *apart(lambda: trials_of(root / "runs")),
    )


class Lifecycle(RuleBasedStateMachine):
    """Two output folders and two stores of the same sweep."""

    folders = st.sampled_from([*FOLDERS, *FOLDERS[:1] * 2])
    stores = st.sampled_from(["s", "s", "s", "t"])
    methods = st.sampled_from([METHODS, METHODS[:2], METHODS[::-1]])

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="dcs-lifecycle-"))
        self.table, self.results, self.trials = undisturbed()

    def teardown(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def uri(self, store: str) -> str:
        return f"sqlite:///{self.root / store}.db"

    def expected(self, methods: tuple[str, ...]) -> list[dict]:
        return [cell for cell in self.results if cell["identity"]["method"] in methods]

    def work(
        self, folder: str, store: str, methods: tuple[str, ...], step: int | None = None
    ) -> Callable[[], bool]:
        return lambda: run(config(self.table, methods), self.root / folder, self.uri(store), step)

    @rule(folder=folders, store=stores, methods=methods)
    def run(self, folder: str, store: str, methods: tuple[str, ...]) -> None:
        assert apart(self.work(folder, store, methods)) == [True]
        self.check(folder, store, methods)

    @rule(store=stores, methods=methods)
    def run_both(self, store: str, methods: tuple[str, ...]) -> None:
        """Two drivers at the same time; the last one to end leaves each cell once."""
        for folder in FOLDERS:
            # Creating a store takes long enough that one driver would wait for the other.
            self.run(folder, store, METHODS[:1])
        assert apart(*(self.work(folder, store, methods) for folder in FOLDERS)) == [True, True]
        for folder in FOLDERS:
            self.check(folder, store, methods)
            self.check_once(folder, store)

    @rule(
        folder=folders, store=stores, steps=st.lists(st.integers(1, 400), min_size=1, max_size=3)
    )
    def resume(self, folder: str, store: str, steps: list[int]) -> None:
        """Killed up to three times, at any change of a file or of the database."""
        for step in steps:
            apart(self.work(folder, store, METHODS, step))
        self.run(folder, store, METHODS)

    @rule(folder=folders, store=stores, methods=methods, step=st.integers(1, 400))
    def die(self, folder: str, store: str, methods: tuple[str, ...], step: int) -> None:
        apart(self.work(folder, store, methods, step))

    @rule(folder=folders, store=stores)
    def sync(self, folder: str, store: str) -> None:
        """All that a folder has is in the store once, whoever else recorded it there."""
        output, uri = self.root / folder, self.uri(store)
        if not list(output.glob("sweeps/*.json")):
            return
        assert apart(lambda: synced(output, uri)) == [True]
        self.check_once(folder, store)

    def check_once(self, folder: str, store: str) -> None:
        ((numbers, _),) = apart(lambda: stored(self.uri(store)))
        for record in kept(self.root / folder):
            assert numbers[record.key] == 1

    def check(self, folder: str, store: str, methods: tuple[str, ...]) -> None:
        output = self.root / folder
        found = {cell["key"]: cell for cell in results(kept(output))}
        for cell in self.expected(methods):
            assert found[cell["key"]] == cell
        (trials,) = apart(lambda: trials_of(output))
        assert trials == {name: self.trials[name] for name in trials}
        ((numbers, accuracies),) = apart(lambda: stored(self.uri(store)))
        for cell in self.expected(methods):
            assert numbers[cell["key"]] >= 1
            assert accuracies[cell["key"]] == pytest.approx(cell["metrics"]["test/accuracy"])

    @rule(folder=folders, data=st.data())
    def damage(self, folder: str, data: st.DataObject) -> None:
        """A record is cut, changed or deleted."""
        records = sorted((self.root / folder).glob("cells/[!.]*.json"))
        if not records:
            return
        path = data.draw(st.sampled_from(records))
        content = path.read_bytes()
        how = data.draw(st.sampled_from(["cut", "changed", "deleted"]))
        if how == "deleted":
            path.unlink()
        elif how == "cut":
            path.write_bytes(content[: len(content) // 2])
        else:
            path.write_bytes(content.replace(b"0.", b"1.", 1))

    @rule(folder=folders)
    def lose_folder(self, folder: str) -> None:
        shutil.rmtree(self.root / folder, ignore_errors=True)

    @rule(store=stores)
    def lose_store(self, store: str) -> None:
        for path in self.root.glob(f"{store}.db*"):
            path.unlink()

    @invariant()
    def nothing_else_appears(self) -> None:
        for folder in FOLDERS:
            for record in self.readable(folder):
                assert results([record])[0] == next(
                    cell for cell in self.results if cell["key"] == record.key
                )

    def readable(self, folder: str) -> list[CellRecord]:
        return [*Archive(self.root / folder).load().values()]


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(
    max_examples=settings().max_examples // 20, stateful_step_count=12, deadline=None
)
