"""What installed packages add: found by name, never in the way of what is ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dcs.data.importers import IMPORTERS, find_importer, import_file
from dcs.errors import ConfigError
from dcs.plugins import Group, plugin_names
from dcs.scoring import engine_class, load_scorer
from dcs.selection.methods import get_method
from tests.dcs.refusals import refuses

_MODULE = """
from pathlib import Path
from dcs.data.importers import Importer
from dcs.data.table import ProbabilityTable
from dcs.selection.methods import Method

PAIRS = Importer("pairs", "lines of label and probability", "plugged", frozenset())
NO_READER = Importer("pairs", "its module reads nothing", "plugged:absent")
NO_MODULE = Importer("pairs", "its module is not there", "absent_module")
OTHER = Importer("other", "calls itself otherwise", "plugged")
TEXT = "no importer"
NO_FITTER = Method("pairs", "Pairs", "It is not said how it is fitted.")

class Mute:
    def __init__(self, model):
        pass

class Nameless(Mute):
    name = "pairs"
    def score(self, prefix, queries, label_words, *, progress=None):
        return None
    def close(self):
        pass

def read(path, options):
    rows = [line.split() for line in Path(path).read_text().splitlines()]
    probs = [[1 - float(p), float(p)] for _, p in rows]
    return {"all": ProbabilityTable.from_arrays(probs, [int(label) for label, _ in rows])}
"""


def _install(folder: Path, package: str, group: str, **points: str) -> None:
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (about / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "plugged.py").write_text(_MODULE)
    (tmp_path / "broken.py").write_text("raise RuntimeError('half\\ninstalled')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_an_importer_of_an_installed_package_reads_files(site: Path) -> None:
    _install(site, "pairs-format", "dcs.importers", pairs="plugged:PAIRS")
    assert plugin_names("dcs.importers") == ("pairs",)
    (site / "rows.txt").write_text("0 0.25\n1 0.75\n")
    table = import_file("pairs", site / "rows.txt", task="pairs")
    assert table.probs.tolist() == [[0.75, 0.25], [0.25, 0.75]]
    assert table.provenance.task == "pairs"


def test_what_is_built_in_cannot_be_replaced(site: Path) -> None:
    taken: dict[Group, str] = {"dcs.importers": "lm-eval", "dcs.methods": "dnip"}
    taken["dcs.engines"] = "transformers"
    for number, (group, name) in enumerate(taken.items()):
        _install(site, f"taker{number}", group, **{name: "plugged:PAIRS"})
    finders = (find_importer, get_method, engine_class)
    for number, (find, name) in enumerate(zip(finders, taken.values(), strict=True)):
        refuses(ConfigError, find, name, names=[f"'taker{number}'"])
    assert find_importer("table") in IMPORTERS and get_method("dcs").searches


@pytest.mark.parametrize(
    ("group", "value", "what"),
    [
        ("dcs.importers", "broken:PAIRS", "package 'faulty'"),
        ("dcs.importers", "plugged:ABSENT", "ABSENT"),
        ("dcs.importers", "plugged:TEXT", "is str"),
        ("dcs.importers", "plugged:OTHER", "'other'"),
        ("dcs.importers", "plugged:NO_READER", "absent"),
        ("dcs.importers", "plugged:NO_MODULE", "absent_module"),
        ("dcs.methods", "plugged:NO_FITTER", "fitter"),
        ("dcs.engines", "plugged:Mute", "close"),
        ("dcs.engines", "plugged:Nameless", "version"),
    ],
)
def test_what_is_wrong_with_a_plugin_is_named(
    site: Path, group: Group, value: str, what: str
) -> None:
    _install(site, "faulty", group, pairs=value)
    doors: dict[Group, Callable[[], object]] = {
        "dcs.importers": lambda: find_importer("pairs"),
        "dcs.methods": lambda: get_method("pairs"),
        "dcs.engines": lambda: load_scorer("tiny_lm", engine="pairs"),
    }
    refuses(ConfigError, doors[group], names=["'pairs'", what])


def test_two_packages_of_one_name_are_refused(site: Path) -> None:
    _install(site, "first", "dcs.importers", pairs="plugged:PAIRS")
    _install(site, "second", "dcs.importers", pairs="plugged:PAIRS")
    assert plugin_names("dcs.importers") == ("pairs",)
    refuses(ConfigError, find_importer, "pairs", names=["package 'first' and package 'second'"])


def test_a_name_is_looked_for_in_its_own_group(site: Path) -> None:
    _install(site, "elsewhere", "dcs.importers", pairs="plugged:PAIRS")
    for find in (get_method, engine_class):
        refuses(ConfigError, find, "pairs")
