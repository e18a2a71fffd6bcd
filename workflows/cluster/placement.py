"""Which node a piece of work may run on: cells never fill a node that has GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dcs.errors import DCSError
from dcs.scoring import is_served
from workflows.config.scoring import ScoringSettings

__all__ = ["CELLS", "MAX_CPUS", "MAX_GPUS", "Placement", "actor_pool", "check_gpus", "place"]

#: Custom resources of a cluster that says itself where work goes; see cluster.yaml. Nodes that
#: compute cells have one `dcs_cells` per CPU. The head says what autoscaling may reach.
CELLS = "dcs_cells"
MAX_CPUS = "dcs_max_cpus"
MAX_GPUS = "dcs_max_gpus"

_NODE_ID = "ray.io/node-id"
#: What a task takes of its node's `dcs_cells`. The CPU is what it occupies; this only says where
#: it runs. A cell that waits for trials gives back its CPU but not this, so it must be little:
#: otherwise cells could hold all of it while the trials that they wait for find none.
_CELLS_SHARE = 0.001
#: Machines with no more CPUs than this have an actor for each of them: one that waits costs
#: nothing, while with fewer a CPU would be idle whenever cells take less time than tables.
_SMALL = 4
#: Cells handed to Ray per CPU: enough to keep it busy, little enough to stop soon.
_IN_FLIGHT_PER_CPU = 3


@dataclass(frozen=True, slots=True)
class Placement:
    """How work is put on a cluster as it stands.

    Attributes
    ----------
    cells : dict
        Options of the Ray task that computes a cell, or trials of one.
    actors : dict
        Options of the Ray actor that scores prompts.
    cells_in_flight, actor_slots : int
        At most so many at once.
    cpus, gpus : int
        What there is now.
    cell_cpus, cell_cpus_now : int
        For cells, with the nodes that autoscaling may add and without.
    shared : bool
        Whether scoring takes CPUs that cells could use.
    """

    cells: dict[str, Any]
    actors: dict[str, Any]
    cells_in_flight: int
    actor_slots: int
    cpus: int
    gpus: int
    cell_cpus: int
    cell_cpus_now: int
    shared: bool


def place(nodes: Iterable[Mapping[str, Any]]) -> Placement:
    """Decide where cells and scoring go.

    Parameters
    ----------
    nodes : iterable of mapping
        As :func:`ray.nodes` returns them.

    Returns
    -------
    Placement
        On a cluster that declares `dcs_cells`, cells go where those are. Otherwise they stay
        off nodes with GPUs as long as there is a node without; a single machine does it all.
    """
    alive = [node for node in nodes if node["Alive"]]
    cpus = int(sum(node["Resources"].get("CPU", 0) for node in alive))
    gpus = int(sum(node["Resources"].get("GPU", 0) for node in alive))
    max_cpus = int(sum(node["Resources"].get(MAX_CPUS, 0) for node in alive))
    max_gpus = int(sum(node["Resources"].get(MAX_GPUS, 0) for node in alive))
    declared = max_cpus > 0 or any(CELLS in node["Resources"] for node in alive)

    cells: dict[str, Any] = {"num_cpus": 1}
    now = cpus
    if declared:
        cells["resources"] = {CELLS: _CELLS_SHARE}
        now = int(sum(node["Resources"].get(CELLS, 0) for node in alive))
    else:
        with_gpu = [node["NodeID"] for node in alive if node["Resources"].get("GPU", 0) > 0]
        without = [
            node
            for node in alive
            if node["NodeID"] not in with_gpu and node["Resources"].get("CPU", 0) >= 1
        ]
        if with_gpu and without:
            cells["label_selector"] = {_NODE_ID: f"!in({','.join(sorted(with_gpu))})"}
            now = int(sum(node["Resources"]["CPU"] for node in without))

    cell_cpus = max(now, max_cpus)
    scoring_gpus = max(gpus, max_gpus)
    # Without GPUs half of the CPUs score, so that annealing can start beside them.
    small = not scoring_gpus and cell_cpus <= _SMALL
    cpu_slots = cell_cpus if small else cell_cpus // 2
    return Placement(
        cells=cells,
        actors={"num_cpus": 0.5 if small else 1, "num_gpus": 1 if scoring_gpus else 0}
        # Without GPUs scoring is work for CPUs and goes where the cells go.
        | ({"resources": cells["resources"]} if declared and not scoring_gpus else {}),
        cells_in_flight=_IN_FLIGHT_PER_CPU * max(1, cell_cpus),
        actor_slots=scoring_gpus or max(1, cpu_slots),
        cpus=cpus,
        gpus=gpus,
        cell_cpus=cell_cpus,
        cell_cpus_now=now,
        shared=not (scoring_gpus and (declared or "label_selector" in cells)),
    )


def actor_pool(settings: ScoringSettings, placement: Placement) -> tuple[dict[str, Any], int]:
    """Return the Ray options of a scoring actor, and how many there may be at once.

    An actor of vllm holds as many GPUs as share its model, all of one node. One that asks
    a server needs none and goes where the cells go; there is a single one, so that the bound on
    requests at a time holds.
    """
    actors = placement.actors
    if is_served(settings.engine):
        return {**placement.cells, "num_cpus": 1, "num_gpus": 0}, 1
    share = settings.tensor_parallel or 1
    if settings.engine != "vllm" or (not actors["num_gpus"] and share == 1):
        return dict(actors), placement.actor_slots
    gpus = placement.actor_slots if actors["num_gpus"] else 0
    # Never none: GPUs that have gone away may come again, and Ray waits for them.
    return {**actors, "num_gpus": share}, max(1, gpus // share)


def check_gpus(settings: ScoringSettings, placement: Placement) -> None:
    """Refuse a cluster that cannot hold a model, on which Ray would wait for ever.

    Raises
    ------
    DCSError
        It has, and can grow to, fewer GPUs than share a model.
    """
    gpus = placement.actor_slots if placement.actors["num_gpus"] else 0
    share = settings.tensor_parallel or 1
    if share > max(1, gpus):
        raise DCSError(
            f"scoring.tensor_parallel {share}: the cluster has {gpus} GPUs; add nodes that have "
            f"{share} each, or lower it"
        )
