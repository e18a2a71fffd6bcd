"""The model that MLflow serves; every logged model contains a copy of this file.

It checks rows of JSON or a data frame, and applies the scheme by another of the model's files,
`dcs/schemes/apply.py`. Both depend on MLflow, NumPy and pandas only, and not on this package, to
keep the environment of a model server small.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel

#: Largest distance of the sum of a row from 1 that rounding explains: per class, and at all.
ROUNDING, LARGEST = 0.005, 0.1


class SchemeModel(PythonModel):
    """Correct class probabilities: columns ``p:<class>`` in, ``label`` and ``p:<class>`` out.

    A scheme of several tables takes the columns ``<table>/p:<class>`` of each.
    """

    def load_context(self, context: Any) -> None:
        """Load the scheme, and the code that applies it, from the artifacts of the model."""
        self.scheme = json.loads(Path(context.artifacts["scheme"]).read_text(encoding="utf-8"))
        # Not imported: other models in the process may contain other versions.
        self.code = runpy.run_path(context.artifacts["apply"])

    def predict(
        self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Return the corrected label and the corrected, normalised probabilities of each row."""
        names = [correction["class"] for correction in self.scheme["corrections"]]
        columns = [f"p:{name}" for name in names]
        several = "combination" in self.scheme
        tables = [f"{table}/" for table in self.scheme["inputs"]] if several else [""]
        given = [checked(model_input, [table + each for each in columns]) for table in tables]
        corrected = self.code["correct"](self.scheme, given if several else given[0])
        labels = [names[index] for index in corrected.argmax(axis=1)]
        shares = self.code["normalised"](corrected)
        answer = pd.DataFrame(shares, columns=columns, index=model_input.index)
        answer.insert(0, "label", pd.Series(labels, index=model_input.index, dtype="str"))
        return answer


def checked(rows: pd.DataFrame, columns: list[str]) -> np.ndarray:
    """Return the probabilities as float64 [M, N]; raise MlflowException for an invalid row."""
    values = rows[columns].to_numpy(dtype=np.float64, copy=True)
    if not len(values):
        raise MlflowException.invalid_parameter_value("no rows; give at least one")
    bad = ~np.isfinite(values).all(axis=1) | (values < 0.0).any(axis=1)
    sums = values.sum(axis=1)
    bad |= np.abs(sums - 1.0) > min(ROUNDING * values.shape[1], LARGEST)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise MlflowException.invalid_parameter_value(
            f"row {row}: {values[row].tolist()} are not probabilities; expected finite, "
            "non-negative values that sum to 1, normalise them first"
        )
    # Dividing rows that are normalised already would change their last bits.
    rounded = np.abs(sums - 1.0) > 1e-12
    values[rounded] /= sums[rounded, None]
    return values


set_model(SchemeModel())
