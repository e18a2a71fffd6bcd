"""Public names say what they take, give back and raise, as they do; and the reference builds."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dcs
import tracking
from dcs.errors import DCSError

from .documents import ROOT

validate = pytest.importorskip("numpydoc.validate").validate

_WORKFLOWS = ("cells", "cluster", "compute", "config", "front", "own_table", "sweep", "tune")
#: Parameters, returned and yielded values: missing, unknown, in another order, without a word.
_CODES = ("GL08", "SS01", "PR01", "PR02", "PR03", "PR04", "PR07", "RT01", "RT03", "YD01")


def _faces() -> Iterator[Any]:
    """Yield what `dcs`, `tracking` and the public modules of `workflows` offer."""
    modules: list[ModuleType] = [dcs, tracking]
    modules += [importlib.import_module(f"workflows.{name}") for name in _WORKFLOWS]
    for module in modules:
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, ModuleType):
                modules.append(value)
            elif inspect.isclass(value) or inspect.isfunction(value):
                yield value


def _documented() -> dict[str, Any]:
    """Return functions, classes and their public methods by full name."""
    found: dict[str, Any] = {}
    for face in _faces():
        name = f"{face.__module__}.{face.__qualname__}"
        found[name] = face
        if inspect.isclass(face):
            for own, value in vars(face).items():
                method = getattr(value, "__func__", value)
                if not own.startswith("_") and inspect.isfunction(method):
                    found[f"{name}.{own}"] = method
    return found


_DOCUMENTED = _documented()


@pytest.mark.parametrize("name", _DOCUMENTED)
def test_what_is_public_says_what_it_takes_and_gives(name: str) -> None:
    value = _DOCUMENTED[name]
    errors = [(code, text) for code, text in validate(name)["errors"] if code in _CODES]
    if inspect.isclass(value) and ("Attributes\n" in (value.__doc__ or "") or _is_plain(value)):
        errors = [(code, text) for code, text in errors if code != "PR01"]
    assert errors == []


def _is_plain(value: type) -> bool:
    """Return whether a class is made without arguments of its own: an error, a protocol."""
    return issubclass(value, Exception) or getattr(value, "_is_protocol", False)


@pytest.mark.parametrize("name", _DOCUMENTED)
def test_what_is_raised_is_said(name: str) -> None:
    value = _DOCUMENTED[name]
    if inspect.isclass(value):
        made = [vars(value).get(own) for own in ("__init__", "__post_init__")]
        functions = [function for function in made if inspect.isfunction(function)]
    else:
        functions = [value]
    documented = inspect.getdoc(value) or ""
    raised = {error for function in functions for error in _raised(function)}
    assert sorted(error for error in raised if error not in documented) == []


def _raised(function: Any) -> Iterator[str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except OSError:  # made by a decorator
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            error = node.exc.func
            kind = function.__globals__.get(error.id) if isinstance(error, ast.Name) else None
            # Anything else is a bug of ours and not for anybody to expect.
            if isinstance(kind, type) and issubclass(kind, DCSError):
                yield kind.__name__


def test_the_reference_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("pdoc")
    script = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert script is not None and script.loader is not None
    reference = importlib.util.module_from_spec(script)
    script.loader.exec_module(reference)
    pages = {page.relative_to(tmp_path).as_posix() for page in reference.build(tmp_path)}
    missing = {f"{name.replace('.', '/')}.html" for name in reference.MODULES} - pages
    assert missing == set()
    page = (tmp_path / "dcs.html").read_text(encoding="utf-8")
    assert [name for name in dcs.__all__ if f'id="{name}"' not in page] == []


def test_the_overview_names_what_is_public() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    absent = [name for face in (dcs, tracking) for name in face.__all__ if f"`{name}`" not in text]
    assert absent == []
