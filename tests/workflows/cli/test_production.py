"""Schemes in use: texts to corrected labels, checks, class shares and token biases."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
import yaml

import dcs
from dcs.data.table import ProbabilityTable
from dcs.errors import ScoringError
from dcs.prompting.files import get_task
from dcs.prompting.tasks import SPLITS
from dcs.scoring.base import RowsError
from dcs.scoring.models import first_tokens
from tests.dcs.prompting.test_files import OWN
from tests.dcs.refusals import refuses
from tests.dcs.scoring.server import ModelServer
from tests.workflows.conftest import UNDRAWN, biased_table, done, refused

WORDS = {"unhappy": "bad", "neutral": "okay", "happy": "good"}
KINDS = ("unhappy", "unhappy", "neutral", "happy", "happy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task of its own: half of the optimization texts have no label, the test texts have all."""
    root = tmp_path_factory.mktemp("mood")
    for split, size in (("optimization", 120), ("test", 40)):
        rows = [
            {"text": e.text} | ({"mood": KINDS[e.label]} if split == "test" or k % 2 else {})
            for k, e in enumerate(get_task("reviews").examples(split)[:size])
        ]
        (root / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = OWN["files"] | {split: f"{split}.jsonl" for split in SPLITS}
    words = {"classes": [*WORDS], "label_words": [*WORDS.values()]}
    task = OWN | words | {"name": "mood", "files": files}
    (root / "mood.yaml").write_text(yaml.safe_dump(task))
    return root


@pytest.fixture(scope="module")
def scheme(folder: Path, model_server: ModelServer, new_output: Callable[[], Path]) -> Path:
    """A scheme of a served model on the task of the folder."""
    runs = new_output().rename(folder / "runs")
    address = f"scoring.base_url={model_server.url}"
    options = ("--engine", "openai", "--set", address, "--model", "tiny")
    task = ("--task", folder / "mood.yaml", "--shots", "N", "-o", runs)
    out = done("generate", *task, *options).out
    assert re.search("mood.*: 60 of 117 optimization texts have no label", out)
    (table,) = {path.parent for path in runs.glob("tables/*/test.parquet")}
    done("tune", table, "--method", "batch", "-o", runs, "--replace", *UNDRAWN)
    return runs / f"{table.name}-batch" / "scheme.json"


def test_new_texts_are_labelled_as_the_tables_were(
    folder: Path,
    scheme: Path,
    model_server: ModelServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    texts = [{"number": k, "text": row["text"]} for k, row in enumerate(rows)]
    texts[3]["text"] = " "
    pd.DataFrame(texts).to_csv("new.csv", index=False)
    model_server.faults = [(429, {"Retry-After": "0"}, "{}")] * 3
    out = done("predict", scheme, "new.csv").out
    assert "row 4: " in out and "39 rows, 1 rows left out" in out
    found = pd.read_csv("new-predicted.csv")
    table = ProbabilityTable.read(next(folder.glob("runs/tables/*/test.parquet")))
    kept = [k for k in range(40) if k != 3]
    assert found["number"].tolist() == kept
    loaded = dcs.CorrectionScheme.load(scheme)
    wanted = [loaded.classes[k] for k in loaded.predict(table.probs[kept])]
    assert found["predicted"].tolist() == wanted
    probs = found[[f"p:{name}" for name in WORDS]].to_numpy()
    np.testing.assert_allclose(probs, table.probs[kept], atol=1e-9)
    # What was scored is not asked for again, and what is written is read by the other commands.
    asked = len(model_server.requests)
    with dcs.Classifier.load(scheme, store="dcs-runs/shards") as classifier:
        assert classifier.predict([row["text"] for row in rows if row is not rows[3]]) == wanted
        assert classifier.predict(pd.DataFrame(texts).drop(index=3)) == wanted
        for odd, error in (([""], RowsError), ([7], RowsError), ("text", dcs.DCSError)):
            refuses(error, classifier.predict, odd, names=["text"])
    assert len(model_server.requests) <= asked + 2  # asks the server what it can do
    biases = json.loads(done("export", scheme.parent, "--model", "tiny_lm").out)["logit_bias"]
    tokens = first_tokens([*WORDS.values()], model="tiny_lm")
    assert [*biases] == [str(token) for own in tokens for token in own]
    # Of classes in another order, those that the names say.
    (place,) = folder.glob("runs/tables/*")
    order = ("--read", "classes=happy,neutral,unhappy")
    done("tune", place, "--method", "batch", *order, *UNDRAWN, "-o", "turned")
    turned = Path("turned", f"{place.name}-batch", "scheme.json")
    with dcs.Classifier.load(turned, store="dcs-runs/shards") as classifier:
        assert classifier.predict(pd.DataFrame(texts).drop(index=3)) == wanted
    again = json.loads(done("export", turned, "--model", "tiny_lm").out)["logit_bias"]
    assert again == pytest.approx(biases, abs=1e-3)
    refused("apply", scheme, "new-predicted.csv", "-o", "again.csv", says=["'corrected:unhappy'"])
    found.drop(columns=[f"corrected:{name}" for name in WORDS]).to_csv("probs.csv", index=False)
    assert "39 rows" in done("apply", scheme, "probs.csv", "-o", "again.csv").out
    assert pd.read_csv("again.csv")["predicted_corrected"].tolist() == wanted
    Path("broken.csv").write_text("text\nIt broke, at once\n")
    refused("predict", scheme, "broken.csv", says=["broken.csv", "line 2"])
    Path("twice.csv").write_text("text,text\nIt broke,It works\n")
    refused("predict", scheme, "twice.csv", says=["twice.csv", "'text'"])
    refused("predict", scheme, "new.csv", "-o", "new.csv", says=["--output new.csv"])
    asked = len(model_server.requests)
    refused("predict", scheme, "new-predicted.csv", says=["new-predicted.csv", "'p:unhappy'"])
    refused("predict", scheme, "new.csv", "-o", "new.xlsx", says=["new.xlsx", ".jsonl"])
    assert len(model_server.requests) == asked


def test_other_columns_of_texts_stay_as_they_are(scheme: Path, tmp_path: Path) -> None:
    rows = [{"text": "It broke.", "n": 10**18 + 1}, {"text": "It works.", "n": None}]
    (tmp_path / "new.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done("predict", scheme, tmp_path / "new.jsonl")
    written = (tmp_path / "new-predicted.jsonl").read_text().splitlines()
    assert [json.loads(line)["n"] for line in written] == [10**18 + 1, None]


def test_numbers_that_a_task_gives_to_its_classes_are_no_positions(tmp_path: Path) -> None:
    rows = biased_table(60, classes=("no", "yes"))
    task = {"classes": [*rows.classes], "files": {"labels": [["1"], ["0"]]}}
    table = {"table": {"prompt": {"task": task}}, "reading": {"classes": [*rows.classes]}}
    dcs.CorrectionScheme.identity(rows.classes, provenance=table).save(tmp_path / "scheme.json")
    columns = {f"p:{name}": rows.probs[:, k] for k, name in enumerate(rows.classes)}
    pd.DataFrame({**columns, "label": rows.labels}).to_csv(tmp_path / "new.csv", index=False)
    asked = ("evaluate", tmp_path / "new.csv", "-s", tmp_path / "scheme.json")
    refused(*asked, says=["'1'", "labels=from-0"])
    done(*asked, "--read", "labels=from-0")


def test_an_option_of_the_fit_is_set_to_its_default(scheme: Path, tmp_path: Path) -> None:
    (tmp_path / "new.jsonl").write_text('{"text": "It broke."}')
    loaded = dcs.CorrectionScheme.load(scheme)
    table = loaded.provenance["table"]
    prompt = table["prompt"] | {"scoring": table["prompt"]["scoring"] | {"votes": 3}}
    provenance = {**loaded.provenance, "table": table | {"prompt": prompt}}
    dataclasses.replace(loaded, provenance=provenance).save(tmp_path / "votes.json")
    probs = []
    for path, *options in ((scheme,), (tmp_path / "votes.json", "--set", "scoring.votes=null")):
        done("predict", path, tmp_path / "new.jsonl", "-o", tmp_path / "out.csv", *options)
        probs.append(pd.read_csv(tmp_path / "out.csv").filter(like="p:"))
    pd.testing.assert_frame_equal(*probs)


def test_another_model_or_no_prompt_is_refused(scheme: Path, tmp_path: Path) -> None:
    (tmp_path / "new.jsonl").write_text('{"text": "It broke."}')
    loaded = dcs.CorrectionScheme.load(scheme)
    dcs.CorrectionScheme.identity(loaded.classes).save(tmp_path / "plain.json")
    asked = (tmp_path / "new.jsonl", "-o", tmp_path / "out.csv")
    refused("predict", tmp_path / "plain.json", *asked, says=["plain.json", "dcs apply"])
    table = loaded.provenance["table"] | {"revision": "sha256:other"}
    changed = dcs.CorrectionScheme.identity(loaded.classes, provenance={"table": table})
    refuses(ScoringError, dcs.Classifier.load, changed, names=["sha256:other"])
    table = table | {"prompt_hash": "0"}
    changed = dcs.CorrectionScheme.identity(loaded.classes, provenance={"table": table})
    refuses(dcs.DCSError, dcs.Classifier.load, changed, names=["is not that of the fitted rows"])


def test_rows_that_moved_are_an_alarm_and_labels_settle_it(tmp_path: Path, output: Path) -> None:
    classes = {"Anger", "Fear", "Joy"}
    biased, path = biased_table(900), tmp_path / "rows.parquet"
    biased.write(path)
    done("tune", path, "--method", "dnip", "--trials", 0, "-o", output, *UNDRAWN)
    scheme = output / "rows-dnip" / "scheme.json"
    unlabelled = dataclasses.replace(biased, labels=np.full(biased.n_rows, -1))
    unlabelled.write(tmp_path / "same.parquet")
    store = f"sqlite:///{output}/mlflow.db"
    found = done("check", scheme.parent, tmp_path / "same.parquet", "--tracking-uri", store)
    # Most of these rows are those of the fit.
    assert "show no change" in found.out and "fitted on" in found.err
    client = mlflow.MlflowClient(store)
    experiment = client.get_experiment_by_name("checks").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.data.metrics["check/p"] > 0.05 and run.info.status == "FINISHED"
    assert run.info.run_name == "rows-dnip same.parquet"
    out = done("shares", scheme, tmp_path / "same.parquet").out
    lines = [words for line in out.splitlines() if {*(words := line.split())[:1]} & classes]
    for line, share in zip(lines, np.bincount(biased.labels) / biased.n_rows, strict=True):
        low, high = (float(end.strip("[],")) for end in line[-2:])
        assert low - 5 <= 100 * share <= high + 5
    hot = biased.probs**0.4
    moved = biased.with_probs(hot / hot.sum(axis=1, keepdims=True))
    dataclasses.replace(moved, labels=unlabelled.labels).write(tmp_path / "hot.parquet")
    assert "have moved" in done("check", scheme, tmp_path / "hot.parquet", code=3).out
    # Rows whose labels are what the scheme predicts keep any promise, and the opposite breaks it.
    loaded = dcs.CorrectionScheme.load(scheme)
    kept = dataclasses.replace(moved, labels=loaded.predict(moved.probs))
    kept.write(tmp_path / "kept.parquet")
    assert "is kept" in done("check", scheme, tmp_path / "kept.parquet").out
    plain = dataclasses.replace(moved, labels=moved.probs.argmax(axis=1))
    plain.write(tmp_path / "broken.parquet")
    assert "is broken" in done("check", scheme, tmp_path / "broken.parquet", code=3).out
    done("pick", scheme, "--prefer", "accuracy")
    out = done("check", scheme, tmp_path / "same.parquet").out
    assert "show no change" in out and "--prefer no-harm" in out
    held_out = dcs.CorrectionScheme.load(scheme).provenance["held_out"]
    assert "margin" not in held_out and np.sum(held_out["confusion"]) == biased.n_rows
    dcs.CorrectionScheme.identity(biased.classes).save(tmp_path / "old.json")
    refused("check", tmp_path / "old.json", path, says=["old.json", "dcs tune"])
