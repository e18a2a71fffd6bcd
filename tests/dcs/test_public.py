"""The public face: every name is there, and importing the package costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dcs


@pytest.mark.parametrize("name", dcs.__all__)
def test_every_public_name_has_a_docstring(name):
    assert getattr(dcs, name).__doc__


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="anneel"):
        _ = dcs.anneel


def test_importing_the_package_imports_no_library():
    code = (
        "import sys, dcs; "
        "print([m for m in ('numpy', 'numba', 'pyarrow', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
