"""Ask pip-audit for known vulnerabilities of the tested set, and say when nobody could answer.

Where its service is out of reach, or a mirror answers in its place, pip-audit calls every package
"not found" and reports no vulnerabilities. That is not a clean bill: here it ends with code 3.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

#: Vulnerabilities that do not concern this project, by id, each with the reason.
ACCEPTED: dict[str, str] = {}

_COMMAND = ("-m", "pip_audit", "--format", "json", "--progress-spinner", "off")
_SECONDS = 600.0


def main(arguments: list[str]) -> int:
    """Return 0 if all is well, 1 for vulnerabilities, 3 if that cannot be known."""
    requirements = Path(arguments[0] if arguments else "constraints.txt")
    command = [sys.executable, *_COMMAND, "--no-deps", "--disable-pip", "-r", str(requirements)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, subprocess.TimeoutExpired) as error:
        return _say(f"audit: the vulnerability service gives no answer ({error}); not audited", 3)
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
            f"{summary}; the vulnerability service cannot be reached from here, so this says "
            "nothing: run make audit where PyPI can be reached",
            3,
        )
    if unknown:
        _say(f"audit: not known to the service: {', '.join(unknown)}", 0)
    return _say(summary, 0)


def _say(line: str, code: int) -> int:
    sys.stdout.write(f"{line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
