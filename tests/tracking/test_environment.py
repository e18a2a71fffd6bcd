"""The provenance that every record carries."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path

from dcs.plugins import source_digest
from dcs_tracking import environment as provenance


def test_a_record_says_what_made_it():
    found = provenance.collect_provenance(seeds={"root": 3})
    assert found["seeds"] == {"root": 3}
    assert found["sources"] == provenance.own_digest()
    assert found["packages"]["numpy"] == version("numpy")
    assert found["packages"][provenance.DISTRIBUTION] == provenance.installed_version()


def test_source_digest_of_a_checkout_is_that_of_its_wheel(tmp_path: Path) -> None:
    folders = provenance.import_folders()
    assert [folder.name for folder in folders] == ["dcs", "dcs_tracking", "dcs_workflows"]
    copies = [shutil.copytree(folder, tmp_path / folder.name) for folder in folders]
    assert source_digest(*copies) == provenance.own_digest()
    (copies[-1] / "__init__.py").write_text("changed = True\n")
    assert source_digest(*copies) != provenance.own_digest()
