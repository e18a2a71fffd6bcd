"""``dcs export``: token biases of schemes that only add offsets; others are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dcs
from dcs.errors import SchemeError
from dcs.methods.calibrations.free import batch_calibration
from dcs.schemes.calibration import from_arrays
from dcs.schemes.corrections import DONT_CHANGE, Membership, Weight
from dcs.scoring.models import load_tokenizer
from dcs_workflows.cli.tables import export
from tests.dcs.refusals import refuses

WORDS = ("good", "bad")
PROBS = np.random.default_rng(0).dirichlet([3.0, 1.0], 200)
OFFSET = batch_calibration(PROBS)


def scheme(*corrections: Any, **parts: Any) -> dcs.CorrectionScheme:
    return dcs.CorrectionScheme(WORDS, corrections or (DONT_CHANGE, DONT_CHANGE), **parts)


@pytest.mark.parametrize(
    "made",
    [scheme(Weight(0.2), DONT_CHANGE), scheme(calibration=OFFSET), scheme(Weight(0.3), Weight(2))],
)
def test_offsets_predict_as_the_scheme(
    made: dcs.CorrectionScheme, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made.save(tmp_path / "scheme.json")
    export(tmp_path / "scheme.json", model="tiny_lm", logit_bias=True)
    biases = json.loads(capsys.readouterr().out)["logit_bias"]
    first = [ids[-1] for ids in load_tokenizer("tiny_lm").encode([" good", " bad"])]
    added = np.array([biases[str(token)] for token in first])
    np.testing.assert_array_equal((np.log(PROBS) + added).argmax(axis=1), made.predict(PROBS))


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (scheme(Membership(0.0, 0.5, 1.0), Weight(1)), "'good'"),
        (scheme(calibration=from_arrays("logistic", 2 * np.eye(2), np.zeros(2))), "logistic"),
    ],
)
def test_others_are_refused(made: dcs.CorrectionScheme, name: str, tmp_path: Path) -> None:
    made.save(tmp_path / "scheme.json")
    given = (tmp_path / "scheme.json", "tiny_lm")
    refuses(SchemeError, export, *given, logit_bias=True, names=[name])
