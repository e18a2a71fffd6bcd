"""Check that a wheel contains every file of the packages and nothing else.

python scripts/check_package.py dist/*.whl
"""

from __future__ import annotations

import subprocess
import sys
import zipfile

PACKAGES = ("dcs", "tracking", "workflows")


def main(wheel: str) -> None:
    """Compare the file names in a wheel with those tracked by git."""
    tracked = subprocess.run(["git", "ls-files", *PACKAGES], stdout=subprocess.PIPE, text=True)
    wanted = set(tracked.stdout.splitlines())
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    if wanted and wanted != found:
        sys.exit(f"{wheel}: files differ from the checkout: {sorted(wanted ^ found)}")
    print(f"{wheel}: {len(found)} files")


if __name__ == "__main__":
    main(sys.argv[1])
