"""Writing to a store that fails at any moment: what is there afterwards is right, once."""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from tests.tracking.cells import content, make_cell, runs
from tests.tracking.paper_cells import paper_cells
from tracking import schema
from tracking.records import CellRecord, Sweep
from tracking.store.client import artifact_location, open_client
from tracking.store.runs import (
    RunContent,
    SweepRuns,
    chosen,
    insert_runs,
    request_run,
    thin,
    write_runs,
)

SWEEP = Sweep(experiment="demo", sweep_key="s1")
WRITES = {"create_run", "log_batch", "set_terminated", "delete_run", "set_tag", "log_inputs"}


def _sweep(client: Any, uri: str, info: Sweep = SWEEP, *, owner: str = "here") -> SweepRuns:
    # As the sender does: without a location MLflow would use the working directory.
    location = artifact_location(uri, Path(), info.experiment)
    return SweepRuns(client, info, location=location, owner=owner)


class Crash(BaseException):
    """The process dies here."""


class Meddled:
    """A real client that tells what it is about to call, and what it has called."""

    def __init__(self, client: MlflowClient) -> None:
        self._client = client
        self.before: Callable[..., object] = lambda name, *args: None
        self.after: Callable[[str], object] = lambda name: None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not callable(method):
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            self.before(name, *args[:1])
            result = method(*args, **kwargs)
            self.after(name)
            return result

        return call


def _failing(client: MlflowClient, *, at: int, done: bool) -> Meddled:
    """Return a client that dies before its n-th writing call, or once that is done."""
    failing, calls = Meddled(client), itertools.count(1)

    def count(name: str, *args: object) -> None:
        if name in WRITES and next(calls) == at:
            raise Crash

    if done:
        failing.after = count
    else:
        failing.before = count
    return failing


def test_a_crash_at_any_call_leaves_one_whole_run_after_the_replay(uri: str) -> None:
    older = make_cell(1, trials=1, scheme=None, metrics={"test/accuracy": 0.1})
    client = open_client(uri)
    _sweep(client, uri).write_cell(older, {})
    crashes = 0
    for call in range(1, 40):
        changed = make_cell(1, trials=2, scheme=None, metrics={"test/accuracy": call / 100})
        try:
            failing = _failing(client, at=call, done=call % 2 == 0)
            _sweep(failing, uri).write_cell(changed, {})
        except Crash:
            crashes += 1
        again = _sweep(client, uri)
        run_id = again.write_cell(changed, {})
        assert content() == (1, {changed.key: "FINISHED"}, {changed.key: 2})
        run = client.get_run(run_id)
        assert run.data.metrics["test/accuracy"] == call / 100
        assert again.write_cell(changed, {}) == run_id
        if crashes < call:
            break
    assert crashes > 10, "every call was to be tried"
    deleted = client.search_runs([again.experiment_id], run_view_type=2)
    assert {run.info.status for run in deleted} <= {"FINISHED", "FAILED", "KILLED"}


def test_a_run_of_the_sweep_that_comes_into_sight_late_is_joined(uri: str) -> None:
    client, record = open_client(uri), make_cell(1)
    late = _sweep(client, uri)
    cell = late.write_cell(record, {})
    tags = {k: v for k, v in client.get_run(late.parent_id).data.tags.items() if "dcs." in k}
    earlier = client.create_run(late.experiment_id, start_time=1, tags=tags).info.run_id
    late.write_summary([record])
    late.end("FINISHED")
    assert runs(kind="sweep")["run_id"].tolist() == [earlier] == [late.parent_id]
    assert client.get_run(cell).data.tags[schema.PARENT] == earlier
    assert client.get_run(earlier).info.status == "FINISHED"


def _write_while_another_is_about_to_end(record: CellRecord, uri: str) -> None:
    ending, looked = threading.Event(), threading.Event()

    def wait(name: str, *args: object) -> None:
        if name == "set_terminated":
            ending.set()
            assert looked.wait(60)

    def look(name: str) -> None:
        if name == "search_runs":
            looked.set()

    slow, quick = Meddled(open_client(uri)), Meddled(open_client(uri))
    first = _sweep(slow, uri, owner="first")
    slow.before = wait
    writer = threading.Thread(target=first.write_cell, args=(record, {}))
    writer.start()
    assert ending.wait(60)
    second = _sweep(quick, uri, owner="second")
    quick.after = look
    second.write_cell(record, {})
    writer.join()


def test_of_two_drivers_the_one_about_to_end_a_cell_is_waited_for(uri: str) -> None:
    records = [make_cell(number, trials=0) for number in range(6)]
    for record in records:
        # Which of two is to yield goes by their ids, which are random.
        _write_while_another_is_about_to_end(record, uri)
    assert content()[1] == {record.key: "FINISHED" for record in records}


def test_a_run_that_another_driver_replaced_does_not_count_as_deleted_on_purpose(uri: str) -> None:
    client, record = open_client(uri), make_cell(1)
    _sweep(client, uri).write_cell(record, {})
    later = make_cell(1, finished_ms=record.finished_ms + 1000)

    def ended_meanwhile(name: str, *args: Any) -> None:
        if name == "delete_run":
            client.set_terminated(args[0], "FINISHED")

    there = Meddled(client)
    there.before = ended_meanwhile
    _sweep(there, uri, owner="there").write_cell(later, {})
    _sweep(client, uri).write_cell(record, {})
    assert content()[1] == {record.key: "FINISHED"}


def test_what_another_driver_is_writing_is_left_to_it(uri: str) -> None:
    client, record = open_client(uri), make_cell(1)
    with pytest.raises(Crash):
        _sweep(_failing(client, at=3, done=True), uri, owner="there").write_cell(record, {})
    (theirs,) = runs(kind="cell")["run_id"]
    later = make_cell(1, finished_ms=record.finished_ms + 1000)
    _sweep(client, uri).write_cell(later, {})
    assert theirs in set(runs(kind="cell")["run_id"])
    # The dead driver's own folder is free to write it again.
    _sweep(client, uri, owner="there").write_cell(record, {})
    assert content()[1] == {record.key: "FINISHED"}


def test_a_cell_of_an_earlier_sweep_is_taken_over_not_doubled(uri: str) -> None:
    client = open_client(uri)
    cell = make_cell(1)
    first = _sweep(client, uri)
    run_id = first.write_cell(cell, {})
    other = Sweep(experiment="demo", sweep_key="s2")
    second = _sweep(client, uri, other)
    assert second.parent_id != first.parent_id
    assert second.write_cell(cell, {}) == run_id
    assert client.get_run(run_id).data.tags[schema.PARENT] == second.parent_id
    assert content() == (2, {cell.key: "FINISHED"}, {cell.key: 2})


def test_names_and_values_that_mlflow_would_refuse_are_made_to_fit(uri: str) -> None:
    client = open_client(uri)
    odd = make_cell(
        1,
        params={"a b&c": "x" * 9000, "a b c": 1, "none": None, "list": [1, "ä"]},
        metrics={"test/class_accuracy/../x": 0.5, "//": 1.0, "nan": float("nan")},
        identity={"task": "t" * 9000, "method": "dcs"},
    )
    data = client.get_run(_sweep(client, uri).write_cell(odd, {})).data
    assert data.params["list"] == '[1, "\\u00e4"]'
    assert len(data.params["a b_c"]) == 6000
    assert 0.5 in data.metrics.values()


def test_parameters_of_a_sweep_are_added_but_never_rewritten(uri: str) -> None:
    client = open_client(uri)
    for params in ({"seed": 1}, {"seed": 2, "grid": {"tasks": ["a", "b"]}}):
        info = Sweep(experiment="demo", sweep_key="s1", sweep_params=params)
        _sweep(client, uri, info)
    sweeps = runs(kind="sweep")
    assert len(sweeps) == 1
    assert sweeps.iloc[0]["params.seed"] == "1"
    assert sweeps.iloc[0]["params.grid.tasks"] == '["a", "b"]'


def test_which_trials_get_runs() -> None:
    cell = make_cell(trials=4)
    for option, expected in (("all", [0, 1, 2, 3]), ("none", []), (2, [2, 3]), (9, [0, 1, 2, 3])):
        assert [trial.number for trial in chosen(cell, option)] == expected
    assert [trial.number for trial in chosen(replace(cell, direction="minimize"), 2)] == [0, 1]


@given(st.integers(0, 300), st.integers(1, 100))
def test_a_long_trace_is_thinned_evenly_and_keeps_its_end(length: int, limit: int) -> None:
    steps = thin(length, limit)
    assert len(steps) == min(length, limit)
    assert steps == sorted(set(steps))
    assert not length or steps[-1] == length - 1


def test_the_tables_of_a_cell_are_its_datasets(uri: str) -> None:
    client = open_client(uri)
    identity = {"model": "m", "task": "trec", "optimization_digest": "a" * 64}
    about = {"optimization": {"rows": 100, "prompt_hash": "xyz"}, "test": {"rows": 10}}
    cell = make_cell(1, identity=identity, provenance={"tables": about})
    run_id = _sweep(client, uri).write_cell(cell, {})
    run = client.get_run(run_id)
    (given,) = run.inputs.dataset_inputs
    assert {tag.key: tag.value for tag in given.tags} == {"mlflow.data.context": "optimization"}
    assert given.dataset.name == "trec m optimization"
    assert given.dataset.digest == "a" * 36
    assert json.loads(given.dataset.profile) == {"num_rows": 100, "num_classes": 2}
    source = mlflow.data.get_source(given.dataset)
    assert source.to_dict()["tags"]["prompt_hash"] == "xyz"
    assert run.data.tags["dcs.optimization_digest"] == "a" * 64


def test_the_run_of_a_sweep_has_every_table_in_every_form(uri: str) -> None:
    client = open_client(uri)
    cells = paper_cells(tasks=("trec",), objective="err") + paper_cells(tasks=("trec",))
    sweep = _sweep(client, uri)
    sweep.write_summary(cells)
    found = {item.path for item in client.list_artifacts(sweep.parent_id, "tables")}
    assert {f"tables/objective_ablation.{form}" for form in ("md", "tex", "csv", "json")} <= found
    for path in found:
        if path.endswith(".json"):
            assert len(client.load_table(sweep.experiment_id, path)), path
    main = client.load_table(sweep.experiment_id, "tables/main_results.json")
    assert main["accuracy_mean"].tolist() == pytest.approx([0.8, 0.8])


_METRICS = [
    *(Metric("loss", value, 10 + step, step) for step, value in enumerate((3.0, 1.0, 2.0))),
    Metric("twice", 0.5, 7, 0),
    Metric("twice", 0.5, 7, 0),
    Metric("same step", 0.25, 7, 0),
    Metric("same step", 0.5, 7, 0),
    Metric("none", math.nan, 7, 0),
    Metric("most", math.inf, 7, 0),
    Metric("least", -math.inf, 7, 0),
]
_PARAMS = [Param("rate", "0.5"), Param("name", "Zürich"), Param("empty", "")]


def _content(**values: Any) -> RunContent:
    return RunContent(metrics=_METRICS, params=_PARAMS, **values)


def _seen(client: MlflowClient, run_id: str) -> dict[str, Any]:
    run = client.get_run(run_id)
    info = {k: v for k, v in dict(run.info).items() if k not in ("run_id", "run_uuid")}
    history = {
        name: sorted((m.step, m.timestamp, str(m.value)) for m in found)
        for name in sorted(run.data.metrics)
        if (found := client.get_metric_history(run_id, name))
    }
    latest = sorted((name, str(value)) for name, value in run.data.metrics.items())
    text = str(info | {"latest": latest, "history": history})
    return {"text": text.replace(run_id, "ID"), "params": run.data.params, "tags": run.data.tags}


def test_a_transaction_writes_what_requests_write(uri: str) -> None:
    client = MlflowClient(uri)
    place = client.get_experiment(client.create_experiment("bulk"))
    new = _content(name="trial 1", tags={"dcs.kind": "trial"}, start=5, end=9, status="FAILED")
    seen = []
    for write in (
        insert_runs,
        lambda client, place, runs: [request_run(client, place, r) for r in runs],
    ):
        going = client.create_run(place.experiment_id, start_time=1, run_name="cell")
        write(client, place, [_content(run_id=going.info.run_id), new])
        made = client.search_runs([place.experiment_id], "tags.`dcs.kind` = 'trial'")[0]
        seen.append([_seen(client, run_id) for run_id in (going.info.run_id, made.info.run_id)])
        for run in (going, made):
            client.delete_run(run.info.run_id)
    assert seen[0] == seen[1]


def test_a_database_gets_all_or_nothing(uri: str) -> None:
    client = MlflowClient(uri)
    place = client.get_experiment(client.create_experiment("whole"))
    twice = RunContent(metrics=[], params=[Param("a", "1"), Param("a", "2")], name="bad")
    with pytest.raises(Exception, match="UNIQUE"):
        write_runs(client, place, [_content(name="good"), twice])
    assert list(client.search_runs([place.experiment_id])) == []
