"""Test the installed package outside the source tree: commands, packaged data, a small table.

.venv-package/bin/python -I scripts/try_package.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

import numpy as np

COMMANDS = """
dcs --version
dcs tasks
dcs tune probs.npz --set tuner.judge.development=0.2 --trials 3
dcs apply dcs-runs/probs-dcs/scheme.json probs.npz -o out.parquet
dcs evaluate out.parquet
dcs report tune --output report.html
dcs generate --model tiny_lm --task helpdesk --shots 1 --limit 20 -o tables
dcs sweep quickstart --dry-run
"""


def write_probabilities(path: Path) -> None:
    """Write class probabilities with a known bias towards the first class."""
    rng = np.random.default_rng(0)
    labels = np.arange(240) % 3
    logits = rng.normal(size=(240, 3)) + 1.5 * np.eye(3)[labels] + np.array([2.0, 0.0, 0.0])
    probs = np.exp(logits)
    probs /= probs.sum(axis=1, keepdims=True)
    np.savez(path, probs=probs, labels=labels, classes=np.array(["Anger", "Fear", "Joy"]))


def main() -> None:
    """Run the commands once, in an empty folder."""
    for package in ("dcs", "dcs_tracking", "dcs_workflows"):
        place = Path(str(resources.files(package)))
        if not place.is_relative_to(sys.prefix) or not (place / "py.typed").is_file():
            sys.exit(f"package: {package} is imported from {place}, or lacks py.typed")
    with tempfile.TemporaryDirectory() as name:
        write_probabilities(Path(name) / "probs.npz")
        for command in COMMANDS.strip().splitlines():
            print(command, flush=True)
            subprocess.run(
                [f"{sys.prefix}/bin/dcs", *command.split()[1:]],
                cwd=name,
                stdout=subprocess.DEVNULL,
                check=True,
            )


if __name__ == "__main__":
    main()
