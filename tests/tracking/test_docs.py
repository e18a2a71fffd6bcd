"""What the documentation shows works as it stands there."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dcs.schemes.calibration import from_arrays
from dcs.schemes.corrections import CorrectionSet
from dcs.schemes.scheme import CorrectionScheme
from tracking import Recorder

from .paper_cells import paper_cells

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A folder with a recorded sweep where the documentation has it."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "dcs-runs").mkdir()
    shutil.copy(empty_store, folder / "dcs-runs" / "mlflow.db")
    with Recorder(
        output=folder / "dcs-runs",
        experiment="quickstart",
        sweep_key="s1",
        trials="none",
        figures="none",
    ) as recorder:
        for record in paper_cells(tasks=("trec",), seeds=(0,)):
            recorder.record(record)
    return folder


def test_the_notebook_runs(quickstart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(quickstart)
    images: list[bytes] = []
    display = ModuleType("IPython.display")
    display.Image = images.append  # type: ignore[attr-defined]
    ipython = ModuleType("IPython")
    ipython.version_info = (9, 0, 0)  # type: ignore[attr-defined]  # matplotlib looks
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    notebook = json.loads((DOCS / "example.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 6
    assert all(cell["outputs"] for cell in cells), "an output is missing"
    names: dict[str, Any] = {}
    for cell in cells:
        exec("".join(cell["source"]), names)
    assert names["table"].rows
    assert images and images[0].startswith(b"\x89PNG")


def test_plain_python_applies_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "serving.md").read_text(encoding="utf-8")
    block = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[-1]
    corrections = CorrectionSet.dcs(weight_scale=3)
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    for _ in range(20):
        chosen = tuple(corrections[int(k)] for k in rng.integers(len(corrections), size=4))
        calibration = from_arrays("x", rng.normal(size=(4, 4)), rng.normal(size=4))
        scheme = CorrectionScheme(
            ("a", "b", "c", "d"), chosen, calibration=calibration if rng.random() < 0.5 else None
        )
        Path("scheme.json").write_text(scheme.to_json(), encoding="utf-8")
        names: dict[str, Any] = {}
        exec(block, names)
        for row in rng.dirichlet([0.5] * 4, size=20):
            loaded = names["scheme"]
            ours = names["corrected"](
                row.tolist(), loaded["corrections"], loaded.get("calibration")
            )
            np.testing.assert_allclose(ours, scheme.correct([row])[0], atol=1e-12)
    Path("scheme.json").unlink()
