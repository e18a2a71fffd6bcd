"""No code runs that a file brought, no shell sees a string, no server listens to the world."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcs.errors import ConfigError
from tracking import Archive, ui_arguments
from tracking.records import KEY_PATTERN
from workflows.config.sweep import SweepConfig

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for package in ("dcs", "tracking", "workflows") for path in (ROOT / package).rglob("*.py")
)

#: Modules whose only use is to run what a file says, and functions that do.
_MODULES = {
    "pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "shelve",
    "marshal",
    "joblib",
    "jsonpickle",
}
_FUNCTIONS = {"eval", "exec", "compile", "__import__", "execfile"}
_CALLS = {
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput",
    "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all",
    "pandas.read_pickle", "pd.read_pickle", "np.fromregex", "tempfile.mktemp",
    "asyncio.create_subprocess_shell", "shutil.unpack_archive", "numpy.lib.format.read_array",
}  # fmt: skip
_METHODS = {"extractall", "read_pickle", "to_pickle", "unpack_archive"}


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _options(call: ast.Call) -> dict[str, object]:
    return {
        str(k.arg): k.value.value if isinstance(k.value, ast.Constant) else "?"
        for k in call.keywords
    }


def _unsafe(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [a.name for a in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                if name.split(".")[0] in _MODULES:
                    yield node.lineno, f"import {name}"
        if not isinstance(node, ast.Call):
            continue
        name, options = _name(node.func), _options(node)
        last = name.rpartition(".")[2]
        if name in _FUNCTIONS or name in _CALLS or last in _METHODS:
            yield node.lineno, name
        if "shell" in options and options["shell"] is not False:
            yield node.lineno, f"{name} with a shell"
        if (
            name.startswith("subprocess.")
            and node.args
            and isinstance(node.args[0], ast.JoinedStr)
        ):
            yield node.lineno, f"{name} of a string"
        if name in ("np.load", "numpy.load") and options.get("allow_pickle") is not False:
            yield node.lineno, "np.load without allow_pickle=False"
        if name == "torch.load" and options.get("weights_only") is not True:
            yield node.lineno, "torch.load without weights_only=True"
        if options.get("trust_remote_code", False) is not False:
            yield node.lineno, "code of a model's author"
        if options.get("autoescape", True) is not True:
            yield node.lineno, "a page whose values are not escaped"
        if "verify" in options and options["verify"] is False:
            yield node.lineno, "TLS that is not checked"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_code_runs_what_a_file_says(path: Path) -> None:
    assert list(_unsafe(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle", "from cloudpickle import loads", "eval('1')", "exec(x)", "os.system(x)",
        "subprocess.run(x, shell=True)", "subprocess.run(f'ls {x}')", "yaml.load(x)",
        "np.load(x)", "np.load(x, allow_pickle=True)", "torch.load(x)", "z.extractall()",
        "A.from_pretrained(x, trust_remote_code=True)", "get(u, verify=False)", "__import__(x)",
        "Environment(autoescape=False)", "run(x, shell=flag)",
    ],
)  # fmt: skip
def test_the_walk_sees_what_it_looks_for(code: str) -> None:
    assert list(_unsafe(ast.parse(code)))


def test_random_tokens_come_from_secrets() -> None:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _name(node.func).startswith("random."):
                # The pause before a request is sent again: bandit's B311 is off for these.
                assert _name(node.func) == "random.uniform", path


def test_addresses_to_listen_on_are_of_this_machine() -> None:
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert "0.0.0.0" not in text, path
    arguments = ui_arguments("sqlite:////x.db")
    assert arguments[arguments.index("--host") + 1] == "127.0.0.1"


def test_a_local_ray_asks_for_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from workflows.cluster import connect as cluster

    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    # Set by the call below, so that monkeypatch puts it back.
    monkeypatch.setattr(os, "environ", dict(os.environ))
    cluster._prepare_environment(local=True)
    assert os.environ["RAY_AUTH_MODE"] == "token"
    first = os.environ.pop("RAY_AUTH_TOKEN")
    cluster._prepare_environment(local=True)
    assert len(first) >= 64
    assert os.environ["RAY_AUTH_TOKEN"] != first


TRAVERSALS = ("../x", "/etc/x", "a/b", "a\\..\\b", "..", ".", "", "a\0b", "~/x", "x" * 200, "a\nb")


@pytest.mark.parametrize("name", TRAVERSALS)
def test_names_of_sweeps_and_cells_lead_nowhere_else(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name"):
        SweepConfig.model_validate({"name": name, "tasks": ["helpdesk"]})
    if name not in ("a\\..\\b",):
        assert not KEY_PATTERN.fullmatch(name)
    assert Archive(tmp_path).load([name]).records == {}


@pytest.mark.parametrize("name", TRAVERSALS)
def test_names_of_tasks_lead_nowhere_else(name: str) -> None:
    from dcs.prompting.tasks import Task

    with pytest.raises(ConfigError, match="name"):
        Task(
            name=name,
            title="",
            classes=("a", "b"),
            label_words=("a", "b"),
            instruction="",
            input_prefix="",
            answer_prefix="A:",
            source=lambda split: (),
        )


@pytest.mark.parametrize("model", ["../../evil", "/etc/passwd", "a/../../b", "~root", "a\nb"])
def test_names_of_models_lead_nowhere_else(model: str, tmp_path: Path) -> None:
    from dcs.prompting import get_task
    from workflows.cli._scoring import TablePair

    pair = TablePair.plan(
        tmp_path, get_task("helpdesk"), model=model, identity={}, shots=1, seed=0, limit=None
    )
    assert pair.folder.resolve().parent == (tmp_path / "tables").resolve()


def test_names_of_experiments_lead_nowhere_else(tmp_path: Path) -> None:
    from tracking.store.client import artifact_location

    for name in TRAVERSALS:
        place = artifact_location(f"sqlite:///{tmp_path}/x.db", tmp_path, name)
        assert place is not None
        folder = Path(place.removeprefix("file://")).resolve()
        assert folder.parent == (tmp_path / "mlartifacts").resolve()


def test_a_report_shows_names_as_text() -> None:
    import dataclasses

    from tests.hardening.corpus import record
    from tracking import CellRecord
    from tracking.records import StoredCell
    from tracking.results.report import render_report

    evil = "<script>alert(1)</script>"
    cell: CellRecord = dataclasses.replace(
        record(),
        identity={**record().identity, "task": evil, "model": evil},
        class_accuracies={"class": [evil, "b"], "before": [0.1, 0.9], "after": [0.5, 0.6]},
        scheme=None,
        trace=(),
        trials=(),
    )
    page = render_report(
        [StoredCell(cell, "0" * 32, "1")], title=evil, link=lambda cell: "#", store=evil
    )
    assert evil not in page
    assert "&lt;script&gt;" in page
