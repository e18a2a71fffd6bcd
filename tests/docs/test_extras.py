"""The examples of docs/extending.md do what they say, through the doors that all code uses."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dcs.data.table import ProbabilityTable
from dcs.errors import InvalidInputError, ScoringError
from dcs.evaluation.metrics import Objective
from dcs.selection.methods import get_method
from dcs.testing import check_method, check_scorer
from dcs_workflows.study.study import Setup, study_scheme
from tests.dcs.biased import biased_table
from tests.dcs.solutions import SETS, least
from tests.packages import install_editable
from tests.workflows.conftest import toy_cell

from .runner import ROOT

EXTRAS = ROOT / "docs" / "examples" / "dcs-extras"


@pytest.fixture(autouse=True)
def extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the example package on the path, as pip would install it."""
    install_editable(EXTRAS, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXTRAS))


def _table(n_classes: int, rows: int = 300) -> ProbabilityTable:
    return ProbabilityTable.from_arrays(*biased_table(rows, n_classes))


def test_quotas_predicts_classes_as_often_as_they_are_labelled() -> None:
    table = _table(4, rows=2000)
    scheme = get_method("quotas").fit(table.probs, table.labels, classes=table.classes)
    before, after = (
        np.bincount(chosen, minlength=4) - np.bincount(table.labels, minlength=4)
        for chosen in (table.probs.argmax(axis=1), scheme.predict(table.probs))
    )
    assert np.abs(before).max() > 400
    assert np.abs(after).max() < 40
    check_method(get_method("quotas"))


def test_a_family_is_searched_by_its_own_method() -> None:
    table = _table(3)
    method = get_method("steep")
    fitted = study_scheme(toy_cell(method="steep"), table, setup=Setup())
    assert {*fitted.scheme.corrections} <= {*importlib.import_module("dcs_extras.family").steep()}
    with pytest.raises(InvalidInputError, match="fitter"):
        replace(method, fitter=None).fit(table.probs, table.labels)


def test_tabu_search_reaches_the_proven_optimum() -> None:
    (probs, labels), objective = biased_table(300, 3), Objective()
    found = importlib.import_module("dcs_extras.solver").tabu_search(
        probs, labels, corrections=SETS["dnip"], objective=objective, rounds=30
    )
    optimum = least(probs, labels, SETS["dnip"], objective)
    assert found.z == pytest.approx(optimum, abs=1e-12)
    assert found.z < found.initial_z


def test_the_scorer_keeps_the_contract_of_scorers(tmp_path: Path) -> None:
    from dcs.scoring import load_scorer, resolve_model

    model = tmp_path / "words"
    model.mkdir()
    words = {"good": "good fine great", "bad": "bad poor broken"}
    (model / "config.json").write_text(json.dumps({"words": words}))
    scorer = load_scorer(model, engine="unigram", smoothing=0.5)
    queries = ["Review: great, fine\nRating:", "Review: broken\nRating:", "Review: it\nRating:"]
    probs = scorer.score("", queries, ["good", "bad"])
    check_scorer(scorer, queries, ["good", "bad"])
    assert probs.argmax(axis=1)[:2].tolist() == [0, 1]
    with pytest.raises(ScoringError, match="does not know okay"):
        scorer.score("", queries, ["good", "okay"])
    revision = scorer.revision
    (model / "config.json").write_text("[]")
    assert resolve_model(model).revision != revision
    with pytest.raises(ScoringError, match="no words in config.json"):
        load_scorer(model, engine="unigram")
