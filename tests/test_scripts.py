"""The scripts of the project: what they refuse, fetch and audit."""

from __future__ import annotations

import csv
import hashlib
import json
import pickle
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import dcs
from tests.servers import answering, free_port

ROOT = Path(__file__).parents[1]


def _audit(folder: Path, *options: str) -> int:
    (folder / "pins.txt").write_text("numpy==2.4.6\nscipy==1.17.1\n")
    command = [sys.executable, ROOT / "scripts" / "audit.py", folder / "pins.txt", *options]
    return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vulnerable", "code"), [((), 3), (("django",), 0), (("django", "scipy"), 1), (None, 3)]
)
def test_the_verdict(vulnerable: tuple[str, ...] | None, code: int, tmp_path: Path) -> None:
    """Of services that know such packages, or of one that does not answer."""

    def known(_: object, sent: bytes) -> bytes:
        package = json.loads(sent)["package"]
        fault = {"id": "X-1", "summary": "", "affected": [{"package": package, "ranges": []}]}
        found = {"vulns": [fault]} if package["name"] in (vulnerable or ()) else {}
        return json.dumps(found).encode()

    with answering(200, known) as served:
        address = served if vulnerable is not None else f"http://127.0.0.1:{free_port()}"
        options = ("--vulnerability-service=osv", f"--osv-url={address}/")
        assert _audit(tmp_path, *options) == code


_LOGITS = np.log([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.25, 0.5, 0.25]]).astype(np.float32)
_QUESTIONS = [{"id": i, "logits_options": row} for i, row in enumerate(_LOGITS)]
_IMAGES = [{"logits": row, "answer": "ACB"[i]} for i, row in enumerate(_LOGITS)]
_ANSWERS = json.dumps([{"id": i, "answer": "ACB"[i]} for i in range(3)]).encode()


def _fetch(folder: Path, row: dict[str, str], *contents: bytes) -> object:
    """Run the script on one table, of which the files are already there; return its status."""
    about = {"table": "t", "set": "development", "repository": "of/us", "left_out": ""} | row
    for part, content in zip(("", "labels_"), contents, strict=True):
        about |= {f"{part}commit": "c", f"{part}path": f"{part}file"}
        about.setdefault(f"{part}sha256", hashlib.sha256(content).hexdigest())
        file = folder / "sources" / "of" / "us" / "c" / f"{part}file"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    with (folder / "tables.csv").open("w", newline="") as listing:
        writer = csv.DictWriter(listing, list(about))
        writer.writeheader()
        writer.writerow(about)
    script = ROOT / "scripts" / "fetch_tables.py"
    arguments = [str(script), str(folder), "--listing", str(folder / "tables.csv")]
    with patch.object(sys, "argv", arguments), pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
        raise SystemExit(0)
    return ended.value.code


def _npy(values: Any, folder: Path) -> bytes:
    np.save(folder / "a.npy", values)
    return (folder / "a.npy").read_bytes()


@pytest.mark.parametrize("kind", ["questions", "images", "losses", "probabilities", "logits"])
def test_every_format_gives_a_table(kind: str, tmp_path: Path) -> None:
    probs, labels = np.exp(_LOGITS), np.array([0, 2, 1])
    classes = "yes|no" if kind == "losses" else "a|b|c"
    if kind == "losses":
        labels = np.array([0, 1, 1])
        probs = np.array([[0.7, 0.3], [0.4, 0.6], [0.5, 0.5]])
    losses = "loss\n" + "".join(f"{-np.log(p[i])}\n" for p, i in zip(probs, labels, strict=True))
    answers = "answer_index\n" + "".join(f"{i}\n" for i in labels)
    images = pickle.dumps(_IMAGES)
    files = {
        "questions": (pickle.dumps(_QUESTIONS), _ANSWERS),
        "images": (images, images),
        "losses": (losses.encode(), answers.encode()),
        "probabilities": (_npy(2.0 * probs, tmp_path), _npy(labels, tmp_path)),
        "logits": (_npy(_LOGITS, tmp_path), _npy(labels, tmp_path)),
    }[kind]
    done = _fetch(tmp_path, {"format": kind, "classes": classes, "left_out": "0"}, *files)
    assert done == 0
    table = dcs.read_table(tmp_path / "development" / "t.npz")
    assert table.classes == tuple(classes.split("|"))
    assert table.labels.tolist() == labels[1:].tolist()
    np.testing.assert_allclose(table.probs, probs[1:], atol=1e-6)


@pytest.mark.parametrize(
    ("row", "content"),
    [
        ({"sha256": "0" * 64}, pickle.dumps(_QUESTIONS)),
        ({}, pickle.dumps([print])),  # A pickle may call numpy only.
        ({"classes": "a|b|c|d"}, pickle.dumps(_QUESTIONS)),
    ],
)
def test_files_that_are_not_as_listed_are_refused(
    row: dict[str, str], content: bytes, tmp_path: Path
) -> None:
    done = _fetch(tmp_path, {"format": "questions", "classes": "a|b|c"} | row, content, _ANSWERS)
    assert done == 2
    assert not (tmp_path / "development" / "t.npz").exists()


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-cluster.txt"])
def test_hashes_are_those_of_the_tested_versions(name: str) -> None:
    tested = set((ROOT / "constraints.txt").read_text().split("\n"))
    packages = re.split(r"\n(?=\S)", (ROOT / name).read_text().strip())
    assert {each.split(" \\")[0] for each in packages} <= tested
    assert all(" --hash=sha256:" in each for each in packages)
