"""Ask pip-audit for known vulnerabilities of the tested set, where its service can be reached.

python scripts/audit.py constraints.txt [OPTIONS OF PIP-AUDIT]

A mirror of PyPI does not know of vulnerabilities, and pip-audit would report none: where PyPI
itself does not answer, that is said, and the code is 3.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request

#: A page of the service that pip-audit asks; the release is old and the page does not change.
_PROBE = "https://pypi.org/pypi/pip/24.0/json"


def main(requirements: str, *options: str) -> int:
    """Return the code of pip-audit, or 3 where PyPI cannot be asked."""
    try:
        with urllib.request.urlopen(_PROBE, timeout=10) as answer:
            if "vulnerabilities" not in json.load(answer):
                raise ValueError("a mirror answers, which does not know of vulnerabilities")
    except (OSError, ValueError) as error:
        print(f"audit: nothing was audited, PyPI cannot be asked ({error})")
        return 3
    command = ["-m", "pip_audit", "--no-deps", "--disable-pip", "-r", requirements, *options]
    return subprocess.run([sys.executable, *command], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
