"""Fetch the public tables of class probabilities of the reports and convert them.

    python scripts/fetch_tables.py FOLDER [--only development]

Downloads the files that `scripts/tables.csv` lists, each from its repository at a commit, checks
their SHA-256 digests, and writes one npz file per table (`probs`, `labels`, `classes`) to
FOLDER/development or FOLDER/validation; the files themselves are kept in FOLDER/sources. What
exists is not downloaded again. The licences are those of the repositories; some state none.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import pickle
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

LISTING = Path(__file__).with_name("tables.csv")
ADDRESS = "https://raw.githubusercontent.com/{repository}/{commit}/{path}"
TIMEOUT = 60.0

OPTIONS = "ABCDEF"

Arrays = tuple[NDArray[np.float64], NDArray[np.int64]]


class FetchError(Exception):
    """A file that cannot be fetched, or is not as expected."""


class _Arrays(pickle.Unpickler):
    """Unpickle arrays and plain values; a pickle may not call anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] != "numpy" or name not in _CALLED:
            raise FetchError(f"the pickle calls {module}.{name}, which is not allowed")
        return _CALLED[name]


def _empty_array(kind: type[np.ndarray[Any, Any]], shape: Any, dtype: Any) -> Any:
    return np.ndarray.__new__(kind, shape, dtype)


_CALLED: dict[str, Any] = {
    "ndarray": np.ndarray,
    "dtype": np.dtype,
    "_reconstruct": _empty_array,
}


def _unpickle(content: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _Arrays(io.BytesIO(content)).load()
    return rows


def _softmax(logits: Any) -> NDArray[np.float64]:
    values = np.asarray(logits, dtype=np.float64)
    exps = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(exps / exps.sum(axis=1, keepdims=True))


def _of_options(rows: list[dict[str, Any]], key: str, answers: list[str], n: int) -> Arrays:
    """Return the probabilities of the first n options, from the logits of their letters."""
    logits = np.stack([np.ravel(row[key])[:n] for row in rows])
    return _softmax(logits), np.array([OPTIONS.index(answer) for answer in answers])


def read_questions(content: bytes, labels: bytes, n_classes: int) -> Arrays:
    """Read logits of option letters, with the answers in a file of questions."""
    answers = {question["id"]: question["answer"] for question in json.loads(labels)}
    rows = _unpickle(content)
    return _of_options(rows, "logits_options", [answers[row["id"]] for row in rows], n_classes)


def read_images(content: bytes, labels: bytes, n_classes: int) -> Arrays:
    """Read logits of option letters that are stored with their answers, in both files."""
    rows = _unpickle(content)
    return _of_options(rows, "logits", [row["answer"] for row in _unpickle(labels)], n_classes)


def read_losses(content: bytes, labels: bytes, n_classes: int) -> Arrays:
    """Read the loss of the true one of two classes, normalised over both."""
    losses = pd.read_csv(io.BytesIO(content))["loss"].to_numpy()
    true = pd.read_csv(io.BytesIO(labels))["answer_index"].to_numpy()
    right = np.exp(-losses)
    probs = np.empty((right.size, n_classes))
    probs[np.arange(right.size), true] = right
    probs[np.arange(right.size), 1 - true] = 1.0 - right
    return probs, true


def read_probabilities(content: bytes, labels: bytes, n_classes: int) -> Arrays:
    """Read an array of probabilities, and normalise its rows."""
    probs = np.load(io.BytesIO(content)).astype(np.float64)[:, :n_classes]
    return probs / probs.sum(axis=1, keepdims=True), np.load(io.BytesIO(labels))


def read_logits(content: bytes, labels: bytes, n_classes: int) -> Arrays:
    """Read an array of logits."""
    return _softmax(np.load(io.BytesIO(content))[:, :n_classes]), np.load(io.BytesIO(labels))


READERS: dict[str, Callable[[bytes, bytes, int], Arrays]] = {
    "questions": read_questions,
    "images": read_images,
    "losses": read_losses,
    "probabilities": read_probabilities,
    "logits": read_logits,
}


def fetched(kept: Path, *, repository: str, commit: str, path: str, sha256: str) -> bytes:
    """Return the content of a file, from `kept` or from its repository."""
    file = kept / repository / commit / path
    if file.exists():
        content = file.read_bytes()
    else:
        address = ADDRESS.format(repository=repository, commit=commit, path=path)
        try:
            with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
                content = answer.read()
        except (urllib.error.URLError, TimeoutError) as error:
            raise FetchError(f"{address}: {error}; the same command continues") from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        source = file if file.exists() else f"{repository}/{path} at {commit}"
        raise FetchError(f"{source}: expected SHA-256 {sha256}, got {found}; remove or report it")
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".part")
        partial.write_bytes(content)
        partial.replace(file)
    return content


def convert(row: dict[str, str], folder: Path) -> Path:
    """Fetch the files of one table, and write the table."""
    target = folder / row["set"] / f"{row['table']}.npz"
    if target.exists():
        return target
    contents = [
        fetched(
            folder / "sources",
            repository=row["repository"],
            commit=row[f"{part}commit"],
            path=row[f"{part}path"],
            sha256=row[f"{part}sha256"],
        )
        for part in ("", "labels_")
    ]
    classes = row["classes"].split("|")
    probs, labels = READERS[row["format"]](*contents, len(classes))
    if len(probs) != len(labels) or probs.shape[1] != len(classes):
        raise FetchError(
            f"{row['table']}: {probs.shape} probabilities, {len(labels)} labels, "
            f"{len(classes)} classes do not match"
        )
    # Demonstrations of the prompts.
    keep = np.setdiff1d(np.arange(len(labels)), list(map(int, row["left_out"].split())))
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".part")
    with partial.open("wb") as file:
        np.savez_compressed(
            file,
            probs=probs[keep].astype(np.float32),
            labels=labels[keep].astype(np.int16),
            classes=np.array(classes),
        )
    partial.replace(target)
    return target


def main() -> None:
    """Fetch and convert all tables, or those of one set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=("development", "validation"))
    parser.add_argument("--listing", type=Path, default=LISTING)
    options = parser.parse_args()
    with options.listing.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if options.only in (None, row["set"])]
    for row in rows:
        try:
            print(convert(row, options.folder))
        except (FetchError, OSError) as error:
            print(f"fetch_tables: {error}", file=sys.stderr)
            raise SystemExit(2) from error


if __name__ == "__main__":
    main()
