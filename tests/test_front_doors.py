"""The linter refuses what other packages keep to themselves."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PRIVATE = {
    "from sklearn.utils import _safe_indexing": "PLC2701",
    "from ray._private import worker": "PLC2701",
    "from ray._private.worker import global_worker": "PLC2701",
    "import ray\n\nprint(ray._private)": "SLF001",
    "import mlflow\n\nclient = mlflow.MlflowClient()\nprint(client._tracking_client)": "SLF001",
    "import ray.experimental.internal_kv": "TID251",
    "from ray.experimental import internal_kv": "TID251",
    "from mlflow.store.tracking import dbmodels": "TID251",
    "from mlflow.server.handlers import get_endpoints": "TID251",
}


@pytest.mark.skipif(find_spec("ruff") is None, reason="ruff is installed by make install only")
@pytest.mark.parametrize(
    "folder", ["dcs", "tracking", "workflows", "benchmarks", "scripts", "tests"]
)
def test_private_interfaces_are_refused(folder: str, tmp_path: Path) -> None:
    for code, rule in PRIVATE.items():
        done = subprocess.run(
            [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "json"]
            + ["--stdin-filename", str(ROOT / folder / "planted.py"), "-"],
            input=code,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1 and f'"code": "{rule}"' in done.stdout, code
