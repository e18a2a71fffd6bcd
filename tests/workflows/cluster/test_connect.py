"""Where work goes on a cluster, what is uploaded to it, and whether it runs what we run."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import pytest
import yaml

from dcs.errors import ScoringError
from workflows.cluster.connect import (
    ClusterError,
    Software,
    connected,
    software,
    software_mismatch,
)
from workflows.cluster.jobs import open_jobs
from workflows.cluster.placement import CELLS, MAX_CPUS, MAX_GPUS, place

ROOT = Path(__file__).parents[3]
HERE = Software(python="3.11", ray="2.60.0", dcs="0.1.0", sources="aaaa")


def _node(name: str, *, alive: bool = True, **resources: float) -> dict:
    return {"NodeID": name, "Alive": alive, "Resources": resources}


def test_one_machine_does_everything():
    both = place([_node("a", CPU=8, GPU=1)])
    assert both.cells == {"num_cpus": 1}
    assert both.actors == {"num_cpus": 1, "num_gpus": 1}
    assert (both.actor_slots, both.cells_in_flight) == (1, 24)
    plain = place([_node("a", CPU=8), _node("gone", alive=False, CPU=8)])
    assert plain.actors == {"num_cpus": 1, "num_gpus": 0}
    assert (plain.actor_slots, plain.cells_in_flight) == (4, 24)
    # With two CPUs an actor for each, and room for a cell beside them.
    two = place([_node("a", CPU=2)])
    assert (two.actor_slots, two.actors["num_cpus"]) == (2, 0.5)
    assert place([_node("a", CPU=1)]).actor_slots == 1


def test_cells_stay_off_gpu_nodes_where_there_are_others():
    mixed = place([_node("a", CPU=4), _node("b", CPU=8, GPU=2), _node("c", CPU=8, GPU=2)])
    assert mixed.cells["label_selector"] == {"ray.io/node-id": "!in(b,c)"}
    assert mixed.cells_in_flight == 12
    assert mixed.actor_slots == 4
    # A head that computes nothing is no place for cells.
    assert "label_selector" not in place([_node("a", CPU=0), _node("b", CPU=8, GPU=2)]).cells


def test_a_declared_cluster_asks_for_nodes_that_are_not_there_yet():
    empty = place([_node("head", **{MAX_CPUS: 64, MAX_GPUS: 4})])
    # Little of it, so that waiting cells never hold what their trials need.
    assert empty.cells == {"num_cpus": 1, "resources": {CELLS: 0.001}}
    assert empty.actors == {"num_cpus": 1, "num_gpus": 1}
    assert (empty.actor_slots, empty.cells_in_flight) == (4, 192)
    no_gpus = place([_node("head", **{MAX_CPUS: 64})])
    assert no_gpus.actors == {"num_cpus": 1, "num_gpus": 0, "resources": {CELLS: 0.001}}


@pytest.mark.parametrize("change", [{"python": "3.12"}, {"ray": "2.59.0"}, {"sources": "bbbb"}])
def test_what_differs_is_named_with_its_node(change):
    message = software_mismatch(HERE, {"n1": HERE, "n2": dataclasses.replace(HERE, **change)})
    assert message is not None
    assert "\n" not in message
    for word in ("node n2", *change.values()):
        assert word in message


def test_equal_sources_fit_whatever_their_version():
    commit = dataclasses.replace(HERE, dcs="0.1.1.dev3+gabc")
    assert software_mismatch(HERE, {"n1": HERE, "n2": commit}) is None
    assert software() == software()


def test_ray_that_does_not_start_is_said_on_one_line(monkeypatch):
    def slow(**options: object) -> None:
        raise Exception("The current node timed out during startup.\nSome of it failed.")

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.setattr("ray.init", slow)
    with pytest.raises(ClusterError, match="timed out") as caught, connected():
        pass
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://somewhere"])
def test_no_cluster_is_said_on_one_line(address):
    with pytest.raises(ClusterError, match=address) as caught, connected(address):
        pass
    assert "\n" not in str(caught.value)


def test_no_dashboard_is_said_with_its_address():
    with pytest.raises(ClusterError, match="http://127.0.0.1:1"):
        open_jobs("http://127.0.0.1:1")


@pytest.fixture(scope="module")
def cluster_yaml() -> dict:
    return yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))


def test_ray_accepts_the_cluster(cluster_yaml):
    # Private names of Ray, kept to this one test: there is no public way to check the file.
    util = importlib.import_module("ray.autoscaler._private.util")
    prepared = util.prepare_config(cluster_yaml)
    util.validate_config(prepared)
    assert set(prepared["available_node_types"]) == {"head", "cells", "scoring"}


def test_the_cluster_is_closed_and_places_work_by_resource(cluster_yaml):
    types = cluster_yaml["available_node_types"]
    for node in types.values():
        # Without groups of its own Ray would make one that is open to the world.
        assert node["node_config"]["SecurityGroupIds"]
    assert types["cells"]["resources"][CELLS] == types["cells"]["resources"]["CPU"]
    assert CELLS not in types["scoring"]["resources"]
    assert types["head"]["resources"]["CPU"] == 0
    head = types["head"]["resources"]
    assert head[MAX_CPUS] == types["cells"]["max_workers"] * types["cells"]["resources"]["CPU"]
    assert head[MAX_GPUS] == types["scoring"]["max_workers"] * types["scoring"]["resources"]["GPU"]
    market = types["cells"]["node_config"]["InstanceMarketOptions"]
    assert market["MarketType"] == "spot"
    starts = [*cluster_yaml["head_start_ray_commands"], *cluster_yaml["worker_start_ray_commands"]]
    for command in [line for line in starts if "ray start" in line]:
        assert "RAY_AUTH_MODE=token" in command
        assert "--dashboard-host=127.0.0.1" in command or "--address" in command
    servers = [line for line in starts if "mlflow server" in line]
    assert servers
    for command in servers:
        assert "--host 127.0.0.1" in command
        assert "s3://" in command


def _fail() -> None:
    raise ScoringError("as expected")


def test_a_known_failure_is_not_shown_by_ray_as_well(cluster, capfd):
    """A task with two results, of which one is looked at: its error is the caller's to tell."""
    with connected():
        import ray

        first, second = ray.remote(_fail).options(num_returns=2, max_retries=0).remote()
        with pytest.raises(ScoringError, match="as expected"):
            ray.get(first)
        del first, second
        # Results are dropped in order: those above have been.
        ray.get(ray.put(None))
    assert capfd.readouterr().err == ""
