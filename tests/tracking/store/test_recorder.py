from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from dcs.errors import ConfigError, TrackingError
from dcs_tracking import Archive, Recorder, Sweep, sync
from dcs_tracking.records import ScoringRecord, sealed
from dcs_tracking.schema import CELL_KEY
from dcs_tracking.store import runs as sweep_runs
from dcs_tracking.store import views, writer
from dcs_tracking.store.client import open_client, run_link
from dcs_tracking.store.queries import stored_cells
from dcs_tracking.store.runs import SweepRuns
from dcs_tracking.store.serving import log_cell_scheme
from tests.dcs.refusals import refuses
from tests.servers import free_port, mlflow_server
from tests.tracking.cells import STARTED, content, failed_cell, make_cell, recorded, runs, table

SWEEP: dict[str, Any] = {"experiment": "demo", "sweep_key": "s1", "figures": "none"}


@pytest.fixture
def away(tmp_path: Path) -> str:
    """The address of a database that cannot be opened or made while a file is in its way."""
    (tmp_path / "blocked").write_text("a file where the folder should be")
    return f"sqlite:///{tmp_path}/blocked/mlflow.db"


def _finished(*numbers: int) -> dict[str, str]:
    return {f"cell{number:04d}": "FINISHED" for number in numbers}


def test_a_sweep_reads_back_whole(output: Path, uri: str) -> None:
    failed = failed_cell(3, "Traceback\nValueError: bad table")
    report = recorded(output, 1, 2, failed, sweep_params={"trials": 2})
    assert (report.recorded, report.pending) == (3, 0)
    assert "pending" not in report.message

    assert "RUNNING" not in set(runs()["status"])
    trials = {"cell0001": 2, "cell0002": 2, "cell0003": 0}
    assert content() == (1, _finished(1, 2) | {"cell0003": "FAILED"}, trials)
    sweep = runs(kind="sweep").iloc[0]
    assert report.address == run_link(uri, MlflowClient().get_run(sweep["run_id"]).info)
    assert sweep["params.trials"] == "2"
    assert "Acc helpdesk" in sweep["tags.mlflow.note.content"]
    cells = runs(kind="cell").set_index("tags.dcs.cell_key")
    assert set(cells["tags.mlflow.parentRunId"]) == {sweep["run_id"]}
    first = cells.loc["cell0001"]
    assert first["metrics.trial/accuracy"] == pytest.approx(0.51), "of the last trial"
    assert first["params.winner.weight_scale"] == "30"
    times = [first[name].timestamp() * 1000 for name in ("start_time", "end_time")]
    assert times == [STARTED + 1000, STARTED + 1900]
    assert table("trials.json", first["run_id"])["weight_scale"].tolist() == [10, 20]

    artifacts = f"runs:/{first['run_id']}"
    assert mlflow.artifacts.load_dict(f"{artifacts}/scheme.json") == make_cell(1).scheme
    assert mlflow.artifacts.load_text(f"{artifacts}/cell.json") == sealed(make_cell(1).to_json())
    assert "51.0 % corrected" in first["tags.mlflow.note.content"]
    assert "ValueError: bad table" in cells.loc["cell0003", "tags.mlflow.note.content"]
    assert Path(first["artifact_uri"].removeprefix("file://")).is_relative_to(output)

    board = table("tables/main_results.json", sweep["run_id"])
    assert board[["method", "seeds"]].to_numpy().tolist() == [["dcs", 2]]
    assert board["accuracy_mean"].iloc[0] == pytest.approx(0.515)


def test_rerun_finds_the_parent_and_writes_nothing_twice(output: Path, uri: str) -> None:
    recorded(output, 1, failed_cell(2))
    report = recorded(output, 1, 2, 3)
    assert report.recorded == 2
    assert content()[:2] == (1, _finished(1, 2, 3))
    sweep = runs(kind="sweep").iloc[0]
    assert sweep["run_id"] in str(report.address)
    board = table("tables/main_results.json", sweep["run_id"])
    assert board["seeds"].tolist() == [3], "rows of the first finish are still there"
    assert sync(output) == ()


def _scoring(seconds: float, key: str = "t1") -> ScoringRecord:
    return ScoringRecord(
        key=key,
        identity={"model": "tiny_lm", "task": "helpdesk", "shots": 1, "seed": 0},
        params={"engine": "transformers"},
        metrics={"scoring/seconds": seconds},
        started_ms=STARTED,
        finished_ms=STARTED + round(1000 * seconds),
    )


def _seconds_of_scoring() -> dict[str, list[float]]:
    seconds = runs(kind="scoring").groupby("tags.dcs.table_key")["metrics.scoring/seconds"]
    return seconds.agg(list).to_dict()


def test_how_a_table_came_about_is_one_run_in_any_case(output: Path, uri: str, away: str) -> None:
    with Recorder(away, output=output, warn=lambda line: None, **SWEEP) as rec:
        rec.record(make_cell(1))
        rec.scored(_scoring(1.0))
    sync(output, tracking_uri=uri)
    assert _seconds_of_scoring() == {"t1": [1.0]}
    for number, more in enumerate((_scoring(1.0), _scoring(2.0), _scoring(3.0, "t2")), start=2):
        with Recorder(uri, output=output, **SWEEP) as rec:
            rec.record(make_cell(number))
            rec.scored(more)
    assert _seconds_of_scoring() == {"t1": [2.0], "t2": [3.0]}
    scored = runs(kind="scoring")
    assert {*scored["status"]} == {"FINISHED"}
    assert {*scored["tags.mlflow.parentRunId"]} == {*runs(kind="sweep")["run_id"]}


def test_many_threads_may_record_and_several_write(output: Path, uri: str) -> None:
    with Recorder(output=output, **SWEEP, trials="none", writers=3) as rec:
        with ThreadPoolExecutor(8) as pool:
            # Each cell twice, as a retried task would.
            list(pool.map(lambda i: rec.record(make_cell(i // 2)), range(24)))
        assert rec.finish().pending == 0
    assert content()[1:] == (_finished(*range(12)), dict.fromkeys(_finished(*range(12)), 0))


@pytest.mark.parametrize("python", [sys.executable, "false", "missing"])
@pytest.mark.parametrize("killed", [False, True])
def test_a_process_records_if_it_can(
    output: Path, uri: str, monkeypatch: pytest.MonkeyPatch, python: str, killed: bool
) -> None:
    monkeypatch.delitem(sys.modules, "mlflow")
    monkeypatch.setattr(sys, "executable", python)
    before = {*psutil.Process().children()}
    with Recorder(output=output, process=True, **SWEEP) as rec:
        rec.record(make_cell(1))
        for process in {*psutil.Process().children()} - before if killed else ():
            process.kill()
            process.wait()
        rec.record(make_cell(2))
    assert content()[:2] == (1, _finished(1, 2))
    assert ("mlflow" in sys.modules) == (killed or python in {"false", "missing"})


def test_a_store_that_is_away_costs_a_warning_and_nothing_else(
    output: Path, uri: str, away: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    report = recorded(output, 1, 2, tracking_uri=away, warn=warnings.append)
    (warning,) = warnings
    assert away in warning
    assert (report.recorded, report.pending, report.address) == (0, 2, None)
    assert f"`dcs sync --output {output}`" in report.message
    assert len(Archive(output).finished()) == 2

    assert [r.pending for r in sync(output)] == [2], "still away"
    (tmp_path / "blocked").unlink()
    (tmp_path / "blocked").mkdir()
    shutil.copy(output / "mlflow.db", tmp_path / "blocked")
    (report,) = sync(output)
    assert (report.recorded, report.pending) == (2, 0)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", away)
    assert content()[1] == _finished(1, 2)
    assert set(runs()["status"]) == {"FINISHED"}
    assert sync(output) == (), "nothing is left to do"


def _interrupt(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, failures: Iterator[int]
) -> None:
    """Let calls fail as while a server is restarted, as often as there are failures left."""
    real = getattr(owner, name)

    def request(*arguments: Any, **options: Any) -> Any:
        if next(failures, None) is not None:
            raise ConnectionError("the server is being restarted")
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, request)
    monkeypatch.setattr(writer, "_RETRY_SECONDS_AT_END", 0.01)


@pytest.mark.parametrize(("seconds", "pending"), [(60.0, 0), (0.0, 1)])
def test_recorder_waits_at_the_end_for_a_store_that_answered(
    output: Path, uri: str, monkeypatch: pytest.MonkeyPatch, seconds: float, pending: int
) -> None:
    """As when a server is restarted: two requests fail, the third is answered."""
    monkeypatch.setattr(writer, "_AWAY_SECONDS", seconds)
    failures = iter(range(2))
    # The first to fail has begun a run already.
    for owner, name in ((sweep_runs, "log_files"), (SweepRuns, "look_up")):
        _interrupt(monkeypatch, owner, name, failures)
    report = recorded(output, 1)
    assert (report.pending, report.recorded) == (pending, 1 - pending)
    assert [*content()[1].values()] == ["RUNNING" if pending else "FINISHED"]


@pytest.mark.parametrize(
    ("step", "times", "complete"),
    [("write_summary", 1, True), ("write_summary", 2, False), ("note", 8, True)],
)
def test_what_fails_for_a_while_is_written_again(
    output: Path, monkeypatch: pytest.MonkeyPatch, step: str, times: int, complete: bool
) -> None:
    """As the tables while a server is restarted, and notes of runs while the disk is full."""
    _interrupt(monkeypatch, SweepRuns, step, iter(range(times)))
    report = recorded(output, *range(6))
    assert (report.recorded, report.complete) == (6, complete)


def test_a_deleted_experiment_is_named_and_restored(output: Path, uri: str) -> None:
    recorded(output, 1, 2)
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("demo")
    client.delete_experiment(experiment.experiment_id)
    (report,) = sync(output)
    assert f"mlflow experiments restore -x {experiment.experiment_id}`" in report.message
    client.restore_experiment(experiment.experiment_id)
    assert sync(output) == ()
    assert len(content()[1]) == 2


def test_a_moved_folder_is_not_made_again(output: Path, tmp_path: Path) -> None:
    recorded(output, 2)
    (tmp_path / "link").symlink_to(output)
    assert recorded(tmp_path / "link", 2).pending == 0, "the same folder by another name"
    moved = tmp_path / "moved"
    shutil.copytree(output, moved)
    before = set(output.rglob("*"))
    for left in (True, False):
        if not left:
            shutil.rmtree(output)
        report = recorded(moved, 3)
        assert "was moved or copied" in report.message
        assert str(moved / "mlflow.db") in report.message
        store = f"sqlite:///{moved}/mlflow.db"
        cell = stored_cells(moved, "demo")[0]
        cell = replace(cell, record=make_cell(2))
        refuses(TrackingError, log_cell_scheme, store, cell, names=["was moved or copied"])
        assert set(output.rglob("*")) == (before if left else set())


def test_one_record_that_is_refused_does_not_stop_the_others(
    output: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MlflowClient.set_terminated

    def picky(self: MlflowClient, run_id: str, status: str | None = None, **options: Any) -> None:
        if status != "KILLED" and self.get_run(run_id).data.tags.get(CELL_KEY) == "cell0002":
            raise ValueError("this cell is not to my taste")
        real(self, run_id, status, **options)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_terminated", picky)
        report = recorded(output, 1, 2, 3, trials="none")
    assert (report.recorded, report.pending) == (2, 1)
    assert content()[1] == _finished(1, 3)
    assert set(runs()["status"]) == {"FINISHED"}
    assert [r.recorded for r in sync(output)] == [1]
    assert content()[1] == _finished(1, 2, 3)


def test_a_bug_of_this_package_shows_where_it_is(
    output: Path, uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(views, "cell_name", None)
        assert recorded(output, 1).pending == 1
    assert "runs.py" in caplog.text and "TypeError" in caplog.text
    assert [each.recorded for each in sync(output)] == [1]


def test_a_damaged_record_is_reported_by_name(output: Path, uri: str) -> None:
    recorded(output, 1, 2, tracking_uri="http://127.0.0.1:9")
    path = Archive(output).path("cell0001")
    path.write_bytes(path.read_bytes()[:100])
    report = sync(output, tracking_uri=uri)[0]
    assert content()[1] == _finished(2)
    assert (report.recorded, report.pending) == (1, 1)
    assert str(path) in report.message
    assert [report.pending for report in sync(output)] == [1], "not before it is computed again"


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")]
)
def test_an_exception_ends_the_sweep(
    output: Path, uri: str, error: type[BaseException], status: str
) -> None:
    with pytest.raises(error), Recorder(output=output, **SWEEP) as rec:
        rec.record(make_cell(1))
        raise error
    rec.close()
    assert runs(kind="sweep")["status"].tolist() == [status], "closing again changes nothing"
    assert "RUNNING" not in set(runs()["status"])
    refuses(TrackingError, rec.record, make_cell(2), names=["closed"])


def test_a_signal_in_the_middle_of_recording_does_not_lock_up(
    output: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(output=output, **SWEEP)
    real = Archive.write

    def interrupted(self: Archive, record: Any) -> Path:
        real(self, record)
        # What a handler of SIGTERM does, on top of whatever the main thread was doing.
        recorder.close("KILLED")
        raise SystemExit(143)

    recorder.record(make_cell(1))
    monkeypatch.setattr(Archive, "write", interrupted)
    with pytest.raises(SystemExit), recorder:
        recorder.record(make_cell(2))
    assert "pending" not in recorder.close().message
    assert runs(kind="sweep")["status"].tolist() == ["KILLED"]
    assert "RUNNING" not in set(runs()["status"])


def test_two_drivers_give_a_store_each_cell_once(tmp_path: Path, output: Path, uri: str) -> None:
    sweep = SWEEP | {"trials": "none"}
    with (
        Recorder(uri, output=tmp_path / "a", **sweep) as first,
        Recorder(uri, output=tmp_path / "b", **sweep) as second,
    ):
        for number in range(4):
            # The same result, at another time.
            first.record(make_cell(number))
            second.record(make_cell(number, finished_ms=STARTED + 10**6))
        assert [recorder.finish().pending for recorder in (first, second)] == [0, 0]
    # Whether they share the run of the sweep depends on which of them begins first.
    assert content()[1] == _finished(*range(4))
    sync(tmp_path / "a")
    assert content()[1] == _finished(*range(4))


def test_a_tag_that_another_driver_adds_at_the_same_time_is_replaced(
    output: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = MlflowClient.set_experiment_tag, [MlflowException("UNIQUE constraint failed")]

    def contested(self: MlflowClient, *arguments: Any) -> None:
        real(self, *arguments)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(MlflowClient, "set_experiment_tag", contested)
    assert recorded(output, 1).complete


def test_a_second_recorder_of_the_same_sweep_is_refused(output: Path, uri: str) -> None:
    with Recorder(output=output, **SWEEP):
        for record in (lambda: Recorder(output=output, **SWEEP), lambda: sync(output)):
            refuses(TrackingError, record, names=["'demo'"])
        recorded(output, sweep_key="s2")


def test_wrong_options_are_said_at_once(tmp_path: Path) -> None:
    for wrong in ({"tracking_uri": "./mlruns"}, {"sweep_key": "a/b"}, {"trials": "best"}):
        refuses(ConfigError, Recorder, output=tmp_path, **SWEEP | wrong)
    assert list(tmp_path.iterdir()) == []


def test_sync_needs_a_sweep_and_its_password(
    tmp_path: Path, output: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses(TrackingError, sync, tmp_path / "nothing", names=["check --output"])
    secret = "http://me:secret@127.0.0.1:9"
    assert "secret" not in recorded(output, 1, tracking_uri=secret).message
    files = [path for path in output.rglob("*") if path.is_file()]
    assert not any(b"me:secret" in path.read_bytes() for path in files)
    refuses(TrackingError, sync, output, names=["password"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", secret)
    assert [report.pending for report in sync(output)] == [1]


def test_no_run_seems_to_run_after_the_driver_is_gone(output: Path, uri: str) -> None:
    archive, sweep = Archive(output), Sweep(**SWEEP)
    archive.save_sweep(sweep)
    for number in range(3):
        archive.write(make_cell(number))
        archive.add("s1", make_cell(number).key)
    SweepRuns(open_client(uri), sweep, archive).write_cell(make_cell(0))
    assert "RUNNING" in set(runs()["status"])
    assert all(report.pending == 0 for report in sync(output))
    assert content() == (1, _finished(0, 1, 2), dict.fromkeys(_finished(0, 1, 2), 2))
    assert runs(kind="sweep")["status"].tolist() == ["KILLED"]
    assert [sweep.status for sweep in Archive(output).sweeps()] == ["KILLED"]


def test_runs_that_cannot_be_noted_are_pending_and_noted_by_sync(
    output: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Archive, "add_run", full)
        report = recorded(output, 1, 2)
    assert (report.pending, report.complete) == (2, False)
    assert os.strerror(errno.ENOSPC) in report.message
    assert not any(each.pending for each in sync(output))
    found = {cell.record.key: cell.run_id for cell in stored_cells(output, "demo")}
    told = runs("demo", "cell")
    assert found == dict(zip(told["tags.dcs.cell_key"], told["run_id"], strict=True))


def test_a_cell_that_another_sweep_of_the_name_has_stays(output: Path, uri: str) -> None:
    recorded(output, 1, sweep_key="s2")
    recorded(output, 1, 2)
    with Recorder(output=output, **SWEEP) as recorder:
        recorder.leave_out(["cell0001", "cell0002"])
    assert {*content()[1]} == {"cell0001"}


def test_a_noted_run_that_was_deleted_is_recorded_again(output: Path, uri: str) -> None:
    recorded(output, 1, 2)
    assert recorded(output, 1, 2).recorded == 0
    MlflowClient().delete_run(runs(kind="cell")["run_id"].iloc[0])
    assert recorded(output, 1, 2).recorded == 1
    assert content()[:2] == (1, _finished(1, 2))


@pytest.mark.slow
def test_a_cell_costs_eight_requests(
    output: Path, new_output: Callable[[], Path], tmp_path: Path
) -> None:
    identity = {"model": "m", "task": "t", "method": "dcs", "optimization_digest": "ab" * 32}
    cells = [make_cell(number, identity=identity | {"seed": number}) for number in range(5)]
    log = tmp_path / "access.log"

    def requests_for(count: int) -> int:
        before = len(log.read_text().splitlines())
        options = {"experiment": f"of {count}", "tracking_uri": server, "writers": 1}
        recorded(output / str(count), *cells[:count], **options)
        return len(log.read_text().splitlines()) - before

    with mlflow_server(new_output(), free_port(), access_log=log) as server:
        # The sweep itself costs as much with one cell as with five: one model in both.
        assert requests_for(5) - requests_for(1) == 4 * 8
