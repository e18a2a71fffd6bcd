"""Ray that does not start on this machine is a known failure."""

from __future__ import annotations

import pytest
import ray

from workflows.cluster.connect import ClusterError, connected


def test_ray_that_does_not_start_is_said_on_one_line(monkeypatch):
    def slow(**options: object) -> None:
        raise Exception("The current node timed out during startup.\nSome of it failed.")

    monkeypatch.setattr(ray, "init", slow)
    with pytest.raises(ClusterError) as caught, connected():
        pass
    message = str(caught.value)
    assert "\n" not in message
    assert "timed out during startup" in message
    assert "run the same command again" in message
