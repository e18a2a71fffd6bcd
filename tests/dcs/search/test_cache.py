"""Machine code is kept, where a folder for it can be written to."""

from __future__ import annotations

import os
import subprocess
import sys

_CODE = """
import warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    from dcs.search.kernels import compiled
    names = {"__name__": "dcs.search.kernels"}
    exec(compile("def add(a, b): return a + b", "/proc/version", "exec"), names)
    add = compiled(names["add"])
print(add(1, 2), len(said), add.stats.cache_path)
"""


def test_without_a_place_for_machine_code_each_process_compiles() -> None:
    # /proc can be written to by nobody.
    environment = os.environ | {"HOME": "/proc/self"}
    for name in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", _CODE], env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == ["3", "1", "None"], done.stderr
