"""The report and MLflow's own pages in a real browser, on a recorded sweep.

Run with ``pytest -m browser``; needs Playwright and Chromium. With ``DCS_SCREENSHOTS=FOLDER`` the
pages are photographed, and with ``DCS_RUNS=FOLDER`` those of a sweep of one's own are opened.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.servers import free_port, mlflow_server
from tests.tracking.paper_cells import paper_cells
from tracking import Archive, Recorder
from tracking.records import StoredCell
from tracking.results.figures import cell_figures
from tracking.results.report import render_report
from tracking.store.client import default_tracking_uri, run_link
from tracking.store.queries import newest_link, stored_cells, sweep_run

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

EXPERIMENT = os.environ.get("DCS_EXPERIMENT", "quickstart")
_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
#: How long MLflow's pages may take, in milliseconds: they are slow where much else runs.
_PATIENCE = 120_000
# MLflow asks for a user that a server without accounts does not know, and its charts settle in
# more than one frame.
_EXPECTED = ("users/current", "ResizeObserver loop")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("DCS_RUNS")
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp("browser")
    methods = ("icl", "dnip", "furud", "dcs")
    with Recorder(output=folder, experiment=EXPERIMENT, sweep_key="s1", trials="none") as recorder:
        for record in paper_cells(tasks=("trec", "ddi"), shots=(1, "N"), methods=methods):
            recorder.record(record)
        for record in paper_cells(tasks=("trec",), methods=("dcs",), objective="err"):
            recorder.record(record, cell_figures(record))
    return folder


@pytest.fixture(scope="module")
def cells(runs: Path) -> list[StoredCell]:
    return stored_cells(default_tracking_uri(runs), EXPERIMENT, archive=Archive(runs))


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[str]:
    with mlflow_server(runs, free_port(), artifacts=False) as address:
        yield address


@pytest.fixture(scope="module")
def report(cells: list[StoredCell], server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    uri = "sqlite:////dcs-runs/mlflow.db"
    text = render_report(
        cells,
        title=EXPERIMENT,
        link=lambda cell: run_link(uri, cell, ui=server),
        store=uri,
    )
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def page() -> Iterator[Page]:
    """A page that fails the test when it logs an error or does not get what it asks for."""
    playwright = pytest.importorskip("playwright.sync_api")
    if _CHROMIUM is None:
        pytest.skip("no chromium on the path")
    troubles: list[str] = []
    with playwright.sync_playwright() as engine:
        # Chromium refuses its sandbox to root, which tests in containers are.
        browser = engine.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda said: troubles.extend(_errors(said)))
        yield page
        browser.close()
    assert [text for text in troubles if not any(part in text for part in _EXPECTED)] == []


def _errors(message: ConsoleMessage) -> list[str]:
    place = message.location["url"]
    return [f"{message.text} ({place})"] if message.type == "error" else []


@pytest.fixture
def photograph(page: Page) -> Callable[[str], None]:
    def take(name: str) -> None:
        folder = os.environ.get("DCS_SCREENSHOTS")
        if folder:
            # MLflow's assistant takes a third of the page.
            close = page.locator("[aria-label='Close']")
            if close.count():
                close.first.click()
            page.wait_for_timeout(1500)
            Path(folder).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=str(Path(folder) / f"{name}.png"))

    return take


def test_the_report_draws_sorts_and_filters(
    page: Page, report: Path, cells: list[StoredCell]
) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert page.locator("h1").inner_text() == EXPERIMENT
    sizes = "all => all.map((one) => one.getAttribute('viewBox').split(' ')[2])"
    widths = list(map(float, page.eval_on_selector_all("figure svg", sizes)))
    assert len(widths) >= 7 and all(width > 150 for width in widths)
    too_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not page.evaluate(too_wide)

    head = page.locator("#all-cells th:nth-child(4)")
    column = "#all-cells tbody tr td:nth-child(4)"
    for direction in (1, -1):
        head.locator("button").click()
        values = [float(text.split()[0]) for text in page.locator(column).all_inner_texts()]
        assert values == sorted(values, reverse=direction < 0)
    assert head.get_attribute("aria-sort") == "descending"

    page.fill("#filter", "dcs 1-shot")
    expected = [c for c in cells if c.record.identity["method"] == "dcs"]
    expected = [c for c in expected if str(c.record.identity["shots"]) == "1"]
    assert page.locator("#all-cells tbody tr:visible").count() == len(expected) > 0
    assert page.locator("#shown").inner_text() == f"{len(expected)} of {len(cells)}"

    closed = page.locator("details:not([open]) summary").first
    closed.click()
    page.set_viewport_size({"width": 390, "height": 800})
    assert not page.evaluate(too_wide), "too wide for a telephone"
    page.evaluate("scrollTo(0, 0)")
    box = page.get_by_text("accuracy", exact=True).first.bounding_box()
    assert box is not None and box["y"] + box["height"] < 800, "accuracy is out of sight"

    page.set_viewport_size({"width": 1280, "height": 900})
    page.fill("#filter", "")
    page.locator("#all-cells tbody a").first.click()
    page.get_by_text("Run ID", exact=False).first.wait_for(timeout=_PATIENCE)
    assert page.get_by_text("dcs.cell_key").count() > 0


_CONTRASTS = """
() => {
  const channel = (v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = (color) => {
    const [r, g, b] = color.match(/[0-9.]+/g).map(Number);
    return .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
  };
  const behind = (node) => {
    const color = getComputedStyle(node).backgroundColor;
    return color.startsWith("rgba(0, 0, 0, 0") && node.parentElement
      ? behind(node.parentElement) : color;
  };
  const chosen = "h1, h2, a, td, th button, .note, .kind, figcaption, summary, li, input, dt, dd";
  return [...document.querySelectorAll(chosen)].map((node) => {
    const [a, b] = [light(getComputedStyle(node).color), light(behind(node))];
    return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  });
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_is_legible_by_day_and_by_night(
    page: Page, report: Path, scheme: Any, photograph: Callable[[str], None]
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(report.as_uri())
    contrasts = page.evaluate(_CONTRASTS)
    assert len(contrasts) > 50
    assert min(contrasts) >= 4.5, "less than WCAG asks for"
    page_is_dark = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g)[0] < 100"
    )
    assert page_is_dark == (scheme == "dark")
    drawn = page.locator("figure svg text").first
    light = "node => getComputedStyle(node).fill.match(/[0-9]+/g)[0] > 150"
    assert drawn.evaluate(light) == (scheme == "dark"), "a figure that is not of the page"
    photograph("report_dark" if scheme == "dark" else "report")


def test_the_first_page_lists_the_cells_with_their_figures(
    page: Page, server: str, runs: Path, cells: list[StoredCell], photograph: Callable[[str], None]
) -> None:
    page.goto(newest_link(default_tracking_uri(runs), server))
    page.get_by_text(f"{len(cells)} matching runs").wait_for(timeout=_PATIENCE)
    for head in ("test/accuracy", "test/cobias"):
        assert page.get_by_text(head, exact=True).count() > 0
    assert page.get_by_role("link", name="uncorrected trec 1-shot seed 0").count() > 0
    photograph("mlflow_cells")


def test_mlflow_compares_both_methods(
    page: Page, server: str, cells: list[StoredCell], photograph: Callable[[str], None]
) -> None:
    last = cells[-1].record.identity
    pair = [
        cell
        for cell in cells
        if cell.record.identity["method"] in ("dnip", "dcs")
        and all(cell.record.identity[name] == last[name] for name in ("task", "shots", "seed"))
    ]
    assert len(pair) == 2
    ids, experiments = [cell.run_id for cell in pair], [pair[0].experiment_id]
    page.goto(
        f"{server}/#/compare-runs?runs={quote(json.dumps(ids))}"
        f"&experiments={quote(json.dumps(experiments))}"
    )
    page.get_by_text("Comparing 2 Runs").first.wait_for(timeout=_PATIENCE)
    page.locator(".js-plotly-plot svg").first.wait_for(timeout=_PATIENCE)
    for cell in pair:
        assert page.get_by_text(cell.run_id).count() > 0
    for metric in ("test/accuracy", "test/cobias"):
        assert page.get_by_text(metric, exact=True).count() > 0
    photograph("mlflow_compare")


def _run_page(server: str, run: Any, part: str) -> str:
    return f"{server}/#/experiments/{run.experiment_id}/runs/{run.run_id}/{part}"


def test_mlflow_draws_the_annealing_run(
    page: Page, server: str, cells: list[StoredCell], photograph: Callable[[str], None]
) -> None:
    cell = next(cell for cell in reversed(cells) if cell.record.trace)
    page.goto(_run_page(server, cell, "model-metrics"))
    page.get_by_text("temperature", exact=True).first.wait_for(timeout=_PATIENCE)
    page.locator(".js-plotly-plot svg").first.wait_for(timeout=_PATIENCE)
    assert page.get_by_text("best", exact=True).count() > 0
    photograph("mlflow_annealing")


def test_mlflow_shows_the_pictures_of_a_cell(
    page: Page, server: str, cells: list[StoredCell], photograph: Callable[[str], None]
) -> None:
    drawn = (cell for cell in cells if cell.record.identity.get("objective") == "err")
    page.goto(_run_page(server, next(drawn, cells[-1]), "artifacts/figures/scheme.png"))
    page.wait_for_function(
        "[...document.images].some((image) => image.naturalWidth > 400)", timeout=_PATIENCE
    )
    photograph("mlflow_scheme")


def test_mlflow_shows_the_picture_of_the_sweep(
    page: Page, server: str, runs: Path, photograph: Callable[[str], None]
) -> None:
    run = sweep_run(default_tracking_uri(runs), EXPERIMENT)
    assert run is not None
    page.goto(_run_page(server, run.info, "artifacts/leaderboard.md"))
    page.get_by_text("leaderboard.md").first.wait_for(timeout=_PATIENCE)
    for name in ("figures", "tables"):
        assert page.get_by_text(name, exact=True).count() == 1
    page.get_by_text("COBias %").wait_for(timeout=_PATIENCE)
    photograph("mlflow_sweep")
