"""Every form keeps the contract of forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from dcs.data.columns import Reading
from dcs.data.files import read_records
from dcs.data.forms.logs import CHAT, CLASSIFY, LIGHTEVAL, LM_EVAL, texts_of
from dcs.data.forms.plain import LONG, NUMBERS, RUNS, SCORES, SINGLE, Form
from dcs.data.reader import FORMS, Source, open_source, read_table
from dcs.data.table import ProbabilityTable
from dcs.errors import TableError
from dcs.testing import check_form
from tests.dcs.data.test_round_trips import OTHERS, Truth
from tests.dcs.refusals import refuses

RNG = np.random.default_rng(3)
CLASSES = ["maybe", "no", "yes"]
ANSWERS = np.array(CLASSES)[RNG.integers(0, 3, (9, 5))]

WRITTEN: dict[str, Form] = {
    "pipeline.jsonl": SCORES,
    "zero.jsonl": SCORES,
    "map.parquet": NUMBERS,
    "map.csv": NUMBERS,
    "long.csv": LONG,
    "classify.jsonl": CLASSIFY,
    "batch.jsonl": CHAT,
    "samples.jsonl": LM_EVAL,
    "details.parquet": LIGHTEVAL,
    "one.csv": SINGLE,
    "confidence.csv": SINGLE,
}


def truth(size: int) -> tuple[Truth, ProbabilityTable]:
    probs = RNG.dirichlet(np.ones(size), 9)
    labels: Any = [*range(size), None, *RNG.integers(0, size, 8 - size).tolist()]
    probs[:size] = np.roll(np.eye(size), 1, axis=0) * 0.6 + 0.4 / size  # all are predicted
    meant = Truth(CLASSES[-size:], probs, labels, [f"text {k}" for k in range(9)])
    return meant, ProbabilityTable.from_arrays(probs, labels, classes=meant.classes)


@pytest.mark.parametrize("name", WRITTEN)
def test_the_contract(name: str, tmp_path: Path) -> None:
    meant, table = truth(2 if WRITTEN[name] is SINGLE else 3)
    OTHERS[name](meant, tmp_path / name)
    given = Reading(classes=tuple(meant.classes)) if name == "batch.jsonl" else None
    check_form(WRITTEN[name], read_records(tmp_path / name, Reading()).frame, table, given)


def test_a_pipeline_that_was_given_lists_of_one_text(tmp_path: Path) -> None:
    answers = [[{"label": k, "score": 0.2 + 0.6 * (k == own)} for k in "ab"] for own in "abba"]
    for name, cells in (("plain", answers), ("lists", [[each] for each in answers])):
        pd.DataFrame({"s": cells, "label": [*"abba"]}).to_json(tmp_path / name, orient="records")
    plain, lists = (read_table(tmp_path / name).digest for name in ("plain", "lists"))
    assert plain == lists


def test_a_probability_of_either_class_alone_or_beside_a_prediction() -> None:
    meant, table = truth(2)
    top = [meant.classes[k] for k in meant.probs.argmax(axis=1)]
    check_form(SINGLE, pd.DataFrame({"prob_no": meant.probs[:, 0], "label": meant.names}), table)
    for k in (0, 1):
        frame = pd.DataFrame({"pred": top, "prob": meant.probs[:, k], "label": meant.names})
        check_form(SINGLE, frame, table)


@pytest.mark.parametrize(
    ("api", "mark"),
    [
        *(("chat", ""), ("chat", "\u2581"), ("chat", "bytes: ")),
        *(("responses", " "), ("completions", "\u0120")),
    ],
)
def test_an_answer_of_any_api(api: str, mark: str) -> None:
    def token(text: str) -> str:
        spelled = "".join(f"\\x{byte:02x}" for byte in text.encode())
        return mark + (spelled if "bytes" in mark else text)

    meant, table = truth(3)
    rows = []
    for row in np.log(meant.probs).tolist():
        top = [{"token": token(n), "logprob": v} for n, v in zip(CLASSES, row, strict=True)]
        # One text in two spellings, after a quotation mark.
        top[0]["logprob"] -= np.log(2)
        top.append({**top[0], "token": token(CLASSES[0].upper())})
        places = [{"token": '"', "top_logprobs": []}, {"token": token("no"), "top_logprobs": top}]
        answer: Any = {"choices": [{"logprobs": {"content": places}}]}
        if api == "responses":
            answer = {"output": [{"content": [{"logprobs": places}]}]}
        elif api == "completions":
            pairs = [
                {each["token"]: each["logprob"] for each in p["top_logprobs"]} or None
                for p in places
            ]
            tokens = [each["token"] for each in places]
            answer = {"choices": [{"logprobs": {"tokens": tokens, "top_logprobs": pairs}}]}
        rows.append(answer)
    frame = pd.DataFrame({"response": [{"body": each} for each in rows], "gold": meant.names})
    check_form(CHAT, frame, table, Reading(classes=tuple(CLASSES)))


def test_tokens_that_are_not_the_classes() -> None:
    def read(*masses: dict[str, float]) -> Source:
        tops = [[{"token": t, "logprob": np.log(p)} for t, p in each.items()] for each in masses]
        places = [{"token": top[0]["token"], "top_logprobs": top} for top in tops]
        answers = [[{"logprobs": {"content": [place]}}] for place in places]
        return open_source(pd.DataFrame({"choices": answers}), Reading(classes=tuple(CLASSES)))

    for odd in ({"ma": 1.0}, {"The": 1.0, "maybe": 1e-4}):
        refuses(TableError, read, odd | {"no": 1e-4, "yes": 1e-4}, names=[min(odd).lower()])
    # A class that is a token of no answer has a share of the rest.
    found = read({"no": 0.5, "yes": 0.4}, {"no": 0.2, "yes": 0.7}, {"no": 0.3, "so": 0.3})
    np.testing.assert_allclose(found.table.probs[:, CLASSES.index("maybe")], [0.1, 0.1, 2 / 7])
    assert "3 of 3 answers" in found.remark and "warning: 'maybe'" in found.remark


@given(st.text())
def test_pieces_of_bytes_are_read_as_the_text(text: str) -> None:
    pieces = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    assert texts_of(["\u0120", "".join(piece for piece, _ in pieces)], ["x"]) == [" ", text]


def test_the_contract_of_votes() -> None:
    counts = [[(row == name).sum() for name in CLASSES] for row in ANSWERS]
    gold = [*CLASSES, *CLASSES, *CLASSES]
    table = ProbabilityTable.from_counts(counts, [0, 1, 2] * 3, classes=CLASSES)
    check_form(RUNS, pd.DataFrame(ANSWERS).add_prefix("run_").assign(label=gold), table)
    rows = {"id": np.repeat(range(9), 5), "epoch": [*range(5)] * 9, "answer": ANSWERS.ravel()}
    votes = pd.DataFrame(rows | {"target": np.repeat(gold, 5)})
    check_form(LONG, votes, table)
    # What servers return beside an answer.
    for beside in ({"tokens": 7}, [3, 4], None):
        cells = ["text" if beside is None and k % 2 else beside or [k] for k in range(45)]
        check_form(LONG, votes.assign(usage=cells), table)
    assert {*WRITTEN.values(), RUNS} == {*FORMS}


HALF = [0.25, 0.75] * 15


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"label": ["N", "P"] * 15, "score": HALF}, ["classes=N,P", "classes=P,N"]),
        ({"label": [0, 1] * 15, "score": [0.75, 0.5] * 15}, ["score", "classes=0,1"]),
        ({"pred": [*"abab"], "prob": [0.9, 0.8, 0.3, 0.4], "y": [*"abba"]}, ["row 2", "prob"]),
        ({"run_0": ["0", "1"], "run_1": ["1", "1"], "label": ["a", "b"]}, ["'0'", "classes="]),
        ({"run_0": [*"aab"], "run_1": [*"aba"], "label": ["a", "b", "NA"]}, ["'NA'", "classes="]),
        ({"s": [[{"label": k, "score": 0.5}] for k in "aba"]}, ["1 of 2 classes", "top_k=None"]),
        ({"id": [0, 0, 1], "class": [*"aba"], "prob": HALF[:3], "label": [*"aab"]}, ["1 of 2"]),
        ({"p": [[0.5, 0.5], [1.0]], "label": [0, 1]}, ["text 1", "1 of 2 classes"]),
        ({"s": [[{"label": "a", "score": 1}] * 2], "label": ["a"]}, ["row 0", "two scores"]),
        (
            {"s": [[{"label": k, "score": 0.5} for k in "ab"]] * 2, "y": [1, 0]},
            ["1", "classes=A,B"],
        ),
        (
            {"id": [0, 0, 1, 1], "class": [*"abab"], "prob": HALF[:4], "is_true": [1, 0, 0, 1]},
            ["is_true", "column of labels"],
        ),
        (
            {"p_a": HALF[:2], "p_b": HALF[1:3], "a": [True, False], "b": [False, True]},
            ["'a', 'b'", "column of labels"],
        ),
        ({"p": [{"a": 0.2, "b": 0.8}, {"b": 0.9, "a": 0.1}], "y": [1, 0]}, ["1", "classes=A,B"]),
        (
            {"s": [[{"label": f"LABEL_{k}", "score": 0.5} for k in "01"]], "y": ["no"]},
            ["classes=A,B"],
        ),
        (
            {"label": ["a", "a"], "probs": [[0.7, 0.3]] * 2, "num_classes": [2, 2]},
            ["classify", "classes=A,B"],
        ),
    ],
)
def test_what_is_refused(columns: Any, names: list[str]) -> None:
    refuses(TableError, read_table, pd.DataFrame(columns), names=names)


def test_a_confidence_without_its_prediction_is_no_probability_of_a_class() -> None:
    frame = pd.DataFrame({"predicted": [*"abba"] * 9, "confidence": [0.9, 0.6, 0.8, 0.7] * 9})
    known = open_source(frame.assign(label=[*"aabb"] * 9)).reading
    assert open_source(frame, known=known).table.probs[:2, 0].tolist() == [0.9, 0.4]
    alone = frame[["confidence"]].assign(label=[*"aabb"] * 9)
    refuses(TableError, open_source, alone, known=known, names=["confidence", "p_b"])
    # Nor is what is lower for the class.
    lower = pd.DataFrame({"p_b": [0.7, 0.6, 0.4, 0.3, 0.2] * 40, "label": [*"aabab"] * 40})
    refuses(TableError, open_source, lower, names=["lower for 'b'"])


@pytest.mark.parametrize("name", ["log.eval", "log.json"])
def test_a_log_of_inspect_is_refused(name: str, tmp_path: Path) -> None:
    sample = {"id": 1, "epoch": 1, "target": "A", "output": {}, "scores": {}}
    (tmp_path / name).write_text(json.dumps({"eval": {}, "samples": [sample, sample]}))
    advice = "give the rows of inspect_ai.analysis.samples_df as .csv or .parquet"
    refuses(TableError, open_source, tmp_path / name, names=[f"{name}: ", advice])


def test_the_rows_of_a_log_of_inspect() -> None:
    """They have the columns of its own function, of which one holds the answers of a scorer."""
    answers = [*"ABBBAA", *"BBABAB"]
    ids = {"sample_id": [f"s{k}" for k in range(12)], "eval_id": ["e"] * 12, "id": [*range(6)] * 2}
    rows = ids | {"epoch": [1] * 6 + [2] * 6, "choices": ['["no", "yes"]'] * 12}
    rows |= {"target": [*"ABBABA"] * 2, "score_choice": [*"CICI"] * 3}
    found = read_table(pd.DataFrame(rows | {"score_choice_answer": answers}))
    counts = [[1, 1], [0, 2], [1, 1], [0, 2], [2, 0], [1, 1]]
    table = ProbabilityTable.from_counts(counts, [0, 1, 1, 0, 1, 0], classes=["A", "B"])
    assert found.digest == table.digest
