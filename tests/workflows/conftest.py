"""A table with a known bias, and the command line as a person meets it."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest
from scipy.special import softmax

from dcs.data.table import ProbabilityTable, Provenance
from dcs_workflows.cli import main
from dcs_workflows.cluster.connect import CELLS


@dataclass(frozen=True)
class Outcome:
    """What a command left behind on the terminal."""

    code: int
    out: str
    err: str


def run_dcs(*arguments: object) -> Outcome:
    """Run ``dcs ARGUMENTS`` in this process."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        mock.patch.object(sys, "argv", ["dcs", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())


def done(*arguments: object, code: int = 0) -> Outcome:
    """Run ``dcs ARGUMENTS``, which must end with an exit code."""
    outcome = run_dcs(*arguments)
    assert outcome.code == code, outcome
    return outcome


def refused(*arguments: object, says: Iterable[str] = ()) -> None:
    """Expect of ``dcs ARGUMENTS`` one line that says what is wrong, and exit code 2."""
    outcome = done(*arguments, code=2)
    assert outcome.err.startswith("dcs: error: ") and outcome.err.count("\n") == 1
    assert [word for word in says if word not in outcome.err] == [], outcome.err


#: A tuner whose study takes little time.
QUICK = {
    "trials": 2,
    "judge": {"development": 0.3},
    "space": {"calibration": "none", "corrections": "both", "spacing": "linear", "beta": 0.5},
}

#: Drawing takes longer than all else in recording, and is tested where it is written.
UNDRAWN = ("--set", "tracking.figures=none")


#: The key of a served model, in the variable of a test's own: workers have it from their start.
KEY_VARIABLE, SECRET = "DCS_TEST_KEY", "sk-secret"


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Ray on two CPUs that say themselves that they are for cells; all tests share it."""
    import ray

    os.environ[KEY_VARIABLE] = SECRET
    # Inherited by all processes of Ray, as when a script starts a sweep in the background.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    ray.init(
        address="local",
        num_cpus=2,
        resources={CELLS: 2},
        include_dashboard=False,
        log_to_driver=False,
    )
    signal.signal(signal.SIGINT, interrupt)
    yield
    ray.shutdown()


def biased_table(
    n_rows: int = 300, *, seed: int = 0, classes: tuple[str, ...] = ("Anger", "Fear", "Joy")
) -> ProbabilityTable:
    """Return a table whose first class is predicted far too often."""
    rng = np.random.default_rng(seed)
    n_classes = len(classes)
    labels = np.arange(n_rows) % n_classes
    logits = rng.normal(size=(n_rows, n_classes)) + 1.5 * np.eye(n_classes)[labels]
    logits[:, 0] += 2.0
    probs, origin = softmax(logits, axis=1), Provenance(model="toy", task="moods", shots=1)
    return ProbabilityTable.from_arrays(probs, labels, classes=classes, provenance=origin)


def swept(*tables: object, **settings: Any) -> Any:
    """Return a sweep over tables, by default one whose cells take no time."""
    from dcs_workflows.config.sweep import SweepConfig  # see toy_cell

    plain = {"name": "given", "methods": ["icl", "batch"], "tracking": {"figures": "none"}}
    return SweepConfig.model_validate(plain | {"tables": tables} | settings)


def toy_cell(table: ProbabilityTable | None = None, **changes: Any) -> Any:
    """Return the cell of ``icl`` on a table, or on none, with some parts changed."""
    from dcs_workflows.plan import Cell  # and Numba, which the tests of vLLM must not load

    digest = "none" if table is None else table.digest
    parts = {"model": "toy", "task": "moods", "shots": 1, "seed": 0, "method": "icl"}
    digests = {"optimization_digest": digest, "test_digest": digest}
    return Cell(**{**parts, **digests, "tuner": None, **changes})


def stopped(*cell: object, **about: object) -> None:
    """Fail in the place of what computes."""
    raise RuntimeError("stopped")
