"""Check the tested versions for known vulnerabilities with pip-audit.

python scripts/audit.py constraints.txt [OPTIONS OF PIP-AUDIT]

The exit code is 0 if all packages were audited and none is vulnerable, 1 if one is vulnerable, and
3 if packages were not audited: PyPI is unreachable, or a mirror without such data answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

#: A release with known vulnerabilities. A service that reports none for it has no such data.
_CONTROL = "django", "1.8"


def main(requirements: str, *options: str) -> int:
    """Print the verdict of pip-audit, and return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        control = Path(folder) / "control.txt"
        control.write_text("==".join(_CONTROL))
        command = ["-m", "pip_audit", "--no-deps", "--disable-pip", "--format=json", *options]
        command += ["-r", requirements, "-r", str(control)]
        done = subprocess.run(
            [sys.executable, *command], check=False, capture_output=True, text=True
        )
    if not done.stdout:
        print(f"audit: not audited; {(done.stderr.strip().splitlines() or ['no answer'])[-1]}")
        return 3
    found = {(d["name"], d.get("version")): d for d in json.loads(done.stdout)["dependencies"]}
    if not found.pop(_CONTROL, {}).get("vulns"):
        print("audit: not audited; the package index has no data on vulnerabilities")
        return 3
    for (name, version), package in found.items():
        for fault in package.get("vulns", []):
            fixed = ", ".join(fault["fix_versions"]) or "no version"
            print(f"audit: {name} {version}: {fault['id']}, fixed in {fixed}")
    skipped = [name for (name, _), package in found.items() if "vulns" not in package]
    print(f"audit: {len(found) - len(skipped)} packages audited")
    if skipped:
        print(f"audit: not audited: {', '.join(skipped)}")
    vulnerable = any(package.get("vulns") for package in found.values())
    return 1 if vulnerable else 3 if skipped else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
