"""Every command with every kind of bad file, as a person would run it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcs.data.table import ProbabilityTable
from dcs.schemes.scheme import CorrectionScheme
from tests.hardening.commands import Outcome, checked, leftovers
from tests.hardening.corpus import KINDS, damaged, scheme, spoiled, table, thorough

_ROOT = Path(__file__).parents[2]
KIND = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True)
class Use:
    """A command that reads a file of some kind."""

    kind: str
    command: Callable[[Path, Path], tuple[object, ...]]

    @property
    def name(self) -> str:
        return f"{self.command(Path('F'), Path('W'))[0]} {self.kind}"


USES = (
    Use("table", lambda file, work: ("evaluate", file)),
    Use("table", lambda file, work: ("apply", work / "scheme.json", file, "-o", work / "out")),
    Use("scheme", lambda file, work: ("apply", file, work / "good.parquet", "-o", work / "out")),
    Use("scheme", lambda file, work: ("evaluate", work / "good.parquet", "--scheme", file)),
    Use("npz", lambda file, work: ("import", "npz", file, "-o", work / "out")),
    Use("csv", lambda file, work: ("import", "csv", file, "-o", work / "out", "--normalise")),
    Use("logits", lambda file, work: ("import", "csv", file, "-o", work / "out", "--logits")),
    Use("parquet columns", lambda file, work: ("import", "parquet", file, "-o", work / "out")),
    Use("vectors", lambda file, work: ("import", "vectors", file, "-o", work / "out")),
    Use("lm-eval", lambda file, work: ("import", "lm-eval", file, "-o", work / "out")),
    Use("task", lambda file, work: ("tasks", "show", file, "--data", work)),
    Use("sweep", lambda file, work: ("sweep", file, "--dry-run", "-o", work / "out")),
)
by_use = pytest.mark.parametrize("use", USES, ids=lambda use: use.name)


def run(use: Use, data: bytes) -> Outcome:
    """Run a command on a file; checks that what it wrote is whole."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        scheme().save(work / "scheme.json")
        table().write(work / "good.parquet")
        (work / "opt.jsonl").write_text('{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n')
        place = work / "files"
        place.mkdir()
        outcome = checked(*use.command(KIND[use.kind].written(place, data), work))
        assert leftovers(work) == []
        out = work / "out"
        if out.is_file():
            assert outcome.code == 0
            ProbabilityTable.read(out)
        elif use.kind not in ("task", "sweep") and "-o" in use.command(place, work):
            assert outcome.code == 2
    return outcome


@by_use
def test_a_good_file(use: Use) -> None:
    outcome = run(use, KIND[use.kind].good)
    assert outcome.code == 0, outcome


@by_use
@thorough
@given(data=st.data())
def test_a_damaged_file(use: Use, data: st.DataObject) -> None:
    run(use, data.draw(damaged(KIND[use.kind].good)))


@pytest.mark.parametrize(
    "use", [use for use in USES if KIND[use.kind].content is not None], ids=lambda use: use.name
)
@thorough
@given(data=st.data())
def test_a_file_with_other_values(use: Use, data: st.DataObject) -> None:
    kind = KIND[use.kind]
    run(use, kind.dump(data.draw(spoiled(kind.content))).encode())


def test_warnings_are_worded_for_people() -> None:
    code = (
        "import sys, warnings\n"
        "from workflows import cli\n"
        "cli.app = lambda arguments, **options: warnings.warn('no rows are\\nlabelled x')\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=_ROOT
    )
    assert done.stderr == "dcs: warning: no rows are\\nlabelled x\n"


DEGENERATE = {
    "two rows": ([[0.5, 0.5], [0.2, 0.8]], [0, 1]),
    "one label": ([[0.5, 0.5], [0.2, 0.8], [0.9, 0.1]], [1, 1, 1]),
    "all alike": ([[1 / 3] * 3] * 6, [0, 1, 2, 0, 1, 2]),
    "certain and right": ([[1, 0], [0, 1]] * 3, [0, 1] * 3),
    "certain and wrong": ([[0, 1], [1, 0]] * 3, [0, 1] * 3),
    "next to nothing": ([[1e-300, 1.0]] * 4, [0, 1, 0, 1]),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_tables_at_the_edge(name: str, tmp_path: Path) -> None:
    values, labels = DEGENERATE[name]
    made = ProbabilityTable.from_arrays(values, labels, normalise=True)
    made.write(tmp_path / "t.parquet")
    schemes = {"identity": CorrectionScheme.identity(made.classes), "mixed": scheme(made.classes)}
    for each in schemes.values():
        each.save(tmp_path / "s.json")
        evaluated = checked("evaluate", tmp_path / "t.parquet", "--scheme", tmp_path / "s.json")
        assert evaluated.code == 0, evaluated
        applied = checked(
            *("apply", tmp_path / "s.json", tmp_path / "t.parquet"), "-o", tmp_path / "x.parquet"
        )
        assert applied.code == 0, applied
        assert ProbabilityTable.read(tmp_path / "x.parquet").n_rows == len(labels)
