"""The report is one whole page; what a browser makes of it is tested in test_browser.py."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest

from dcs.errors import InvalidInputError
from dcs_tracking.records import CellRecord, StoredCell
from dcs_tracking.results.report import render_report
from tests.tracking.cells import failed_cell, make_cell, paper_cells


def _render(records: list[CellRecord], title: str = "demo") -> str:
    cells = [StoredCell(record, f"run{i:05d}", "7") for i, record in enumerate(records)]
    runs = "http://127.0.0.1:5000/#/runs"
    return render_report(cells, title=title, link=lambda cell: f"{runs}/{cell.run_id}")


@pytest.fixture(scope="module")
def report() -> str:
    tasks = ("trec", "ddi")
    found = paper_cells(tasks=tasks, shots=(1, "N"), seeds=(0,))
    found += paper_cells(tasks=tasks, objective="err", methods=("dcs",), seeds=(0,))
    hostile = 'Traceback ...\nValueError: <img src="https://host/x"> & worse'
    return _render([*found, failed_cell(900, hostile)], "<paper> & more")


def test_the_page_refers_to_nothing_outside_itself(report: str) -> None:
    others = re.findall(r'<(?!a\b)[^>]*\s(?:src|href)="([^"]*)"', report)
    assert others and all(to.startswith("data:") for to in others)
    assert "default-src 'none'" in report
    assert "@import" not in report and "url(" not in report
    ids = re.findall(r'\sid="([^"]*)"', report)
    assert len(ids) == len(set(ids))
    assert {*re.findall(r'href="#([^"]*)"', report)} <= {*ids}


def test_the_page_tells_every_part(report: str) -> None:
    said = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", report)).split())
    for text in (
        "<paper> & more",
        "Ablation by objective",
        "World : only probabilities from 0 to 0.5 count, most of all near 0.25",
        'ValueError: <img src="https://host/x"> & worse',
    ):
        assert text in said
    links = {*re.findall(r'href="(http[^"]*/#/runs/[^"]*)"', report)}
    assert len(links) == 2 + 1, "schemes, failure"
    assert report.count('<img src="data:image/svg+xml;base64,') == 2
    assert report.count("<details open>") == 1
    assert report.count('<div class="scheme">') == 2


def test_the_best_scheme_of_all_methods_is_shown() -> None:
    cells = [
        make_cell(n, identity={"task": "t", "method": method}, metrics=figures)
        for n, (method, figures) in enumerate(
            [
                ("batch", {"test/accuracy": 0.8, "test/cobias": 0.4}),
                ("logistic", {"test/accuracy": 0.7, "test/cobias": 0.1}),
                ("dnip", {"test/accuracy": 0.6, "test/cobias": 0.1}),
            ]
        )
    ]
    shown = re.findall(r'<div class="scheme">.*?</div>', _render(cells), re.DOTALL)
    assert len(shown) == 1 and "runs/run00001" in shown[0], "not that of the second cell"


def test_a_sweep_may_have_no_search_and_must_have_a_finished_cell() -> None:
    (cell,) = paper_cells(tasks=("trec",), methods=("icl",), seeds=(0,))
    assert "This sweep has no searched schemes." in _render([replace(cell, trials=())])
    for error, reason in (("Traceback ...\nValueError: bad", "ValueError: bad"), ("", "no trace")):
        with pytest.raises(InvalidInputError, match=f"demo.*seed 1 failed with: {reason}"):
            _render([failed_cell(1, error)])
