"""The lock that every record carries: what of it can be installed again."""

from __future__ import annotations

from importlib.metadata import requires, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tracking import environment as provenance


def test_the_lock_holds_what_is_installed_of_all_that_is_needed():
    lock = provenance.locked_versions()
    assert all(version(name) == number for name, number in lock.items())
    assert {"numpy", "numba", "ray", "optuna", "mlflow", "torch", "llvmlite"} <= set(lock)
    assert provenance.DISTRIBUTION not in lock
    # Nothing that is needed without a condition is missing, at any depth.
    for name in lock:
        for needed in map(Requirement, requires(name) or ()):
            if needed.marker is None:
                assert canonicalize_name(needed.name) in lock, f"{name} needs {needed}"


def test_a_record_says_what_made_it():
    found = provenance.collect_provenance(seeds={"root": 3})
    assert found["seeds"] == {"root": 3}
    assert found["sources"] == provenance.source_digest()
    assert found["lock"]["numpy"] == found["packages"]["numpy"] == version("numpy")
    assert found["cpu"]
    assert found["packages"][provenance.DISTRIBUTION] == provenance.installed_version()


def test_copies_inside_other_packages_are_not_in_the_lock(tmp_path, monkeypatch):
    copies = tmp_path / "ray" / "thirdparty_files"
    about = copies / "numpy-9.9.dist-info" / "METADATA"
    about.parent.mkdir(parents=True)
    about.write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(copies)
    assert version("numpy") == "9.9"
    assert provenance.locked_versions.__wrapped__()["numpy"] != "9.9"
