"""Print the licences of the tested packages, as the metadata of the installed ones states them.

python scripts/licences.py constraints.txt
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

_CLASSIFIER = "License :: "
_LONGEST = 60  # Some packages have the whole text of a licence in this field.


def licence(name: str, version: str) -> str:
    """Return the licence of a package: its expression, or else its classifiers or free text."""
    try:
        told = metadata(name)
    except PackageNotFoundError:
        return "not installed"
    # Builds such as 2.13.0+cpu are of the pinned version.
    if told["Version"].partition("+")[0] != version:
        return f"not installed; that of {told['Version']} was not read"
    found = [each for each in told.get_all("Classifier") or () if each.startswith(_CLASSIFIER)]
    kinds = {each.rpartition(" :: ")[2] for each in found}
    text = " ".join((told.get("License") or "").split())
    return (
        told.get("License-Expression")
        or "; ".join(sorted(kinds - {"OSI Approved"}))
        or (text if len(text) <= _LONGEST else "")
        or "not stated"
    )


def main(requirements: str) -> None:
    """Print a table of all pinned packages."""
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)", Path(requirements).read_text(), re.MULTILINE)
    print("| package | version | licence |\n| --- | --- | --- |")
    for name, version in pins:
        print(f"| {name} | {version} | {licence(name, version).replace('|', '/')} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
