"""Nodes with GPUs, which here are only said to be there: what runs on them, and their loss."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcs.errors import ScoringError
from dcs_workflows.cluster.scoring import ScoringActor

from .processes import add_node, lose_first, remove_node, wait_for
from .sweeps import CONFIG, SCORING, check_complete, disturbed_sweep, of_scoring, sweep


def test_a_gpu_node_lost_while_it_scores(cluster, undisturbed, output):
    nodes = [add_node(cluster, num_cpus=2, num_gpus=1) for _ in range(2)]
    try:
        disturbed_sweep(lambda: lose_first(cluster, nodes, "ScoringActor.score"), output, SCORING)
        assert len(nodes) == 1
    finally:
        for node in nodes:
            remove_node(cluster, node)
    check_complete(output, of_scoring(undisturbed[1]))


@pytest.fixture(scope="module")
def gpu_node(cluster) -> Iterator[object]:
    """The only node with a GPU, of all tests but the one above."""
    node = add_node(cluster, num_cpus=2, num_gpus=1)
    yield node
    remove_node(cluster, node)


def _node_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _noting_actor(notes: Path) -> type[ScoringActor]:
    class NotingActor(ScoringActor):
        """Says where it scores; the second table waits for a cell of the first."""

        def score(self, prompts, *more):
            table = hashlib.sha256(str(prompts.prefix).encode()).hexdigest()
            (notes / f"table-{table}-{_node_id()}").touch()
            if len(list(notes.glob("table-*"))) > 1:
                wait_for(lambda: list(notes.glob("cell-*")), "a cell beside the scoring")
            return super().score(prompts, *more)

    return NotingActor


def _noting_cell(notes: Path):
    def run(cells, *more):
        """Say where cells are computed; those of the last table wait until the GPU is free."""
        import ray

        from dcs_workflows.cluster.driver import run_cells

        done = run_cells(cells, *more)
        for cell in cells:
            (notes / f"cell-{cell.key}-{_node_id()}").touch()
            if cell.seed == CONFIG.seeds[-1]:
                wait_for(
                    lambda: ray.available_resources().get("GPU", 0) == 1, "the GPU to be free"
                )
                (notes / f"free-{cell.key}").touch()
        return done

    return run


def test_stages_overlap_and_each_stays_on_its_nodes(
    cluster, undisturbed, gpu_node, tmp_path, output, monkeypatch
):
    import dcs_workflows.cluster.driver
    import dcs_workflows.cluster.pool

    notes = tmp_path / "notes"
    notes.mkdir()
    monkeypatch.setattr(dcs_workflows.cluster.pool, "ScoringActor", _noting_actor(notes))
    monkeypatch.setattr(dcs_workflows.cluster.driver, "run_cells", _noting_cell(notes))
    sweep(output)
    check_complete(output, undisturbed[1])

    def nodes(kind: str) -> list[str]:
        return [path.name.rpartition("-")[2] for path in notes.glob(f"{kind}-*")]

    # One GPU: one table after the other, and the cells of the first beside the second.
    assert nodes("table") == [gpu_node.node_id] * 2
    assert len(nodes("cell")) == 6
    assert gpu_node.node_id not in nodes("cell")
    # The actor had left before the last cells ended: an autoscaler could take its node away.
    assert len(nodes("free")) == 3


@pytest.mark.parametrize("failures", [1, 2])
def test_a_load_that_fails_is_tried_once_more(
    cluster, gpu_node, tmp_path, output, monkeypatch, failures
):
    import dcs_workflows.cluster.pool

    class LateActor(ScoringActor):
        def load(self):
            (tmp_path / f"load-{os.getpid()}").touch()
            if len(list(tmp_path.glob("load-*"))) <= failures:
                raise ScoringError("the GPU is full")
            return super().load()

    monkeypatch.setattr(dcs_workflows.cluster.pool, "ScoringActor", LateActor)
    if failures == 1:
        assert all(record.finished for record in sweep(output, SCORING)[0])
    else:
        with pytest.raises(ScoringError, match="the GPU is full"):
            sweep(output, SCORING)
    assert len(list(tmp_path.glob("load-*"))) == 2
