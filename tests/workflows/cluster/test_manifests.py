"""cluster.yaml, and what docs/cluster.md says to other schedulers: read by Ray, and run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tests.faults.processes import wait_for
from workflows.cli import app
from workflows.cluster.placement import CELLS, MAX_CPUS, MAX_GPUS, MAX_GPUS_PER_NODE, place
from workflows.config.sweep import load_config, packaged_config

ROOT = Path(__file__).parents[3]


def _block(title: str, language: str) -> str:
    """Return the first block of code below a heading of the document."""
    text = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    section = text.partition(f"## {title}")[2].partition("\n## ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found, f"no {language} block under {title}"
    return found[1]


def _sweep_options(line: str) -> list[str]:
    """Return the options of a ``dcs sweep``, which our own command line can read."""
    program, name, *arguments = line.split()
    assert (program, name) == ("dcs", "sweep")
    typer.main.get_command(app).commands["sweep"].make_context("sweep", [*arguments])
    return arguments


AWS = yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))
JOB = yaml.safe_load(_block("Kubernetes", "yaml"))


def _kuberay_types() -> dict[str, Any]:
    """Return the groups of a cluster on Kubernetes as ``cluster.yaml`` has them."""
    cluster = JOB["spec"]["rayClusterSpec"]
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
    assert (start.cell_cpus, start.cell_cpus_now, slots) == (largest, 0, head[MAX_GPUS])
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


def test_kuberay_runs_the_sweep():
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    spec = JOB["spec"]
    arguments = _sweep_options(spec["entrypoint"])
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    # The version that is tested is the one that is asked for.
    assert f"ray=={cluster['rayVersion']}" in (ROOT / "constraints.txt").read_text()
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["resources"]["limits"]["cpu"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
        assert any(arguments[0].startswith(f"{path}/") for path in mounts.values())


def test_the_slurm_script_runs_the_sweep_on_ray_and_passes_the_end_on(tmp_path):
    """Programs in place of Slurm, Ray and ours note how they are called."""
    script = _block("Slurm", "sh")
    programs = tmp_path / "bin"
    programs.mkdir()
    note = f'echo "$(basename $0) $*" >> {tmp_path}/calls\n'
    sources = {
        "scontrol": "printf 'node1\\nnode2\\nnode3\\n'",
        "openssl": "echo 0123456789abcdef",
        "sleep": "",
        # Like the real one it passes signals on, and runs what comes after its options.
        "srun": 'while [ "${1#-}" != "$1" ]; do [ "$1" = -w ] && shift; shift; done\nexec "$@"',
        "ray": note + f'echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN" >> {tmp_path}/tokens',
        "dcs": note + f"trap 'echo stopped >> {tmp_path}/calls; exit 143' TERM\n"
        # Nothing waits for Ray here, which the sleeps of the script are for.
        f'until [ "$(wc -l < {tmp_path}/tokens)" = 2 ]; do /bin/sleep 0.05; done\n'
        f"touch {tmp_path}/started\n"
        "while true; do /bin/sleep 0.05; done",
    }
    for name, source in sources.items():
        (programs / name).write_text(f"#!/bin/bash\n{source}\n")
        (programs / name).chmod(0o755)
    activate = tmp_path / "home" / "env" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    environment = {
        "HOME": str(tmp_path / "home"),
        "PATH": f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "SCRATCH": str(tmp_path),
        "SLURM_JOB_NODELIST": "node[1-3]",
        "SLURM_NNODES": "3",
    }
    with subprocess.Popen(["bash", "-uc", script], env=environment) as process:
        wait_for(lambda: (tmp_path / "started").exists() or process.poll(), "the sweep")
        process.send_signal(signal.SIGTERM)
        # The code of a sweep that was stopped.
        assert process.wait(60) == 143
    *calls, last = (tmp_path / "calls").read_text().splitlines()
    assert last == "stopped"
    (head,) = (call for call in calls if call.startswith("ray start --head"))
    assert "--dashboard-host=127.0.0.1" in head
    assert "ray start --address=node1:6379 --block" in calls
    (sweep,) = (_sweep_options(call) for call in calls if call.startswith("dcs "))
    assert sweep[sweep.index("--address") + 1] == "node1:6379"
    # All nodes have the one token.
    assert set((tmp_path / "tokens").read_text().splitlines()) == {"token 0123456789abcdef"}
    assert re.search(r"^#SBATCH .*--signal=B:TERM@", script, re.MULTILINE)
