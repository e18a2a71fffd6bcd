"""Each check against the real thing, working and broken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dcs.errors import DCSError
from tests.servers import free_port
from tests.workflows.conftest import run_dcs
from workflows.cli import installation as doctor


def test_packages_are_held_against_their_ranges() -> None:
    doctor.check_versions()
    doctor.check_versions(["numpy>=2", "not-asked-for; extra == 'x'"])
    for requirement in ("ray<1", "no-such-package>=1.5"):
        with pytest.raises(DCSError, match=requirement):
            doctor.check_versions(["numpy>=2", requirement])


def test_an_output_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    doctor.check_disk(tmp_path / "not" / "there")
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "x", Path("/proc/dcs-runs")):
        with pytest.raises(DCSError, match=str(place)):
            doctor.check_disk(place)


def test_a_working_store_is_opened_and_none_is_made(output: Path, tmp_path: Path) -> None:
    doctor.check_store(None, output)
    doctor.check_store(None, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("uri", ["./mlruns", "sqlite:///:memory:", "ftp://x", "server", None])
def test_stores_that_cannot_be_used(uri: str | None, tmp_path: Path) -> None:
    if uri == "server":
        uri = f"http://user:hunter2@127.0.0.1:{free_port()}"
    (tmp_path / "mlflow.db").write_bytes(b"not a database, by far" * 100)
    passed, text = doctor.result_of(lambda: doctor.check_store(uri, tmp_path))
    assert not passed
    assert "hunter2" not in text and "\n" not in text


def test_no_gpu_is_no_failure() -> None:
    assert doctor.check_gpu()


@pytest.mark.slow
def test_ray_starts() -> None:
    assert doctor.check_ray()


def test_the_command_ends_with_0_when_usable_and_1_when_not(output: Path) -> None:
    usable = run_dcs("doctor", "--quick", "-o", output)
    assert usable.code == 0, usable
    broken = run_dcs("doctor", "--quick", "-o", output / "mlflow.db" / "x")
    assert broken.code == 1, broken
