"""One scheme, one result: by the package, the command line, a server and the code of the page."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import requests
from numpy.typing import NDArray

from dcs.data.reader import read_table
from dcs.data.table import ProbabilityTable
from dcs.methods.calibrations import CALIBRATIONS, fit_stack
from dcs.schemes.corrections import CorrectionSet
from dcs.schemes.scheme import CorrectionScheme
from dcs_tracking.store.serving import save_model
from tests.dcs.biased import biased_table
from tests.docs.runner import ROOT, blocks_of
from tests.servers import free_port, running
from tests.workflows.conftest import done

CLASSES = ("Sports", "World news", "label", "p:x")
KINDS = tuple(CALIBRATIONS)

SETS = {
    "weights": CorrectionSet.dnip(7),
    "memberships": CorrectionSet.furud(),
    "both": CorrectionSet.dcs(7),
    "none": None,
}


def _schemes(kind: str, count: int, tables: list[Any], labels: Any) -> Iterator[CorrectionScheme]:
    """Yield schemes of one calibration, of one or several tables, with all sets of corrections."""
    classes = tuple(CLASSES[k] if k < 4 else f"class {k}" for k in range(tables[0].shape[1]))
    parts: dict[str, Any] = {}
    values = tables[0]
    if count > 1:
        stack = fit_stack(np.array(tables), labels)
        parts = {"combination": stack, "inputs": tuple(f"model {k}" for k in range(count))}
        values = stack.apply(tables)
    found = CALIBRATIONS[kind].fit(values, labels, ridge=10.0, anchor=1.0)
    plain = CorrectionScheme.identity(classes, calibration=found, **parts)
    rng = np.random.default_rng(KINDS.index(kind))
    for known in SETS.values():
        chosen = plain.corrections
        if known is not None:
            chosen = tuple(known[int(k)] for k in rng.integers(len(known), size=len(classes)))
        yield replace(plain, corrections=chosen)


def _tables(count: int) -> tuple[list[NDArray[np.float64]], NDArray[np.int64], Any]:
    """Return tables of the same rows, with ties and zeros, labels, and what a scheme is given."""
    probs, labels = biased_table(80, 4)
    eighths = np.random.default_rng(1).multinomial(8, [0.4, 0.3, 0.2, 0.1], size=80) / 8
    tables = [probs, eighths][:count]
    return tables, labels, tables if count > 1 else probs


def _in_plain_python(scheme: dict[str, Any], rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the corrected values of a row of one or several tables."""
    row = [p for each in rows for p in each]
    for part in filter(None, (scheme.get("combination"), scheme.get("calibration"))):
        terms = [math.log(max(p, part["floor"])) for p in row]
        if part.get("products"):
            terms += [a * b for a, b in itertools.combinations_with_replacement(terms, 2)]
        logits = [
            math.fsum([o, *(a * b for a, b in zip(each, terms, strict=True))])
            for each, o in zip(part["matrix"], part["offset"], strict=True)
        ]
        row = [math.exp(logit - max(logits)) for logit in logits]
        row = [each / math.fsum(row) for each in row]
    values = []
    for p, each in zip(row, scheme["corrections"], strict=True):
        if each["kind"] == "weight":
            values.append(p * each["value"])
        else:
            feet = [each[name] for name in "abc"]
            # Where two feet coincide, the first or the last height is that of the peak.
            ends = (float(feet[0] == feet[1]), float(feet[1] == feet[2]))
            x, heights = [*dict.fromkeys(feet)], [ends[0], 1.0, ends[1]]
            heights = heights if len(x) == 3 else [ends[0], ends[1]]
            values.append(float(np.interp(p, x, heights)))
    return values if any(values) else row


def _frame(scheme: CorrectionScheme, tables: Sequence[Any]) -> pd.DataFrame:
    starts = [f"{each}/" for each in scheme.inputs] if scheme.combination else [""]
    names = [f"{start}p:{name}" for start in starts for name in scheme.classes]
    # Columns are taken by name.
    return pd.DataFrame(np.hstack(tables), columns=names).iloc[:, ::-1]


def test_the_code_of_the_page_is_one_file_of_the_package() -> None:
    (block,) = (each for each in blocks_of("docs/serving.md") if each.marked("source"))
    assert block.code == (ROOT / "dcs" / "schemes" / "apply.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_scheme_is_applied_alike_everywhere(kind: str, count: int, tmp_path: Path) -> None:
    tables, labels, given = _tables(count)
    for scheme in _schemes(kind, count, tables, labels):
        scheme.save(tmp_path / "scheme.json")
        content = json.loads((tmp_path / "scheme.json").read_text(encoding="utf-8"))
        rows = zip(*(each.tolist() for each in tables), strict=True)
        expected = [_in_plain_python(content, row) for row in rows]
        np.testing.assert_allclose(scheme.correct(given), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "count"), [("none", 1), ("products", 1), ("surrogate", 2)])
def test_commands_and_models_apply_as_the_package(kind: str, count: int, tmp_path: Path) -> None:
    tables, labels, given = _tables(count)
    *_, scheme, _ = _schemes(kind, count, tables, labels)
    scheme.save(tmp_path / "scheme.json")
    ours, labels_of = scheme.apply(given), [scheme.classes[k] for k in scheme.predict(given)]
    files = [tmp_path / f"{k}.parquet" for k in range(count)]
    for file, probs in zip(files, tables, strict=True):
        ProbabilityTable.from_arrays(probs, labels, classes=scheme.classes).write(file)
    done("apply", tmp_path / "scheme.json", *files, "-o", tmp_path / "out.parquet")
    written = read_table(tmp_path / "out.parquet").probs
    np.testing.assert_allclose(written, ours, rtol=0, atol=1e-12)
    save_model(scheme, tmp_path / "model")
    answer = mlflow.pyfunc.load_model(str(tmp_path / "model")).predict(_frame(scheme, tables))
    assert answer.pop("label").tolist() == labels_of
    np.testing.assert_array_equal(answer.to_numpy(), ours)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_a_server_answers_what_the_package_computes(count: int, tmp_path: Path) -> None:
    tables, labels, given = _tables(count)
    *_, scheme, _ = _schemes("surrogate", count, tables, labels)
    save_model(scheme, tmp_path / "model")
    address = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(tmp_path / "model")]
    command += ["--env-manager", "local", "--port", address.rpartition(":")[2], "--workers", "1"]
    frame = _frame(scheme, tables).to_dict("split")
    with running(command, f"{address}/ping"):
        sent = {name: frame[name] for name in ("columns", "data")}
        answer = requests.post(f"{address}/invocations", json={"dataframe_split": sent}, timeout=9)
    rows = pd.DataFrame(answer.json()["predictions"])
    assert rows.pop("label").tolist() == [scheme.classes[k] for k in scheme.predict(given)]
    np.testing.assert_allclose(rows.to_numpy(), scheme.apply(given), rtol=0, atol=1e-12)
