"""Check the tested versions for known vulnerabilities with pip-audit, if PyPI is reachable.

python scripts/audit.py constraints.txt [OPTIONS OF PIP-AUDIT]

A mirror of PyPI has no vulnerability data, so that pip-audit would report none: if PyPI itself
does not answer, print a message and exit with code 3.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request

#: A page of the service that pip-audit queries, for an old release so that it does not change.
_PROBE = "https://pypi.org/pypi/pip/24.0/json"


def main(requirements: str, *options: str) -> int:
    """Return the exit code of pip-audit, or 3 if PyPI is unreachable."""
    try:
        with urllib.request.urlopen(_PROBE, timeout=10) as answer:
            if "vulnerabilities" not in json.load(answer):
                raise ValueError("a mirror answered, which has no vulnerability data")
    except (OSError, ValueError) as error:
        print(f"audit: not audited, PyPI is unreachable ({error})")
        return 3
    command = ["-m", "pip_audit", "--no-deps", "--disable-pip", "-r", requirements, *options]
    return subprocess.run([sys.executable, *command], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
