"""Check that a wheel contains every file of the packages and no name that others may use.

python scripts/check_package.py dist/*.whl
"""

from __future__ import annotations

import subprocess
import sys
import zipfile

#: The folder of each package in the checkout.
PACKAGES = {"dcs": ".", "dcs_tracking": "tracking", "dcs_workflows": "workflows"}


def main(wheel: str) -> None:
    """Compare the file names in a wheel with those tracked by git."""
    wanted = set()
    for package, folder in PACKAGES.items():
        command = ["git", "-C", folder, "ls-files", package]
        tracked = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        wanted |= set(tracked.stdout.splitlines())
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    names = {name.partition("/")[0] for name in found}
    if names != set(PACKAGES):
        sys.exit(f"{wheel}: top-level names are {sorted(names)}, expected {sorted(PACKAGES)}")
    if wanted and wanted != found:
        sys.exit(f"{wheel}: files differ from the checkout: {sorted(wanted ^ found)}")
    print(f"{wheel}: {len(found)} files in {', '.join(sorted(names))}")


if __name__ == "__main__":
    main(sys.argv[1])
