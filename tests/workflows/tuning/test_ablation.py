"""What an ablation leaves out is not searched, and what it fixes is what was searched."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from dcs.evaluation.metrics import Objective
from dcs.schemes.corrections import CorrectionSet
from dcs.schemes.scheme import CorrectionScheme
from dcs.search.optimum import exact_search
from dcs.selection.methods import get_method
from tests.workflows.conftest import biased_table, toy_cell
from tracking import CellRecord
from workflows.cluster.driver import run_cell, run_cells
from workflows.config.sweep import TunerSettings
from workflows.config.tuner import SCHEDULE_PARAMETERS
from workflows.parallel import in_process
from workflows.plan import Cell
from workflows.reproduce import compare_results
from workflows.study.cell import compute_cell, optimization_rows
from workflows.study.study import study_rows, study_scheme
from workflows.study.trials import Fitted, Tuning

TABLE, TEST = biased_table(), biased_table(600, seed=1)
STUDY = {"protocol": "study", "trials": 4, "development": 0.3, "budget": 3000}


def _cell(method: str = "dcs", *, size: int | None = None, **tuner: Any) -> Cell:
    settings = TunerSettings(**{**STUDY, **tuner}) if tuner or method == "dcs" else None
    named = {"method": method, "tuner": settings, "optimization_size": size}
    return toy_cell(TABLE, test_digest=TEST.digest, **named)


def _computed(cell: Cell) -> CellRecord:
    return compute_cell(cell, TABLE, TEST, sweep="ablation")


def _studied(method: str = "dcs", **tuner: Any) -> Fitted:
    settings = TunerSettings(**{**STUDY, **tuner})
    return study_scheme(Tuning(table=TABLE, method=get_method(method), settings=settings, seed=0))


def _chosen(record: CellRecord) -> set[Any]:
    return set(CorrectionScheme.from_dict(record.scheme).corrections)


@pytest.mark.parametrize(
    ("objective", "fixed"),
    [
        ("full", {}),
        ("err", {"beta": 0.0, "tau": 0.0}),
        ("err+pmi", {"beta": 0.0}),
        ("err+cobias", {"tau": 0.0}),
        ({"beta": 0.7, "tau": 0.3}, {"beta": 0.7, "tau": 0.3}),
    ],
)
def test_a_study_tunes_the_weights_of_the_terms_it_has(objective, fixed):
    fitted = _studied(objective=objective)
    for name, most in (("beta", 2.0), ("tau", 0.5)):
        values = {trial.params[name] for trial in fitted.trials}
        assert values == {fixed[name]} if name in fixed else len(values) > 1
        assert all(0.0 <= value <= most for value in values)


#: A method, what is fixed of it, and the corrections that are left; without any a class stays.
FIXED = [
    ("dnip", {"weight_scale": k}, {*CorrectionSet.dnip(weight_scale=k), *CorrectionSet.furud()})
    for k in (2, 90)
] + [("furud", {"memberships": k}, {*CorrectionSet.furud().limited(k)}) for k in (2, 5)]


@pytest.mark.parametrize("protocol", ["study", "cross-validation"])
@pytest.mark.parametrize(("method", "fixed", "allowed"), FIXED)
def test_what_is_fixed_is_all_that_is_chosen_from(protocol, method, fixed, allowed):
    trials = 4 if protocol == "study" else 1
    record = _computed(_cell(method, protocol=protocol, trials=trials, **fixed))
    assert _chosen(record) <= allowed
    for name, value in fixed.items():
        assert {trial.params.get(name, value) for trial in record.trials} == {value}


def test_weights_alone_are_what_no_memberships_leave():
    # The same search over the same corrections.
    none, dnip = (_studied(name, memberships=0) for name in ("dcs", "dnip"))
    assert none.scheme.corrections == dnip.scheme.corrections
    assert [trial.metrics for trial in none.trials] == [trial.metrics for trial in dnip.trials]


@pytest.mark.parametrize(
    "objective",
    [{"objective": "err"}, {"objective": {"beta": 1.0, "tau": 0.7}, "pmi": "normalised"}],
)
def test_an_ablated_search_reaches_the_optimum_of_its_own_corrections(objective):
    settings = TunerSettings(**STUDY, memberships=2, weight_scale=3, **objective)
    record = _computed(dataclasses.replace(_cell(), tuner=settings))
    rows, _ = study_rows(TABLE, settings=settings, seed=record.identity["seed"])
    weights = {name: record.params[name] for name in ("beta", "tau", "error_weight")}
    optimum = exact_search(
        rows.probs,
        rows.labels,
        corrections=CorrectionSet.dcs(weight_scale=3).limited(2),
        objective=Objective(**weights, pmi=settings.pmi),
    )
    assert record.metrics["opt/z"] == pytest.approx(optimum.z, abs=1e-12)


def test_the_front_of_an_ablated_objective_has_its_weights():
    fixed = {"beta": 0.7, "tau": 0.3}
    for objective, betas in (("err", {0.0}), (fixed, {0.7}), ("err+pmi", {0.0})):
        cell = _cell("furud", protocol="cross-validation", trials=0, objective=objective)
        found = [trial.params for trial in _computed(cell).trials if "beta" in trial.params]
        assert {params["beta"] for params in found} == betas
    assert {params["tau"] for params in found} <= {0.05, 0.2, 0.5}


@pytest.mark.parametrize(
    ("rule", "best"),
    [
        ({}, lambda figures: max(a - c for a, c in figures)),
        ({"prefer": "accuracy"}, lambda figures: max(a for a, _ in figures)),
        ({"max_accuracy_loss": 100.0}, lambda figures: min(c for _, c in figures)),
    ],
)
def test_the_rule_of_a_study_picks_among_its_trials(rule, best):
    fitted = _studied(trials=8, **rule)
    figures = [(t.metrics["dev/accuracy"], t.metrics["dev/cobias"]) for t in fitted.trials]
    assert fitted.best is not None
    own = fitted.best.metrics["dev/accuracy"], fitted.best.metrics["dev/cobias"]
    assert best([own]) == best(figures)
    # The scheme is that of the chosen trial, also where it was found again for that.
    assert fitted.annealing is not None
    assert fitted.annealing.z == fitted.best.metrics["opt/z"]


@pytest.mark.parametrize("search", ["heat-bath", "metropolis", "published", "published-long"])
def test_a_study_tunes_what_its_search_heeds(search):
    fitted = _studied(search=search, pseudo_count=None, bounds={"lambda2": [1.0, 3.0]})
    drawn = {"weight_scale", "beta", "tau", "error_weight", "pseudo_count"}
    if search == "metropolis":
        drawn |= {*SCHEDULE_PARAMETERS}
    assert {*fitted.trials[0].params} == drawn
    assert all(1.0 <= trial.params.get("lambda2", 1.0) <= 3.0 for trial in fitted.trials)


@pytest.mark.parametrize("name", SCHEDULE_PARAMETERS)
def test_a_chain_heeds_all_that_is_tuned_of_it(name):
    chain = {"search": "metropolis", "trials": 1, "budget": None}
    ends = [[value] for value in getattr(TunerSettings().bounds, name)]
    first, second = (_studied(**chain, bounds={name: end}).annealing.trace for end in ends)
    assert first != second


@pytest.mark.parametrize("search", ["metropolis", "heat-bath"])
def test_the_front_of_score_and_cost_is_what_no_trial_beats_in_both(search):
    fitted = _studied(search=search, cost="moves", trials=8)
    points = [(-trial.value, trial.metrics["opt/evaluations"]) for trial in fitted.trials]
    for trial, own in zip(fitted.trials, points, strict=True):
        beaten = any(other != own and np.all(np.less_equal(other, own)) for other in points)
        assert trial.metrics["pareto"] == (not beaten)
    assert "pareto" not in _studied().trials[0].metrics


def test_a_pruned_trial_is_shorter_and_is_not_chosen():
    settings = {"trials": 12, "budget": 40_000}
    whole = _studied(**settings)
    fitted = _studied(pruner="successive-halving", **settings)
    pruned = [trial for trial in fitted.trials if trial.state == "PRUNED"]
    assert pruned and fitted.best not in pruned
    for trial in pruned:
        assert trial.metrics["opt/evaluations"] < 0.5 * settings["budget"]
    for trial, other in zip(fitted.trials, whole.trials, strict=True):
        if trial.state == "COMPLETE" and trial.params == other.params:
            assert trial.metrics == other.metrics


def test_what_is_not_used_does_not_name_a_cell():
    assert not {"cost", "pruner"} & set(TunerSettings().model_dump())
    named = TunerSettings(protocol="study", cost="moves").model_dump()
    assert TunerSettings(**named).cost == "moves"


def test_the_grid_of_the_published_baseline_is_recorded():
    record = _computed(_cell("published"))
    assert [trial.number for trial in record.trials] == [*range(len(record.trials))]
    best = record.trials[record.params["best_trial"]]
    assert best.value == max(trial.value for trial in record.trials)
    assert record.params.items() >= best.params.items()
    assert record.trace and record.metrics["opt/seconds"] > 0
    # Together with the one that chooses otherwise, both are as they are alone.
    pair = (_cell("published"), _cell("published-balanced"))
    tables = {"optimization": TABLE, "test": TEST}
    records = [r for r, _ in run_cells(None, run_cell, pair, tables, "x", in_process, None, False)]
    assert records[0].trials[0].seconds == records[1].trials[0].seconds
    for cell, together in zip(pair, records, strict=True):
        alone = record if cell == pair[0] else _computed(cell)
        assert all(row.same for row in compare_results(alone, together))


@pytest.mark.parametrize("method", ["batch", "logistic-balanced", "dcs"])
def test_a_cell_on_fewer_rows_uses_no_others(method):
    cell = _cell(method, size=30)
    record = _computed(cell)
    assert record.provenance["tables"]["optimization"]["rows"] == 30
    assert record.identity["optimization_size"] == 30
    used = optimization_rows(TABLE, cell)
    assert np.bincount(used.labels).tolist() == [10, 10, 10]
    # Rows that were left out may hold anything.
    probs = TABLE.probs.copy()
    spoiled = [i for i, name in enumerate(TABLE.ids) if name not in set(used.ids)]
    probs[spoiled] = np.roll(probs[spoiled], 1, axis=1)
    other = dataclasses.replace(TABLE, probs=probs)
    again = compute_cell(cell, other, TEST, sweep="ablation")
    assert again.scheme == record.scheme
