"""The example package on the import path, installed as pip would install it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packages import install_editable

from .runner import ROOT

EXTRAS = ROOT / "docs" / "examples" / "dcs-extras"


@pytest.fixture
def extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the example package, whose entry points can be found."""
    install_editable(EXTRAS, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXTRAS))
    return EXTRAS
