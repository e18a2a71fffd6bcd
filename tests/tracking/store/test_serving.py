"""Schemes as MLflow models: the same numbers as the package, with nothing pickled."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st
from mlflow.exceptions import MlflowException

from dcs.errors import ConfigError, TrackingError
from dcs.schemes.calibration import Calibration, mean_combination
from dcs.schemes.corrections import CorrectionSet
from dcs.schemes.scheme import CorrectionScheme
from dcs_tracking.store.queries import stored_cells
from dcs_tracking.store.scheme_model import SchemeModel
from dcs_tracking.store.serving import log_cell_scheme, register_model, save_model
from tests.servers import free_port, running
from tests.tracking.cells import make_cell, recorded

CORRECTIONS = CorrectionSet.dcs(weight_scale=7)
NAMES = ("Sports", "World news", "label", "p:x")


@st.composite
def _case(draw: st.DrawFn) -> tuple[CorrectionScheme, np.ndarray]:
    count = draw(st.integers(2, 4))
    picks = draw(st.lists(st.integers(0, len(CORRECTIONS) - 1), min_size=count, max_size=count))
    calibration = None
    if draw(st.booleans()):
        numbers = st.floats(-2, 2)
        matrix = draw(st.lists(st.tuples(*[numbers] * count), min_size=count, max_size=count))
        calibration = Calibration("logistic", tuple(matrix), draw(st.tuples(*[numbers] * count)))
    scheme = CorrectionScheme(
        NAMES[:count], tuple(CORRECTIONS[k] for k in picks), calibration=calibration
    )
    # Eighths meet the corners of the membership functions, and tie.
    row = st.lists(st.integers(0, 8), min_size=count, max_size=count).filter(any)
    rows = np.array(draw(st.lists(row, min_size=1, max_size=6)), dtype=np.float64)
    return scheme, rows / rows.sum(axis=1, keepdims=True)


@given(_case(), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_the_model_computes_what_the_scheme_does(
    case: tuple[CorrectionScheme, np.ndarray], count: int
) -> None:
    scheme, rows = case
    rng, size = np.random.default_rng(count), len(scheme.classes)
    columns = names = [f"p:{name}" for name in scheme.classes]
    probs = [rows]
    if count > 1:
        matrix = np.hstack([np.eye(size), *rng.normal(0.0, 0.5, (count - 1, size, size))])
        stack = Calibration("stack", tuple(map(tuple, matrix)), (0.1,) * size)
        tables = tuple(f"model {k}" for k in range(count))
        scheme = dataclasses.replace(scheme, combination=stack, inputs=tables)
        probs = [rng.permutation(rows) for _ in tables]
        names = [f"{table}/{column}" for table in tables for column in columns]
    frame = pd.DataFrame(np.hstack(probs), columns=names)
    model = SchemeModel()
    model.scheme = scheme.to_dict()
    answer = model.predict(None, frame[frame.columns[::-1]])
    given = probs if count > 1 else rows
    np.testing.assert_array_equal(answer[columns].to_numpy(), scheme.apply(given))
    assert answer["label"].tolist() == [scheme.classes[k] for k in scheme.predict(given)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _written(make_cell().scheme or {}, tmp_path_factory.mktemp("model"))


def _written(scheme: Mapping[str, Any], folder: Path) -> Path:
    save_model(CorrectionScheme.from_dict(scheme), folder / "model", run_id="r1")
    return folder / "model"


def test_a_saved_model_of_several_tables_names_its_inputs(tmp_path: Path) -> None:
    scheme = CorrectionScheme.identity(
        ("x", "y"), combination=mean_combination(2, 2), inputs=("first", "second")
    )
    model = mlflow.pyfunc.load_model(str(_written(scheme.to_dict(), tmp_path)))
    names = ["first/p:x", "first/p:y", "second/p:x", "second/p:y"]
    assert model.metadata.signature.inputs.input_names() == names
    answer = model.predict(pd.DataFrame([[0.9, 0.1, 0.2, 0.8]], columns=names))
    assert answer["label"].tolist() == ["x"]
    assert len(model.predict(model.input_example)) == 2
    with pytest.raises(MlflowException):
        model.predict(pd.DataFrame([[0.9, 0.1]], columns=names[:2]))


def test_a_saved_model_is_code_and_json(folder: Path) -> None:
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert {"MLmodel", "scheme_model.py", "artifacts/scheme.json"} <= names
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".joblib"))]
    requirements = (folder / "requirements.txt").read_text().split()
    assert [line.partition("==")[0] for line in requirements] == ["mlflow", "numpy", "pandas"]


def test_what_is_no_probability_is_refused(folder: Path) -> None:
    model = mlflow.pyfunc.load_model(str(folder))
    for row in ([0.5, 0.6], [-0.5, 1.5], [float("nan"), 1.0]):
        rows = pd.DataFrame([[0.5, 0.5], row], columns=["p:Sports", "p:World"])
        with pytest.raises(MlflowException, match="row 1: .* are not probabilities"):
            model.predict(rows)


def test_the_scheme_of_a_cell_can_be_registered(output: Path, uri: str) -> None:
    recorded(output, 1, make_cell(2, identity={"method": "icl", "task": "t"}))
    found = {cell.record.identity["method"]: cell for cell in stored_cells(uri, "demo")}
    model_id = log_cell_scheme(uri, found["dcs"])
    model = mlflow.pyfunc.load_model(f"models:/{model_id}")
    assert model.metadata.run_id == found["dcs"].run_id
    assert register_model(uri, model_id, "moods") == "1"
    assert register_model(uri, model_id, "moods", alias="champion") == "2"
    again = mlflow.pyfunc.load_model("models:/moods@champion")
    row = pd.DataFrame([[0.9, 0.1]], columns=["p:Sports", "p:World"])
    assert again.predict(row).equals(model.predict(row))
    for name in ("two\nlines", "o'clock"):
        with pytest.raises(ConfigError):
            register_model(uri, model_id, name)
    with pytest.raises(TrackingError, match="no scheme"):
        log_cell_scheme(uri, found["icl"])


def test_an_altered_artifact_is_not_registered(output: Path, uri: str) -> None:
    recorded(output, 1)
    (cell,) = stored_cells(uri, "demo")
    client = mlflow.MlflowClient()
    (model,) = client.search_logged_models([cell.experiment_id])
    for copy in output.rglob("scheme.json"):
        copy.write_text(copy.read_text().replace("0.8", "777"))
    assert model.source_run_id == cell.run_id
    log_cell_scheme(uri, cell)
    scheme = cell.record.scheme or {}
    model_id = log_cell_scheme(uri, cell)
    served = mlflow.pyfunc.load_model(f"models:/{model_id}").unwrap_python_model().scheme
    assert served["corrections"] == scheme["corrections"]


@pytest.mark.slow
def test_a_server_answers_rows_of_json(folder: Path) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(folder)]
    command += ["--env-manager", "local", "--port", str(port), "--workers", "1"]
    rows = [{"p:Sports": 0.9, "p:World": 0.1}, {"p:Sports": 1, "p:World": 0}]
    with running(command, f"{address}/ping"):
        answer = requests.post(
            f"{address}/invocations", json={"dataframe_records": rows}, timeout=10
        )
    first, second = answer.json()["predictions"]
    assert first["label"] == second["label"] == "Sports"
    assert first["p:Sports"] == pytest.approx(0.72 / 1.12)
    assert second["p:World"] == 0.0
