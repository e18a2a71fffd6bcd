"""Fit a scheme to each file of rows, serve it with MLflow, and compare it with `dcs apply`.

python scripts/serve_tables.py OUTPUT FILE...

Prints a line of a Markdown table per file; ends with code 1 if two values differ by more than
1e-12, or two labels differ.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import requests

sys.path.insert(0, str(Path(__file__).parents[1]))  # the servers of the tests

from dcs.data.columns import CORRECTED
from dcs.data.reader import open_source
from dcs.data.table import ProbabilityTable
from dcs.schemes.scheme import CorrectionScheme
from dcs_tracking.store.serving import save_model
from tests.servers import free_port, running

LARGEST = 1e-12


def run(*command: str | Path) -> None:
    """Run a command of this package; its output is shown only if it fails."""
    code = "import sys; from dcs_workflows.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"dcs {' '.join(map(str, command))}: {done.stdout}{done.stderr}")


def served(scheme: CorrectionScheme, model: Path, table: ProbabilityTable) -> pd.DataFrame:
    """Return what a server answers for all rows of a table."""
    shutil.rmtree(model, ignore_errors=True)
    save_model(scheme, model)
    address = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(model)]
    command += ["--env-manager", "local", "--port", address.rpartition(":")[2], "--workers", "1"]
    columns = [f"p:{name}" for name in table.classes]
    sent = {"columns": columns, "data": table.probs.tolist()}
    os.environ.setdefault("RAY_AUTH_TOKEN", "none")  # that the health of some servers needs
    with running(command, f"{address}/ping"):
        answer = requests.post(
            f"{address}/invocations", json={"dataframe_split": sent}, timeout=120
        )
    answer.raise_for_status()
    return pd.DataFrame(answer.json()["predictions"])


def main(output: str, *files: str) -> int:
    """Compare all files; return the exit code."""
    print("| rows of | rows | classes | calibration | largest difference | labels equal |")
    print("| --- | ---: | ---: | --- | ---: | --- |", flush=True)
    fine = True
    for file in map(Path, files):
        folder = Path(output, file.stem)
        run("tune", file, "--prefer", "balance", "--output", folder, "--replace")
        (path,) = folder.glob("*/scheme.json")
        run("apply", path, file, "-o", folder / "applied.parquet")
        scheme, table = CorrectionScheme.load(path), open_source(file).table
        applied = pd.read_parquet(folder / "applied.parquet")
        probs = applied[[CORRECTED + name for name in scheme.classes]].to_numpy()
        answer = served(scheme, folder / "model", table)
        same = answer.pop("label").tolist() == applied["predicted"].tolist()
        distance = float(np.abs(answer.to_numpy() - probs).max())
        calibration = scheme.calibration
        products = calibration is not None and calibration.products
        kind = "none" if calibration is None else "products" if products else "logs"
        print(
            f"| {file.stem} | {table.n_rows:,} | {table.n_classes} | {kind} | {distance:.1e} | "
            f"{'yes' if same else 'no'} |",
            flush=True,
        )
        fine = fine and same and distance <= LARGEST
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
