"""The notebook runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from .givens import record_quickstart
from .runner import ROOT


def test_the_notebook_runs(output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_quickstart(output.rename(tmp_path / "dcs-runs"))
    monkeypatch.chdir(tmp_path)
    images: list[bytes] = []
    # Matplotlib looks at the version.
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(version_info=(9, 0, 0)))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(Image=images.append))
    notebook = json.loads((ROOT / "docs" / "example.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"], "an output is missing"
            exec("".join(cell["source"]), names)
    assert names["table"].rows
    assert images and all(image.startswith(b"\x89PNG") for image in images)
