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

from tests.tracking.cells import content, make_cell, runs
from tests.tracking.paper_cells import paper_cells
from tracking import schema
from tracking.records import Archive, CellRecord, Sweep
from tracking.store.client import make_experiment, open_client
from tracking.store.runs import RunContent, SweepRuns, chosen, thin, writer

SWEEP = Sweep(experiment="demo", sweep_key="s1")
WRITES = {"create_run", "log_batch", "set_terminated", "delete_run", "set_tag", "log_inputs"}


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
    _sweep(client).write_cell(older, {})
    crashes = 0
    for call in range(1, 40):
        changed = make_cell(1, trials=2, scheme=None, metrics={"test/accuracy": call / 100})
        try:
            failing = _failing(client, ("after", "before")[call % 2], call)
            _sweep(failing).write_cell(changed, {})
        except Crash:
            crashes += 1
        again = _sweep(client)
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


def test_a_run_of_the_sweep_that_comes_into_sight_late_is_joined(client: MlflowClient) -> None:
    record = make_cell(1)
    late = _sweep(client)
    cell = late.write_cell(record, {})
    tags = {k: v for k, v in client.get_run(late.parent_id).data.tags.items() if "dcs." in k}
    earlier = client.create_run(late.experiment_id, start_time=1, tags=tags).info.run_id
    late.write_summary([record])
    late.end("FINISHED")
    assert runs(kind="sweep")["run_id"].tolist() == [earlier] == [late.parent_id]
    assert client.get_run(cell).data.tags[schema.PARENT] == earlier
    assert client.get_run(earlier).info.status == "FINISHED"


def _write_while_another_is_about_to_end(record: CellRecord, client: MlflowClient) -> None:
    ending, looked = threading.Event(), threading.Event()

    def wait(when: str, name: str, *args: object) -> None:
        if (when, name) == ("before", "set_terminated"):
            ending.set()
            assert looked.wait(60)

    def look(when: str, name: str, *args: object) -> None:
        if (when, name) == ("after", "search_runs"):
            looked.set()

    slow, quick = Meddled(client), Meddled(client)
    first = _sweep(slow, folder="first")
    slow.told = wait
    writer = threading.Thread(target=first.write_cell, args=(record, {}))
    writer.start()
    assert ending.wait(60)
    second = _sweep(quick, folder="second")
    quick.told = look
    kept = second.write_cell(record, {})
    writer.join()
    assert client.get_run(kept).info.lifecycle_stage == "active"


def test_of_two_drivers_the_one_about_to_end_a_cell_is_waited_for(client: MlflowClient) -> None:
    records = [make_cell(number, trials=0) for number in range(6)]
    for record in records:
        # Which of two is to yield goes by their ids, which are random.
        _write_while_another_is_about_to_end(record, client)
    assert content()[1] == {record.key: "FINISHED" for record in records}


def test_a_run_that_another_driver_replaced_does_not_count_as_deleted_on_purpose(
    client: MlflowClient,
) -> None:
    record = make_cell(1)
    _sweep(client).write_cell(record, {})
    later = make_cell(1, finished_ms=record.finished_ms + 1000)

    def ended_meanwhile(when: str, name: str, *args: Any) -> None:
        if (when, name) == ("before", "delete_run"):
            client.set_terminated(args[0], "FINISHED")

    there = Meddled(client)
    there.told = ended_meanwhile
    _sweep(there, folder="there").write_cell(later, {})
    _sweep(client).write_cell(record, {})
    assert content()[1] == {record.key: "FINISHED"}


def test_what_another_driver_is_writing_is_left_to_it(client: MlflowClient) -> None:
    record = make_cell(1)
    with pytest.raises(Crash):
        _sweep(_failing(client, "after", 3), folder="there").write_cell(record, {})
    (theirs,) = runs(kind="cell")["run_id"]
    later = make_cell(1, finished_ms=record.finished_ms + 1000)
    _sweep(client).write_cell(later, {})
    assert theirs in set(runs(kind="cell")["run_id"])
    # The dead driver's own folder is free to write it again.
    _sweep(client, folder="there").write_cell(record, {})
    assert content()[1] == {record.key: "FINISHED"}


def test_a_cell_of_an_earlier_sweep_is_taken_over_not_doubled(client: MlflowClient) -> None:
    cell = make_cell(1)
    first = _sweep(client)
    run_id = first.write_cell(cell, {})
    second = _sweep(client, Sweep(experiment="demo", sweep_key="s2"))
    assert second.parent_id != first.parent_id
    assert second.write_cell(cell, {}) == run_id
    assert client.get_run(run_id).data.tags[schema.PARENT] == second.parent_id
    assert content() == (2, {cell.key: "FINISHED"}, {cell.key: 2})


def test_names_and_values_that_mlflow_would_refuse_are_made_to_fit(client: MlflowClient) -> None:
    odd = make_cell(
        1,
        params={"a b&c": "x" * 9000, "a b c": 1, "none": None, "list": [1, "ä"]},
        metrics={"test/class_accuracy/../x": 0.5, "//": 1.0, "nan": float("nan")},
        identity={"task": "t" * 9000, "method": "dcs"},
    )
    data = client.get_run(_sweep(client).write_cell(odd, {})).data
    assert data.params["list"] == '[1, "\\u00e4"]'
    assert len(data.params["a b_c"]) == 6000
    assert 0.5 in data.metrics.values()


def test_parameters_of_a_sweep_are_added_but_never_rewritten(client: MlflowClient) -> None:
    for params in ({"seed": 1}, {"seed": 2, "grid": {"tasks": ["a", "b"]}}):
        _sweep(client, Sweep(experiment="demo", sweep_key="s1", sweep_params=params))
    sweeps = runs(kind="sweep")
    assert sweeps["params.seed"].tolist() == ["1"]
    assert sweeps["params.grid.tasks"].tolist() == ['["a", "b"]']


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


def test_the_tables_of_a_cell_are_its_datasets(client: MlflowClient) -> None:
    identity = {"model": "m", "task": "trec", "optimization_digest": "a" * 64}
    about = {"optimization": {"rows": 100, "prompt_hash": "xyz"}, "test": {"rows": 10}}
    cell = make_cell(1, identity=identity, provenance={"tables": about})
    run = client.get_run(_sweep(client).write_cell(cell, {}))
    (given,) = run.inputs.dataset_inputs
    assert {tag.key: tag.value for tag in given.tags} == {"mlflow.data.context": "optimization"}
    assert given.dataset.name == "trec m optimization"
    assert given.dataset.digest == "a" * 36
    assert json.loads(given.dataset.profile) == {"num_rows": 100, "num_classes": 2}
    source = mlflow.data.get_source(given.dataset)
    assert source.to_dict()["tags"]["prompt_hash"] == "xyz"
    assert run.data.tags["dcs.optimization_digest"] == "a" * 64


def test_the_run_of_a_sweep_has_every_table_in_every_form(client: MlflowClient) -> None:
    cells = paper_cells(tasks=("trec",), objective="err") + paper_cells(tasks=("trec",))
    sweep = _sweep(client)
    sweep.write_summary(cells)
    found = {item.path for item in client.list_artifacts(sweep.parent_id, "tables")}
    assert {f"tables/objective_ablation.{form}" for form in ("md", "tex", "csv", "json")} <= found
    for path in found:
        if path.endswith(".json"):
            assert len(client.load_table(sweep.experiment_id, path)), path


_METRICS = [
    *(("loss", value, 10 + step, step) for step, value in enumerate((3.0, 1.0, 2.0))),
    ("twice", 0.5, 7, 0),
    ("twice", 0.5, 7, 0),
    ("same step", 0.5, 7, 0),
    ("same step", 0.25, 7, 0),
    ("none", math.nan, 7, 0),
    ("most", math.inf, 7, 0),
    ("least", -math.inf, 7, 0),
]
_PARAMS = {"rate": "0.5", "name": "Zürich", "empty": ""}


def contents(going: str, **values: Any) -> list[RunContent]:
    """Return what goes to a run that is there, and a new run."""
    own = RunContent(metrics=_METRICS, params=_PARAMS, run_id=going, **values)
    tags = {"dcs.kind": "trial"}
    new = replace(own, run_id=None, files={}, name="trial 1", tags=tags, start=5, end=9)
    return [own, replace(new, status="FAILED")]


def written(client: MlflowClient, **values: Any) -> list[str]:
    """Write two runs into an experiment, and return all that the store then has of them."""
    place = make_experiment(client, "demo", Path("unused"))
    going = client.create_run(place.experiment_id, start_time=1, run_name="cell").info.run_id
    writer(client, place)(contents(going, **values))
    (made,) = client.search_runs([place.experiment_id], "tags.`dcs.kind` = 'trial'")
    ids = (going, made.info.run_id)
    seen = [_seen(client, run_id) for run_id in ids]
    for run_id in ids:
        client.delete_run(run_id)
    return seen


def _seen(client: MlflowClient, run_id: str) -> str:
    run = client.get_run(run_id).to_dictionary()
    history = {
        name: sorted((m.step, m.timestamp, str(m.value)) for m in found)
        for name in run["data"]["metrics"]
        if (found := client.get_metric_history(run_id, name))
    }
    files = {
        file.path: Path(client.download_artifacts(run_id, file.path)).read_bytes().hex()
        for folder in ("", "model")
        for file in client.list_artifacts(run_id, folder)
        if not file.is_dir
    }
    return json.dumps([run, history, files], sort_keys=True).replace(run_id, "ID")


def test_a_transaction_writes_what_requests_write(
    client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = written(client)
    monkeypatch.setattr("tracking.store.runs.has_server", lambda uri: True)
    monkeypatch.setattr("tracking.store.runs._takes_batches", lambda client: False)
    assert written(client) == at_once


def test_a_database_gets_all_or_nothing(client: MlflowClient) -> None:
    place = client.get_experiment(client.create_experiment("whole"))
    going = client.create_run(place.experiment_id, tags={"a": "there"}).info.run_id
    with pytest.raises(Exception, match="UNIQUE"):
        writer(client, place)(contents(going, tags={"a": "twice"}))
    (alone,) = client.search_runs([place.experiment_id])
    assert alone.data.params == {}
