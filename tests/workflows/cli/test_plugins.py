"""Packages that ``dcs new-plugin`` writes, installed and used as anyone's."""

from __future__ import annotations

import runpy
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from dcs.plugins import plugin_names
from tests.workflows.conftest import Outcome


def _install(folder: Path, site: Path) -> None:
    """Do what ``pip install -e`` does."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (about / "entry_points.txt").write_text("\n".join([*lines, ""]))


@pytest.mark.parametrize("kind", ["method", "importer", "engine"])
def test_a_new_plugin_works_and_passes_its_test(
    kind: str, dcs: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, folder = f"my-{kind}", tmp_path / "plugin"
    made = dcs("new-plugin", name, "--kind", kind, "--output", folder)
    assert made.code == 0, made.err
    _install(folder, tmp_path / "site")
    for place in (folder, tmp_path / "site"):
        monkeypatch.syspath_prepend(str(place))
    assert name in plugin_names(f"dcs.{kind}s")  # type: ignore[arg-type]
    (tests,) = (folder / "tests").glob("test_*.py")
    found = {k: v for k, v in runpy.run_path(str(tests)).items() if k.startswith("test_")}
    assert found
    for test in found.values():
        test()
    shown = dcs("doctor", "--quick", "--output", tmp_path)
    assert f"{kind} {name}" in shown.out and shown.code == 0
    command = {"method": "tune", "importer": "import", "engine": "generate"}[kind]
    assert name in dcs(command, "--help").out
    assert dcs("new-plugin", name, "--kind", kind, "--output", tmp_path / "other").code == 2


@pytest.mark.parametrize("name", ["dnip", "Upper", "../out", "a b", ""])
def test_names_that_are_taken_or_none_are_refused(
    name: str, dcs: Callable[..., Outcome], tmp_path: Path
) -> None:
    assert dcs("new-plugin", name, "--output", tmp_path / "new").code == 2
    assert dcs("new-plugin", "good", "--output", tmp_path).code == 2
    assert list(tmp_path.iterdir()) == []
