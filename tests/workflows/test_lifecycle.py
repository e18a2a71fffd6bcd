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
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import optuna
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import event
from sqlalchemy.engine import Engine

from dcs import fit_scheme
from dcs_tracking import Archive, sync
from dcs_tracking.store.client import open_client
from dcs_workflows.config.sweep import SweepConfig
from dcs_workflows.study.storage import StoredStudy
from tests.faults.sweeps import kept, results, sweep
from tests.tracking.cells import runs_of
from tests.workflows.conftest import biased_table, swept

pytestmark = pytest.mark.slow

FOLDERS = ("a", "b")
STORES = ("s", "t")
METHODS = ("icl", "batch", "dnip")
#: Number of the change at which a process is killed, of files or commits.
Death: TypeAlias = tuple[int, str]
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


def die_at(step: int, kind: str) -> None:
    """End this process at the given one of its next changes of files, or commits."""
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

    if kind == "file":
        sys.addaudithook(audit)
    else:
        event.listen(Engine, "commit", count)


def config(table: Path, methods: tuple[str, ...] = METHODS) -> SweepConfig:
    tuner = {"trials": 8, "judge": {"development": 0.3}}
    return swept(str(table), name="siege", seeds=(0, 1), methods=methods, tuner=tuner)


def run(config: SweepConfig, output: Path, uri: str, death: Death | None = None) -> bool:
    """Run what is missing; return whether all is recorded."""
    if death is not None:
        die_at(*death)
    return sweep(output, config, tracking_uri=uri, here=True)[1].pending == 0


def stored(uri: str) -> tuple[Counter[str], dict[str, float]]:
    """Return how many runs a store has of each cell, and the accuracies of finished ones."""
    runs = runs_of(uri, "siege")
    number = Counter(str(each.data.tags["dcs.cell_key"]) for each in runs)
    return number, {
        each.data.tags["dcs.cell_key"]: each.data.metrics["test/accuracy"]
        for each in runs
        if each.info.status == "FINISHED"
    }


def trials_of(output: Path) -> dict[str, list[Any]]:
    """Return number, parameters and values of all trials in the journals, by study."""
    return {
        name: [
            (trial.number, trial.params, trial.values)
            for trial in optuna.load_study(study_name=name, storage=storage).trials
        ]
        for path in sorted(output.glob("studies/*.journal"))
        for storage in [StoredStudy("", path).storage]
        for name in optuna.get_all_study_names(storage)
    }


@dataclass(frozen=True)
class Quiet:
    """A table, an empty store, and the results and trials of a run in which nothing happens."""

    table: Path
    store: Path
    results: list[dict]
    trials: dict[str, list[Any]]


@cache
def quiet() -> Quiet:
    root = Path(tempfile.mkdtemp(prefix="dcs-lifecycle-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    table = biased_table(200)
    table.write(root / "my.parquet")
    # Forked processes then need not load the compiled search.
    fit_scheme(table.probs, table.labels, classes=table.classes)
    output, store = root / "runs", root / "empty.db"
    apart(lambda: open_client(f"sqlite:///{store}") and None)
    shutil.copy(store, root / "store.db")
    uri = f"sqlite:///{root / 'store.db'}"
    assert apart(lambda: run(config(root / "my.parquet"), output, uri)) == [True]
    (trials,) = apart(lambda: trials_of(output))
    return Quiet(root / "my.parquet", store, results(kept(output)), trials)


class Lifecycle(RuleBasedStateMachine):
    """Two output folders and two stores of the same sweep."""

    folders = st.sampled_from(FOLDERS)
    stores = st.sampled_from(STORES)
    methods = st.sampled_from([METHODS, METHODS[:2], METHODS[::-1]])
    deaths = st.tuples(st.integers(1, 80), st.sampled_from(["file", "commit"]))

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="dcs-lifecycle-"))
        for store in STORES:
            self.lose_store(store)

    def teardown(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    @rule(folder=folders, store=stores, methods=methods, deaths=st.lists(deaths, max_size=2))
    def run(self, folder: str, store: str, methods: tuple[str, ...], deaths: list[Death]) -> None:
        """Killed up to twice at any change of a file or of the database, then to its end."""
        for death in deaths:
            apart(self.work(folder, store, methods, death))
        assert apart(self.work(folder, store, methods)) == [True]
        self.check(folder, store, methods)

    @rule(store=stores, methods=methods)
    def run_both(self, store: str, methods: tuple[str, ...]) -> None:
        """Two drivers at the same time; the last one to end leaves each cell once."""
        assert apart(*(self.work(folder, store, methods) for folder in FOLDERS)) == [True, True]
        for folder in FOLDERS:
            self.check(folder, store, methods)

    @rule(folder=folders, store=stores, methods=methods, death=deaths)
    def die(self, folder: str, store: str, methods: tuple[str, ...], death: Death) -> None:
        apart(self.work(folder, store, methods, death))

    @rule(folder=folders, store=stores)
    def sync(self, folder: str, store: str) -> None:
        """All that a folder has is in the store once, whoever else recorded it there."""
        output, uri = self.root / folder, self.uri(store)
        if not list(output.glob("sweeps/*.json")):
            return
        reports = apart(lambda: sync(output, tracking_uri=uri))[0]
        assert all(report.pending == 0 for report in reports)
        # Of sweeps with other methods too, whose lists a kill may have cut.
        ((numbers, _),) = apart(lambda: stored(uri))
        assert set(numbers.values()) <= {1}

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
        shutil.copy(quiet().store, self.root / f"{store}.db")

    @invariant()
    def every_readable_record_is_that_of_the_quiet_run(self) -> None:
        known = {cell["key"]: cell for cell in quiet().results}
        for folder in FOLDERS:
            for key, record in Archive(self.root / folder).load().items():
                assert results([record]) == [known[key]]

    def work(
        self, folder: str, store: str, methods: tuple[str, ...], death: Death | None = None
    ) -> Callable[[], bool]:
        sweep = config(quiet().table, methods)
        return lambda: run(sweep, self.root / folder, self.uri(store), death)

    def uri(self, store: str) -> str:
        return f"sqlite:///{self.root / store}.db"

    def check(self, folder: str, store: str, methods: tuple[str, ...]) -> None:
        """All cells are on the disk, and once in the store, as after the quiet run."""
        output = self.root / folder
        found = {cell["key"]: cell for cell in results(kept(output))}
        expected = [cell for cell in quiet().results if cell["identity"]["method"] in methods]
        (trials,) = apart(lambda: trials_of(output))
        assert trials == {name: quiet().trials[name] for name in trials}
        ((numbers, accuracies),) = apart(lambda: stored(self.uri(store)))
        for cell in expected:
            key = cell["key"]
            assert found[key] == cell
            assert numbers[key] == 1
            assert accuracies[key] == pytest.approx(cell["metrics"]["test/accuracy"])


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(
    max_examples=settings().max_examples // 20,
    stateful_step_count=12,
    deadline=None,
    # Shrinking would run hundreds of sweeps.
    phases=[Phase.generate],
)
