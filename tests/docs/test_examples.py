"""The notebook runs, and what plain Python makes of a scheme is what the package does."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dcs.schemes.calibration import from_arrays
from dcs.schemes.corrections import CorrectionSet
from dcs.schemes.scheme import CorrectionScheme

from .givens import record_quickstart
from .runner import ROOT, blocks_of


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


def test_plain_python_applies_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, block = (each for each in blocks_of("docs/serving.md") if each.language == "python")
    corrections = CorrectionSet.dcs(weight_scale=3)
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    for number in range(20):
        chosen = tuple(corrections[int(k)] for k in rng.integers(len(corrections), size=4))
        calibration = from_arrays("x", rng.normal(size=(4, 4)), rng.normal(size=4))
        scheme = CorrectionScheme(
            ("a", "b", "c", "d"), chosen, calibration=calibration if number % 2 else None
        )
        scheme.save("scheme.json")
        names: dict[str, Any] = {}
        exec(block.code, names)
        read = names["scheme"]
        for row in rng.dirichlet([0.5] * 4, size=20):
            ours = names["corrected"](row.tolist(), read["corrections"], read.get("calibration"))
            np.testing.assert_allclose(ours, scheme.correct([row])[0], atol=1e-12)
