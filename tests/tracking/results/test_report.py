"""The report is one whole page; what a browser makes of it is tested in test_browser.py."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from mlflow import MlflowClient

from dcs.errors import InvalidInputError, TrackingError
from tests.tracking.cells import failed_cell, make_cell
from tests.tracking.paper_cells import paper_cells
from tracking import Archive, Recorder
from tracking.records import StoredCell
from tracking.results.report import render_report
from tracking.store.queries import (
    find_cell,
    log_report,
    run_link,
    stored_cells,
    sweep_run,
)

_VOID = {"meta", "link", "img", "br", "input", "hr"}


class Page(HTMLParser):
    """Checks that tags are closed, and collects what the page refers to and says."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.rows = 0
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag not in _VOID:
            self.open.append(tag)
        self.rows += tag == "tr"
        if values.get("src"):
            self.sources.append(str(values["src"]))
        if values.get("href"):
            (self.links if tag == "a" else self.sources).append(str(values["href"]))
        if values.get("id"):
            self.ids.append(str(values["id"]))

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def _cells() -> list[StoredCell]:
    records = paper_cells(tasks=("trec", "ddi"), shots=(1, "N"))
    records += paper_cells(tasks=("trec", "ddi"), objective="err")
    records.append(failed_cell(900, "Traceback ...\nValueError: <b>bad</b> & worse"))
    return [
        StoredCell(record, run_id=f"run{number:05d}", experiment_id="7")
        for number, record in enumerate(records)
    ]


@pytest.fixture(scope="module")
def report() -> str:
    return render_report(
        _cells(),
        title="<paper> & more",
        link=lambda cell: f"http://127.0.0.1:5000/#/runs/{cell.run_id}",
        store="sqlite:////x.db",
    )


def test_the_page_refers_to_nothing_outside_itself(report: str) -> None:
    page = Page(report)
    assert page.sources and all(source.startswith("data:") for source in page.sources)
    assert "default-src 'none'" in report
    assert "@import" not in report and "url(" not in report
    assert len(page.ids) == len(set(page.ids))
    inner = [link for link in page.links if link.startswith("#")]
    assert {link[1:] for link in inner} <= set(page.ids)


def test_the_page_shows_tables_figures_schemes_and_failures(report: str) -> None:
    page = Page(report)
    assert "<paper> & more" in page.text
    assert "DCS, paper" in page.text and "difference" in page.text
    assert "World : only probabilities from 0 to 0.5 count, most of all near 0.25" in page.text
    assert "Sports : every probability is multiplied by 0.8" in page.text
    assert "1 failed" in page.text
    assert "ValueError: <b>bad</b> & worse" in page.text
    assert "accuracy 60.0 → 80.0" in page.text
    assert "Ablation of the objective" in page.text
    assert "objective full objective, Z_err" in page.text, "the axis is not among the facts"
    assert len([source for source in page.sources if source.startswith("data:image")]) >= 8
    runs = {link for link in page.links if "/#/runs/" in link}
    assert len(runs) == len(_cells())


def test_the_same_cells_give_the_same_page(report: str) -> None:
    again = render_report(_cells()[:3], title="a", link=lambda cell: cell.run_id, store="s")
    assert again == render_report(
        _cells()[:3], title="a", link=lambda cell: cell.run_id, store="s"
    )
    assert again != report


def test_nothing_finished_is_nothing_to_report() -> None:
    why = "demo: no cell is finished.*seed 1 failed with: ValueError: bad"
    with pytest.raises(InvalidInputError, match=why):
        render_report(
            [StoredCell(failed_cell(1), "r", "1")], title="demo", link=lambda _: "", store="s"
        )


def test_a_sweep_without_search_has_a_report_too() -> None:
    records = paper_cells(tasks=("trec",), methods=("icl",), seeds=(0,))
    cells = [
        StoredCell(make_cell(1, identity=record.identity, trials=0, trace=()), "r1", "1")
        for record in records
    ]
    page = Page(render_report(cells, title="plain", link=lambda _: "http://x", store="s"))
    assert "Nothing was searched in this sweep." in page.text


def test_changes_are_those_of_the_largest_number_of_shots() -> None:
    records = paper_cells(tasks=("trec",), shots=(1, "N"))
    stored = [StoredCell(record, record.key, "1") for record in records]
    page = Page(render_report(stored, title="one", link=lambda _: "http://x", store="s"))
    assert "meta-llama/Llama-2-13b-hf, N-shot, DCS" in page.text
    assert "accuracy 60.0 → 80.0 +20.0 ± 10.0" in page.text
    assert "COBias 40.0 → 20.0 −20.0 ± 10.0" in page.text
    assert "weakest class, World 30 → 70" in page.text


def test_the_change_of_one_seed_has_the_p_value_of_its_test() -> None:
    (cell,) = paper_cells(tasks=("trec",), methods=("dcs",), seeds=(0,))
    tested = replace(cell, metrics={**cell.metrics, "test/accuracy_p": 0.04})
    stored = [StoredCell(tested, "run1", "1")]
    page = Page(render_report(stored, title="one", link=lambda _: "http://x", store="s"))
    assert "accuracy 60.0 → 70.0 +10.0, p = 0.040" in page.text
    assert "over seeds" not in page.text.replace("mean over seeds; ratio", "")


def test_of_very_many_schemes_the_most_are_folded_away() -> None:
    records = paper_cells(tasks=("trec", "ddi", "rte"), methods=("dcs",), shots=(1, "N"))
    cells = [StoredCell(cell, f"run{i}", "1") for i, cell in enumerate(records)]
    text = render_report(cells, title="many", link=lambda _: "http://x", store="s")
    assert "15 schemes of other shots and seeds" in Page(text).text
    assert text.count("<details open>") == 1
    assert text.count('<div class="scheme">') == 18


def test_cells_are_read_back_with_their_runs(output: Path, uri: str) -> None:
    records = [make_cell(2), make_cell(1), failed_cell(3)]
    with Recorder(output=output, experiment="demo", sweep_key="s1") as recorder:
        for record in records:
            recorder.record(record)
    found = stored_cells(uri, "demo")
    assert [cell.record for cell in found] == [make_cell(1), make_cell(2), failed_cell(3)]
    assert stored_cells(uri, "demo", archive=Archive(output)) == found

    by_run = find_cell(uri, found[0].run_id)
    by_key = find_cell(uri, "cell0001")
    assert by_run == by_key == found[0]
    for ambiguous_or_unknown in ("cell", "nothing"):
        with pytest.raises(TrackingError):
            find_cell(uri, ambiguous_or_unknown)
    with pytest.raises(TrackingError, match="no experiment 'demos'.*did you mean 'demo'"):
        stored_cells(uri, "demos")

    assert log_report(uri, "demo", "<html>")
    run = sweep_run(uri, "demo")
    assert run is not None
    names = {item.path for item in MlflowClient(uri).list_artifacts(run.info.run_id)}
    assert "report.html" in names
    link = run_link(uri, found[0])
    assert link == f"http://127.0.0.1:5000/#/experiments/1/runs/{found[0].run_id}"
    assert run_link("http://host:80/", found[0]).startswith("http://host:80/#/experiments/")
