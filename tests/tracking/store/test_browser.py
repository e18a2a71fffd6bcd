"""The report and MLflow's own pages in a real browser, on a recorded sweep.

Run with ``pytest -m browser``; needs Playwright and Chromium.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcs_tracking import Archive
from dcs_tracking.results.report import render_report
from dcs_tracking.store.client import default_tracking_uri, run_link
from dcs_tracking.store.queries import newest_links, stored_cells
from tests.servers import free_port, mlflow_server
from tests.tracking.cells import paper_cells, recorded

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

EXPERIMENT = "demo"
#: How long MLflow's pages may take, in milliseconds: they are slow where much else runs.
_PATIENCE = 120_000


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    methods = ("icl", "dnip", "furud", "dcs")
    cells = paper_cells(tasks=("trec", "ddi"), shots=(1, "N"), methods=methods)
    cells += paper_cells(tasks=("trec",), methods=("dcs",), objective="err")
    recorded(folder, *cells, experiment=EXPERIMENT)
    return folder


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[str]:
    with mlflow_server(runs, free_port(), artifacts=False) as address:
        yield address


def test_the_report_draws_and_sorts(page: Page, runs: Path, server: str, tmp_path: Path) -> None:
    cells, link = stored_cells(runs, EXPERIMENT), partial(run_link, server)
    text = render_report(cells, title=EXPERIMENT, archive=Archive(runs), link=link)
    (report := tmp_path / "report.html").write_text(text, encoding="utf-8")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert page.locator("h1").inner_text() == EXPERIMENT
    widths = page.eval_on_selector_all("figure img", "all => all.map((one) => one.naturalWidth)")
    assert len(widths) == 2 and all(width > 150 for width in widths)
    too_wide = "(one) => one.scrollWidth > one.clientWidth"
    for part in ("html", ".scroll:has(#main-results)"):
        assert not page.locator(part).evaluate(too_wide)

    head = page.locator("#main-results th:nth-child(4)")
    column = "#main-results tbody tr td:nth-child(4)"
    for direction in (1, -1):
        head.locator("button").click()
        texts = page.locator(column).all_inner_texts()
        values = [float(text.split()[0].rstrip("*")) for text in texts if text.strip()]
        assert values == sorted(values, reverse=direction < 0)
    assert head.get_attribute("aria-sort") == "descending"

    closed = page.locator("details:not([open]) summary").first
    closed.click()
    page.set_viewport_size({"width": 390, "height": 800})
    assert not page.locator("html").evaluate(too_wide), "too wide for a telephone"
    page.evaluate("scrollTo(0, 0)")
    box = page.get_by_text("Results", exact=True).first.bounding_box()
    assert box is not None and box["y"] + box["height"] < 800, "the results are out of sight"

    page.set_viewport_size({"width": 1280, "height": 900})
    page.locator("details[open] a").first.click()
    page.get_by_text("Run ID", exact=False).first.wait_for(timeout=_PATIENCE)
    assert page.get_by_text("dcs.cell_key").count() > 0


def test_mlflow_compares_methods_on_its_first_page(page: Page, server: str, runs: Path) -> None:
    page.goto(newest_links(default_tracking_uri(runs), server)["methods"])
    groups = [f'text="Group: {name}"' for name in ("uncorrected", "dcs")]
    metrics = ['text="test/accuracy"', 'text="test/cobias"']
    listed = f"text={len(stored_cells(runs, EXPERIMENT))} matching runs"
    for selector in (listed, *groups, ".js-plotly-plot svg", *metrics):
        page.locator(selector).first.wait_for(timeout=_PATIENCE)
