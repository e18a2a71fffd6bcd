"""Check that wheel and sdist hold every file of the packages, and nothing else.

python scripts/check_package.py dist
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("dcs", "tracking", "workflows")
#: What a source distribution is of no use without.
BESIDE = ("LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "Makefile", "constraints.txt")


def source_files() -> set[str]:
    """Return the files of the packages: those that git knows, or all there are without git."""
    asked = ["git", "-C", str(ROOT), "ls-files", "--", *PACKAGES]
    known = subprocess.run(asked, capture_output=True, text=True, check=False)
    if known.returncode == 0 and known.stdout:
        return {name for name in known.stdout.splitlines() if (ROOT / name).exists()}
    return {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def compare(name: str, found: set[str], wanted: set[str]) -> list[str]:
    """Return one line for each kind of difference."""
    lines = []
    if missing := sorted(wanted - found):
        lines.append(f"{name} lacks {', '.join(missing)}")
    if more := sorted(found - wanted):
        lines.append(f"{name} holds {', '.join(more)}, which the checkout does not")
    return lines


def main(folder: Path) -> None:
    """Check the one wheel and the one sdist of a folder."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    sources = source_files()
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
        licences = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if "/" in name}
    problems = compare(wheel.name, inside, sources)
    wanted = sources | set(BESIDE)
    problems += compare(sdist.name, names & wanted, wanted)
    if not licences:
        problems.append(f"{wheel.name} lacks the licence")
    if problems:
        sys.exit("\n".join(problems))
    print(f"{wheel.name}: {len(inside)} files of the checkout; {sdist.name}: {len(names)} names")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
