"""The provenance that every record carries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from dcs_tracking import environment as provenance


def test_a_record_says_what_made_it():
    found = provenance.collect_provenance(seeds={"root": 3})
    assert found["seeds"] == {"root": 3}
    assert found["sources"] == provenance.source_digest()
    assert found["packages"]["numpy"] == version("numpy")
    assert found["packages"][provenance.DISTRIBUTION] == provenance.installed_version()


def test_source_digest_of_a_checkout_is_that_of_its_wheel(tmp_path: Path) -> None:
    folders = provenance.import_folders()
    assert [folder.name for folder in folders] == ["dcs", "dcs_tracking", "dcs_workflows"]
    for folder in folders:
        shutil.copytree(folder, tmp_path / folder.name)

    def digest() -> str:
        code = "from dcs_tracking.environment import source_digest; print(source_digest())"
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        command = [sys.executable, "-c", code]
        return subprocess.check_output(command, cwd=tmp_path, env=environment, text=True).strip()

    assert digest() == provenance.source_digest()
    (tmp_path / "dcs_workflows" / "__init__.py").write_text("changed = True\n")
    assert digest() != provenance.source_digest()
