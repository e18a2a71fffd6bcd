"""Files that the documents take as given: what a reader brings along."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from dcs.data.table import ProbabilityTable
from dcs.prompting.files import get_task
from dcs.schemes.corrections import Weight
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.methods import get_method
from dcs_workflows.study.cell import compute_cell
from dcs_workflows.study.study import Setup
from tests.dcs.biased import biased_table
from tests.tracking.cells import paper_cells, recorded
from tests.workflows.conftest import toy_cell

CLASSES: Final = ("Terrible", "Bad", "Okay", "Good", "Great")


def prepare(name: str, folder: Path) -> dict[str, Any]:
    """Put the file called `name` into `folder`, or return the Python name with its value."""
    if name in _NAMES:
        return {name: _NAMES[name]()}
    path = folder / name
    if not path.exists() or name in ("dcs-runs", "dcs-runs/reviews"):
        path.parent.mkdir(parents=True, exist_ok=True)
        _FILES[name](path)
    return {}


def _table() -> ProbabilityTable:
    return ProbabilityTable.from_arrays(*biased_table(400, len(CLASSES)), classes=CLASSES)


def _csv(path: Path) -> None:
    table = _table()
    frame = pd.DataFrame(table.probs, columns=[f"p:{name}" for name in CLASSES])
    frame.insert(0, "label", [CLASSES[label] for label in table.labels])
    frame.insert(0, "id", [f"row{i}" for i in frame.index])
    frame.to_csv(path, index=False)


def _scheme(path: Path) -> None:
    table = _table()
    fitted = get_method("surrogate").fit(table.probs, table.labels, classes=CLASSES)
    CorrectionScheme(CLASSES, (Weight(0.5), *fitted.corrections[1:])).save(path)


def _trec(path: Path) -> None:
    """Write texts in the form of TREC: those of another task of six classes."""
    names = ("NUM", "LOC", "HUM", "DESC", "ENTY", "ABBR")
    path.mkdir()
    for file, split, rows in (("train", "optimization", 240), ("test", "test", 120)):
        examples = get_task("helpdesk").examples(split)[:rows]
        lines = [f"{names[each.label]}:some {each.text}" for each in examples]
        (path / f"{file}.txt").write_text("\n".join(lines), encoding="latin-1")


def record_quickstart(path: Path) -> None:
    """Record a small sweep called quickstart."""
    cells = paper_cells(tasks=("trec",), seeds=(0,))
    recorded(path, *cells, experiment="quickstart", trials="none")


def _tuned(path: Path) -> None:
    """Record a scheme for reviews, as `dcs tune` does, by a method that takes no time."""
    table = _table()
    cell = toy_cell(table, model="reviews", task="reviews", shots=None, method="logistic")
    record = compute_cell(cell, {"optimization": table, "test": table}, setup=Setup(sweep="tune"))
    recorded(path.parent, record, experiment="tune")


def _texts(path: Path) -> None:
    """Write reviews, labelled with three moods by their stars or not at all."""
    moods = ("unhappy", "unhappy", "neutral", "happy", "happy")
    split, size = ("test", 200) if path.stem == "new" else ("optimization", 300)
    examples = get_task("reviews").examples(split)[:size]
    frame = pd.DataFrame({"text": [each.text for each in examples]})
    if path.stem == "labelled":
        frame["mood"] = [moods[each.label] for each in examples]
    frame.to_csv(path, index=False)


def _server(path: Path) -> None:
    """Serve the packaged model until the process ends, busy at first, and write the address."""
    from tests.dcs.scoring.server import ModelServer

    server = ModelServer()
    server.faults = [(429, {"Retry-After": "0"}, "{}")] * 5
    served = server.serving()
    path.write_text(served.__enter__())
    atexit.register(served.__exit__, None, None, None)


def _verdicts(path: Path) -> None:
    """Write ten votes of a judge that prefers one verdict; every third row has a human label."""
    rng, names = np.random.default_rng(3), ("good", "fair", "poor")
    labels = rng.choice(3, 900, p=(0.3, 0.4, 0.3))
    logits = rng.normal(size=(900, 3)) + 2.0 * np.eye(3)[labels] + (1.2, 0.0, -0.8)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    frame = pd.DataFrame([rng.multinomial(10, each) for each in probs], columns=names)
    frame.insert(0, "human", [names[y] if k % 3 == 0 else "" for k, y in enumerate(labels)])
    frame.to_csv(path, index=False)


_FILES: Final[dict[str, Callable[[Path], None]]] = {
    "my.csv": _csv,
    "my.parquet": lambda path: _table().write(path),
    "table.parquet": lambda path: _table().write(path),
    "rows.csv": _csv,
    "labelled.csv": _texts,
    "new.csv": _texts,
    "server.url": _server,
    "verdicts.csv": _verdicts,
    "scheme.json": _scheme,
    "texts/trec": _trec,
    "dcs-runs": record_quickstart,
    "dcs-runs/reviews": _tuned,
}

_NAMES: Final[dict[str, Callable[[], Any]]] = {
    "probs": lambda: _table().probs,
    "prefix": lambda: "Grade each review as bad, okay or good.\n\n",
    "queries": lambda: ["Review: It broke at once.\nRating:", "Review: I like it.\nRating:"],
    "label_words": lambda: ["bad", "okay", "good"],
}
