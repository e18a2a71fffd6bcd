"""The model that MLflow serves; every logged model contains a copy of this file.

It depends on MLflow, NumPy and pandas only, and not on this package, to keep the environment of a
model server small. Results are identical to `dcs.schemes.scheme.CorrectionScheme.apply`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel

#: Largest distance of the sum of a row from 1, per class, that rounding explains.
ROUNDING = 0.005


class SchemeModel(PythonModel):
    """Correct class probabilities: columns ``p:<class>`` in, ``label`` and ``p:<class>`` out.

    A scheme of several tables takes the columns ``<table>/p:<class>`` of each.
    """

    def load_context(self, context: Any) -> None:
        """Load the scheme from the artifacts of the model."""
        text = Path(context.artifacts["scheme"]).read_text(encoding="utf-8")
        self.scheme = json.loads(text)

    def predict(
        self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Return the corrected label and the corrected, normalised probabilities of each row."""
        corrections = self.scheme["corrections"]
        names = [correction["class"] for correction in corrections]
        columns = [f"p:{name}" for name in names]
        several = "combination" in self.scheme
        tables = [f"{table}/" for table in self.scheme["inputs"]] if several else [""]
        given = np.hstack(
            [checked(model_input, [table + column for column in columns]) for table in tables]
        )
        for step in ("combination", "calibration"):
            if step in self.scheme:
                given = calibrated(self.scheme[step], given)
        corrected = np.empty_like(given)
        for index, correction in enumerate(corrections):
            corrected[:, index] = correct(correction, given[:, index])
        # A row that is corrected to all zeros keeps its probabilities.
        lost = corrected.max(axis=1, initial=0.0) == 0.0
        corrected[lost] = given[lost]
        labels = [names[index] for index in corrected.argmax(axis=1)] if len(given) else []
        corrected /= corrected.sum(axis=1, keepdims=True)
        answer = pd.DataFrame(corrected, columns=columns, index=model_input.index)
        answer.insert(0, "label", pd.Series(labels, index=model_input.index, dtype="str"))
        return answer


def calibrated(calibration: dict[str, Any], values: np.ndarray) -> np.ndarray:
    """Return probabilities mapped by an affine function of their logarithms."""
    logs = np.log(np.maximum(values, calibration["floor"]))
    # The order of summation in a matrix product depends on the processor.
    logits = np.zeros((len(logs), len(calibration["offset"])))
    for column, weights in zip(logs.T, np.array(calibration["matrix"]).T, strict=True):
        logits += np.multiply.outer(column, weights)
    logits += np.array(calibration["offset"])
    shares = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    result: np.ndarray = shares / shares.sum(axis=1, keepdims=True)
    return result


def correct(correction: dict[str, Any], values: np.ndarray) -> np.ndarray:
    """Return the probabilities of a class corrected by its correction function."""
    if correction["kind"] == "weight":
        left, rise, right, fall = 0.0, correction["value"], np.inf, 1.0
    else:
        a, b, c = correction["a"], correction["b"], correction["c"]
        left, rise = (-np.inf, 1.0) if a == b else (a, 1.0 / (b - a))
        right, fall = (np.inf, 1.0) if b == c else (c, 1.0 / (c - b))
    corrected = np.minimum((values - left) * rise, (right - values) * fall)
    result: np.ndarray = np.maximum(0.0, corrected)
    return result


def checked(rows: pd.DataFrame, columns: list[str]) -> np.ndarray:
    """Return the probabilities as float64 [M, N]; raise MlflowException for an invalid row."""
    values = rows[columns].to_numpy(dtype=np.float64, copy=True)
    bad = ~np.isfinite(values).all(axis=1) | (values < 0.0).any(axis=1)
    sums = values.sum(axis=1)
    bad |= np.abs(sums - 1.0) > ROUNDING * values.shape[1]
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
