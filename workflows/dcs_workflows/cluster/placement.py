"""Scheduling of cells and scoring on nodes: cells never occupy a node that has GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dcs.errors import DCSError
from dcs.scoring import engine_trait
from dcs_workflows.config.scoring import ScoringSettings

#: Custom resources of a cluster that declares where work runs; see cluster.yaml. Nodes that
#: compute cells have one `dcs_cells` per CPU. The head declares the limits of autoscaling.
CELLS = "dcs_cells"
MAX_CPUS = "dcs_max_cpus"
MAX_GPUS = "dcs_max_gpus"
MAX_GPUS_PER_NODE = "dcs_max_gpus_per_node"

_NODE_ID = "ray.io/node-id"
#: Amount of `dcs_cells` that a task requests. It only selects the node; the CPU limits the number
#: of tasks. A cell that waits for trials releases its CPU but not this resource, so the amount
#: must be small: otherwise waiting cells could hold all of it and block their own trials.
_CELLS_SHARE = 0.001
#: Clusters with at most this many CPUs run one actor per CPU: an idle actor costs nothing, while
#: with fewer actors a CPU would be idle whenever cells take less time than tables.
_SMALL_CPUS = 4
#: Cells submitted to Ray per CPU: enough to keep it busy, few enough to stop quickly.
_IN_FLIGHT_PER_CPU = 3


@dataclass(frozen=True, slots=True)
class Placement:
    """Where work is scheduled on a cluster in its current state.

    Attributes
    ----------
    cells : dict
        Ray options of a task that computes a cell or its trials.
    actors : dict
        Ray options of an actor that scores prompts with at most one GPU.
    actor_slots : int
        Maximum number of such actors.
    node_gpus : tuple of int
        Numbers of GPUs of the nodes with GPUs, including nodes that autoscaling may add.
    cell_cpus : int
        Number of CPUs for cells, including those of nodes that autoscaling may add.
    shared : bool
        Whether scoring takes CPUs that cells could use.
    """

    cells: dict[str, Any]
    actors: dict[str, Any]
    actor_slots: int
    node_gpus: tuple[int, ...]
    cell_cpus: int
    shared: bool

    @property
    def cells_in_flight(self) -> int:
        """Maximum number of cells submitted to Ray at the same time."""
        return _IN_FLIGHT_PER_CPU * max(1, self.cell_cpus)

    def scoring(self, settings: ScoringSettings) -> tuple[dict[str, Any], int]:
        """Return the Ray options of a scoring actor and the maximum number of actors.

        An actor holds as many GPUs of one node as its engine reserves. An actor that queries a
        server needs no GPU and runs where cells run; there is only one, so that the limit on
        concurrent requests holds.
        """
        if engine_trait(settings.engine, "served"):
            return {**self.cells, "num_cpus": 1, "num_gpus": 0}, 1
        share = settings.gpus
        if share is None or (not self.node_gpus and share == 1):
            return dict(self.actors), self.actor_slots
        # At least one: Ray waits for GPUs that have left the cluster to return.
        fitting = sum(gpus // share for gpus in self.node_gpus)
        return {**self.actors, "num_gpus": share}, max(1, fitting)

    def check(self, settings: ScoringSettings | None) -> None:
        """Refuse a cluster on which Ray would wait forever.

        Parameters
        ----------
        settings : ScoringSettings or None
            How prompts are scored; None if no prompts are scored.

        Raises
        ------
        DCSError
            If there are no CPUs for cells, or no node, existing or autoscaled, has the GPUs of
            a model.
        """
        if not self.cell_cpus:
            raise DCSError(
                "the cluster has no CPUs for cells; add nodes with CPUs, or start the head with "
                f"the resource {MAX_CPUS} set to the number of CPUs that autoscaling may reach"
            )
        share = (settings and settings.gpus) or 1
        most = max(self.node_gpus, default=0)
        if settings is not None and share > max(1, most):
            option = engine_trait(settings.engine, "gpu_option")
            raise DCSError(
                f"scoring.{option} {share}: no node of the cluster has more than "
                f"{most} GPUs; add nodes with {share} GPUs each, or lower it; with "
                f"autoscaling, set the resource {MAX_GPUS_PER_NODE} of the head"
            )


def place(nodes: Iterable[Mapping[str, Any]]) -> Placement:
    """Decide where cells and scoring are scheduled.

    Parameters
    ----------
    nodes : iterable of mapping
        Nodes as returned by :func:`ray.nodes`.

    Returns
    -------
    Placement
        On a cluster that declares `dcs_cells`, cells run on nodes with that resource. Otherwise
        they avoid nodes with GPUs if another node exists; a single machine does everything.
    """
    alive = [node for node in nodes if node["Alive"]]

    def amounts(resource: str, of: Iterable[Mapping[str, Any]] = alive) -> list[int]:
        return [int(node["Resources"].get(resource, 0)) for node in of]

    max_cpus, max_gpus = sum(amounts(MAX_CPUS)), sum(amounts(MAX_GPUS))
    declared = max_cpus > 0 or any(CELLS in node["Resources"] for node in alive)
    gpu_nodes = [node for node in alive if node["Resources"].get("GPU", 0) > 0]
    cpu_only = [node for node in alive if node not in gpu_nodes]

    cells: dict[str, Any] = {"num_cpus": 1}
    now = sum(amounts("CPU"))
    if declared:
        cells["resources"] = {CELLS: _CELLS_SHARE}
        now = sum(amounts(CELLS))
    elif gpu_nodes and any(amounts("CPU", cpu_only)):
        names = sorted(node["NodeID"] for node in gpu_nodes)
        cells["label_selector"] = {_NODE_ID: f"!in({','.join(names)})"}
        now = sum(amounts("CPU", cpu_only))

    cell_cpus = max(now, max_cpus)
    node_gpus = [number for number in amounts("GPU") if number]
    # If the number of GPUs per autoscaled node is not declared, assume that one node has all.
    largest = max(amounts(MAX_GPUS_PER_NODE), default=0) or max_gpus
    while (coming := min(largest, max_gpus - sum(node_gpus))) > 0:
        node_gpus.append(coming)
    gpus = sum(node_gpus)
    # Without GPUs half of the CPUs score, so that annealing can start at the same time.
    small = not gpus and cell_cpus <= _SMALL_CPUS
    cpu_slots = cell_cpus if small else cell_cpus // 2
    return Placement(
        cells=cells,
        actors={"num_cpus": 0.5 if small else 1, "num_gpus": 1 if gpus else 0}
        # Without GPUs scoring is CPU work and runs where cells run.
        | ({"resources": cells["resources"]} if declared and not gpus else {}),
        actor_slots=gpus or max(1, cpu_slots),
        node_gpus=tuple(node_gpus),
        cell_cpus=cell_cpus,
        shared=not (gpus and (declared or "label_selector" in cells)),
    )
