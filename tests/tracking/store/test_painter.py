"""Figures are drawn in a process of their own, and a sweep is recorded whatever becomes of it."""

from __future__ import annotations

import logging
from pathlib import Path

import mlflow
import numpy as np
import pytest
from mlflow import MlflowClient

from dcs.data.table import ProbabilityTable
from dcs.schemes.scheme import CorrectionScheme
from tests.tracking.cells import failed_cell, make_cell
from tests.tracking.paper_cells import paper_cells
from tracking import Archive, Recorder, sync
from tracking.results.figures.schemes import class_histograms
from tracking.store import _painter
from tracking.store import recorder as _sender
from tracking.store._painter import Painter, is_drawn
from tracking.store.queries import stored_cells, sweep_run

_CELL = {f"figures/{name}.{form}" for name in ("scheme", "annealing") for form in ("png", "svg")}


def test_cells_and_sweeps_have_figures_with_their_runs(
    output: Path, uri: str, drawn: None
) -> None:
    records = paper_cells(tasks=("trec", "ddi"), seeds=(0,))
    with Recorder(output=output, experiment="demo", sweep_key="s1", trials="none") as recorder:
        for record in (*records, failed_cell(900)):
            recorder.record(record)
    client = MlflowClient()
    for cell in stored_cells(uri, "demo"):
        found = {item.path for item in client.list_artifacts(cell.run_id, "figures")}
        expected = _CELL if cell.record.finished else set()
        if cell.record.identity["method"] == "icl":
            expected = {name for name in _CELL if "annealing" in name}
        assert found == expected
    run = sweep_run(uri, "demo")
    assert run is not None
    found = {item.path for item in client.list_artifacts(run.info.run_id, "figures")}
    drawn_of_all = ("class_accuracies", "accuracy_cobias", "class_groups", "annealing_time")
    assert {f"figures/{name}.svg" for name in drawn_of_all} <= found
    path = mlflow.artifacts.download_artifacts(
        run_id=run.info.run_id, artifact_path="figures/accuracy_cobias.png"
    )
    assert Path(path).read_bytes().startswith(b"\x89PNG")


def test_without_figures_no_process_is_started(
    output: Path, uri: str, drawn: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_painter, "_start", lambda: pytest.fail("a process was started"))
    with Recorder(output=output, experiment="demo", sweep_key="s1", figures="none") as recorder:
        recorder.record(make_cell(1))
        assert recorder.finish().recorded == 1


@pytest.mark.parametrize("command", [["false"], ["sleep", "60"], ["echo", "no answer"]])
def test_a_process_that_fails_or_hangs_costs_the_figures_only(
    output: Path,
    uri: str,
    drawn: None,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    popen = _painter.subprocess.Popen
    monkeypatch.setattr(
        _painter.subprocess, "Popen", lambda _, **options: popen(command, **options)
    )
    monkeypatch.setattr(_painter, "_PATIENCE", 0.5)
    with (
        caplog.at_level(logging.WARNING, "tracking"),
        Recorder(output=output, experiment="demo", sweep_key="s1", trials="none") as recorder,
    ):
        recorder.record(make_cell(1))
        recorder.record(make_cell(2))
        report = recorder.finish()
    assert (report.recorded, report.pending, report.ended) == (2, 0, True)
    assert "cells without figures: 2, `dcs sync" in report.message
    (line,) = [record.getMessage() for record in caplog.records]
    assert "figures are no longer drawn" in line and "dcs report draws them" in line


def test_what_was_not_drawn_in_time_is_drawn_by_sync(
    output: Path, uri: str, drawn: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = {"output": output, "experiment": "demo", "sweep_key": "s1", "trials": "none"}
    with monkeypatch.context() as broken:
        broken.setattr(Painter, "_draw", lambda painter, order: None)
        with Recorder(**sweep) as recorder:
            recorder.record(make_cell(1))
            recorder.record(failed_cell(2))
            assert "cells without figures: 1" in recorder.finish().message
    (report,) = sync(output)
    assert "nothing new to record" in report.message and "figures" not in report.message
    (cell, _) = stored_cells(uri, "demo")
    found = {item.path for item in MlflowClient().list_artifacts(cell.run_id, "figures")}
    assert found == _CELL
    assert sync(output) == ()


def test_who_is_in_a_hurry_does_not_wait_for_figures(
    output: Path, uri: str, drawn: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(Painter, "sweep", lambda painter, keys: asked.append(keys))
    monkeypatch.setattr(_sender.Sender, "_draw_while_idle", lambda sender: None)
    recorder = Recorder(output=output, experiment="demo", sweep_key="s1", trials="none")
    recorder.record(make_cell(1))
    report = recorder.close(timeout=30)
    assert (report.recorded, report.ended, asked) == (1, True, [])


def test_what_cannot_be_drawn_is_said_and_the_rest_goes_on(
    tmp_path: Path, drawn: None, caplog: pytest.LogCaptureFixture
) -> None:
    box = Archive(tmp_path)
    box.write(make_cell(1, histograms={"all": [[1, 2]], "own": [[0, 1]]}))
    box.write(make_cell(2))
    painter = Painter(box)
    try:
        with caplog.at_level(logging.WARNING, "tracking"):
            assert painter.cell("cell0001") == {}
        assert "figures were not drawn (IndexError" in caplog.text
        assert set(painter.cell("cell0002")) == _CELL
    finally:
        painter.close()


def test_cells_without_a_search_are_not_drawn() -> None:
    assert is_drawn(make_cell(1))
    assert not is_drawn(failed_cell(1))
    plain = make_cell(1, identity={"method": "icl"}, trace=())
    assert not is_drawn(plain)


def test_histograms_count_every_row_once_in_the_order_of_the_scheme() -> None:
    table = ProbabilityTable.from_arrays(
        np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [1.0, 0.0]]),
        np.array([0, 1, 1, 0]),
        classes=("World", "Sports"),
    )
    scheme = CorrectionScheme.from_dict(make_cell().scheme)
    assert scheme.classes == ("Sports", "World")
    counts = class_histograms(table, scheme)
    assert [sum(of_class) for of_class in counts["all"]] == [4, 4]
    assert [sum(of_class) for of_class in counts["own"]] == [2, 2]
    sports, world = (np.flatnonzero(of_class).tolist() for of_class in counts["own"])
    assert sports == [16, 32], "0.4 and 0.8 in 40 bins"
    assert world == [36, 39], "1 lies in the last bin"


def test_a_sweep_without_news_is_not_drawn_again(
    output: Path, uri: str, drawn: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def sweep(painter: Painter, keys: list[str]) -> dict[str, bytes]:
        asked.append(list(keys))
        return {}

    monkeypatch.setattr(Painter, "sweep", sweep)
    monkeypatch.setattr(_sender.Sender, "_draw_one", lambda sender, runs: False)
    for cells in ([1], [1], [1, 2], [1, 2]):
        with Recorder(output=output, experiment="demo", sweep_key="s1", trials="none") as recorder:
            for number in cells:
                recorder.record(make_cell(number))
    assert asked == [["cell0001"], ["cell0001", "cell0002"]]
