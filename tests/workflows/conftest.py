"""A table with a known bias, and the command line as a person meets it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from dcs.probabilities import ProbabilityTable, Provenance
from workflows.cli import main


@dataclass(frozen=True)
class Outcome:
    """What a command left behind on the terminal."""

    code: int
    out: str
    err: str


@pytest.fixture
def dcs(monkeypatch, capsys) -> Callable[..., Outcome]:
    """Run ``dcs ARGUMENTS``; wide output, so that no line is wrapped."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["dcs", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


def biased_table(
    n_rows: int = 300, *, seed: int = 0, classes: tuple[str, ...] = ("Anger", "Fear", "Joy")
) -> ProbabilityTable:
    """Return a table whose first class is predicted far too often."""
    rng = np.random.default_rng(seed)
    n_classes = len(classes)
    labels = np.arange(n_rows) % n_classes
    logits = rng.normal(size=(n_rows, n_classes)) + 1.5 * np.eye(n_classes)[labels]
    logits[:, 0] += 2.0
    probs = np.exp(logits)
    return ProbabilityTable.from_arrays(
        probs,
        labels,
        classes=classes,
        provenance=Provenance(model="toy", task="moods", shots=1),
        normalise=True,
    )
