"""Which node a piece of work may run on: cells never fill a node that has GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dcs.errors import DCSError
from dcs.scoring import is_served
from workflows.config.scoring import ScoringSettings

#: Custom resources of a cluster that says itself where work goes; see cluster.yaml. Nodes that
#: compute cells have one `dcs_cells` per CPU. The head says what autoscaling may reach.
CELLS = "dcs_cells"
MAX_CPUS = "dcs_max_cpus"
MAX_GPUS = "dcs_max_gpus"
MAX_GPUS_PER_NODE = "dcs_max_gpus_per_node"

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
        Options of the Ray actor that scores prompts with an engine of one GPU or none.
    actor_slots : int
        Such actors at once.
    gpus, gpus_per_node : int
        GPUs that score, with those that autoscaling may add; and the most of one node.
    cell_cpus, cell_cpus_now : int
        For cells, with the nodes that autoscaling may add and without.
    shared : bool
        Whether scoring takes CPUs that cells could use.
    """

    cells: dict[str, Any]
    actors: dict[str, Any]
    actor_slots: int
    gpus: int
    gpus_per_node: int
    cell_cpus: int
    cell_cpus_now: int
    shared: bool

    @property
    def cells_in_flight(self) -> int:
        """Cells handed to Ray at once."""
        return _IN_FLIGHT_PER_CPU * max(1, self.cell_cpus)

    def scoring(self, settings: ScoringSettings) -> tuple[dict[str, Any], int]:
        """Return the Ray options of a scoring actor, and how many there may be at once.

        An actor of vllm holds as many GPUs as share its model, all of one node. One that asks
        a server needs none and goes where the cells go; there is a single one, so that the bound
        on requests at a time holds.
        """
        if is_served(settings.engine):
            return {**self.cells, "num_cpus": 1, "num_gpus": 0}, 1
        share = settings.tensor_parallel or 1
        if settings.engine != "vllm" or (not self.gpus and share == 1):
            return dict(self.actors), self.actor_slots
        # Never none: GPUs that have gone away may come again, and Ray waits for them.
        return {**self.actors, "num_gpus": share}, max(1, self.gpus // share)

    def check(self, settings: ScoringSettings | None) -> None:
        """Refuse a cluster on which Ray would wait for ever.

        Parameters
        ----------
        settings : ScoringSettings or None
            How prompts are scored; None if there are none.

        Raises
        ------
        DCSError
            There are no CPUs for cells, or no node has, or can have, as many GPUs as share a
            model.
        """
        if not self.cell_cpus:
            raise DCSError(
                "the cluster has no CPUs for cells; add nodes that have some, or start the head "
                f"with the resource {MAX_CPUS}: what autoscaling may reach"
            )
        share = 1 if settings is None else settings.tensor_parallel or 1
        if share > max(1, self.gpus_per_node):
            raise DCSError(
                f"scoring.tensor_parallel {share}: no node of the cluster has more than "
                f"{self.gpus_per_node} GPUs; add nodes that have {share} each, or lower it; with "
                f"autoscaling the resource {MAX_GPUS_PER_NODE} of the head says what nodes have"
            )


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

    def amounts(resource: str, of: Iterable[Mapping[str, Any]] = alive) -> list[int]:
        return [int(node["Resources"].get(resource, 0)) for node in of]

    max_cpus, max_gpus = sum(amounts(MAX_CPUS)), sum(amounts(MAX_GPUS))
    declared = max_cpus > 0 or any(CELLS in node["Resources"] for node in alive)
    with_gpu = [node for node in alive if node["Resources"].get("GPU", 0) > 0]
    without = [node for node in alive if node not in with_gpu]

    cells: dict[str, Any] = {"num_cpus": 1}
    now = sum(amounts("CPU"))
    if declared:
        cells["resources"] = {CELLS: _CELLS_SHARE}
        now = sum(amounts(CELLS))
    elif with_gpu and any(amounts("CPU", without)):
        names = sorted(node["NodeID"] for node in with_gpu)
        cells["label_selector"] = {_NODE_ID: f"!in({','.join(names)})"}
        now = sum(amounts("CPU", without))

    cell_cpus = max(now, max_cpus)
    gpus = max(sum(amounts("GPU")), max_gpus)
    # A cluster that does not say what its coming nodes have is believed to have all on one.
    coming = max(amounts(MAX_GPUS_PER_NODE), default=0) or max_gpus
    # Without GPUs half of the CPUs score, so that annealing can start beside them.
    small = not gpus and cell_cpus <= _SMALL
    cpu_slots = cell_cpus if small else cell_cpus // 2
    return Placement(
        cells=cells,
        actors={"num_cpus": 0.5 if small else 1, "num_gpus": 1 if gpus else 0}
        # Without GPUs scoring is work for CPUs and goes where the cells go.
        | ({"resources": cells["resources"]} if declared and not gpus else {}),
        actor_slots=gpus or max(1, cpu_slots),
        gpus=gpus,
        gpus_per_node=max([coming, *amounts("GPU")]),
        cell_cpus=cell_cpus,
        cell_cpus_now=now,
        shared=not (gpus and (declared or "label_selector" in cells)),
    )
