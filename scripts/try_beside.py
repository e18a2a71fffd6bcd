"""Install a wheel before and after a distribution whose import name is ``workflows``.

python scripts/try_beside.py dist/*.whl

Neither may replace a file of the other, nor take one along when it is uninstalled. Requires PyPI.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

OURS, THEIRS = "dcs-debias", "llama-index-workflows==2.9.1"
#: What must work while the distribution is installed. The wheel is installed without all packages
#: but the one that `import dcs` takes.
USES = {OURS: "import dcs, dcs_workflows", THEIRS: "import workflows; workflows.Workflow"}


def main(wheel: str) -> None:
    """Install and uninstall in both orders, and use what is installed after each step."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")

        def run(*arguments: str) -> None:
            subprocess.run([python, "-I", *arguments], check=True)

        def pip(*arguments: str) -> None:
            run("-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)

        installs = {
            OURS: ("install", "--no-deps", wheel),
            THEIRS: ("install", "--no-warn-conflicts", THEIRS),
        }
        pip("install", "lazy-loader")
        for first, second in ((OURS, THEIRS), (THEIRS, OURS)):
            pip(*installs[first])
            pip(*installs[second])
            run("-c", USES[first])
            run("-c", USES[second])
            pip("uninstall", "--yes", OURS)
            run("-c", USES[THEIRS])
            pip(*installs[OURS])
            pip("uninstall", "--yes", THEIRS.partition("=")[0])
            run("-c", USES[OURS])
            pip("uninstall", "--yes", OURS)
    print(f"{wheel}: works beside {THEIRS}, installed before it and after it")


if __name__ == "__main__":
    main(sys.argv[1])
