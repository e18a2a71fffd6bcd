"""Nodes of a Ray cluster that come and go during a test."""

from __future__ import annotations

from typing import Any

from .processes import wait_for

__all__ = ["add_node", "remove_node"]


def add_node(cluster: Any, **resources: float) -> Any:
    """Return a new node that Ray knows of; without it, none is left behind."""
    node = cluster.add_node(**resources)
    try:
        # By its name: the sums over the cluster still count nodes that have just gone.
        wait_for(lambda: _alive(node), "the new node")
    except BaseException:
        cluster.remove_node(node, allow_graceful=False)
        raise
    return node


def remove_node(cluster: Any, node: Any) -> None:
    """End a node as a crash does, and wait until Ray knows."""
    cluster.remove_node(node, allow_graceful=False)
    wait_for(lambda: not _alive(node), "the node to be gone")


def _alive(node: Any) -> bool:
    import ray

    return any(n["Alive"] and n["NodeID"] == node.node_id for n in ray.nodes())
