"""Damage files, and kill and resume sweeps, with a new seed each round, until the time is up.

python scripts/fuzz.py SECONDS [SEED]

Stops at the first failure, and prints the command that repeats it.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time

#: Every kind of file that is read, rows by every writer, and a sweep in any order of runs, kills
#: and losses.
TESTS = [
    "tests/test_readers.py",
    "tests/dcs/data/test_round_trips.py",
    "tests/workflows/test_lifecycle.py",
]


def main(seconds: str, first: str = "1") -> int:
    """Run rounds of the tests; return the exit code of the last one."""
    until = time.monotonic() + float(seconds)
    for seed in itertools.count(int(first)):
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", *TESTS]
        command += [f"--hypothesis-seed={seed}"]
        code = subprocess.run(command, env=os.environ | {"HYPOTHESIS_PROFILE": "fuzz"}).returncode
        if code:
            size = os.environ.get("DCS_FUZZ_EXAMPLES", "60")
            print(f"fuzz: repeat with HYPOTHESIS_PROFILE=fuzz DCS_FUZZ_EXAMPLES={size}", *command)
            return code
        if time.monotonic() > until:
            print(f"fuzz: no failure with seeds {first} to {seed}")
            return 0
    raise AssertionError


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
