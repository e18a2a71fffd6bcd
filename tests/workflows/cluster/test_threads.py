"""Where results are computed, linear algebra has one thread, whatever the machine offers."""

from __future__ import annotations

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from tests.workflows.conftest import biased_table
from workflows.cluster.scoring import ScoringActor
from workflows.config.sweep import TunerSettings
from workflows.parallel import one_thread
from workflows.plan import Cell
from workflows.tables import TableRequest
from workflows.tuning.cell import compute_cell
from workflows.tuning.trials import StudyRun


def threads() -> set[int]:
    """Return the numbers of threads of all libraries that are loaded."""
    import torch

    return {library["num_threads"] for library in threadpool_info()} | {torch.get_num_threads()}


@pytest.fixture(autouse=True)
def several():
    """Offer three threads, as another machine would."""
    import torch

    before = torch.get_num_threads()
    with threadpool_limits(3):
        torch.set_num_threads(3)
        yield
    torch.set_num_threads(before)


def test_it_ends_with_its_block_however_that_ends():
    assert threads() == {3}
    with one_thread():
        assert threads() == {1}
    assert threads() == {3}
    with pytest.raises(ValueError, match="stop"), one_thread():
        raise ValueError("stop")
    assert threads() == {3}


def test_cells_have_one():
    table = biased_table(60)
    tuner = TunerSettings(protocol="study", trials=1, budget=1000)
    cell = Cell(
        model="x",
        task="x",
        shots=None,
        seed=0,
        method="dcs",
        tuner=tuner,
        optimization_digest=table.digest,
        test_digest=table.digest,
    )
    seen = []
    compute_cell(cell, table, table, sweep="x", progress=lambda share: seen.append(threads()))
    assert seen == [{1}]


def test_trials_have_one_wherever_they_are_judged():
    seen = []

    def judge(trial):
        seen.append(threads())
        return {"value": 0.0}, None

    def suggest(trial):
        return trial.suggest_float("x", 0, 1)

    study = StudyRun(
        suggest=suggest, judge=judge, aims={"value": "maximize"}, trials=2, window=1, seed=0
    )
    assert len(list(study.results())) == 2
    assert seen == [{1}, {1}]


def test_scoring_has_one(tmp_path):
    seen = []
    request = TableRequest(model="tiny_lm", task="helpdesk", shots=1, seed=0, limit=20)
    actor = ScoringActor("tiny_lm", tmp_path / "probabilities", 0.0)
    actor.generate(request, "k", progress=lambda count: seen.append(threads()))
    assert {1} in seen
    assert {3} not in seen
