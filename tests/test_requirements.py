"""The lists of packages agree with each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-cluster.txt"])
def test_hashes_are_those_of_the_tested_versions(name: str) -> None:
    tested = set((ROOT / "constraints.txt").read_text().split("\n"))
    packages = re.split(r"\n(?=\S)", (ROOT / name).read_text().strip())
    assert {each.split(" \\")[0] for each in packages} <= tested
    assert all(" --hash=sha256:" in each for each in packages)
