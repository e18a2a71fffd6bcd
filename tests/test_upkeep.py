"""What nobody looks at until it is needed: packaging, versions, hooks, citation, changelog."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PACKAGES = ("dcs", "tracking", "workflows")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?(?:>=([0-9.]+))?")


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def _number(text: str) -> tuple[int, ...]:
    numbers = [int(part) for part in text.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _pins(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    found = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {_name(name): number for name, number in found}


def _bounds(requirements: list[str]) -> dict[str, str | None]:
    matches = (REQUIREMENT.match(line) for line in requirements)
    return {_name(found[1]): found[2] for found in matches if found}


DEPENDENCIES = _bounds(PROJECT["project"]["dependencies"])
DEV = _bounds(PROJECT["project"]["optional-dependencies"]["dev"])


@pytest.mark.parametrize("name", [*DEPENDENCIES, "hypothesis", "pytest"])
def test_the_lowest_versions_that_are_tested_are_those_that_are_promised(name):
    bound = DEPENDENCIES.get(name) or DEV[name]
    assert bound is not None, f"{name} has no lower bound"
    assert _number(_pins("constraints-minimum.txt")[name]) == _number(bound)


def test_every_direct_dependency_has_a_tested_version_within_its_range():
    pins = _pins("constraints.txt")
    wanted = {**DEPENDENCIES, **DEV}
    del wanted["dcs-debias"]  # whose extras the others ask for
    for name, bound in wanted.items():
        assert name in pins, f"constraints.txt does not name {name}"
        if bound is not None:
            pin = tuple(int(part) for part in re.findall(r"\d+", pins[name]))
            assert pin >= _number(bound), name


@pytest.mark.parametrize("package", PACKAGES)
def test_all_data_of_a_package_is_declared(package):
    patterns = PROJECT["tool"]["setuptools"]["package-data"][package]
    folder = ROOT / package
    declared = {path for pattern in patterns for path in folder.glob(pattern)}
    for pattern in patterns:
        assert list(folder.glob(pattern)), f"{package}: {pattern} matches nothing"
    there = {
        path
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    }
    assert there <= declared
    assert folder / "py.typed" in declared


def test_the_version_is_made_from_git_and_is_the_installed_one():
    assert "version" in PROJECT["project"]["dynamic"]
    assert re.match(r"\d+\.\d+", version("dcs-debias"))


def test_hooks_run_what_the_project_installs_and_need_no_network():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert {repo["repo"] for repo in config["repos"]} == {"local"}
    assert [hook["id"] for hook in hooks] == ["ruff", "ruff-format", "mypy"]
    for hook in hooks:
        assert hook["language"] == "system"
        program = Path(hook["entry"].split()[0])
        assert program.parent == Path(".venv/bin")
        assert program.name in DEV


def test_the_citation_names_the_paper_and_its_authors():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "license"} <= citation.keys()
    assert citation["license"] == PROJECT["project"]["license"] == "Apache-2.0"
    assert citation["authors"] == PROJECT["project"]["authors"]
    (paper,) = citation["references"]
    assert [who["family-names"] for who in paper["authors"]] == ["Lin", "Wang", "You"]


def test_the_changelog_keeps_its_form():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    titles = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert titles[0] == "[Unreleased]"
    for title in titles[1:]:
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", title)
    kinds = set(re.findall(r"^### (.*)$", text, flags=re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_a_module_can_be_read_at_a_sitting():
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert {name: length for name, length in lengths.items() if length > 350} == {}


def test_every_target_and_its_place_in_ci_is_known():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*##", makefile, flags=re.MULTILINE))
    phony = re.findall(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)
    assert targets == set(" ".join(phony).split())
    ci = re.findall(r"^make ([a-z-]+)$", (ROOT / ".ci/run").read_text(), flags=re.MULTILINE)
    # What asks a service of the network, and what makes nothing that could fail.
    assert set(ci) == targets - {"audit", "help", "install", "docs", "clean"}
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert all(f"`make {target}`" in contributing for target in [*ci, "audit", "docs"])
