"""Whether two computations of one cell agree, to the last bit, and what software each ran on."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dcs._messages import last_line
from tracking import CellRecord
from tracking.provenance import DISTRIBUTION

__all__ = ["Compared", "commit_of", "compare_results", "compare_software", "requirements_of"]

#: Figures that are measured anew each time.
_TIMES = ("seconds", "started_ms")
#: What is compared as a whole, with its name for people.
_WHOLES = {
    "scheme": "scheme",
    "class_accuracies": "class accuracies",
    "params": "chosen settings",
    "trials": "trials",
    "trace": "annealing trace",
}
_SOFTWARE = {
    "git_commit": "git commit",
    "sources": "source files",
    "python": "Python",
    "platform": "platform",
    "cpu": "processor",
}
#: How a version that was built between releases names its commit.
_BUILT_FROM = re.compile(r"\+g([0-9a-f]{7,40})")


@dataclass(frozen=True, slots=True)
class Compared:
    """One value as it was recorded and as it is now.

    Attributes
    ----------
    name : str
        What it is.
    recorded, now : str
        Its values, for people.
    same : bool
        Whether they are equal, which the rounded texts do not show.
    """

    name: str
    recorded: str
    now: str
    same: bool


def compare_results(recorded: CellRecord, now: CellRecord) -> list[Compared]:
    """Compare all that a cell found, exactly: scheme, metrics, trials, trace.

    Times are left out, and what the recorded version did not know yet.

    Parameters
    ----------
    recorded, now : CellRecord
        Of the same cell.

    Returns
    -------
    list of Compared
        The ending, then the scheme and the other wholes, then each metric.
    """
    then, again = _content(recorded), _content(now)
    for name in again["class_accuracies"].keys() - then["class_accuracies"].keys():
        del again["class_accuracies"][name]
    rows = [_ending(recorded, now)]
    for name, title in _WHOLES.items():
        if then[name] or again[name]:
            same = then[name] == again[name]
            rows.append(Compared(title, _short(then[name]), _short(again[name]), same))
    for name, value in then["metrics"].items():
        found = again["metrics"].get(name)
        rows.append(Compared(name, _figure(name, value), _figure(name, found), value == found))
    return rows


def compare_software(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[Compared]:
    """Compare the provenance of two records: commit, sources, Python, machine, packages.

    Parameters
    ----------
    recorded, now : mapping
        As :func:`tracking.collect_provenance` makes it; what one of them lacks is left out.
    """
    rows = []
    for name, title in _SOFTWARE.items():
        then, here = recorded.get(name), now.get(name)
        if then is not None and here is not None:
            rows.append(Compared(title, _text(then), _text(here), then == here))
    then_packages, here_packages = _packages(recorded), _packages(now)
    for name, version in then_packages.items():
        here = here_packages.get(name)
        rows.append(Compared(name, version, here or "not installed", version == here))
    return rows


def requirements_of(record: CellRecord) -> str:
    """Return the packages that a record was computed with, as a requirements file for pip.

    This package is not among them: how to get it is said in a comment.
    """
    about = record.provenance
    packages = _packages(about)
    own = about.get("packages", {}).get(DISTRIBUTION, "of an unknown version")
    commit = commit_of(record)
    lines = [
        f"# Cell {record.key} was computed with {DISTRIBUTION} {own}"
        + (f", commit {commit}" if commit else ""),
        f"# on Python {about.get('python', 'of an unknown version')}, {about.get('platform', '')}",
    ]
    if "lock" not in about:
        lines.append("# The record is of a version that noted only these packages.")
    for name, version in packages.items():
        public, _, local = version.partition("+")
        lines.append(f"{name}=={public}" + (f"  # build {local}" if local else ""))
    return "\n".join(lines) + "\n"


def commit_of(record: CellRecord) -> str | None:
    """Return the commit that a record was made with: of the checkout, or of the built package."""
    about = record.provenance
    built = _BUILT_FROM.search(str(about.get("packages", {}).get(DISTRIBUTION, "")))
    return about.get("git_commit") or (built[1] if built else None)


def _packages(about: Mapping[str, Any]) -> dict[str, str]:
    named = {k: v for k, v in about.get("packages", {}).items() if k != DISTRIBUTION}
    found: dict[str, str] = {**named, **about.get("lock", {})}
    return dict(sorted(found.items()))


def _content(record: CellRecord) -> dict[str, Any]:
    """Return what a computation must find again, as it would stand in the file."""
    content: dict[str, Any] = json.loads(record.to_json())
    content["trials"] = [_without_times(trial) for trial in content["trials"]]
    for trial in content["trials"]:
        trial["metrics"] = _without_times(trial["metrics"])
    content["metrics"] = _without_times(content["metrics"])
    if content["scheme"]:
        content["scheme"] = {k: v for k, v in content["scheme"].items() if k != "provenance"}
    return content


def _without_times(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k.rpartition("/")[2] not in _TIMES}


def _ending(recorded: CellRecord, now: CellRecord) -> Compared:
    # The traceback tells of places in files; its last line tells what happened.
    then, again = (
        "finished"
        if record.finished
        else f"failed: {last_line(record.error or '') or 'no reason recorded'}"
        for record in (recorded, now)
    )
    return Compared("ending", then, again, then == again)


def _short(value: Any) -> str:
    if not value:
        return "none"
    text = json.dumps(value, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{len(value)}, {digest}" if isinstance(value, list) else digest


def _figure(name: str, value: Any) -> str:
    if not isinstance(value, int | float):
        return "none" if value is None else str(value)
    if name.endswith(("accuracy", "cobias")):
        return f"{100 * value:.2f} %"
    return f"{value:.6g}"


def _text(value: Any) -> str:
    text = str(value)
    return text[:12] if len(text) == 40 and " " not in text else text
