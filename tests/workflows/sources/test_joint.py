"""Tables of the same rows that are tuned on together: in sweeps, and on the command line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dcs.data.reader import read_table
from dcs.data.table import ProbabilityTable, Provenance
from dcs.data.values import to_shares
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.ensemble import TableEnsemble, inputs_of
from dcs_workflows.plan import plan_sweep
from dcs_workflows.sources.given import given_tables
from dcs_workflows.sources.scored import JointTables
from tests.faults.sweeps import sweep
from tests.workflows.conftest import UNDRAWN, biased_table, done, refused, swept


def _noisy(table: ProbabilityTable, seed: int) -> ProbabilityTable:
    noise = np.random.default_rng(seed).normal(0.0, 0.5, table.probs.shape)
    return dataclasses.replace(table, probs=to_shares(table.probs * np.exp(noise), "scores"))


def _tables(folder: Path, n_rows: int = 200) -> list[Path]:
    """Write three tables of the same rows, in different orders, and return their paths."""
    paths = [folder / f"{name}.parquet" for name in "abc"]
    for seed, path in enumerate(paths):
        origin = Provenance(model=f"m{path.stem}", task="moods")
        table = dataclasses.replace(_noisy(biased_table(n_rows), seed), provenance=origin)
        table.subset(np.random.default_rng(seed).permutation(n_rows)).write(path)
    return paths


def test_given_tables_are_grouped_by_what_they_differ_in(tmp_path):
    paths = [str(path) for path in _tables(tmp_path)]
    given = given_tables(swept(*paths, seeds=[0, 1], ensemble=["models"]))
    alone = [each for each in given if len(each.members) == 1]
    joint = [each for each in given if len(each.members) > 1]
    assert [each.seed for each in alone] == [0, 1] * 3
    assert {(each.model, each.task) for each in joint} == {("ma + mb + mc", "moods")}
    assert [each.seed for each in joint] == [0, 1]
    for each in joint:
        tables = each.read()
        assert isinstance(tables["test"], TableEnsemble)
        assert tables["test"].names == ("a", "b", "c")
        assert {split: table.digest for split, table in tables.items()} == each.digests


def test_cells_of_an_ensemble_wait_for_its_last_table(output):
    about = {"shots": [0, 1], "seeds": [0, 1, 2], "limit": 100}
    config = swept(tasks=["reviews"], ensemble=["seeds"], **about)
    plan = plan_sweep(config, output)
    ensembles = {k: each for k, each in plan.tables.items() if isinstance(each, JointTables)}
    # Without demonstrations the seeds share one table: of one nothing is to combine.
    ((key, tables),) = ensembles.items()
    (ensemble,) = plan.sources[key]
    names = [f"tiny_lm reviews 1-shot seed {seed}" for seed in (0, 1, 2)]
    assert (ensemble.shots, [*tables.members]) == (1, names)
    assert len(plan.missing_tables) == 4
    part = plan_sweep(config, output, only=["seeds=0,1"])
    assert len(part.tables) == 3 and part.varies == plan.varies, "an ensemble of two is none of it"
    ready: set[str] = set()
    for number, member in enumerate(tables.members.values()):
        assert not tables.complete
        pair = {
            "optimization": _noisy(biased_table(100), number),
            "test": _noisy(biased_table(60, seed=1), number),
        }
        member.write(pair, seconds=1.0, gpus=0.0)
        ready.add(member.key)
        known = plan.cells_after(member.key, ready)
        assert (key in known) == (number == 2)
    again = plan_sweep(config, output)
    assert [cell.key for cell in again.cells[key]] == [cell.key for cell in known[key]]
    records, _ = sweep(output, config, here=True, only=["shots=1"])
    joint = {cell.key for cell in again.cells[key]}
    uncorrected, batch = (record for record in records if record.key in joint)
    assert batch.metrics["uncorrected/test/accuracy"] == uncorrected.metrics["test/accuracy"]
    scheme = CorrectionScheme.from_dict(batch.scheme or {})
    test = again.tables[key].read()["test"]
    hits = scheme.predict(inputs_of(scheme, test)) == test.labels
    assert batch.metrics["test/accuracy"] == pytest.approx(hits.mean())


def test_tune_and_apply_several_tables(tmp_path, output):
    paths = _tables(tmp_path, 1200)
    said = done("tune", *paths, "--method", "batch", *UNDRAWN, "-o", output).out
    path = output / "a+b+c-batch" / "scheme.json"
    assert f"dcs apply {path} ROWS_a ROWS_b ROWS_c" in said
    scheme = CorrectionScheme.load(path)
    assert scheme.inputs == ("a", "b", "c")
    done("apply", path, *paths, "-o", tmp_path / "fixed.csv")
    tables = TableEnsemble.matched({p.stem: ProbabilityTable.read(p) for p in paths})
    corrected = read_table(tmp_path / "fixed.csv")
    np.testing.assert_allclose(corrected.probs, scheme.apply(tables.probs), atol=1e-12)
    assert corrected.ids == tables.tables[0].ids
    plain = [each.with_suffix(".csv") for each in paths]  # which say nothing of their origin
    for file, each in zip(plain, paths, strict=True):
        pd.read_parquet(each).to_csv(file, index=False)
    for wrong in (paths[:2], [paths[1], paths[0], paths[2]], plain[::-1], paths[:1] * 3):
        done("apply", path, *wrong, "-o", tmp_path / "no.parquet", code=2)
    assert not (tmp_path / "no.parquet").exists()
    refused("evaluate", paths[0], "--scheme", path, says=[str(path), "dcs apply"])


def test_rows_that_are_not_in_all_tables_are_counted(tmp_path):
    paths = _tables(tmp_path)
    table = ProbabilityTable.read(paths[1])
    table.subset(np.delete(np.arange(table.n_rows), 3)).write(paths[1])
    (given,) = given_tables(swept({path.stem: str(path) for path in paths}))
    (*_, joint) = given_tables(swept(*map(str, paths), ensemble=["models"]))
    for each in (given, joint):
        lines = [line for line in each.remarks if f"1 of {table.n_rows} rows" in line]
        assert [line.partition(":")[0] for line in lines] == ["a", "c"]


def test_what_does_not_go_together_is_refused(tmp_path):
    paths = _tables(tmp_path)
    for wrong, said in (
        ([paths[0], paths[0]], "twice"),
        ([*paths, "--test", paths[0]], "--test"),
        ([*paths[:2], *(f"--test={tmp_path / name}" for name in ("b_test", "a_test"))], "b, a"),
    ):
        refused("tune", *wrong, *UNDRAWN, "-o", tmp_path / "runs", says=[said])
