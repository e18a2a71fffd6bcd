"""Schemes as MLflow models: the same numbers as the package, with nothing pickled."""

from __future__ import annotations

from pathlib import Path

import mlflow
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException

from dcs.schemes import apply
from dcs.schemes.scheme import CorrectionScheme
from dcs_tracking.store.queries import find_cell
from dcs_tracking.store.serving import log_cell_scheme, save_model
from tests.tracking.cells import SCHEME, recorded


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "model"
    save_model(SCHEME, folder, run_id="r1")
    return folder


def test_a_saved_model_is_code_and_json(folder: Path) -> None:
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    files = {"MLmodel", "scheme_model.py", "artifacts/scheme.json", "artifacts/apply.py"}
    assert files <= names
    assert (folder / "artifacts" / "apply.py").read_text() == Path(apply.__file__).read_text()
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".joblib"))]
    requirements = (folder / "requirements.txt").read_text().split()
    assert [line.partition("==")[0] for line in requirements] == ["mlflow", "numpy", "pandas"]


def test_what_is_no_probability_is_refused(folder: Path) -> None:
    model = mlflow.pyfunc.load_model(str(folder))
    for row in ([0.5, 0.6], [-0.5, 1.5], [float("nan"), 1.0]):
        rows = pd.DataFrame([[0.5, 0.5], row], columns=["p:Sports", "p:World"])
        with pytest.raises(MlflowException, match="row 1: .* are not probabilities"):
            model.predict(rows)
    with pytest.raises(MlflowException, match="no rows"):
        model.predict(rows.head(0))


@pytest.mark.parametrize("total", [0.0, 0.3, 1.9])
def test_many_classes_excuse_no_sum(total: float, tmp_path: Path) -> None:
    names = [f"c{k}" for k in range(200)]
    save_model(CorrectionScheme.identity(names), tmp_path / "model", run_id="r1")
    rows = pd.DataFrame([[total / 200] * 200], columns=[f"p:{name}" for name in names])
    with pytest.raises(MlflowException, match="are not probabilities"):
        mlflow.pyfunc.load_model(str(tmp_path / "model")).predict(rows)


def test_an_altered_artifact_is_not_registered(output: Path, uri: str) -> None:
    recorded(output, 1)
    cell = find_cell(output, "cell0001")
    (model,) = mlflow.MlflowClient().search_logged_models([cell.experiment_id])
    for copy in output.rglob("scheme.json"):
        copy.write_text(copy.read_text().replace("0.8", "777"))
    assert model.source_run_id == cell.run_id
    loaded = mlflow.pyfunc.load_model(f"models:/{log_cell_scheme(uri, cell)}")
    assert loaded.metadata.run_id == cell.run_id
    served = loaded.unwrap_python_model().scheme
    assert served["corrections"] == SCHEME.to_dict()["corrections"]
