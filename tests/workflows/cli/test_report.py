"""``dcs report``, ``table``, ``compare`` and ``ui`` on a recorded sweep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.servers import free_port
from tests.tracking.paper_cells import paper_cells
from tests.workflows.conftest import refused
from tracking import Recorder


@pytest.fixture(scope="module")
def runs(new_output: Callable[[], Path]) -> Path:
    """The output folder of a small sweep with cells that the paper has too."""
    folder = new_output()
    records = paper_cells(tasks=("trec", "ddi"), seeds=(0, 1))
    records += paper_cells(tasks=("trec",), methods=("dcs",), seeds=(0, 1), objective="err")
    with Recorder(output=folder, experiment="paper", sweep_key="s1", figures="none") as recorder:
        for record in records:
            recorder.record(record)
    with Recorder(output=folder, experiment="plain", sweep_key="s2", figures="none") as recorder:
        (record,) = paper_cells(tasks=("rte",), methods=("icl",), seeds=(0,))
        recorder.record(replace(record, key="plain"))
    return folder


def test_the_report_is_written_and_kept(dcs, runs, tmp_path):
    page = tmp_path / "out" / "report.html"
    where = ("-o", page, "--runs", runs, "--files", tmp_path / "f", "--ui", "http://u")
    outcome = dcs("report", "paper", *where)
    assert outcome.code == 0, outcome.err
    assert "10 cells reported" in outcome.out
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "DCS, paper" in text
    assert text.count('href="http://u/#/experiments/1/runs/') >= 10
    written = {path.name for path in (tmp_path / "f").iterdir()}
    assert {"main_results.tex", "objective_ablation.csv", "accuracy_cobias.svg"} <= written
    assert {"schemes.md", "annealing_time.json", "class_accuracies_ddi.csv"} <= written
    kept = list((runs / "mlartifacts").glob("**/report.html"))
    assert [path.read_text(encoding="utf-8") for path in kept] == [text]


def test_sweeps_are_put_together(dcs, runs, tmp_path):
    page = tmp_path / "both.html"
    outcome = dcs("report", "paper", "plain", "-o", page, "--runs", runs, "--no-log")
    assert outcome.code == 0, outcome.err
    assert "11 cells reported" in outcome.out
    text = page.read_text(encoding="utf-8")
    assert "<h1>paper and plain</h1>" in text and "<td>rte</td>" in text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("report", "papers"), "'paper'"),
        (("report", "paper", "--ui", "javascript:alert(1)"), "javascript:alert(1)"),
        (("table", "plain", "ablation"), "'ablation'"),
        (("compare", "zzzz", "zzzz"), "zzzz"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(runs, tmp_path, arguments, named):
    output = ("-o", tmp_path / "r.html") if arguments[0] == "report" else ()
    refused(*arguments, "--runs", runs, *output, says=[named])
    assert list(tmp_path.iterdir()) == [], "half a report was left behind"


def test_the_papers_tables_are_printed_side_by_side(dcs, runs):
    main = dcs("table", "paper", "--runs", runs)
    assert main.code == 0, main.err
    ours, theirs = (line for line in main.out.splitlines() if "| DCS" in line)
    assert "75.0 ± 7.1" in ours and "81.5 ± 2.5" in theirs
    plain = dcs("table", "paper", "main", "-f", "csv", "--runs", runs)
    assert plain.out.splitlines()[0].startswith("model,shots,method,task,seeds,accuracy_mean")
    for which in ("ablation", "schemes", "classes", "timing"):
        latex = dcs("table", "paper", which, "--format", "latex", "--runs", runs)
        assert r"\begin{tabular}" in latex.out


@pytest.mark.slow
def test_the_pages_of_mlflow_open_in_a_browser(runs, tmp_path):
    # What stands in for the browser writes down where it is sent.
    browser, opened, port = tmp_path / "browser", tmp_path / "opened", free_port()
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    code = "from workflows.cli import main; main()"
    with (tmp_path / "said").open("w") as said:
        started = subprocess.Popen(
            [sys.executable, "-c", code, "ui", "--runs", str(runs), "--port", str(port)],
            env={**os.environ, "BROWSER": str(browser)},
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + 240
        while not opened.exists() and time.monotonic() < until:
            assert started.poll() is None, (tmp_path / "said").read_text()
            time.sleep(0.2)
        assert opened.read_text().strip() in (tmp_path / "said").read_text()
        refused("ui", "--runs", runs, "--port", port, says=[str(port)])
    finally:
        os.killpg(started.pid, signal.SIGTERM)
        started.wait(30)
