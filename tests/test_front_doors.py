"""The linter refuses what other packages keep to themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: A planted line and the rule that refuses it.
PRIVATE = {
    "from sklearn.utils import _safe_indexing": "PLC2701",
    "from ray._private import worker": "PLC2701",
    "from ray._private.worker import global_worker": "PLC2701",
    "print(ray._private)": "SLF001",
    "print(client._tracking_client)": "SLF001",
    "import ray.experimental.internal_kv": "TID251",
    "from ray.experimental import internal_kv": "TID251",
    "from mlflow.store.tracking import dbmodels": "TID251",
    "from mlflow.server.handlers import get_endpoints": "TID251",
}


@pytest.mark.skipif(find_spec("ruff") is None, reason="ruff is installed by make install only")
@pytest.mark.parametrize(
    "folder", ["dcs", "tracking", "workflows", "benchmarks", "scripts", "tests"]
)
def test_private_interfaces_are_refused(folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "json"]
        + ["--stdin-filename", str(ROOT / folder / "planted.py"), "-"],
        input="\n".join(PRIVATE),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    refused = {(each["location"]["row"], each["code"]) for each in json.loads(done.stdout)}
    assert set(enumerate(PRIVATE.values(), start=1)) <= refused
