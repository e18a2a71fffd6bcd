"""The commands that need no cluster, run as a person runs them."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import shlex
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcs.data.reader import read_table
from dcs.data.table import ProbabilityTable
from dcs.schemes.corrections import Weight
from dcs.schemes.scheme import CorrectionScheme
from dcs.selection.front import FittedScheme
from dcs.selection.preference import Preference
from dcs_tracking import Archive, CellRecord
from dcs_workflows.cli.app import app
from tests.dcs.biased import labelled
from tests.workflows.conftest import UNDRAWN, Outcome, biased_table, done, refused, run_dcs


def _commands(command, names=()):
    if hasattr(command, "commands"):
        return {
            name: found
            for child in command.commands
            for name, found in _commands(command.commands[child], (*names, child)).items()
        }
    return {" ".join(names): command}


COMMANDS = _commands(typer.main.get_command(app))
SPACE = "space: {calibration: none, corrections: both, beta: 0.5}"
STUDY = (*UNDRAWN, "--set", f"tuner={{trials: 4, {SPACE}}}")


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("table") / "moods.parquet"
    biased_table().write(path)
    return path


@pytest.fixture(scope="module")
def tuned(table, new_output) -> tuple[Outcome, Path]:
    """A finished ``dcs tune`` and its folder."""
    output = new_output()
    return done("tune", table, *STUDY, "--output", output), output


def test_help_and_version_name_what_there_is_and_examples():
    assert done("--version").out.startswith(f"dcs {version('dcs-debias')}")
    shown = done("--help").out
    for name in COMMANDS:
        assert name.split()[0] in shown
        assert "Example: dcs" in done(*name.split(), "--help").out, name


def scheme_of(output: Path, method: str = "dcs") -> Path:
    return output / f"moods-{method}" / "scheme.json"


def _tuned_cell(output: Path) -> CellRecord:
    cells = Archive(output).finished().values()
    return next(cell for cell in cells if cell.identity["method"] == "dcs")


def test_what_was_run_is_listed_and_goes_by_its_name(tuned):
    outcome, output = tuned
    found = json.loads(done("runs", "tune", "--json", "-o", output).out)
    assert [row["method"] for row in found] == ["uncorrected", "dcs"]
    assert all("moods" in row["name"] for row in found)
    assert "/runs/" in outcome.out and found[1]["cell_key"][:8] in outcome.out
    assert "1 study" in done("runs", "tune", "--studies", output / "all.journal", "-o", output).out
    lines = done("runs", "--sort", "test/cobias", "-o", output).out.splitlines()
    shown = [line for line in lines if "http" in line]
    for row, line in zip(sorted(found, key=lambda row: row["test/cobias"]), shown, strict=True):
        assert line.split()[0] == row["cell_key"][:8] and line.split()[-1] == row["link"]
        assert row["name"] in line and f"{100 * row['test/cobias']:.1f}" in line


def test_a_scheme_is_registered_by_its_run_or_its_file(tuned):
    from mlflow import MlflowClient, artifacts

    _, output = tuned
    uri = f"sqlite:///{output / 'mlflow.db'}"
    for number, what in enumerate((_tuned_cell(output).key, scheme_of(output)), start=1):
        outcome = done("register", what, "--name", "moods", "--alias", "champion", "-o", output)
        made = MlflowClient(uri).get_model_version("moods", str(number))
        file = artifacts.download_artifacts(
            artifact_uri=f"{made.source}/artifacts/scheme.json", tracking_uri=uri
        )
        assert CorrectionScheme.load(file) == CorrectionScheme.load(scheme_of(output))
        (model_id,) = re.findall(r"models:/(m-\w+)", outcome.out)
        assert model_id in made.source and "models:/moods@champion" in outcome.out
    ended = Archive(output).finished().values()
    plain = next(cell.key for cell in ended if cell.identity["method"] == "icl")
    refused("register", plain, "--name", "moods", "-o", output, says=["no scheme"])


def test_tune_tells_its_front_and_keeps_to_a_limit(table, output):
    limits = ("--trials", 4, "--max-cobias", 10)
    objective = ("--set", "tuner.space={beta: 0.4, tau: 0}", "--set", "tuner.memberships=5")
    outcome = done("tune", table, *limits, *objective, *UNDRAWN, "--output", output)
    cell = _tuned_cell(output)
    assert cell.identity["tuner"]["memberships"] == 5
    searched = [t.params for t in cell.trials if t.params["corrections"] != "none"]
    assert {(p["beta"], p["tau"]) for p in searched} <= {(0.4, 0.0)}
    metrics = cell.metrics
    gain = 100 * (metrics["test/accuracy"] - metrics["uncorrected/test/accuracy"])
    assert gain > 0 and f"{gain:+.1f}, p " in outcome.out
    assert metrics["dev/lasting_cobias"] <= 0.1
    path = scheme_of(output)
    front = FittedScheme.load(path.with_name("front.json"))
    assert len(cell.trials) == 4
    before = CorrectionScheme.load(path)
    page, other = path.with_name("result.html"), ("--trials", 1, "--output", output)
    assert "the same point" in done("pick", path, "--max-cobias", 10).out
    assert CorrectionScheme.load(path) == before
    page.chmod(0o600)
    done("pick", path.parent, "--prefer", "accuracy")
    assert page.stat().st_mode & 0o777 == 0o600
    for same in (other, ("--output", output, *limits, *objective)):
        refused("tune", table, *UNDRAWN, *same, says=[str(path), "--replace", "--output"])
    picked, scheme = front.pick(Preference(prefer="accuracy")), CorrectionScheme.load(path)
    assert scheme.corrections == picked.scheme.corrections
    assert scheme.calibration == picked.scheme.calibration
    assert scheme.provenance["rule"]["prefer"] == "accuracy"
    assert scheme.provenance["fitted_on"] == before.provenance["fitted_on"]
    assert FittedScheme.load(path.with_name("front.json")) == picked
    done("pick", path, "--margin", 0)
    again = FittedScheme.load(path.with_name("front.json"))
    assert again.preference == Preference(margin=0)
    # The page gives a command for other points, and is that of the pick.
    content = _content(page)
    assert content["chosen"] == again.points.index(again.chosen)
    held_out = ProbabilityTable.read(path.with_name("held_out.parquet"))
    assert f"{held_out.n_rows} held-out rows" in content["verdict"]
    commands = {k: point["pick"] for k, point in enumerate(content["points"]) if point["pick"]}
    chosen, command = next((k, c) for k, c in commands.items() if k != content["chosen"])
    done(*shlex.split(command)[1:])
    assert _content(page)["chosen"] == chosen
    refused("pick", path.parent, "--max-cobias", -1, says=["max_cobias"])
    refused("pick", output, says=[str(output / "scheme.json")])
    assert [*output.glob("studies/*.journal")]
    done("rm", cell.key[:8], "--yes", "-o", output)
    assert not [*output.glob("studies/*.journal")]


def _content(page):
    """Return what a page shows."""
    return json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])


def test_what_cannot_be_registered_is_not_logged(tuned):
    from mlflow import MlflowClient

    uri = f"sqlite:///{tuned[1]}/mlflow.db"
    count = len(MlflowClient(uri).search_logged_models(["0", "1", "2"]))
    names = ("two\nlines", "o'clock", "-rf", "a/b", "a:b", " a", "", "n" * 300)
    aliases = ("v1", "latest", "Latest", "-rf", "a b", "", "a" * 300)
    asked = [*((name, "x") for name in names), *(("moods", alias) for alias in aliases)]
    for name, alias in asked:
        given = (f"--name={name}", f"--alias={alias}", "-o", tuned[1])
        refused("register", scheme_of(tuned[1]), *given)
    assert len(MlflowClient(uri).search_logged_models(["0", "1", "2"])) == count


def test_a_password_in_a_setting_is_warned_of():
    secret = "optuna_storage=postgresql://me:hunter22@db/x"
    outcome = run_dcs("sweep", "quickstart", "--dry-run", "--set", secret)
    assert "DCS_OPTUNA_STORAGE" in outcome.err and "hunter22" not in outcome.out + outcome.err


def test_a_baseline_is_judged_on_a_table_of_its_own(table, tmp_path, output):
    other = tmp_path / "other rows.parquet"
    biased_table(90, seed=1).write(other)
    batch = ("--method", "batch", *UNDRAWN)
    compared = ("--compare", "logistic,batch", "--test", other)
    outcome = done("tune", table, *compared, *batch, "--output", output)
    assert "90 held-out rows" in outcome.out
    assert "uncorrected batch logistic" in " ".join(outcome.out.split())
    assert outcome.out.count("against batch") == 2
    refused("pick", scheme_of(output, "batch"), says=["front.json", "cross-validation"])
    first = scheme_of(output, "batch").read_bytes()
    again = ("tune", table, *batch, "--output", output)
    refused(*again, "--seed", 1, says=["--replace"])
    done(*again, "--seed", 1, "--replace")
    assert scheme_of(output, "batch").read_bytes() != first
    done(*again, "--seed", 1)
    assert not scheme_of(output).exists()


def test_rows_of_an_earlier_scheme_keep_their_part(tmp_path, output):
    everything = biased_table(160, seed=3)
    order = np.random.default_rng(0).permutation(160)
    everything.subset(np.arange(100)).write(tmp_path / "some.parquet")
    everything.subset(order).write(tmp_path / "more.parquet")
    batch = ("--method", "batch", *UNDRAWN, "--output", output)
    done("tune", tmp_path / "some.parquet", *batch)
    first = output / "some-batch" / "scheme.json"
    said = done("tune", tmp_path / "more.parquet", *batch, "--earlier", first).out
    assert "100 of 100" in said and "earlier" in said
    for name in ("fitted.parquet", "held_out.parquet"):
        before, after = (
            {row.tobytes() for row in ProbabilityTable.read(output / folder / name).probs}
            for folder in ("some-batch", "more-batch")
        )
        assert before < after
    moved = [*everything.ids[1:], everything.ids[0]]
    named, moved = (replace(everything, ids=[f"r{k}" for k in o]) for o in (everything.ids, moved))
    moved.write(tmp_path / "moved.parquet")
    some = named.subset(np.arange(100))
    labelled(some, np.arange(100) < 80).write(tmp_path / "named.parquet")
    done("tune", tmp_path / "named.parquet", *batch)
    given = ("--earlier", output / "named-batch" / "scheme.json")
    named.write(tmp_path / "labelled.parquet")
    done("tune", tmp_path / "labelled.parquet", *batch, *given)
    held_out = ProbabilityTable.read(output / "labelled-batch" / "held_out.parquet")
    assert not {*some.ids[80:]} & {*held_out.ids}
    refused("tune", tmp_path / "moved.parquet", *batch, *given, says=["earlier ids", "'r"])
    biased_table(100, seed=4).write(tmp_path / "strange.parquet")
    says = ["earlier", "0 of its 100"]
    refused("tune", tmp_path / "strange.parquet", *batch, "--earlier", first, says=says)


def test_apply_writes_what_evaluate_reads(tuned, table, tmp_path):
    _, output = tuned
    scheme, corrected = scheme_of(output), tmp_path / "corrected.parquet"
    assert "fitted on" in done("apply", scheme, table, "-o", corrected).err
    refused("apply", scheme, table, "-o", scheme.with_name("fitted.parquet"), says=["--output"])
    source, result = ProbabilityTable.read(table), read_table(corrected)
    assert (result.ids, result.classes) == (source.ids, source.classes)
    expected = CorrectionScheme.load(scheme).predict(source.probs)
    np.testing.assert_array_equal(result.probs.argmax(axis=1), expected)
    archive = tmp_path / "rows.npz"
    for scale, more in ((4.0, ["--read", "values=scores"]), (1.0, [])):
        probs = scale * source.probs
        np.savez(archive, probs=probs, labels=source.labels, classes=source.classes)
        done("apply", scheme, archive, "-o", tmp_path / "again.parquet", *more)
        again = read_table(tmp_path / "again.parquet")
        np.testing.assert_allclose(again.probs, result.probs, rtol=1e-12)
    done("evaluate", archive)
    turned = source.subset(np.arange(source.n_rows)[::-1])
    np.savez(archive, probs=turned.probs, labels=turned.labels, classes=turned.classes)
    assert "fitted on" in done("evaluate", archive, "-s", scheme).err
    about = {"inputs": ("a",), "provenance": {"tables": {"a": {}, archive.stem: {}}}}
    CorrectionScheme.identity(source.classes, **about).save(tmp_path / "a.json")
    refused("apply", tmp_path / "a.json", archive, says=["'rows' is another table"])

    accuracy = f"{100 * (expected == source.labels).mean():.1f}"
    plain, both = done("evaluate", corrected).out, done("evaluate", table, "--scheme", scheme).out
    assert accuracy in plain and "uncorrected" not in plain and "corrected by" in plain
    assert accuracy in both
    for again in (
        ("apply", scheme, corrected),
        ("evaluate", corrected, "-s", scheme),
        ("tune", corrected, "-o", tmp_path / "twice"),
    ):
        refused(*again, says=[str(corrected), "already corrected"])


def test_apply_reads_and_writes_standard_streams(tmp_path, monkeypatch):
    scheme = CorrectionScheme(("a, b", "p:odd"), (Weight(0.25), Weight(1.0)))
    scheme.save(tmp_path / "scheme.json")
    probs = np.array([[0.75, 0.25], [0.9, 0.1], [0.125, 0.875]])
    rows = pd.DataFrame({"text": ["007", "", "NA"], "p:p:odd": probs[:, 1], "p:a, b": probs[:, 0]})
    monkeypatch.setattr("sys.stdin", io.StringIO(rows.to_csv(index=False)))
    outcome = done("apply", tmp_path / "scheme.json", "-", "-o", "-")
    found = pd.read_csv(io.StringIO(outcome.out), dtype={"text": str}, keep_default_na=False)
    assert found["text"].tolist() == ["007", "", "NA"]
    assert found["predicted"].tolist() == ["p:odd", "a, b", "p:odd"]
    corrected = found[["corrected:a, b", "corrected:p:odd"]]
    np.testing.assert_allclose(corrected, scheme.apply(probs))


@pytest.mark.parametrize("target", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("form", [".csv", ".jsonl", ".parquet"])
def test_columns_besides_those_of_classes_come_out_as_they_went_in(form, target, tmp_path):
    scheme, source, written = (tmp_path / n for n in ("s.json", f"x{form}", f"y{target}"))
    CorrectionScheme(("a", "b"), (Weight(0.25), Weight(1.0))).save(scheme)
    besides = [
        {"id": 2**60 + 1, "text": "007", "n": None, "x": 0.1 + 0.2},
        {"id": 7, "text": "NA", "n": 2**60 + 3, "x": 5e-324},
    ]
    table = pa.Table.from_pylist([{**row, "a": 0.75, "b": 0.25} for row in besides])
    if form == ".parquet":
        pq.write_table(table, source)
    elif form == ".jsonl":
        source.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    else:
        table.to_pandas(types_mapper=pd.ArrowDtype).to_csv(source, index=False)
    assert "2 predictions changed" in done("apply", scheme, source, "-o", written).out
    if target == ".parquet":
        found = pq.read_table(written).to_pylist()
    elif target == ".jsonl":
        found = [json.loads(line) for line in written.read_text().splitlines()]
    else:
        found = [*csv.DictReader(written.read_text().splitlines())]
    if ".csv" in (form, target):
        besides = [{k: "" if v is None else str(v) for k, v in row.items()} for row in besides]
    assert [{name: row[name] for name in besides[0]} for row in found] == besides
    assert [row["predicted"] for row in found] == ["b", "b"]


def test_rows_that_cannot_be_corrected_are_named(tmp_path):
    scheme, rows, output = (tmp_path / name for name in ("s.json", "rows.csv", "out.csv"))
    CorrectionScheme.identity(("a", "b")).save(scheme)
    bad = {"a,c\n0.5,0.5": "'b'", "id,a,b\n3,0.5,0.5\n1,0.5,x": "row 1"}
    bad["a,b\n0.5,0.7"] = "values=scores"
    bad |= {"a,b\nx,0.5,0.5": "line 2", "x,x,a,b\n1,2,0.5,0.5": "not unique"}
    for text, word in {**bad, "": ""}.items():
        rows.write_text(text)
        refused("apply", scheme, rows, "-o", output, says=[str(rows), word])
    lines = tmp_path / "rows.jsonl"
    for line in ("3", "{"):
        lines.write_text(f'{{"a": 0.5, "b": 0.5}}\n{line}')
        refused("apply", scheme, lines, "-o", output, says=[str(lines), "line 2"])
    lines.write_text(f'{{"a": 0.5, "b": 0.5, "n": {10**30}}}')
    refused("apply", scheme, lines, "-o", tmp_path / "out.parquet", says=["out.parquet", ".jsonl"])
    assert not output.exists()
    CorrectionScheme.identity(("a", "=1+1")).save(other := tmp_path / "other.json")
    rows.write_text("a,=1+1,predicted\n0.25,0.75,x")
    done("apply", other, rows, "-o", output)
    assert output.read_text().splitlines() == [
        "predicted,corrected:a,corrected:=1+1,predicted_corrected",
        "x,0.25,0.75,'=1+1",
    ]
    rows.write_text("a,b\n1,3\n")
    done("apply", scheme, rows, "--read", "values=scores")
    refused("apply", scheme, rows, "--read", "values=scores", says=["rows-corrected.csv", "-o"])


def test_what_is_missing_mistyped_or_unknown_is_said_on_one_line(table, tmp_path):
    names = ("gone.parquet", "runs.parquet", "turned.parquet", "scheme.json")
    gone, output, turned, other = (tmp_path / name for name in names)
    biased_table(classes=("Anger", "Joy", "Sad")).write(turned)
    labelled(biased_table(), False).write(bare := tmp_path / "bare.parquet")
    CorrectionScheme.identity(("a", "b", "c")).save(other)
    generate = ["generate", "--model", "tiny_lm", "--task", "helpdesk"]
    for arguments, words in [
        (["tuna"], ["tune"]),
        (["tune"], ["TABLE"]),
        (["tune", "x", "--trials", "many"], ["--trials"]),
        (["tune", "x", "--trails", "1"], ["--trials"]),
        (["tune", gone], [str(gone)]),
        (["tune", table, "--test", turned], [str(turned)]),
        (["tune", table, "--test", bare], [str(bare), "label"]),
        (["tune", table, "--method", "dsc"], ["dsc", "dcs"]),
        (["apply", gone, table], [str(gone)]),
        (["apply", other, table], [str(table), "Anger", "scheme"]),
        (["sweep", gone], [str(gone)]),
        ([*generate, "--seeds", "0,x"], ["seeds"]),
        ([*generate, "--shots", "two"], ["'two'"]),
    ]:
        refused(*arguments, "-o", output, says=words)
    refused("tasks", "show", "revews", says=["reviews"])
    refused("evaluate", table, "--scheme", gone, says=[str(gone)])
    assert not output.exists()


#: Given to each command, so that not every one ends at its first argument.
GOOD = {"table": "good.parquet", "files": "good.parquet", "scheme": "scheme.json"}
GOOD |= {"task": "helpdesk", "name": "helpdesk"}
ODD = ["", "-", "-1", "nan", "9" * 30, ",", "\udcff", "a\nb", "\x1b[2J", "..", "x" * 5000, "{}"]
ODD += ["/", "/dev/null", "folder", "good.parquet", "sqlite:///", "http://[::1", "tasks=nope"]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Change into a folder of its own, for paths that are relative."""
    folder = tmp_path_factory.mktemp("work")
    biased_table(30).write(folder / "good.parquet")
    CorrectionScheme.identity(("Anger", "Fear", "Joy")).save(folder / "scheme.json")
    (folder / "folder").mkdir()
    with contextlib.chdir(folder):
        yield folder


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"quickstart", "tune"}))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_odd_arguments(name, data, work):
    arguments = [*name.split(), *(("--limit", "1") if name == "generate" else ())]
    for parameter in COMMANDS[name].params:
        is_given = parameter.required or data.draw(st.integers(0, 3)) == 0
        if not is_given or parameter.name in ("help", "port"):
            continue
        if parameter.param_type_name == "option":
            arguments.append(parameter.opts[0])
        if not getattr(parameter, "is_flag", False):
            good = GOOD.get(parameter.name)
            odd = st.sampled_from(ODD)
            arguments.append(data.draw(st.one_of(odd, st.just(good)) if good else odd))
    outcome = run_dcs(*arguments)
    assert outcome.code in (0, 1, 2), outcome
    assert "Traceback" not in outcome.err and "\x1b[2J" not in outcome.out + outcome.err
    if outcome.code == 2:
        assert outcome.err.startswith("dcs: error: ") and outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    "words", ["ui", "runs", "report x", "compare abcd ef", "register a --name m"]
)
def test_what_reads_makes_nothing(words, tmp_path):
    runs = tmp_path / "runs"
    for place in (("--runs", runs), ("--runs", runs, "--tracking-uri", f"sqlite:///{runs}.db")):
        refused(*words.split(), *place, says=[str(runs)])
    assert list(tmp_path.iterdir()) == []
