"""Where cells and scoring go on a cluster, and which clusters are refused."""

from __future__ import annotations

import pytest

from dcs.errors import DCSError
from dcs_workflows.cluster.connect import (
    CELLS,
    MAX_CPUS,
    MAX_GPUS,
    MAX_GPUS_PER_NODE,
    Placement,
    place,
)
from dcs_workflows.config.scoring import ScoringSettings


def cluster(*nodes: dict[str, float], gone: int | None = None) -> Placement:
    """Place work on nodes, named 0, 1, ..., of which one may have died."""
    return place(
        {"NodeID": str(name), "Alive": name != gone, "Resources": resources}
        for name, resources in enumerate(nodes)
    )


GPUS = cluster({"CPU": 4}, {"CPU": 8, "GPU": 4}, {"CPU": 8, "GPU": 4})
CPUS = cluster({"CPU": 8})
COMING = cluster({MAX_CPUS: 64, MAX_GPUS: 8, MAX_GPUS_PER_NODE: 4})


@pytest.mark.parametrize(
    ("placement", "cpus", "gpus", "slots", "cell_cpus"),
    [
        (cluster({"CPU": 8, "GPU": 1}), 1, 1, 1, 8),
        (cluster({"CPU": 8}, {"CPU": 8}, gone=1), 1, 0, 4, 8),
        # With few CPUs an actor for each, and room for a cell beside them.
        (cluster({"CPU": 2}), 0.5, 0, 2, 2),
        (cluster({"CPU": 1}), 0.5, 0, 1, 1),
    ],
)
def test_one_machine_does_everything(placement, cpus, gpus, slots, cell_cpus):
    assert placement.cells == {"num_cpus": 1}
    assert placement.actors == {"num_cpus": cpus, "num_gpus": gpus}
    assert (placement.actor_slots, placement.cell_cpus) == (slots, cell_cpus)


def test_cells_stay_off_gpu_nodes_where_there_are_others():
    assert GPUS.cells["label_selector"] == {"ray.io/node-id": "!in(1,2)"}
    assert (GPUS.cell_cpus, GPUS.actor_slots) == (4, 8)
    # A head that computes nothing is no place for cells.
    assert "label_selector" not in cluster({"CPU": 0}, {"CPU": 8, "GPU": 2}).cells


def test_a_declared_cluster_asks_for_nodes_that_are_not_there_yet():
    # Little of the resource, so that waiting cells never hold what their trials need.
    assert COMING.cells == {"num_cpus": 1, "resources": {CELLS: 0.001}}
    assert COMING.actors == {"num_cpus": 1, "num_gpus": 1}
    assert (COMING.actor_slots, COMING.cell_cpus) == (8, 64)
    no_gpus = cluster({MAX_CPUS: 64})
    assert no_gpus.actors == {"num_cpus": 1, "num_gpus": 0, "resources": {CELLS: 0.001}}


@pytest.mark.parametrize(
    ("engine", "share", "placement", "gpus", "most"),
    [
        ("transformers", None, GPUS, 1, 8),
        ("transformers", None, CPUS, 0, 4),
        ("vllm", 4, GPUS, 4, 2),
        ("vllm", 4, COMING, 4, 2),
        # As many as fit on nodes of one and of four GPUs, and no more.
        ("vllm", 4, cluster({"CPU": 4}, *[{"CPU": 8, "GPU": n} for n in (1, 1, 1, 1, 4)]), 4, 1),
        # GPUs that have gone away for a while: Ray waits for them, and the sweep does not end.
        ("vllm", 4, CPUS, 4, 1),
        ("vllm", None, GPUS, 1, 8),
        ("vllm", None, CPUS, 0, 4),
    ],
)
def test_an_actor_takes_as_many_gpus_as_share_its_model(engine, share, placement, gpus, most):
    settings = ScoringSettings(engine=engine, tensor_parallel=share)
    assert placement.scoring(settings) == ({"num_cpus": 1, "num_gpus": gpus}, most)


def test_a_server_is_asked_by_one_actor_without_a_gpu():
    served = ScoringSettings(engine="openai", base_url="http://127.0.0.1:1/v1")
    options, most = GPUS.scoring(served)
    assert (options["num_gpus"], most) == (0, 1)
    assert "label_selector" in options  # not on a node with GPUs
    assert CELLS in COMING.scoring(served)[0]["resources"]


@pytest.mark.parametrize(
    ("placement", "most"),
    # Not as many as there are, but as many as there are on one node; or all, where a cluster was
    # declared before nodes could be told apart.
    [(GPUS, 4), (COMING, 4), (cluster({MAX_CPUS: 64, MAX_GPUS: 8}), 8), (CPUS, 1)],
)
def test_a_model_that_no_node_can_hold_is_refused(placement, most):
    placement.check(None)
    placement.check(ScoringSettings(engine="vllm", tensor_parallel=most))
    with pytest.raises(DCSError, match=f"tensor_parallel {most + 1}"):
        placement.check(ScoringSettings(engine="vllm", tensor_parallel=most + 1))


@pytest.mark.parametrize("nodes", [[], [{"CPU": 0}], [{"CPU": 0, "GPU": 1}]])
def test_a_cluster_without_cpus_says_so(nodes):
    with pytest.raises(DCSError, match="no CPUs"):
        cluster(*nodes).check(None)
