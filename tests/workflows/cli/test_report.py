"""``dcs report``, ``table``, ``compare`` and ``ui`` on a recorded sweep."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dcs_tracking import Archive, CellRecord
from tests.tracking.cells import paper_cells, recorded
from tests.workflows.conftest import done, refused


@pytest.fixture(scope="module")
def runs(new_output: Callable[[], Path]) -> Path:
    """The output folder of a small sweep with cells that the paper has too."""
    folder = new_output()
    records = paper_cells(tasks=("trec", "ddi"), seeds=(0, 1))
    records += paper_cells(tasks=("trec",), methods=("dcs",), seeds=(0, 1), objective="err")
    (other,) = paper_cells(tasks=("rte",), methods=("icl",), seeds=(0,))
    for name, some in {"paper": records, "plain": [replace(other, key="plain")]}.items():
        recorded(folder, *some, experiment=name, sweep_key=name)
    return folder


def test_the_report_and_its_files_are_written(runs, tmp_path):
    page = tmp_path / "out" / "report.html"
    where = ("-o", page, "--runs", runs, "--files", tmp_path / "f")
    assert "10 cells reported" in done("report", "paper", *where).out
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "COBias trec" in text
    assert text.count('href="http://127.0.0.1:5000/#/experiments/1/runs/') >= 2
    written = {path.name for path in (tmp_path / "f").iterdir()}
    assert {"main_results.md", "objective_ablation.csv", "accuracy_cobias.svg"} <= written
    assert {"main_results.tex", "class_accuracies.csv"} <= written


def test_a_report_needs_no_store(runs, tmp_path):
    page = tmp_path / "report.html"
    away = ("--tracking-uri", "http://127.0.0.1:9")
    done("report", "paper", "-o", page, "--runs", runs, *away)
    assert "COBias trec" in page.read_text(encoding="utf-8")
    assert "without a link" in done("runs", "paper", "--runs", runs, *away).out


def test_sweeps_are_put_together(runs, tmp_path):
    page = tmp_path / "both.html"
    both = ("report", "paper", "plain", "-o", page, "--runs", runs)
    assert "11 cells reported" in done(*both).out
    text = page.read_text(encoding="utf-8")
    assert "<h1>paper and plain</h1>" in text and "COBias rte" in text


def test_cells_of_one_table_with_other_rows_have_no_mean(new_output, tmp_path):
    folder = new_output()
    _recorded(folder, "third", 0.5, (0, 1), test_digest="third")
    half = _recorded(folder, "half", 0.5, (1, 2), test_digest="half", method="dnip")
    page = ("-o", tmp_path / "report.html", "--runs", folder)
    refused("report", "third", "half", *page, says=["third", "half"])
    done("report", "third", *page)
    recorded(folder, *half, experiment="third", sweep_key="edited")
    for words in (("report", "third", *page), ("compare", "third", "half", *page[2:])):
        refused(*words, says=["third", "dcs rm"])


@pytest.mark.parametrize("words", ["report papers", "compare zz zz"])
def test_what_is_wrong_is_said_in_one_line(runs, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    refused(*words.split(), "--runs", runs, says=[words.split()[-1]])
    assert list(tmp_path.iterdir()) == [], "half a report was left behind"


def _recorded(
    folder: Path, name: str, accuracy: float, seeds: tuple[int, ...], **others: str
) -> list[CellRecord]:
    cells = []
    for record in paper_cells(tasks=("trec",), methods=("dcs",), seeds=seeds):
        changed = record.metrics | {"test/accuracy": accuracy + record.identity["seed"] / 100}
        about: Any = {"metrics": changed, "identity": {**record.identity, **others}}
        cells.append(replace(record, key=f"{name}{record.key}", **about))
    recorded(folder, *cells, experiment=name, sweep_key=name)
    return cells


def test_two_sweeps_are_compared_over_what_both_have_and_one_is_deleted(new_output):
    folder = new_output()
    _recorded(folder, "before", 0.5, (0, 1, 2))
    _recorded(folder, "after", 0.6, (1, 2))
    archive = Archive(folder)
    lock = archive.lock(next(each for each in archive.sweeps() if each.experiment == "before"))
    for name in ("before", next(iter(archive.keys("before")))):
        refused("rm", name, "--yes", "--runs", folder, says=["another process"])
    lock.release()
    assert "3 cells;" in done("runs", "before", "--runs", folder).out
    compared = done("compare", "before", "after", "--runs", folder).out
    (row,) = (line for line in compared.splitlines() if "DCS" in line)
    assert "51.5 → 61.5" in row and "+10.0" in row and "cells differ" not in compared
    told = json.loads(done("compare", "before", "after", "--json", "--runs", folder).out)
    (numbers,) = told["rows"]
    assert numbers["accuracy_change"] == pytest.approx(0.1) and numbers["cells"] == 2
    assert numbers["accuracy_p"] is None, "two seeds show no chance"
    done("rm", "before", "--yes", "--runs", folder)
    assert {path.stem[:5] for path in (folder / "cells").glob("*.json")} == {"after"}
    refused("runs", "before", "--runs", folder, says=["'before'", "after"])
    refused("compare", "before", "after", "--runs", folder)
    key = next((folder / "cells").glob("*.json")).stem
    # The identity of the record is not one of a cell: an earlier version may have written it.
    study = folder / "studies" / f"{key}.journal"
    study.parent.mkdir()
    study.write_text("{}\n")
    done("rm", key, "--yes", "--runs", folder)
    assert not study.exists()
    # The tables in MLflow have the cell, until they are written again.
    assert {sweep.status for sweep in archive.sweeps()} == {None}
    assert "1 cell;" in done("runs", "after", "--runs", folder).out
    _recorded(folder, "others", 0.6, (1, 2), test_digest="of other rows")
    assert "1 of 1 cells differ" in done("compare", "after", "others", "--runs", folder).out


def test_a_store_is_named_by_the_environment_or_a_file(new_output, tmp_path, monkeypatch):
    folder, unlinked = new_output(), "without a link"
    _recorded(folder, "before", 0.5, (0,))
    another = f"sqlite:///{folder}/another.db"
    (tmp_path / "uri").write_text(f"{another}\n")
    asked = ("runs", "before", "--runs", folder)
    assert unlinked not in done(*asked).out
    assert unlinked in done(*asked, "--tracking-uri", f"@{tmp_path / 'uri'}").out
    # Of several stores, the one of the sweep.
    other = paper_cells(tasks=("ddi",), methods=("icl",), seeds=(0,))
    recorded(folder, *other, tracking_uri=another, experiment="elsewhere", sweep_key="e")
    assert unlinked not in done("runs", "elsewhere", "--runs", folder).out
    assert "deleted: 2 runs" in done("rm", "elsewhere", "--yes", "--runs", folder).out
    monkeypatch.setenv("MLFLOW_TRACKING_URI", another)
    assert unlinked in done(*asked).out
    secret = "postgresql://me:secret@127.0.0.1:9/x"
    shown = done("runs", "--runs", tmp_path, "--tracking-uri", secret, code=2)
    assert "MLFLOW_TRACKING_URI" in shown.out + shown.err
    assert "secret" not in shown.out + shown.err
