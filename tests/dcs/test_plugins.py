"""What installed packages add: found by name, never in the way of what is ours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from dcs.errors import ConfigError
from dcs.plugins import Group, naming_plugin
from dcs.scoring import engine_class, load_scorer
from dcs.selection.methods import get_method
from dcs_workflows.config.sweep import SweepConfig
from dcs_workflows.plan import Cell, cells_of, variants_of
from dcs_workflows.sources.joint import Origin
from tests.dcs.refusals import refuses
from tests.packages import install

_MODULE = """
from dcs import CorrectionScheme
from dcs.selection.methods import Method

def fit(probs, labels, *, classes, seed):
    return CorrectionScheme.identity(classes)

PAIRS = Method("pairs", "Pairs", fitter=fit)
OTHER = Method("other", "Other", fitter=fit)
TEXT = "no method"

class Mute:
    def __init__(self, model):
        pass

class Nameless(Mute):
    name = "pairs"
    def score(self, prefix, queries, label_words, *, progress=None):
        return None
    def close(self):
        pass
"""
PAIRS = {"dcs.methods": {"pairs": "plugged:PAIRS"}}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "plugged.py").write_text(_MODULE)
    monkeypatch.delitem(sys.modules, "plugged", raising=False)  # that of another folder
    (tmp_path / "broken.py").write_text("raise RuntimeError('half\\ninstalled')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_method_of_an_installed_package_is_found(site: Path) -> None:
    install(site, "pairs-method", PAIRS)
    refuses(ConfigError, get_method, "pair", names=["pairs"])
    assert get_method("pairs").fit([[0.75, 0.25]], [0], classes=["a", "b"]).classes == ("a", "b")


def test_what_is_built_in_cannot_be_replaced(site: Path) -> None:
    taken: dict[Group, str] = {"dcs.methods": "dnip", "dcs.engines": "transformers"}
    for number, (group, name) in enumerate(taken.items()):
        install(site, f"taker{number}", {group: {name: "plugged:PAIRS"}})
    finders = (get_method, engine_class)
    for number, (find, name) in enumerate(zip(finders, taken.values(), strict=True)):
        refuses(ConfigError, find, name, names=[f"'taker{number}'"])
    assert get_method("dcs").settings is not None


@pytest.mark.parametrize(
    ("group", "value", "what"),
    [
        ("dcs.methods", "broken:PAIRS", "package 'faulty'"),
        ("dcs.methods", "plugged:ABSENT", "ABSENT"),
        ("dcs.methods", "plugged:TEXT", "is str"),
        ("dcs.methods", "plugged:OTHER", "'other'"),
        ("dcs.engines", "plugged:Mute", "name"),
        ("dcs.engines", "plugged:Nameless", "version"),
    ],
)
def test_what_is_wrong_with_a_plugin_is_named(
    site: Path, group: Group, value: str, what: str
) -> None:
    install(site, "faulty", {group: {"pairs": value}})
    doors: dict[Group, Callable[[], object]] = {
        "dcs.methods": lambda: get_method("pairs"),
        "dcs.engines": lambda: load_scorer("tiny_lm", engine="pairs"),
    }
    refuses(ConfigError, doors[group], names=["'pairs'", what])


def test_an_edited_plugin_is_computed_again(site: Path) -> None:
    install(site, "pairs-method", PAIRS)
    cells = []
    for edit in ("", "# edited\n", ""):
        (site / "plugged.py").write_text(_MODULE + edit)
        config = SweepConfig(name="x", tables=["x"], methods=["pairs", "icl"], seeds=[0])
        source = Origin(model="m", task="t", shots=None, seed=0)
        cells.append(cells_of([source], variants_of(config), {"optimization": "a", "test": "b"}))
    keys, plain = ([pair[k].key for pair in cells] for k in (0, 1))
    assert keys[0] == keys[2] != keys[1] and len({*plain}) == 1
    assert TypeAdapter(Cell).validate_python(cells[0][0].identity) == cells[0][0]


def test_an_error_of_a_plugin_names_it(site: Path) -> None:
    install(site, "pairs-method", PAIRS)
    with (
        pytest.raises(ConfigError, match="'pairs' of package 'pairs-method' failed: ZeroDivision"),
        naming_plugin("dcs.methods", "pairs"),
    ):
        1 / 0  # noqa: B018
    with pytest.raises(ZeroDivisionError), naming_plugin("dcs.methods", "dcs"):
        1 / 0  # noqa: B018
