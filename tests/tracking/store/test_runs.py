"""Writing to a store that fails at any moment: what is there afterwards is right, once."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlflow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow import MlflowClient

from dcs_tracking import schema
from dcs_tracking.archive import Archive, Sweep
from dcs_tracking.results.cells import Cells
from dcs_tracking.store import views
from dcs_tracking.store.client import open_client
from dcs_tracking.store.runs import SweepRuns
from dcs_tracking.store.views import view_links
from tests.tracking.cells import content, make_cell

SWEEP = Sweep(experiment="demo", sweep_key="s1")
WRITES = {"create_run", "log_batch", "set_terminated", "delete_run", "set_tag", "log_artifacts"}


@pytest.fixture
def client(uri: str) -> MlflowClient:
    return open_client(uri)


def _sweep(client: Any, info: Sweep = SWEEP, *, folder: str = "here") -> SweepRuns:
    return SweepRuns(client, info, Archive(folder))


class Crash(BaseException):
    """The process dies here."""


class Meddled:
    """A real client that tells what it is about to call, and what it has called."""

    def __init__(self, client: MlflowClient) -> None:
        self._client = client
        self.told: Callable[..., object] = lambda when, name, *args: None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not callable(method):
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            self.told("before", name, *args)
            result = method(*args, **kwargs)
            self.told("after", name, *args)
            return result

        return call


def _failing(client: MlflowClient, when: str, at: int) -> Meddled:
    """Return a client that dies before its n-th writing call, or after it."""
    failing, calls = Meddled(client), itertools.count(1)

    def count(now: str, name: str, *args: object) -> None:
        if now == when and name in WRITES and next(calls) == at:
            raise Crash

    failing.told = count
    return failing


def test_a_crash_at_any_call_leaves_one_whole_run_after_the_replay(client: MlflowClient) -> None:
    older = make_cell(1, trials=1, scheme=None, metrics={"test/accuracy": 0.1})
    _sweep(client).write_cell(older)
    crashes = 0
    for call in range(1, 40):
        changed = make_cell(1, trials=2, scheme=None, metrics={"test/accuracy": call / 100})
        try:
            _sweep(_failing(client, ("after", "before")[call % 2], call)).write_cell(changed)
        except Crash:
            crashes += 1
        again = _sweep(client)
        run_id = again.write_cell(changed)
        assert content() == (1, {changed.key: "FINISHED"}, {changed.key: 2})
        assert client.get_run(run_id).data.metrics["test/accuracy"] == call / 100
        assert again.write_cell(changed) == run_id
        if crashes < call:
            break
    assert crashes > 5, "every call was to be tried"
    deleted = client.search_runs([again.experiment_id], run_view_type=2)
    assert {run.info.status for run in deleted} <= {"FINISHED", "FAILED", "KILLED"}


def test_a_cell_of_an_earlier_sweep_is_taken_over_not_doubled(client: MlflowClient) -> None:
    cell = make_cell(1)
    first = _sweep(client)
    run_id = first.write_cell(cell)
    second = _sweep(client, Sweep(experiment="demo", sweep_key="s2"))
    assert second.parent_id != first.parent_id
    assert second.write_cell(cell) == run_id
    assert client.get_run(run_id).data.tags[schema.PARENT] == second.parent_id
    assert content() == (2, {cell.key: "FINISHED"}, {cell.key: 2})


def test_names_and_values_that_mlflow_would_refuse_are_made_to_fit(client: MlflowClient) -> None:
    odd = make_cell(
        1,
        params={"a b&c": "x" * 9000, "a b c": 1, "none": None, "list": [1, "ä"]},
        metrics={"test/accuracy": 0.5, "test/cobias": float("nan")},
        identity={"task": "t'/&\n" * 2000, "method": "dcs"},
    )
    varied = SWEEP.model_copy(update={"varies": ("task", "seed")})
    data = client.get_run(_sweep(client, varied).write_cell(odd)).data
    assert data.params["winner.list"] == '[1, "\\u00e4"]'
    assert len(data.params["winner.a b_c"]) == 6000
    assert [*data.metrics.values()].count(0.5) == 2, "of all tasks, and under the name of its own"


def test_many_cells_show_as_means(client: MlflowClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow loads a hundred runs, and would group those with the least COBias."""
    monkeypatch.setattr(views, "MAX_RUNS", 2)
    sweep = _sweep(client, SWEEP.model_copy(update={"varies": ("task",)}))
    cells = [
        make_cell(number, identity={"model": "m", "seed": 0, "task": task, "method": method})
        for number, (task, method) in enumerate([("a", "icl"), ("a", "dcs"), ("b", "dcs")])
    ]
    for _ in range(2):
        sweep.write_summary(Cells.of(cells), 0)
    tags = client.get_experiment(sweep.experiment_id).tags
    state = json.loads(json.loads(tags["mlflow.sharedViewState.dcs.method"])["state"])
    shown = client.search_runs([sweep.experiment_id], state["searchFilter"])
    found = {run.info.run_name: run.data.metrics for run in shown}
    assert len(shown) == len(found) == 2 and {run.info.status for run in shown} == {"FINISHED"}
    assert found["dcs"]["test/accuracy"] == pytest.approx(0.515)
    assert found["uncorrected"]["accuracy on a"] == 0.5
    assert {run.data.tags["dcs.method"] for run in shown} == {*found}


def test_an_axis_of_very_many_values_has_no_view(client: MlflowClient) -> None:
    sweep = _sweep(client, SWEEP.model_copy(update={"varies": ("seed", "model")}))
    who = {"model": "m" * 200, "task": "a", "method": "icl"}
    cells = [make_cell(n, identity=who | {"seed": n}) for n in range(views.MAX_RUNS + 1)]
    for _ in range(2):
        sweep.write_summary(Cells.of(cells), 0)
    tags = client.get_experiment(sweep.experiment_id).tags
    shown = {tag.rpartition(".")[2] for tag in tags if tag.startswith("mlflow.sharedViewState")}
    assert shown == {"method", "by_model", "cells"}


@given(st.lists(st.text(min_size=1, max_size=250), max_size=100, unique=True))
def test_a_view_fits_in_a_tag(values: list[str]) -> None:
    tags = views.view_tags((), {"method": values}, ["\\" * 250] * 20, averaged=True)
    assert max(map(len, tags.values())) <= 20_000


def test_the_tables_of_a_cell_are_datasets(client: MlflowClient) -> None:
    identity = {"model": "m", "task": "trec", "method": "dcs"}
    identity |= {"optimization_digest": "a" * 64, "test_digest": "b" * 64}
    about = {"rows": 100, "file": "rows.parquet"}
    tables = {"optimization": about, "test": {"rows": 10, "prompt_hash": "xyz"}}
    cell = make_cell(1, identity=identity, provenance={"tables": tables})
    run = client.get_run(_sweep(client).write_cell(cell))
    first, second = run.inputs.dataset_inputs
    assert {tag.key: tag.value for tag in first.tags} == {"mlflow.data.context": "optimization"}
    assert first.dataset.name == "trec m optimization"
    assert first.dataset.digest == "a" * 36
    assert json.loads(first.dataset.profile) == {"num_rows": 100, "num_classes": 2}
    for dataset, told in ((first, {"file": "rows.parquet"}), (second, {"prompt_hash": "xyz"})):
        assert told.items() <= mlflow.data.get_source(dataset).to_dict()["tags"].items()


def test_the_best_scheme_of_each_task_or_that_of_a_tuned_table_is_a_model(
    client: MlflowClient,
) -> None:
    who = make_cell().identity
    better = {"test/accuracy": 0.9, "test/cobias": 0.0}
    tuned = [
        make_cell(0),
        make_cell(1, identity=who | {"method": "dnip"}, metrics=better),
        make_cell(2, identity=who | {"optimization_size": 10}, metrics=better),
    ]
    tasks = ("rte", "rte", "trec")
    swept = [make_cell(n, identity=who | {"task": task}) for n, task in enumerate(tasks)]
    for params, cells, best in (({}, swept, {1, 2}), ({"method": "dcs"}, tuned, {0})):
        info = SWEEP.model_copy(update={"experiment": f"{len(best)}", "sweep_params": params})
        sweep = _sweep(client, info)
        ids = [sweep.write_cell(cell) for cell in cells]
        for _ in range(2):
            sweep.write_models(Cells.of(cells))
        models = client.search_logged_models([sweep.experiment_id])
        assert {ids.index(model.source_run_id) for model in models} == best
        assert len(models) == len(best)
        for model in models:
            assert {metric.key for metric in model.metrics} == {"test/accuracy", "test/cobias"}
            assert mlflow.pyfunc.load_model(f"models:/{model.model_id}")


def test_views_group_cells_by_method_and_what_varies(client: MlflowClient, output: Path) -> None:
    params = {"axes": {"weight_scale": [10, 30]}, "methods": ["icl", "dcs"]}
    sweep = Sweep(experiment="varied", sweep_key="s1", sweep_params=params, varies=("task",))
    who = {"model": "m", "seed": 0, "shots": 1}
    cells = [
        make_cell(number, identity={**who, "task": task, "method": method, "tuner": tuner})
        for number, (task, method, tuner) in enumerate(
            [
                ("rte", "icl", None),
                ("trec", "dcs", {"space": {"weight_scale": [10]}}),
                ("trec", "dcs", {"space": {"weight_scale": [30]}}),
            ]
        )
    ]
    runs = SweepRuns(client, sweep, Archive(output))
    written = [client.get_run(runs.write_cell(cell)) for cell in cells]
    runs.write_summary(Cells.of(cells), 0)
    tags = client.get_experiment(runs.experiment_id).tags
    links = view_links(runs.experiment_id, tags)
    assert [*links] == ["methods", "by weight scale", "all cells"]
    note = client.get_run(runs.parent_id).data.tags[schema.NOTE]
    for link in links.values():
        assert "workflowType=machine_learning" in link and f"]({link})" in note
        view = json.loads(tags[f"mlflow.sharedViewState.{link.rpartition('=')[2]}"])
        state = json.loads(view["state"])
        assert state["runsHiddenMode"] == "SHOW_ALL"
        keys = [key["groupByData"] for key in state.get("groupBy", {}).get("groupByKeys", ())]
        expanded = {f"tag.{key}.{run.data.tags[key]}" for key in keys for run in written}
        assert {*state.get("groupsExpanded", ())} == expanded, "the baseline is in every chart"
        charted = {
            axis["key"]
            for chart in state["compareRunCharts"]
            for axis in (chart.get("xaxis"), chart.get("yaxis"))
            if axis
        }
        known = {*written[0].data.metrics, *written[1].data.metrics}
        assert {"cobias on rte", "accuracy on trec"} <= charted & known
    groups = [run.data.tags["dcs.by_weight_scale"] for run in written]
    assert groups == ["uncorrected", "10 dcs", "30 dcs"]
    assert {run.data.tags["dcs.optimization_size"] for run in written} == {"full"}
    assert [run.data.tags.get("dcs.weight_scale") for run in written] == [None, "10", "30"]
    colors = [run.data.tags["mlflow.runColor"] for run in written]
    assert colors[0] != colors[1] == colors[2]


def test_tables_of_several_seeds_are_not_in_the_group_of_one() -> None:
    who = {"model": "m", "task": "a", "seed": 0, "method": "dcs"}
    joint = {"rows": 10, "tables": 3}
    groups = [
        views.group_tags(
            make_cell(identity=who, provenance={"tables": {"optimization": rows}}), ("seed",)
        )["by_seed"]
        for rows in ({}, {**joint, "demonstration_seed": 0}, joint)
    ]
    assert groups == ["0 dcs", "0 dcs", "all dcs"]


def test_the_description_of_an_experiment_by_a_person_is_kept(client: MlflowClient) -> None:
    runs = _sweep(client)
    for note, kept in ((None, False), ("My own words.", True)):
        if note:
            client.set_experiment_tag(runs.experiment_id, schema.NOTE, note)
        runs.write_summary(Cells.of([make_cell(1)]), 0)
        found = client.get_experiment(runs.experiment_id).tags[schema.NOTE]
        assert (found == note) == kept


def test_threads_do_not_create_a_dataset_at_the_same_time(client: MlflowClient) -> None:
    """The cells of a table share its datasets, and a server on PostgreSQL refuses the second."""
    slow, active = Meddled(client), Counter[str]()

    def tell(when: str, name: str, *args: Any) -> None:
        if name == "log_inputs":
            active[name] += 1 if when == "before" else -1
            assert active[name] <= 1
            time.sleep(0.05)

    sweep, slow.told = _sweep(slow), tell
    identity = {**make_cell().identity, "test_digest": "ab" * 32}
    cells = [make_cell(number, identity=identity) for number in range(8)]
    with ThreadPoolExecutor(4) as threads:
        assert len({*threads.map(sweep.write_cell, cells)}) == len(cells)
