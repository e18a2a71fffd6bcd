"""Real clusters, servers and databases, started for the faults and stopped after them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import alone
from tests.servers import free_port

from .sweeps import kept, results, sweep

#: Ray reads these when it is imported, and every process of a cluster inherits them.
_ENVIRONMENT = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # A node that dies is noticed after a second, not after ten.
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "500",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.fault)


@pytest.fixture(scope="session", autouse=True)
def _environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def cluster(_environment, together) -> Iterator[object]:
    """A head and nodes of their own, as processes of this machine, with this process joined."""
    import ray
    from ray.cluster_utils import Cluster

    # Nobody reads its logs, and nothing scales it.
    unused = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    # One after the other: a node ends if its agents take longer than 15 s to start.
    with alone(together / "cluster.lock"):
        running = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **unused})
        ray.init(address=running.address, log_to_driver=False, logging_level="ERROR")
    yield running
    ray.shutdown()
    running.shutdown()


@pytest.fixture(scope="session")
def undisturbed(cluster, empty_store, together) -> tuple[Path, list[dict]]:
    """A sweep that nothing happened to, computed by one process: its folder and its results."""
    output = together / "undisturbed"
    with alone(together / "undisturbed.lock"):
        if not output.exists():
            output.mkdir()
            shutil.copy(empty_store, output / "mlflow.db")
            assert sweep(output)[1].pending == 0
    return output, results(kept(output))


@pytest.fixture
def scored(undisturbed, output) -> Path:
    """A folder in which the tables are there and no cell is."""
    shutil.copytree(undisturbed[0] / "probabilities", output / "probabilities")
    return output


@pytest.fixture
def finished(undisturbed, scored) -> Path:
    """A folder in which the cells are there too, and none is recorded."""
    shutil.copytree(undisturbed[0] / "cells", scored / "cells")
    return scored


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL server of Debian's package with a fresh cluster of databases."""

    uri: str
    control: list[str | Path]
    options: str
    run_as: dict[str, Any]

    def start(self) -> None:
        self._run("-o", self.options, "start")

    def stop(self) -> None:
        """Stop it as a crash does: it recovers when it starts again."""
        self._run("-m", "immediate", "stop")

    def _run(self, *arguments: str) -> None:
        subprocess.run([*self.control, *arguments], check=True, **self.run_as)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory) -> Iterator[Postgres]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    programs = found[-1].parent
    port = free_port()
    # Below /tmp and not below pytest's own folder, which only root may enter.
    folder = Path(f"/tmp/dcs-postgres-{os.getpid()}-{port}")
    folder.mkdir(mode=0o700)
    run_as: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL}
    if os.getuid() == 0:
        # The server refuses to run as root.
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
        run_as |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    data = folder / "data"
    make = [programs / "initdb", "-D", data, "-U", "dcs", "-A", "trust", "--no-sync"]
    subprocess.run(make, check=True, **run_as)
    server = Postgres(
        f"postgresql://dcs@127.0.0.1:{port}/postgres",
        [programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log"],
        f"-p {port} -c listen_addresses=127.0.0.1 -k {folder} -c fsync=off",
        run_as,
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)
