"""Sweeps over tables that are given: what becomes of their rows, and of the cells on them."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from dcs.data.reader import read_table
from dcs.data.table import ProbabilityTable, Provenance
from dcs.errors import ConfigError, InvalidInputError, TableError
from dcs.methods.calibrations import batch_calibration
from dcs.schemes.scheme import CorrectionScheme
from dcs_tracking import Archive
from dcs_tracking.results.cells import Cells
from dcs_tracking.results.sweep_tables import all_tables
from dcs_tracking.schema import CELL_KEY
from dcs_workflows.plan import Cell, cells_of, paths_by_name, sweep_key, variants_of
from dcs_workflows.sources.given import GivenTable, given_tables
from dcs_workflows.study.cell import compute_cell, optimization_rows
from dcs_workflows.study.study import Setup
from tests.dcs.biased import labelled
from tests.dcs.refusals import refuses
from tests.faults.sweeps import sweep
from tests.tracking.cells import runs_of
from tests.workflows.conftest import UNDRAWN, biased_table, done, refused, stopped, swept


def write(path: Path, n_rows: int = 120, *, seed: int = 0, **origin: object) -> ProbabilityTable:
    """Write a biased table with the provenance given."""
    table = biased_table(n_rows, seed=seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    table = dataclasses.replace(table, provenance=Provenance(**origin))
    table.write(path)
    return table


def who(given: GivenTable) -> tuple[object, ...]:
    return given.model, given.task, given.shots, given.seed


def planned(path: Path, **settings: object) -> tuple[GivenTable, list[Cell]]:
    """Return the one table of a sweep, and its cells."""
    sweep = swept(str(path), **settings)
    (given,) = given_tables(sweep)
    return given, cells_of([given], variants_of(sweep), given.digests)


def test_rows_are_held_out_for_each_seed(tmp_path):
    table = write(tmp_path / "my.parquet", task="moods", model="toy", shots="1")
    first, second = given_tables(swept(str(tmp_path / "*.parquet"), seeds=[0, 1], held_out=0.25))
    assert [who(first), who(second)] == [("toy", "moods", 1, 0), ("toy", "moods", 1, 1)]
    assert first.digests != second.digests
    parts = first.read()
    assert (parts["optimization"].n_rows, parts["test"].n_rows) == (90, 30)
    assert {*parts["optimization"].ids, *parts["test"].ids} == {*table.ids}


@pytest.mark.parametrize("column", ["text", "uid"])
def test_rows_of_one_text_or_id_are_held_out_together(tmp_path, column):
    rng = np.random.default_rng(0)
    labels, number = rng.integers(0, 3, 300), np.arange(300)
    start = "the review number " if column == "text" else "r"
    names = [f"{start}{k}" for k in np.where(number < 150, number // 2, number)]
    probs = pd.DataFrame(rng.dirichlet([1, 1, 1], 300), columns=[*"abc"])
    frame = probs.assign(label=[*map("abc".__getitem__, labels)], **{column: names})
    frame.sample(frac=1, random_state=1).to_csv(tmp_path / "my.csv", index=False)
    (given,) = given_tables(swept(str(tmp_path / "my.csv")))
    parts = given.read()
    assert sum(table.n_rows for table in parts.values()) == 300
    texts = pd.read_csv(tmp_path / "my.csv")[column]
    # The ids are row numbers.
    first, second = ({*texts[[*map(int, table.ids)]]} for table in parts.values())
    assert not first & second
    assert parts["test"].repeated > 0
    parts["test"].write(tmp_path / "again.parquet")
    again = ProbabilityTable.read(tmp_path / "again.parquet")
    assert np.array_equal(again.groups, parts["test"].groups)
    assert again.digest == parts["test"].digest


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        ("id", ["d1", "d2"] * 10),
        ("id", [*range(12), *range(8)]),
        ("text", ["thank you very much"] * 11 + [f"the parcel number {k}" for k in range(29)]),
        ("seconds", [0.12345678901234] * 4 + [k / 7 for k in range(16)]),
        ("when", [f"2026-01-01T10:00:{k // 2 if k < 4 else k:02}" for k in range(20)]),
    ],
)
def test_cells_that_coincide_make_no_copies(tmp_path, column, cells):
    labels = ["a", "b"] * (len(cells) // 2)
    frame = pd.DataFrame({"label": labels, "a": 0.4, "b": 0.6, column: cells})
    assert read_table(frame).repeated == 0
    frame.to_csv(tmp_path / "rows.csv", index=False)
    assert read_table(tmp_path / "rows.csv").repeated == 0


def test_every_kind_of_source_is_taken(tmp_path):
    one = write(tmp_path / "one.parquet")
    np.savez(tmp_path / "two.npz", probs=one.probs, labels=one.labels)
    folder = tmp_path / "trec_toy_shot1_seed3"
    folder.mkdir()
    for name, rows in (("opt.txt", 12), ("test.txt", 9)):
        lines = [f"{i} {i % 3} 0 0.5 0.3 0.2" for i in range(rows)]
        (folder / name).write_text("\n".join(lines), encoding="utf-8")
    given = given_tables(swept(str(tmp_path), seeds=[0, 1]))
    # A pair that says its seed is the table of that seed.
    plain = [(name, name, None, seed) for name in ("one", "two") for seed in (0, 1)]
    assert [who(each) for each in given] == [*plain[:2], ("toy", "trec", 1, 3), *plain[2:]]
    assert [table.n_rows for table in given[2].read().values()] == [12, 9]


_word = st.from_regex(r"[a-z1-9][-.@a-z0-9]{0,5}", fullmatch=True)
_named = st.tuples(_word, _word, st.sampled_from(["N", "0", "16"]), st.integers(0, 99))


@settings(max_examples=10, deadline=None)
@drawn(st.lists(_named, min_size=1, max_size=4, unique=True))
def test_the_fields_of_a_pattern_are_read_as_they_were_written(origins):
    table = biased_table(40)
    with tempfile.TemporaryDirectory() as folder:
        names = ["{}_{}_shot{}_seed{}.parquet".format(*origin) for origin in origins]
        for name in (*names, "other.parquet", "a_b_shotM_seed0.parquet"):
            dataclasses.replace(table, provenance=Provenance()).write(Path(folder, name))
        pattern = f"{folder}/{{task}}_{{model}}_shot{{shots}}_seed{{seed}}.parquet"
        given = given_tables(swept(pattern, seeds=[7, 8]))
        by_name = given_tables(swept(folder, seeds=[7]))
    shots = [each[2] if each[2] == "N" else int(each[2]) for each in origins]
    expected = {(o[1], o[0], k, o[3]) for o, k in zip(origins, shots, strict=True)}
    # All are the same rows, so that tables are told apart by nothing but their fields.
    assert {who(each) for each in given} == expected
    assert all(each.own_seed for each in given)
    told = {who(each) for each in by_name}
    assert told == expected | {(name, name, None, 7) for name in ("other", "a_b_shotM_seed0")}


def test_what_a_pattern_does_not_name_is_read_from_the_table_or_is_the_folder(tmp_path):
    for name in ("trec", "rte"):
        for number in (3, 4):
            path = tmp_path / "vectors" / name / f"run{number}x.parquet"
            write(path, seed=number, **({"model": "toy"} if name == "rte" else {}))
    found = given_tables(swept(str(tmp_path / "vectors" / "{task}" / "run{seed}?.*")))
    wanted = [("toy", "rte"), ("vectors", "trec")]
    assert [who(each) for each in found] == [(*w, None, seed) for w in wanted for seed in (3, 4)]
    # The rows that a table holds out are drawn with its own seed.
    assert found[0].digests != found[1].digests


def test_tables_that_share_a_seed_but_not_all_are_refused(tmp_path):
    for name in ("a/trec_m_shot1_seed0", "a/trec_m_shot1_seed1", "b/trec_m_shot1_seed0"):
        write(tmp_path / f"{name}.parquet", seed=len(name))
    sweep = swept(str(tmp_path / "**/*.parquet"))
    refuses(ConfigError, given_tables, sweep, names=["trec_m_shot1_seed0", "{task}"])
    # Each is a task by its folder.
    sweep = swept(str(tmp_path / "{task}" / "trec_{model}_shot{shots}_seed{seed}.parquet"))
    found = {who(given) for given in given_tables(sweep)}
    assert found == {("m", "a", 1, 0), ("m", "a", 1, 1), ("m", "b", 1, 0)}


def test_the_parts_of_a_table_are_not_two(tmp_path):
    for part in ("optimization", "test"):
        write(tmp_path / "g" / f"{part}.parquet", seed=len(part))
    refuses(ConfigError, given_tables, swept(str(tmp_path / "g" / "*.parquet")), names=["folder"])
    for one in (tmp_path / "g", tmp_path / "g" / "optimization.parquet"):
        assert len(given_tables(swept(str(one)))) == 1


def test_what_is_no_table_is_named(tmp_path):
    (tmp_path / "rte_shotX").mkdir()
    wrong = ("{taks}_seed{seed}", "{}.npz", "{task}_seed{seed}.npz", "{task}_shot{shots}", "*.npz")
    advice = ["{model}, {task}, {shots}"]
    for name, more in ((n, advice if "{" in n else []) for n in (*wrong, "none.csv", "rte_shotX")):
        sweep = swept(str(tmp_path / name))
        refuses(InvalidInputError, given_tables, sweep, names=[str(tmp_path / name), *more])


def test_a_sweep_of_named_tables_has_means_over_seeds(cluster, new_output):
    folder = new_output()
    names = [f"{task}_m{model}_{seed}" for task in "ab" for model in "xy" for seed in (0, 2)]
    for number, name in enumerate(names):
        for part, rows in (("optimization", 90), ("test", 60)):
            path = folder / "v" / name / f"{part}.parquet"
            write(path, n_rows=rows, seed=2 * number + (part == "test"))
    file = folder / "sweep.yaml"
    pattern = folder / "v" / "{task}_m{model}_{seed}"
    file.write_text(f"name: named\ntables: {pattern}\nmethods: [icl, batch]\n")
    only = ("--only", "model=x", "--only", "seeds=2,0", "--only", "method=batch")
    part = done("sweep", file, *only, "--dry-run", "-o", folder)
    assert "named: 4 tables, 4 cells" in part.out
    refused("sweep", file, "--only", "tasks=c", "-o", folder, says=["'c'", "tasks", "a, b"])
    out = done("sweep", file, *UNDRAWN, "-o", folder).out
    assert "4 tasks and models: % of test rows, mean over these and seeds" in out
    for again in ((), only):  # of a part, too, the file has the whole sweep
        done("sweep", file, *again, *UNDRAWN, "-o", folder)
        assert len((folder / "results" / "named.csv").read_text().splitlines()) == 1 + 16


def test_tables_of_one_name_are_told_apart_by_words_that_files_can_have():
    found = paths_by_name([Path("a/x.parquet"), Path("b/y.npz"), Path()])
    assert [*found] == ["x", "y", Path.cwd().name]
    paths = [Path("a/x.parquet"), Path("/b/../x.parquet"), Path("a/y/x.parquet")]
    # Tables of the same file name are named after their paths.
    found = paths_by_name(paths)
    assert [*found.values()] == paths
    assert all("/" not in name for name in found)
    refuses(ConfigError, paths_by_name, [*paths, paths[0]])


def test_a_table_that_changed_since_the_plan_is_refused(tmp_path):
    path = tmp_path / "my.parquet"
    write(path)
    (given,) = given_tables(swept(str(path)))
    write(path, seed=1)
    refuses(TableError, given.read, names=["changed"])


def test_a_sweep_has_the_cells_of_its_tables_as_they_are_now(tmp_path, monkeypatch):
    output, config = tmp_path / "out", swept(str(tmp_path / "{task}_shot{shots}.parquet"))
    names = ("a_shot1", "b_shot5", "c_shot5")
    a, b, c = (tmp_path / f"{name}.parquet" for name in names)

    def run(*only: str) -> tuple[set[str], set[str]]:
        records, _ = sweep(output, config, here=True, only=only)
        kept = {*Archive(output).keys(sweep_key(config))}
        found = runs_of(f"sqlite:///{output / 'mlflow.db'}", "given")
        assert kept == {each.data.tags[CELL_KEY] for each in found}
        return {record.key for record in records}, kept

    for seed, path in enumerate((a, b, c)):
        write(path, seed=seed)
    first, kept = run()
    assert len(first) == 6 and kept == first
    # The value is the default, and the rest of the sweep has others.
    some, kept = run("shots=1")
    assert len(some) == 2 and kept == first
    write(a, seed=7)
    b.unlink()
    # A part of the sweep replaces what it computes again, and knows nothing of the rest.
    some, kept = run("methods=icl")
    assert len(some - first) == 1 and some < kept and len(kept & first) == 5
    now, kept = run()
    assert kept == now and len(now) == 4 and len(now - first) == 2
    write(a, seed=0)
    again, kept = run()
    assert kept == again < first
    # A run that is stopped has no cells of the earlier tables left to average.
    write(a, seed=9)
    monkeypatch.setattr("dcs_workflows.study.cell.compute_cell", stopped)
    refuses(RuntimeError, run)
    assert {*Archive(output).keys(sweep_key(config))} < kept


def test_only_labelled_rows_are_held_out_and_chosen(tmp_path):
    labelled(biased_table(120), np.arange(120) < 40).write(tmp_path / "some.parquet")
    batch = {"methods": ["batch"], "optimization_sizes": [10]}
    given, (cell,) = planned(tmp_path / "some.parquet", **batch)
    parts = given.read()
    assert [int(part.labelled.sum()) for part in parts.values()] == [28, 12]
    assert [part.n_rows for part in parts.values()] == [108, 12]
    assert optimization_rows(parts["optimization"], cell).labels.min() >= 0
    whole = [dataclasses.replace(cell, optimization_size=size) for size in (28, 99)]
    assert {optimization_rows(parts["optimization"], each).n_rows for each in whole} == {108}


def test_without_labels_there_is_a_scheme_and_no_figure(tmp_path):
    table = labelled(biased_table(120), False)
    table.write(tmp_path / "none.parquet")
    given, cells = planned(tmp_path / "none.parquet", methods=["icl", "dcs"])
    records = [compute_cell(cell, given.read(), setup=Setup(sweep="given")) for cell in cells]
    assert [(record.metrics, record.class_accuracies) for record in records] == [({}, {})] * 2
    scheme = CorrectionScheme.from_dict(records[1].scheme)
    assert scheme.calibration == batch_calibration(table.probs)
    assert {made.name for made in all_tables(Cells.of(records))} <= {"schemes"}
