"""``dcs export``: token biases of schemes that only add offsets; others are refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dcs
from dcs.errors import ConfigError, SchemeError
from dcs.methods.calibrations import batch_calibration
from dcs.prompting.files import get_task
from dcs.prompting.tasks import render_prefix, render_query, select_demonstrations
from dcs.schemes.calibration import from_arrays
from dcs.schemes.corrections import DONT_CHANGE, Membership, Weight
from dcs.scoring import load_scorer, resolve_model
from dcs.scoring.labels import read_label_words
from dcs.scoring.models import load_tokenizer
from dcs_workflows.cli.production import export
from tests.dcs.biased import biased_table
from tests.dcs.refusals import refuses

WORDS = ("good", "bad")


def scheme(*corrections: Any, **parts: Any) -> dcs.CorrectionScheme:
    return dcs.CorrectionScheme(WORDS, corrections or (DONT_CHANGE, DONT_CHANGE), **parts)


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (scheme(Membership(0.0, 0.5, 1.0), Weight(1)), "'good'"),
        (scheme(calibration=from_arrays("logistic", 2 * np.eye(2), np.zeros(2))), "logistic"),
    ],
)
def test_others_are_refused(made: dcs.CorrectionScheme, name: str, tmp_path: Path) -> None:
    made.save(tmp_path / "scheme.json")
    refuses(SchemeError, export, tmp_path / "scheme.json", "tiny_lm", names=[name])
    scheme(Weight(0.5), Weight(0.5)).save(tmp_path / "scheme.json")
    refuses(SchemeError, export, tmp_path / "scheme.json", names=["change nothing"])


def test_a_front_says_what_offsets_would_cost(tmp_path: Path) -> None:
    points = dcs.fit_scheme(*biased_table(300, 2), classes=WORDS).points
    best = max(points, key=lambda point: point.score)
    offsets = replace(best, scheme=scheme(Weight(0.5), DONT_CHANGE), cobias=best.cobias + 0.001)
    fitted = dcs.FittedScheme((offsets, *points), dcs.Preference("balance"))
    fitted.save(tmp_path / "front.json")
    fitted.scheme.save(tmp_path / "scheme.json")
    command = f"dcs pick {tmp_path} --prefer offsets"
    refuses(SchemeError, export, tmp_path / "scheme.json", names=["offsets: ", " / ", command])


def test_ids_and_plain_offsets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, path = scheme(Weight(0.2), DONT_CHANGE), tmp_path / "scheme.json"
    made.save(path)
    (tmp_path / "ids.json").write_text('{"good": [3, 4], "bad": [5]}')
    export(path, tokens=tmp_path / "ids.json")
    low, high = made.offsets.round(4)
    biases = json.loads(capsys.readouterr().out)["logit_bias"]
    assert biases == {"3": low, "4": low, "5": high}
    export(path)
    assert json.loads(capsys.readouterr().out)["offsets"] == dict(
        zip(WORDS, made.offsets.tolist(), strict=True)
    )
    (tmp_path / "ids.json").write_text('{"good": [3, 4], "bad": [4]}')
    refuses(ConfigError, export, path, tokens=tmp_path / "ids.json", names=["'bad'", "token 4"])
    for wrong in ("", ', "bad": 5', ', "bad": [-1]', ', "bad": [true]', ', "bad": []'):
        (tmp_path / "ids.json").write_text(f'{{"good": [3]{wrong}}}')
        names = ["'bad'", "ids.json"]
        refuses(ConfigError, export, path, tokens=tmp_path / "ids.json", names=names)


@pytest.mark.slow
def test_a_local_model_with_the_biases_answers_as_corrected_probabilities(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    task = get_task("reviews")
    texts = [example.text for example in task.examples("test")[:40]]
    prefix = render_prefix(task, select_demonstrations(task, 1, seed=0))
    queries = [render_query(task, text) for text in texts]
    scorer = load_scorer("tiny_lm", device="cpu", label_rule="first")
    probs = scorer.score(prefix, queries, WORDS)
    scorer.close()
    offset = batch_calibration(probs)
    kinds = (scheme(calibration=offset), scheme(Weight(0.2), Weight(2), calibration=offset))
    tokenizer = load_tokenizer("tiny_lm")
    model = AutoModelForCausalLM.from_pretrained(resolve_model("tiny_lm").location).eval()
    first, _ = read_label_words(tokenizer, "Answer:", [" good", " bad"], "first")
    with torch.no_grad():
        logits = [
            model(torch.tensor([ids])).logits[0, -1].double()
            for ids in tokenizer.encode([f"{prefix}{query}" for query in queries])
        ]
    columns = [own[0] for own in first]
    for made in kinds:
        made.save(tmp_path / "scheme.json")
        export(tmp_path / "scheme.json", model="tiny_lm")
        biases = json.loads(capsys.readouterr().out)["logit_bias"]
        added = torch.tensor([biases[str(token)] for token in columns])
        answers = [int((row[columns] + added).argmax()) for row in logits]
        predicted = made.predict(probs)
        assert answers == predicted.tolist()
        assert (predicted != probs.argmax(axis=1)).any()
