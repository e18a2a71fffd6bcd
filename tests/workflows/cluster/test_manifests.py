"""cluster.yaml, and what docs/cluster.md says to other schedulers: read by Ray, and run."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from dcs_workflows.cluster.connect import CELLS, MAX_CPUS, MAX_GPUS, MAX_GPUS_PER_NODE, place
from dcs_workflows.config.sweep import load_config, packaged_config
from tests.docs.runner import ROOT, blocks_of

AWS = yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))
(_JOB,) = (each.code for each in blocks_of("docs/cluster.md") if each.language == "yaml")


def _kuberay_types() -> dict[str, Any]:
    """Return the groups of a cluster on Kubernetes as ``cluster.yaml`` has them."""
    cluster = yaml.safe_load(_JOB)["spec"]["rayClusterSpec"]
    head = {"groupName": "head", "maxReplicas": 1, **cluster["headGroupSpec"]}
    types = {}
    for group in (head, *cluster["workerGroupSpecs"]):
        start = group["rayStartParams"]
        resources = {"CPU": int(start["num-cpus"])}
        if "num-gpus" in start:
            resources["GPU"] = int(start["num-gpus"])
        # Quoted once for the shell and once as JSON.
        resources |= json.loads(json.loads(start.get("resources", '"{}"').strip("'")))
        types[group["groupName"]] = {"resources": resources, "max_workers": group["maxReplicas"]}
    return types


@pytest.mark.parametrize("where", ["AWS", "Kubernetes"])
def test_work_is_placed_by_resource(where):
    node_types = AWS["available_node_types"] if where == "AWS" else _kuberay_types()
    (head,) = (each["resources"] for name, each in node_types.items() if "head" in name)
    cells = node_types["cells"]
    scoring = [each for name, each in node_types.items() if "scoring" in name]
    assert head["CPU"] == 0
    assert cells["resources"]["CPU"] == cells["resources"][CELLS]
    assert not any(CELLS in each["resources"] for each in scoring)
    gpus = [each["resources"]["GPU"] for each in scoring]
    largest = cells["max_workers"] * cells["resources"]["CPU"]
    assert head[MAX_CPUS] == largest
    assert head[MAX_GPUS] == sum(
        each["max_workers"] * each["resources"]["GPU"] for each in scoring
    )
    assert head[MAX_GPUS_PER_NODE] == max(gpus)
    # Before any worker is there, the driver asks for all of them.
    start = place([{"NodeID": "head", "Alive": True, "Resources": head}])
    slots = start.actor_slots
    assert (start.cell_cpus, slots) == (largest, head[MAX_GPUS])
    if where == "AWS":
        start.check(load_config(packaged_config("llama2_70b")).scoring)
        assert cells["node_config"]["InstanceMarketOptions"]["MarketType"] == "spot"


def test_the_cluster_on_aws_is_closed():
    for node in AWS["available_node_types"].values():
        # Without groups of its own Ray would make one that is open to the world.
        assert node["node_config"]["SecurityGroupIds"]
    starts = [*AWS["head_start_ray_commands"], *AWS["worker_start_ray_commands"]]
    for command in [line for line in starts if "ray start" in line]:
        assert "RAY_AUTH_MODE=token" in command
        assert "--dashboard-host=127.0.0.1" in command or "--address" in command
    (server,) = (line for line in starts if "mlflow server" in line)
    assert "--host 127.0.0.1" in server
    assert "s3://" in server
