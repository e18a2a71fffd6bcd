"""The public face: every name is there, and importing the package costs nothing."""

from __future__ import annotations

import subprocess
import sys

import dcs


def test_every_public_name_is_there_and_no_other():
    assert all(callable(getattr(dcs, name)) for name in dcs.__all__)
    assert not hasattr(dcs, "anneel")


def test_importing_the_package_imports_no_library():
    code = (
        "import sys, dcs; "
        "heavy = ('numpy', 'numba', 'pyarrow', 'torch', 'ray', 'optuna', 'mlflow'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
