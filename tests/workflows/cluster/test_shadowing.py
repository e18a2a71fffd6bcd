"""Files in the current folder are not imported instead of what is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import free_port, running
from tests.workflows.conftest import biased_table

NAMES = """\
scipy numba numpy pandas yaml mlflow ray optuna json typing logging socket click uvicorn fastapi
sqlalchemy alembic pydantic typer rich requests dcs/__init__ dcs_tracking/__init__
dcs_workflows/__init__ tracking/__init__ workflows/__init__
"""

#: As the installed script does: the current folder is not on its own path.
CODE = """
import sys; sys.path[:] = filter(None, sys.path)
from dcs_workflows.cli import main
for line in sys.argv[1:]:
    sys.argv = ["dcs", *line.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, line
"""


@pytest.mark.slow
def test_modules_of_the_folder_are_not_imported(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    trap = "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n"
    for name in NAMES.split():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(trap)
    biased_table(200).write(folder / "mine.parquet")
    settings = "name: mine\ntables: [mine.parquet]\nmethods: [batch, dnip]\nseeds: [0, 1]\n"
    (folder / "sweep.yaml").write_text(settings)
    scheme, port = "dcs-runs/mine-dcs/scheme.json", free_port()
    commands = (
        "sweep sweep.yaml",
        "tune mine.parquet --trials 1",
        f"pick {scheme} --prefer accuracy",
        f"evaluate mine.parquet --scheme {scheme}",
        f"apply {scheme} mine.parquet -o new.parquet",
        f"register {scheme} --name mine",
        "generate --model tiny_lm --task reviews --limit 20 -o scored",
        "report mine",
        "compare mine mine",
        "runs",
        "sync",
        "rm tune --yes",
    )
    done = subprocess.run(
        [sys.executable, "-c", CODE, *commands],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    address = f"http://127.0.0.1:{port}"
    with running(
        [sys.executable, "-c", CODE, f"ui --port {port}"], f"{address}/health", cwd=folder
    ):
        assert not list(folder.rglob("*.ran"))
