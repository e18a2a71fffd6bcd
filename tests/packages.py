"""Packages with entry points, as pip leaves them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path


def install_editable(folder: Path, site: Path) -> None:
    """Do what ``pip install -e`` does: note in `site` the entry points of the project `folder`."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    install(site, project["name"], project["entry-points"])


def install(site: Path, name: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Note in `site` the entry points of a package, by their group."""
    about = site / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    (about / "METADATA").write_text(head)
    lines = []
    for group, points in groups.items():
        lines += [f"[{group}]", *(f"{point} = {value}" for point, value in points.items())]
    (about / "entry_points.txt").write_text("\n".join([*lines, ""]))
