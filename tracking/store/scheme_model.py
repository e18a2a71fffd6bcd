"""The model that MLflow serves: a copy of this file lies in every logged model.

It needs MLflow, NumPy and pandas, and nothing of this package, so that a server of schemes stays
small. What it computes is `dcs.schemes.scheme.CorrectionScheme.apply`, number for number.
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

TOLERANCE = 1e-6


class SchemeModel(PythonModel):
    """Corrects class probabilities: columns ``p:<class>`` in, ``label`` and ``p:<class>`` out.

    A scheme of several tables takes the columns ``<table>/p:<class>`` of each.
    """

    def load_context(self, context: Any) -> None:
        """Read the scheme that lies beside the code."""
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
        # A row that corrects to all zeros keeps its probabilities.
        lost = corrected.max(axis=1, initial=0.0) == 0.0
        corrected[lost] = given[lost]
        labels = [names[index] for index in corrected.argmax(axis=1)] if len(given) else []
        corrected /= corrected.sum(axis=1, keepdims=True)
        answer = pd.DataFrame(corrected, columns=columns, index=model_input.index)
        answer.insert(0, "label", pd.Series(labels, index=model_input.index, dtype="str"))
        return answer


def calibrated(calibration: dict[str, Any], values: np.ndarray) -> np.ndarray:
    """Map the probabilities of all classes, linearly in their logarithms."""
    logs = np.log(np.maximum(values, calibration["floor"]))
    # A matrix product would add in an order that depends on the processor.
    logits = np.zeros((len(logs), len(calibration["offset"])))
    for column, weights in zip(logs.T, np.array(calibration["matrix"]).T, strict=True):
        logits += np.multiply.outer(column, weights)
    logits += np.array(calibration["offset"])
    shares = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    result: np.ndarray = shares / shares.sum(axis=1, keepdims=True)
    return result


def correct(correction: dict[str, Any], values: np.ndarray) -> np.ndarray:
    """Apply one correction function to the probabilities of its class."""
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
    """Return the probabilities as float64 [M, N], or say which row is not one."""
    values = rows[columns].to_numpy(dtype=np.float64)
    bad = ~np.isfinite(values).all(axis=1) | (values < 0.0).any(axis=1)
    bad |= np.abs(values.sum(axis=1) - 1.0) > TOLERANCE
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise MlflowException.invalid_parameter_value(
            f"row {row}: {values[row].tolist()} are not probabilities; finite values of 0 or more "
            "that sum to 1 are needed, normalise them first"
        )
    result: np.ndarray = values
    return result


set_model(SchemeModel())
