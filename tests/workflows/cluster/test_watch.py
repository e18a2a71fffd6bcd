"""A cluster whose head no longer answers is noticed, whatever a look at it does."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.faults.processes import wait_for
from workflows.cluster.connect import ClusterError, ClusterWatch, Look
from workflows.cluster.placement import place

FULL = Look(place([]))


def _fails() -> Look:
    raise RuntimeError("no GCS")


@pytest.fixture
def quick(monkeypatch) -> None:
    monkeypatch.setattr("workflows.cluster.connect._LOOK_SECONDS", 0.01)


def _is_gone(watch: ClusterWatch) -> bool:
    try:
        return not watch.latest
    except ClusterError:
        return True


@pytest.mark.parametrize("later", [_fails, lambda: None, threading.Event().wait])
def test_a_cluster_without_a_living_node_is_gone(quick, later: Callable[[], Look | None]):
    looks = iter([lambda: FULL])
    watch = ClusterWatch(lambda: next(looks, later)(), lost_seconds=0.2)
    with watch.watching():
        wait_for(lambda: _is_gone(watch), "the watch to notice")
        with pytest.raises(ClusterError, match="same command"):
            _ = watch.latest


def test_a_head_that_comes_back_in_time_is_none_the_worse(quick):
    seen = threading.Event()

    def look() -> Look:
        if not seen.is_set():
            seen.set()
            return FULL
        if threading.current_thread() is not threading.main_thread() and not failed.is_set():
            failed.set()
            raise RuntimeError("no GCS")
        return Look(place([]), {"cpus": 4.0})

    failed = threading.Event()
    watch = ClusterWatch(look)
    assert watch.latest is FULL
    with watch.watching():
        wait_for(lambda: watch.latest.machines == {"cpus": 4.0}, "the next look")
    assert failed.is_set()
