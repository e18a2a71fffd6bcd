"""Packages with entry points, as pip leaves them."""

from __future__ import annotations

import tomllib
from pathlib import Path


def install_editable(folder: Path, site: Path) -> None:
    """Do what ``pip install -e`` does: note in `site` the entry points of the project `folder`."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = project["name"], project["version"]
    about = site / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (about / "METADATA").write_text(head)
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{point} = {value}" for point, value in points.items())]
    (about / "entry_points.txt").write_text("\n".join([*lines, ""]))
