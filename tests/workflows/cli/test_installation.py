"""The doctor's checks against the real thing, and packages that ``dcs new-plugin`` writes."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import pytest

from dcs.errors import DCSError
from dcs.plugins import plugin_names
from tests.packages import install_editable
from tests.servers import free_port
from tests.workflows.conftest import done
from workflows.cli import installation


def test_packages_are_held_against_their_ranges() -> None:
    installation.check_versions()
    installation.check_versions(["numpy>=2", "not-asked-for; extra == 'x'"])
    for requirement in ("ray<1", "no-such-package>=1.5"):
        with pytest.raises(DCSError, match=requirement):
            installation.check_versions(["numpy>=2", requirement])


def test_an_output_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    installation.check_disk(tmp_path / "not" / "there")
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "x", Path("/proc/dcs-runs")):
        with pytest.raises(DCSError, match=str(place)):
            installation.check_disk(place)


@pytest.mark.parametrize("uri", ["./mlruns", "sqlite:///:memory:", "ftp://x", "server", None])
def test_stores_that_cannot_be_used(uri: str | None, tmp_path: Path) -> None:
    if uri == "server":
        uri = f"http://user:hunter2@127.0.0.1:{free_port()}"
    (tmp_path / "mlflow.db").write_bytes(b"not a database, by far" * 100)
    passed, text = installation.result_of(lambda: installation.check_store(uri, tmp_path))
    assert not passed
    assert "hunter2" not in text and "\n" not in text


@pytest.mark.parametrize("driver", ["sqlite", "sqlite+pysqlite"])
def test_a_store_is_not_made(driver: str, tmp_path: Path) -> None:
    assert "first run" in installation.check_store(f"{driver}:///{tmp_path / 'x.db'}", tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_ray_starts() -> None:
    assert installation.check_ray()


@pytest.mark.parametrize("then", ["time.sleep(60)", "raise OSError('full disk')"])
def test_ray_that_hangs_or_fails(then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"import sys, time; print('a line of log', file=sys.stderr, flush=True); {then}"
    monkeypatch.setattr(installation, "_RAY_TASK", code)
    monkeypatch.setattr(installation, "_RAY_SECONDS", 1.0)
    with pytest.raises(DCSError, match="^(no answer in 1 s|OSError: full disk); see /tmp/ray"):
        installation.check_ray()


def test_the_command_ends_with_0_when_usable_and_1_when_not(output: Path) -> None:
    new = output / "new"
    for folder in (output, new):
        done("doctor", "--quick", "-o", folder)
    assert not new.exists()
    done("doctor", "--quick", "-o", output / "mlflow.db" / "x", code=1)


@pytest.mark.parametrize("kind", ["method", "importer", "engine"])
def test_a_new_plugin_works_and_passes_its_test(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, folder = f"my-{kind}", tmp_path / "plugin"
    done("new-plugin", name, "--kind", kind, "--output", folder)
    install_editable(folder, tmp_path / "site")
    for place in (folder, tmp_path / "site"):
        monkeypatch.syspath_prepend(str(place))
    assert name in plugin_names(f"dcs.{kind}s")  # type: ignore[arg-type]
    (tests,) = (folder / "tests").glob("test_*.py")
    found = {k: v for k, v in runpy.run_path(str(tests)).items() if k.startswith("test_")}
    assert found
    for test in found.values():
        test()
    assert f"{kind} {name}" in done("doctor", "--quick", "--output", tmp_path).out
    command = {"method": "tune", "importer": "import", "engine": "generate"}[kind]
    assert name in done(command, "--help").out
    done("new-plugin", name, "--kind", kind, "--output", tmp_path / "other", code=2)


@pytest.mark.parametrize("name", ["dnip", "debias", "Upper", "../out", "a b", ""])
def test_names_that_are_taken_or_none_are_refused(name: str, tmp_path: Path) -> None:
    done("new-plugin", name, "--output", tmp_path / "new", code=2)
    done("new-plugin", "good", "--output", tmp_path, code=2)
    assert list(tmp_path.iterdir()) == []
