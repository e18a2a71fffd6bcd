"""Ask pip-audit for known vulnerabilities of the tested set, and say when nobody could answer.

python scripts/audit.py [--if-reachable] constraints.txt

Where its service is out of reach, or a mirror answers in its place, pip-audit calls every package
"not found" and reports no vulnerabilities. That is not a clean bill: it is said, and ends with
code 3, or 0 with ``--if-reachable``. A vulnerability that was found ends with code 1 in any case.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

#: Vulnerabilities that do not concern this project, by id, each with the reason.
ACCEPTED: dict[str, str] = {}

_COMMAND = ("-m", "pip_audit", "--format", "json", "--progress-spinner", "off")
_SECONDS = 600.0

#: A page of the service that pip-audit asks. It does not change: the release is of 2024.
_PROBE = "https://pypi.org/pypi/pip/24.0/json"


def main(arguments: list[str]) -> int:
    """Return 0 if all is well, 1 for vulnerabilities, 3 if that cannot be known."""
    files = [argument for argument in arguments if argument != "--if-reachable"]
    unknown_code = 3 if files == arguments else 0
    unreachable = why_unreachable()
    if unreachable:
        return _say(
            f"audit: not audited, this says nothing: the vulnerability service of PyPI cannot be "
            f"reached from here ({unreachable})",
            unknown_code,
        )
    requirements = Path(files[0] if files else "constraints.txt")
    command = [sys.executable, *_COMMAND, "--no-deps", "--disable-pip", "-r", str(requirements)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, subprocess.TimeoutExpired) as error:
        return _say(
            f"audit: not audited, this says nothing: pip-audit gave no answer ({error})",
            unknown_code,
        )
    unknown = [package["name"] for package in packages if "vulns" not in package]
    found = [
        f"{package['name']} {package['version']}: {problem['id']}, "
        f"mended in {', '.join(problem['fix_versions']) or 'no version yet'}"
        for package in packages
        for problem in package.get("vulns", [])
        if problem["id"] not in ACCEPTED
    ]
    for line in found:
        _say(line, 1)
    audited = len(packages) - len(unknown)
    summary = f"audit: {audited} of {len(packages)} packages audited, {len(found)} problems"
    if found:
        return _say(summary, 1)
    if len(unknown) > len(packages) // 2:
        return _say(
            f"{summary}; most are not known to the service, so this says nothing", unknown_code
        )
    if unknown:
        _say(f"audit: not known to the service: {', '.join(unknown)}", 0)
    return _say(summary, 0)


def why_unreachable() -> str:
    """Return why the service does not answer as it should, or nothing if it does."""
    try:
        with urllib.request.urlopen(_PROBE, timeout=10) as answer:
            known = "vulnerabilities" in json.load(answer)
    except (OSError, ValueError, TypeError) as error:
        return str(error) or type(error).__name__
    return "" if known else "it answers without vulnerabilities, as a mirror does"


def _say(line: str, code: int) -> int:
    sys.stdout.write(f"{line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
