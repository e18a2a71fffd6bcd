"""The example package on the import path, installed as pip would install it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .runner import ROOT

EXTRAS = ROOT / "docs" / "examples" / "dcs-extras"


@pytest.fixture
def extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the example package, whose entry points can be found."""
    about = tmp_path / "dcs_extras-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: dcs-extras\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text(_entry_points())
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXTRAS))
    return EXTRAS


def _entry_points() -> str:
    import tomllib

    project = tomllib.loads((EXTRAS / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    return "\n".join([*lines, ""])
