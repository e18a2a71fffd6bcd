"""Each check against the real thing, working and broken."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from tests.servers import free_port
from tests.workflows.conftest import run_dcs
from tracking.store.client import open_client
from workflows import doctor
from workflows import doctor as health

NAMES = {"python", "packages", "environment", "machine", "output", "mlflow", "optuna"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A folder with an MLflow database."""
    folder = tmp_path_factory.mktemp("store")
    open_client(f"sqlite:///{folder}/mlflow.db").create_experiment("x")
    return folder


def test_every_finding_that_is_not_ok_has_a_fix(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_RUN_ID", "x")
    findings = list(doctor.examine(store, quick=True))
    assert {finding.name for finding in findings} == NAMES
    for finding in findings:
        assert "\n" not in finding.text + finding.fix
        assert bool(finding.fix) == (finding.status != "ok"), finding


@pytest.mark.parametrize(
    ("running", "status"), [((3, 10, 1), "failure"), ((3, 11, 9), "ok"), ((3, 14, 0), "warning")]
)
def test_the_version_of_python(running, status):
    assert health.check_python(running).status == status


def test_packages_are_held_against_their_ranges():
    found = health.check_packages(
        ["numpy>=2", "ray<1", "no-such-package>=1.5", "vllm>=99; extra == 'vllm'"]
    )
    failures = [finding for finding in found if finding.status == "failure"]
    assert [finding.text.split()[0] for finding in failures] == ["ray", "no-such-package"]
    assert version("ray") in failures[0].text
    assert failures[1].fix == "pip install 'no-such-package>=1.5'"


def test_other_versions_than_the_tested_ones_are_a_warning():
    def installed(name: str) -> str:
        if name == "vllm":
            raise PackageNotFoundError(name)
        return "1.2.3" if name == "mlflow" else version(name)

    found = health.check_packages(["numpy"], installed)
    warning = next(finding for finding in found if "mlflow" in finding.text)
    assert warning.status == "warning"
    assert "mlflow 1.2.3" in warning.text


@pytest.mark.parametrize(
    ("variables", "word"),
    [
        ({"MLFLOW_RUN_ID": "abc"}, "MLFLOW_RUN_ID"),
        ({"RAY_AUTH_MODE": "disabled"}, "runs code as you"),
        ({"RAY_ADDRESS": "h:1"}, "--address auto"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "hides all GPUs"),
        ({"NUMBA_DISABLE_JIT": "1"}, "NUMBA_DISABLE_JIT"),
    ],
)
def test_surprising_variables_are_named_without_their_values(variables, word):
    (finding,) = health.check_environment({**variables, "RAY_AUTH_TOKEN": "s3cret"})
    assert finding.status == "warning"
    assert word in finding.text + finding.fix
    assert "s3cret" not in finding.text + finding.fix


def test_an_ordinary_environment_surprises_nobody():
    (finding,) = health.check_environment({"PATH": "/bin", "OPENAI_API_KEY": "x"})
    assert finding.status == "ok"


def test_small_shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "_SMALL_SHARED_MEMORY", 1e30)
    findings = health.check_machine(tmp_path)
    assert findings[-1].status == "warning"
    assert "--shm-size" in findings[-1].fix


def test_an_output_folder_is_tried_and_left_as_it_was(tmp_path):
    output = tmp_path / "not" / "there"
    assert health.check_output(output)[-1].status == "ok"
    assert os.listdir(tmp_path) == []


def test_an_output_folder_in_a_file(tmp_path):
    (tmp_path / "file").touch()
    (finding,) = health.check_output(tmp_path / "file" / "x")
    assert finding.status == "failure"
    assert "--output" in finding.fix


def test_a_folder_of_the_kernel_cannot_be_written():
    (finding,) = health.check_output(Path("/proc/dcs-runs"))
    assert finding.status == "failure"


def test_little_and_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "_LITTLE_ROOM", 1e30)
    assert health.check_output(tmp_path)[-1].status == "warning"
    monkeypatch.setattr(health, "_NO_ROOM", 1e30)
    assert health.check_output(tmp_path)[-1].status == "failure"


def test_a_clock_that_went_backwards(tmp_path):
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "abc.json").touch()
    assert [f.status for f in health.check_output(tmp_path)] == ["ok"]
    earlier = time.time() - 86_400
    findings = health.check_output(tmp_path, now=lambda: earlier)
    assert findings[0].status == "warning"
    assert "clock" in findings[0].fix


def test_a_working_store(store):
    finding = doctor.check_tracking(None, store)
    assert finding.status == "ok"
    assert "2 experiments" in finding.text


def test_a_store_that_is_not_there_is_not_made(tmp_path):
    assert doctor.check_tracking(None, tmp_path).status == "ok"
    assert os.listdir(tmp_path) == []


def test_a_locked_store(store):
    with closing(sqlite3.connect(store / "mlflow.db", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        finding = doctor.check_tracking(None, store)
        holder.execute("ROLLBACK")
    assert finding.status == "failure"
    assert "locked" in finding.text


@pytest.mark.parametrize(
    ("content", "word"), [(b"not a database, by far" * 100, "not a database"), (b"", "MLflow")]
)
def test_a_file_that_is_no_store(tmp_path, content, word):
    (tmp_path / "mlflow.db").write_bytes(content)
    finding = doctor.check_tracking(None, tmp_path)
    assert finding.status == "failure"
    assert word in finding.text


@pytest.mark.parametrize("uri", ["./mlruns", "file:///x", "sqlite:///:memory:", "ftp://x"])
def test_stores_of_the_wrong_kind(tmp_path, uri):
    assert doctor.check_tracking(uri, tmp_path).status == "failure"


def test_a_server_that_does_not_answer(tmp_path):
    finding = doctor.check_tracking(f"http://user:hunter2@127.0.0.1:{free_port()}", tmp_path)
    assert finding.status == "failure"
    assert "hunter2" not in finding.text + finding.fix


def test_studies(tmp_path):
    assert doctor.check_studies(None).status == "ok"
    assert doctor.check_studies(str(tmp_path / "new" / "studies.log")).status == "ok"
    assert os.listdir(tmp_path) == []
    for place in ("sqlite:///x.db", f"postgresql://u:hunter2@127.0.0.1:{free_port()}/x"):
        finding = doctor.check_studies(place)
        assert finding.status == "failure"
        assert "hunter2" not in finding.text + finding.fix


def test_the_packaged_model_and_the_search():
    for finding in (doctor.check_model(), doctor.check_search()):
        assert finding.status == "ok", finding
    assert doctor.check_gpu().status != "failure"


@pytest.mark.slow
def test_ray_starts():
    assert doctor.check_ray().status == "ok"


def test_a_broken_check_is_a_failure_and_the_others_go_on(tmp_path, monkeypatch):
    def broken(*arguments: object) -> health.Finding:
        raise RuntimeError("cannot open shared object file")

    monkeypatch.setattr(doctor, "check_tracking", broken)
    findings = list(doctor.examine(tmp_path, quick=True))
    assert [f.status for f in findings if f.name == "mlflow"] == ["failure"]
    assert findings[-1].name == "optuna"


def test_the_command_ends_with_0_when_usable_and_1_when_not(store, tmp_path):
    usable = run_dcs("doctor", "--quick", "-o", store)
    assert usable.code == 0, usable
    assert "0 failures" in usable.out
    (tmp_path / "file").touch()
    broken = run_dcs("doctor", "--quick", "-o", tmp_path / "file" / "x")
    assert broken.code == 1
    assert "fix:" in broken.out


def test_the_json_says_the_same(store):
    body = json.loads(run_dcs("doctor", "--quick", "--json", "-o", store).out)
    assert body["usable"] is True
    assert {finding["name"] for finding in body["findings"]} == NAMES
