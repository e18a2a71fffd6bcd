"""The provenance that every record carries."""

from __future__ import annotations

from importlib.metadata import version

from dcs_tracking import environment as provenance


def test_a_record_says_what_made_it():
    found = provenance.collect_provenance(seeds={"root": 3})
    assert found["seeds"] == {"root": 3}
    assert found["sources"] == provenance.source_digest()
    assert found["packages"]["numpy"] == version("numpy")
    assert found["cpu"]
    assert found["packages"][provenance.DISTRIBUTION] == provenance.installed_version()
