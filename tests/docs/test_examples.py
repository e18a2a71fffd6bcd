"""The notebook runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .givens import record_quickstart
from .runner import ROOT


def test_the_notebook_runs(output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_quickstart(output.rename(tmp_path / "dcs-runs"))
    monkeypatch.chdir(tmp_path)
    images: list[bytes] = []
    display = ModuleType("IPython.display")
    display.Image = images.append  # type: ignore[attr-defined]
    ipython = ModuleType("IPython")
    ipython.version_info = (9, 0, 0)  # type: ignore[attr-defined]  # matplotlib looks
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    notebook = json.loads((ROOT / "docs" / "example.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"], "an output is missing"
            exec("".join(cell["source"]), names)
    assert names["table"].rows
    assert images and all(image.startswith(b"\x89PNG") for image in images)
