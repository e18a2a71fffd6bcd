"""Try the installed package from outside the tree: commands, packaged data, a small table.

.venv-package/bin/python -I scripts/try_package.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib import resources
from importlib.metadata import version
from pathlib import Path

import numpy as np

DCS = Path(sys.prefix) / "bin" / "dcs"


def dcs(*arguments: str, folder: str) -> str:
    """Run the command as a person would and return what it says."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(DCS), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"dcs {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
    print(f"dcs {' '.join(arguments)}: {len(done.stdout.splitlines())} lines")
    return done.stdout


def expect(condition: bool, what: str) -> None:
    """Stop with one line if something is not so."""
    if not condition:
        sys.exit(f"package: {what}")


def write_probabilities(path: Path) -> None:
    """Write class probabilities with a known bias towards the first class."""
    rng = np.random.default_rng(0)
    labels = np.arange(240) % 3
    logits = rng.normal(size=(240, 3)) + 1.5 * np.eye(3)[labels] + np.array([2.0, 0.0, 0.0])
    probs = np.exp(logits)
    probs /= probs.sum(axis=1, keepdims=True)
    np.savez(path, probs=probs, labels=labels, classes=np.array(["Anger", "Fear", "Joy"]))


def main() -> None:
    """Go through it once, in an empty folder."""
    for package in ("dcs", "tracking", "workflows"):
        place = resources.files(package)
        expect(Path(str(place)).is_relative_to(sys.prefix), f"{package} is taken from {place}")
        expect((place / "py.typed").is_file(), f"{package} lacks py.typed")
    with tempfile.TemporaryDirectory() as folder:
        expect("quickstart" in dcs("--help", folder=folder), "no help")
        expect(version("dcs-debias") in dcs("--version", folder=folder), "another version")
        tasks = dcs("tasks", folder=folder)
        expect("helpdesk" in tasks and "agnews" in tasks, "tasks are missing")
        write_probabilities(Path(folder) / "probs.npz")
        dcs("import", "npz", "probs.npz", "-o", "moods.parquet", folder=folder)
        dcs(
            "tune",
            "moods.parquet",
            "--set",
            "tuner.protocol=paper",
            "--trials",
            "3",
            folder=folder,
        )
        dcs("apply", "dcs-runs/scheme.json", "moods.parquet", "-o", "out.parquet", folder=folder)
        dcs("evaluate", "out.parquet", folder=folder)
        dcs("report", "tune", "--output", "report.html", folder=folder)
        expect((Path(folder) / "report.html").stat().st_size > 10_000, "an empty report")
        asked = ("--task", "helpdesk", "--shots", "1", "--limit", "20")
        dcs("generate", "--model", "tiny_lm", *asked, "-o", "tables", folder=folder)
        expect(bool(list(Path(folder).glob("tables/**/*.parquet"))), "no generated tables")
        config = resources.files("workflows") / "configs" / "quickstart.yaml"
        plan = dcs("sweep", str(config), "--dry-run", folder=folder)
        expect("12 tables" in plan, f"another quickstart: {plan}")
    print(f"dcs-debias {version('dcs-debias')} works as installed")


if __name__ == "__main__":
    main()
