"""Joining a cluster and watching it: what is not there, or is gone, is said on one line."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import pytest

from dcs_tracking.environment import own_digest
from dcs_workflows.cluster import connect
from dcs_workflows.cluster.connect import (
    ClusterError,
    ClusterWatch,
    Placement,
    check_nodes,
    connected,
    place,
)
from tests.dcs.refusals import refuses
from tests.faults.processes import wait_for


def test_ray_that_does_not_start_twice_is_said_on_one_line(monkeypatch):
    starts = iter([False, True, False, False])

    def slow(**options: object) -> None:
        if not next(starts):
            raise Exception("The current node timed out during startup.\nSome of it failed.")

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.setattr("ray.init", slow)
    monkeypatch.setattr(connect, "_LONGEST_PATH", 0)
    monkeypatch.setenv("RAY_TMPDIR", "")
    monkeypatch.delenv("RAY_TMPDIR")
    with connected():  # at the second try
        pass
    refuses(ClusterError, ExitStack().enter_context, connected(), names=["timed out"])
    assert next(starts, None) is None
    assert os.environ["RAY_TMPDIR"] == "/tmp"


def test_a_folder_that_nodes_do_not_share_is_refused(cluster, tmp_path, monkeypatch):
    check_nodes(tmp_path)
    monkeypatch.setattr(connect, "_look_here", lambda file: (own_digest(), file is None))
    check_nodes()
    refuses(ClusterError, check_nodes, tmp_path, names=[f"--output {tmp_path}: ", "=memory"])
    assert not [*tmp_path.iterdir()]


def test_nodes_that_run_something_else_are_named_at_the_start(cluster, monkeypatch):
    # Of the driver alone: the nodes have processes of their own.
    monkeypatch.setattr(connect, "own_digest", lambda: "another")
    refuses(ClusterError, check_nodes, names=["another"])


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://somewhere", "a..b:6379", "127.0.0.1:²"])
def test_no_cluster_is_said_on_one_line(address):
    refuses(ClusterError, ExitStack().enter_context, connected(address), names=[address])


def _fails() -> Placement:
    raise RuntimeError("no GCS")


@pytest.fixture
def quick(monkeypatch) -> None:
    monkeypatch.setattr("dcs_workflows.cluster.connect._LOOK_SECONDS", 0.01)


@pytest.mark.parametrize("later", [_fails, lambda: None, threading.Event().wait])
def test_a_cluster_without_a_living_node_is_gone(
    quick, monkeypatch, later: Callable[[], Placement | None]
):
    monkeypatch.setattr("dcs_workflows.cluster.connect._LOST_SECONDS", 0.2)
    looks = iter([lambda: place([])])
    watch = ClusterWatch(lambda: next(looks, later)())
    with watch.watching(), pytest.raises(ClusterError, match="same command"):
        wait_for(lambda: not watch.latest, "the watch to notice")


def test_a_head_that_comes_back_in_time_is_none_the_worse(quick):
    later = replace(place([]), cell_cpus=4)
    looks = iter([lambda: place([]), _fails])
    watch = ClusterWatch(lambda: next(looks, lambda: later)())
    with watch.watching():
        wait_for(lambda: watch.latest is later, "the next look")
    assert next(looks, None) is None
