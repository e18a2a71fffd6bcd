"""Whatever classes are called and whoever wrote the rows: read as meant, or refused."""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import assume, event, example, given, settings
from hypothesis import strategies as st

from dcs.data.columns import Reading
from dcs.data.labels import as_text
from dcs.data.reader import open_source
from dcs.errors import DCSError
from tests.dcs.data.test_lm_eval import asked, sample

FUZZ = settings.get_current_profile_name() == "fuzz"

VOCABULARIES = [
    ["no", "yes", "maybe", "Not sure", "other"],
    ["-1", "0", "1", "2", "-2", "3"],
    ["1", "2", "3", "4", "5"],
    ["1.0", "2.5", "-0.5", "0.25", "10"],
    ["0", "1", "2", "3"],
    ["LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3"],
    ["label", "id", "score", "p", "text", "gold", "class", "y"],
    ["prob", "predicted", "p:a", "run_1", "label", "text", "target"],
    ["a, b", "c; d", 'say "so"', "e|f", "p:q", "r_s", "x.y", "it's", "[z]", "{w}"],
    ["İyi", "kötü", "Straße", "e\u0301te\u0301", "naïve", "是", "不是", "да", "נכון", "ﬁn"],
    ["a", "A", "b", "B", "aa", "a a"],
    ["True", "False", "None", "nan", "null", "NA", "inf", "-"],
    ["1,000", "2,000", "50%", "1e3", "007", "7"],
]


@dataclass
class Truth:
    """Rows as they are meant."""

    classes: list[str]
    probs: np.ndarray
    labels: list[int | None]
    texts: list[str]

    @property
    def names(self) -> list[str | None]:
        return [None if k is None else self.classes[k] for k in self.labels]


@st.composite
def truths(draw: st.DrawFn) -> Truth:
    words = draw(st.sampled_from(VOCABULARIES))
    if draw(st.integers(0, 3)) == 0:
        words = [*words, *draw(st.sampled_from(VOCABULARIES))]
    words = [*{as_text(word): word for word in words}.values()]
    size = draw(st.integers(2, min(5, len(words))))
    classes = draw(st.permutations(words))[:size]
    rows = draw(st.sampled_from((3, 4, 12, 40)))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    probs = np.round(rng.dirichlet(np.full(size, 0.7), rows), 6)
    probs[:, 0] += 1 - probs.sum(axis=1)
    probs = np.abs(np.round(probs, 6))
    labels: list[int | None] = rng.integers(0, size, rows).tolist()
    for k in np.flatnonzero(rng.random(rows) < draw(st.sampled_from((0, 0, 0.2, 1)))):
        labels[k] = None
    odd = ['"quoted', 'ends"', "a,b", "x;y\tz", "two\nlines", "", "plain", '"all"', "1,500"]
    texts = [f"{rng.choice(odd)}{k}" for k in range(rows)]
    return Truth(list(classes), probs, labels, texts)


def as_frame(truth: Truth, prefix: str, told: list[Any]) -> pd.DataFrame:
    frame = pd.DataFrame(truth.probs, columns=[f"{prefix}{name}" for name in truth.classes])
    name = next(name for name in ("label", "gold", "truth", "actual") if name not in frame)
    frame.insert(0, name, pd.Series(told, dtype=object))
    return frame.assign(**{"note": truth.texts})


def scores_of(truth: Truth) -> list[list[dict[str, Any]]]:
    """Return what a pipeline of Transformers returns: the most probable class first."""
    rows = [
        [{"label": n, "score": float(p)} for n, p in zip(truth.classes, row, strict=True)]
        for row in truth.probs
    ]
    return [sorted(row, key=lambda each: -each["score"]) for row in rows]


def lines(rows: list[Any], path: Path) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def text_of(frame: pd.DataFrame, path: Path, **dialect: Any) -> None:
    frame.to_csv(path, index=False, **dialect)


def unquoted(frame: pd.DataFrame, path: Path) -> None:
    """Write tab-separated text in which quotes are text, as many corpora are."""
    cells = [[str(name) for name in frame], *frame.astype(object).fillna("").to_numpy().tolist()]
    clean = [[str(c).replace("\t", " ").replace("\n", " ") for c in row] for row in cells]
    path.write_text("".join("\t".join(row) + "\n" for row in clean))


#: Writers of a frame with a column per class.
WIDE: dict[str, Callable[[pd.DataFrame, Path], None]] = {
    "t.csv": text_of,
    "pipe.csv": lambda f, p: text_of(f, p, sep="|"),
    "semicolon.csv": lambda f, p: text_of(f, p, sep=";"),
    "comma.csv": lambda f, p: text_of(f, p, sep=";", decimal=","),
    "all.csv": lambda f, p: text_of(f, p, quoting=csv.QUOTE_ALL),
    "bom.csv": lambda f, p: text_of(f, p, encoding="utf-8-sig", lineterminator="\r\n"),
    "t.tsv": lambda f, p: text_of(f, p, sep="\t"),
    "plain.tsv": unquoted,
    "t.csv.gz": text_of,
    "t.csv.zip": text_of,
    "t.parquet": lambda f, p: f.to_parquet(p),
    "T.PARQUET": lambda f, p: f.to_parquet(p),
    "t.feather": lambda f, p: f.to_feather(p),
    "t.jsonl": lambda f, p: f.to_json(p, orient="records", lines=True, double_precision=12),
    "t.json": lambda f, p: f.to_json(p, orient="records", double_precision=12),
    "columns.json": lambda f, p: p.write_text(json.dumps(f.to_dict("list"))) and None,
}


def pipeline(truth: Truth, path: Path) -> None:
    zipped = zip(truth.texts, scores_of(truth), truth.names, strict=True)
    lines([{"text": t, "scores": s, "gold": g} for t, s, g in zipped], path)


def zero_shot(truth: Truth, path: Path) -> None:
    rows = []
    for text, scores, gold in zip(truth.texts, scores_of(truth), truth.names, strict=True):
        labels, values = ([each[key] for each in scores] for key in ("label", "score"))
        rows.append({"sequence": text, "labels": labels, "scores": values, "gold": gold})
    lines(rows, path)


def mapping(truth: Truth, path: Path) -> None:
    rows = [dict(zip(truth.classes, row, strict=True)) for row in truth.probs.tolist()]
    frame = pd.DataFrame({"text": truth.texts, "probs": rows, "label": truth.names})
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_csv(path, index=False)


def listed(truth: Truth, path: Path) -> None:
    frame = pd.DataFrame({"probs": truth.probs.tolist(), "label": truth.labels})
    frame.to_csv(path, index=False)


def long(truth: Truth, path: Path) -> None:
    rows = [
        {"id": f"r{k}", "class": name, "prob": p, "label": truth.names[k]}
        for k, row in enumerate(truth.probs.tolist())
        for name, p in zip(truth.classes, row, strict=True)
    ]
    pd.DataFrame(rows).to_csv(path, index=False)


def classified(truth: Truth, path: Path) -> None:
    """Write rows of vLLM's /classify: the label is the prediction."""
    top = truth.probs.argmax(axis=1)
    rows = [
        {"index": k, "label": truth.classes[top[k]], "probs": row, "num_classes": len(row)}
        for k, row in enumerate(truth.probs.tolist())
    ]
    lines([row | {"gold": gold} for row, gold in zip(rows, truth.names, strict=True)], path)


def batch(truth: Truth, path: Path) -> None:
    """Write answers of OpenAI's Batch API."""
    body = []
    for k, (row, gold) in enumerate(zip(truth.probs, truth.names, strict=True)):
        logs = np.log(np.maximum(row, 1e-12)).tolist()
        tokens = zip(truth.classes, logs, strict=True)
        top = [{"token": f" {name}", "logprob": value} for name, value in tokens]
        place = {"token": top[0]["token"], "logprob": -1.0, "top_logprobs": top}
        choice = {"message": {"content": ""}, "logprobs": {"content": [place]}}
        response = {"body": {"choices": [choice]}}
        body.append({"response": response, "custom_id": f"r{k}", "gold": gold})
    lines(body, path)


def logs_of(truth: Truth) -> list[list[float]]:
    return np.log(np.maximum(truth.probs, 1e-12) * 1e-9).tolist()


def harness(truth: Truth, path: Path) -> None:
    """Write samples of lm-evaluation-harness, whose targets are positions."""
    rows = enumerate(zip(truth.labels, logs_of(truth), strict=True))
    lines([sample(k, target, row, **asked(*truth.classes)) for k, (target, row) in rows], path)


def lighteval(truth: Truth, path: Path) -> None:
    gold = [-1 if k is None else k for k in truth.labels]
    docs = [
        {"choices": truth.classes, "gold_index": [k], "id": str(n)} for n, k in enumerate(gold)
    ]
    pd.DataFrame(
        {"doc": docs, "model_response": [{"logprobs": row} for row in logs_of(truth)]}
    ).to_parquet(path)


def one_column(truth: Truth, path: Path) -> None:
    """Write the probability of the second of two classes."""
    score = truth.probs[:, 1] / truth.probs.sum(axis=1)
    name = f"p_{truth.classes[1]}"
    frame = pd.DataFrame({"text": truth.texts, name: score, "label": truth.names})
    frame.to_csv(path, index=False)


def confidence(truth: Truth, path: Path) -> None:
    top, shares = truth.probs.argmax(axis=1), truth.probs / truth.probs.sum(axis=1, keepdims=True)
    columns = {"pred_label": [truth.classes[k] for k in top], "confidence": shares.max(axis=1)}
    pd.DataFrame({**columns, "label": truth.names}).to_csv(path, index=False)


def arrays(truth: Truth, path: Path) -> None:
    labels = [-1 if k is None else k for k in truth.labels]
    np.savez(path, pred_probs=truth.probs, y=labels, classes=truth.classes)


#: Writers of rows in other structures.
OTHERS: dict[str, Callable[[Truth, Path], None]] = {
    "pipeline.jsonl": pipeline,
    "zero.jsonl": zero_shot,
    "map.parquet": mapping,
    "map.csv": mapping,
    "list.csv": listed,
    "long.csv": long,
    "classify.jsonl": classified,
    "batch.jsonl": batch,
    "samples.jsonl": harness,
    "details.parquet": lighteval,
    "one.csv": one_column,
    "confidence.csv": confidence,
    "arrays.npz": arrays,
}


def agree(truth: Truth, path: Any, told: list[int | None], *, tame: bool = False) -> None:
    """Assert that a file is read as meant, or refused on one line, which tame ones must not be."""
    given = Reading(classes=tuple(truth.classes)) if "batch" in str(path) else None
    try:
        table = open_source(path, given).table
    except DCSError as error:
        event(f"refused: {Path(path).name if isinstance(path, Path) else 'frame'}")
        assert "\n" not in str(error)
        assert not tame, error
        return
    event("read")
    names = [as_text(name) for name in truth.classes]
    if "list.csv" in str(path):
        names = [str(k) for k in range(len(names))]
    # A prefix that classes share is no part of their names unless a label has it.
    cut = len(commonprefix(names)) - len(commonprefix(sorted(table.classes)))
    names = names if sorted(table.classes) == sorted(names) else [name[cut:] for name in names]
    assert sorted(table.classes) == sorted(names)
    order = [table.classes.index(name) for name in names]
    shares = truth.probs / truth.probs.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(table.probs[:, order], shares, atol=1e-5)
    assert [order.index(k) if k >= 0 else None for k in table.labels.tolist()] == told


CASES = settings(max_examples=30 * settings().max_examples if FUZZ else 100, deadline=None)


@CASES
@given(
    truths(),
    st.sampled_from([*WIDE, "frame"]),
    st.sampled_from(["p:", "prob_", "model 7/", ""]),
    st.data(),
)
def test_a_column_per_class(truth: Truth, name: str, prefix: str, data: st.DataObject) -> None:
    told: list[Any] = list(truth.names)
    meant = list(truth.labels)
    numbers = {float(name) for name in truth.classes if name.isdigit()}
    if len(numbers) == len(truth.classes) and data.draw(st.booleans()):
        told = [None if each is None else float(each) for each in told]
    frame = as_frame(truth, prefix, told)
    frame = frame.iloc[:, data.draw(st.permutations(range(frame.shape[1])))]
    tame = truth.classes[0] in VOCABULARIES[0] and {*truth.classes} <= {*VOCABULARIES[0]}
    tame = tame and prefix != "" and any(k is not None for k in meant)
    tame = tame and [*truth.probs.argmax(axis=1)] != meant and "tsv" not in name
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        if name in WIDE:
            WIDE[name](frame, path)
        agree(truth, path if name in WIDE else frame, meant, tame=tame)


@CASES
@given(truths(), st.sampled_from([*OTHERS]))
# The number of classes is no label, though it is the name of one.
@example(Truth(["1", "2"], np.full((3, 2), 0.5), [None] * 3, ["a", "b", "c"]), "classify.jsonl")
def test_other_structures(truth: Truth, name: str) -> None:
    assume(len(truth.classes) == 2 or OTHERS[name] not in (one_column, confidence))
    with tempfile.TemporaryDirectory() as folder:
        OTHERS[name](truth, Path(folder) / name)
        agree(truth, Path(folder) / name, list(truth.labels))
