"""Damage every kind of file that is read, with a new seed each round, until the time is up.

python scripts/fuzz.py SECONDS [SEED]

Stops at the first failure, and prints the command that repeats it.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time


def main(seconds: str, first: str = "1") -> int:
    """Run rounds of the tests of readers; return the exit code of the last one."""
    until = time.monotonic() + float(seconds)
    for seed in itertools.count(int(first)):
        command = [sys.executable, "-m", "pytest", "-q", "tests/test_readers.py"]
        command += [f"--hypothesis-seed={seed}"]
        code = subprocess.run(command, env=os.environ | {"HYPOTHESIS_PROFILE": "fuzz"}).returncode
        if code:
            print("fuzz: repeat with HYPOTHESIS_PROFILE=fuzz", *command[1:])
            return code
        if time.monotonic() > until:
            print(f"fuzz: no failure with seeds {first} to {seed}")
            return 0
    raise AssertionError


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
