"""What `dcs doctor` looks at: the machine, then the engines and stores, each by using it.

Checks take plain arguments and return findings; none of them raises for what it is there to find,
and none leaves anything behind.
"""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Literal

from dcs.errors import DCSError
from dcs.messages import last_line, reason, redact

__all__ = [
    "Finding",
    "Status",
    "check_environment",
    "check_gpu",
    "check_machine",
    "check_model",
    "check_output",
    "check_packages",
    "check_python",
    "check_ray",
    "check_search",
    "check_studies",
    "check_tracking",
    "examine",
]


Status = Literal["ok", "warning", "failure"]

_DISTRIBUTION = "dcs-debias"

_TESTED_PYTHON = (3, 11)

#: Room on the disk: below the first nothing can be written for long, below the second a sweep not.
_NO_ROOM, _LITTLE_ROOM = 100e6, 5e9

#: Where the system keeps memory that processes share; nothing is written there.
_SHARED_MEMORY = Path("/dev/shm")  # nosec B108

_SMALL_SHARED_MEMORY = 1e9


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes
    ----------
    name : str
        What was looked at.
    status : "ok", "warning" or "failure"
        Whether it serves, may surprise, or stops the work.
    text : str
        What was found.
    fix : str
        What to do, empty where nothing need be done.
    """

    name: str
    status: Status
    text: str
    fix: str = ""


def check_python(running: tuple[int, int, int]) -> Finding:
    """Compare a Python version with the one this is tested on."""
    text = ".".join(map(str, running))
    tested = ".".join(map(str, _TESTED_PYTHON))
    if running[:2] < _TESTED_PYTHON:
        return Finding(
            "python", "failure", f"{text} is too old", f"make the environment with python{tested}"
        )
    if running[:2] > _TESTED_PYTHON:
        return Finding(
            "python",
            "warning",
            f"{text}, tested with {tested}",
            f"if something fails that should not, make the environment with python{tested}",
        )
    return Finding("python", "ok", f"{text} on {platform.platform(terse=True)}")


def check_packages(
    requirements: list[str] | None = None, installed: Callable[[str], str] = version
) -> list[Finding]:
    """Compare the installed packages with the ranges that this distribution asks for.

    Parameters
    ----------
    requirements : list of str, optional
        As in the metadata of a distribution; by default those of this one.
    installed : callable
        Gives the version of a package, or raises PackageNotFoundError.
    """
    from packaging.requirements import Requirement

    if requirements is None:
        try:
            requirements = requires(_DISTRIBUTION) or []
        except PackageNotFoundError:
            return [
                Finding(
                    "packages",
                    "failure",
                    f"{_DISTRIBUTION} is not installed here, its files are merely on the path",
                    "pip install --constraint constraints.txt --editable .",
                )
            ]
    findings = []
    met = 0
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        wanted = f"{requirement.name}{requirement.specifier}"
        try:
            found = installed(requirement.name)
        except PackageNotFoundError:
            findings.append(
                Finding(
                    "packages",
                    "failure",
                    f"{requirement.name} is not installed",
                    f"pip install '{wanted}'",
                )
            )
            continue
        if requirement.specifier.contains(found, prereleases=True):
            met += 1
        else:
            findings.append(
                Finding(
                    "packages",
                    "failure",
                    f"{requirement.name} {found} is outside of the range {requirement.specifier}",
                    f"pip install '{wanted}'",
                )
            )
    if not findings:
        findings.append(Finding("packages", "ok", f"all {met} within their ranges"))
    return [*findings, *_untested(installed)]


def _untested(installed: Callable[[str], str]) -> Iterator[Finding]:
    """Compare the engines with the tested set, which lies beside the code in a checkout."""
    path = Path(__file__).resolve().parents[1] / "constraints.txt"
    if not path.is_file():
        return
    pins = dict(
        line.split("==") for line in path.read_text(encoding="utf-8").split() if "==" in line
    )
    other = []
    for name in ("ray", "optuna", "mlflow", "numpy", "numba", "pyarrow", "torch", "transformers"):
        try:
            found = installed(name).partition("+")[0]
        except PackageNotFoundError:
            continue
        if name in pins and found.split(".")[:2] != pins[name].split(".")[:2]:
            other.append(f"{name} {found} (tested {pins[name]})")
    if other:
        yield Finding(
            "packages",
            "warning",
            f"other versions than the tested set: {', '.join(other)}",
            "if something fails that should not: pip install --constraint constraints.txt .",
        )


def check_environment(variables: Mapping[str, str]) -> list[Finding]:
    """Name environment variables that change what happens; values are not shown."""
    surprising = {
        "MLFLOW_RUN_ID": "MLflow puts new runs under that one; unset it",
        "MLFLOW_EXPERIMENT_ID": "unset it; experiments are named after sweeps",
        "MLFLOW_EXPERIMENT_NAME": "unset it; experiments are named after sweeps",
        "MLFLOW_TRACKING_URI": "commands record in --output unless --tracking-uri is given",
        "NUMBA_DISABLE_JIT": "searches take a thousand times as long; unset it",
        "PYTHONOPTIMIZE": "untested; unset it",
        "RAY_LOCAL_MODE": "untested; unset it",
    }
    findings = [
        Finding("environment", "warning", f"{name} is set", fix)
        for name, fix in surprising.items()
        if variables.get(name)
    ]
    if variables.get("RAY_ADDRESS"):
        findings.append(
            Finding(
                "environment",
                "warning",
                "RAY_ADDRESS is set",
                "dcs sweep uses it with --address auto only; unset it, or give --address auto",
            )
        )
    mode = variables.get("RAY_AUTH_MODE")
    token = variables.get("RAY_AUTH_TOKEN") or variables.get("RAY_AUTH_TOKEN_PATH")
    if mode == "disabled":
        findings.append(
            Finding(
                "environment",
                "warning",
                "RAY_AUTH_MODE=disabled: whoever reaches Ray's ports runs code as you",
                "unset it, or set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN",
            )
        )
    elif mode == "token" and not token and not (Path.home() / ".ray" / "auth_token").exists():
        findings.append(
            Finding(
                "environment",
                "warning",
                "RAY_AUTH_MODE=token without RAY_AUTH_TOKEN: no cluster lets us in",
                "set RAY_AUTH_TOKEN to the token of the cluster; this machine alone needs none",
            )
        )
    if variables.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        findings.append(
            Finding(
                "environment",
                "warning",
                "CUDA_VISIBLE_DEVICES hides all GPUs",
                "unset it if there is one to be used",
            )
        )
    return findings or [Finding("environment", "ok", "no variable that changes what happens")]


def check_machine(shared_memory: Path = _SHARED_MEMORY) -> list[Finding]:
    """Look at processors, memory, and the memory that Ray's processes share."""
    from dcs.io import memory_bound

    text = f"{os.cpu_count()} CPUs, tables up to {memory_bound() / 2**30:.1f} GiB are read"
    findings = [Finding("machine", "ok", text)]
    if shared_memory.is_dir():
        size = shutil.disk_usage(shared_memory).total
        if size < _SMALL_SHARED_MEMORY:
            findings.append(
                Finding(
                    "machine",
                    "warning",
                    f"{shared_memory} has {size / 1e6:.0f} MB, and Ray keeps tables there",
                    "in a container: docker run --shm-size=4g",
                )
            )
    return findings


def check_output(output: Path, *, now: Callable[[], float] = time.time) -> list[Finding]:
    """See that a folder can be written to, with locks, has room, and is not of the future."""
    folder = output.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    choose = "choose another folder with --output"
    try:
        with tempfile.TemporaryDirectory(prefix=".dcs-doctor-", dir=folder) as name:
            probe = Path(name) / "probe"
            _use(probe)
            ahead = probe.stat().st_mtime - now()
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return [Finding("output", "failure", f"{output}: {reason(error)}", choose)]
    newest = max((p.stat().st_mtime for p in output.glob("cells/*.json")), default=0.0) - now()
    findings = []
    if max(ahead, newest) > 60.0:
        findings.append(
            Finding(
                "output",
                "warning",
                f"{output}: files there are {max(ahead, newest):.0f} s ahead of the clock",
                "set the clock; times in MLflow would run backwards",
            )
        )
    room = f"{usage.free / 1e9:.1f} GB free"
    if usage.free < _NO_ROOM:
        return [*findings, Finding("output", "failure", f"{output}: {room}", "make room")]
    if usage.free < _LITTLE_ROOM:
        return [*findings, Finding("output", "warning", f"{output}: {room}", "make room soon")]
    return [*findings, Finding("output", "ok", f"{output}: can be written, {room}")]


def _use(probe: Path) -> None:
    """Write, replace, flush and lock a file as the outbox and the store do."""
    from dcs.io import atomic_write_bytes

    for content in (b"a", b"b"):
        atomic_write_bytes(probe, content)
    if sys.platform != "win32":
        import fcntl

        with probe.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


_RAY_SECONDS = 90.0

_LOCKED_SECONDS = 1.0


def check_gpu() -> Finding:
    """Ask torch for GPUs, and use each that it names."""
    import torch

    driver = Path("/proc/driver/nvidia/version").exists()
    if not torch.cuda.is_available():
        if driver:
            built = "" if torch.version.cuda else ", which is a build for CPUs"
            return Finding(
                "gpu",
                "warning",
                f"there is an NVIDIA driver, but torch {torch.__version__}{built} finds no GPU",
                "install the build of torch for the driver's CUDA: https://pytorch.org",
            )
        return Finding("gpu", "ok", "none; models run on the CPU, searches always do")
    names = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        try:
            one = torch.ones(8, device=f"cuda:{index}").sum().item()
        except RuntimeError as error:
            return Finding(
                "gpu",
                "failure",
                f"cuda:{index} ({properties.name}) cannot be used: {reason(error)}",
                "see that no other process fills it (nvidia-smi), or hide it with "
                "CUDA_VISIBLE_DEVICES",
            )
        if one != 8.0:
            return Finding("gpu", "failure", f"cuda:{index} adds wrongly", "replace it")
        names.append(f"{properties.name} with {properties.total_memory / 2**30:.0f} GiB")
    return Finding("gpu", "ok", ", ".join(names))


def check_tracking(tracking_uri: str | None, output: Path) -> Finding:
    """Open the MLflow store that runs would be recorded in; makes none."""
    from tracking import resolve_tracking_uri
    from tracking.store.client import open_client

    try:
        uri = resolve_tracking_uri(tracking_uri, output)
    except DCSError as error:
        return Finding("mlflow", "failure", str(error), "give another --tracking-uri")
    shown = redact(uri)
    if uri.startswith("sqlite"):
        path = Path("/" + uri.partition(":///")[2].lstrip("/"))
        if not path.exists():
            return Finding("mlflow", "ok", f"{shown}: will be made by the first run")
        problem = _sqlite_problem(path)
        if problem is not None:
            return problem
    clock = time.perf_counter()
    try:
        experiments = open_client(uri).search_experiments(max_results=1000)
    except DCSError as error:
        fix = "see that the server runs and this machine reaches it; runs wait in --output"
        if "upgrade" in str(error):
            fix = f"back it up, then: mlflow db upgrade '{shown}'"
        return Finding("mlflow", "failure", f"{shown}: {redact(str(error))}", fix)
    seconds = time.perf_counter() - clock
    return Finding(
        "mlflow", "ok", f"{shown}: {len(experiments)} experiments, answers in {seconds:.1f} s"
    )


def _sqlite_problem(path: Path) -> Finding | None:
    try:
        with closing(sqlite3.connect(path, timeout=_LOCKED_SECONDS)) as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("ROLLBACK")
            tables = database.execute("SELECT name FROM sqlite_master WHERE name = 'runs'")
            known = tables.fetchone() is not None
    except sqlite3.Error as error:
        text = f"{path}: {error}"
        if "locked" in text:
            fix = "end the process that holds it (see: fuser FILE), or wait for it"
        elif "readonly" in text:
            fix = "choose another folder with --output"
        else:
            fix = "restore it from a backup, or move it away: dcs sync records the runs again"
        return Finding("mlflow", "failure", text, fix)
    if not known:
        return Finding(
            "mlflow",
            "failure",
            f"{path}: a database, but not one of MLflow",
            "give another --tracking-uri or --output",
        )
    return None


def check_studies(place: str | None) -> Finding:
    """Open the storage that Optuna's studies would be written down in.

    Parameters
    ----------
    place : str or None
        URL or journal file; None where studies are kept in memory.
    """
    from workflows.tuning.storage import StudyStorage

    if not place:
        return Finding("optuna", "ok", "studies in memory; their trials are in MLflow")
    try:
        storage = StudyStorage(place)
        if "://" not in place and not Path(place).expanduser().exists():
            # Looked at, not made.
            found = check_output(Path(place).expanduser())[-1]
            return Finding("optuna", found.status, f"journal {found.text}", found.fix)
        storage.check()
    except DCSError as error:
        return Finding(
            "optuna",
            "failure",
            redact(str(error)),
            "mend --optuna-storage or DCS_OPTUNA_STORAGE, or leave both out: studies in memory",
        )
    return Finding("optuna", "ok", f"studies in {storage.label}")


def check_ray() -> Finding:
    """Start Ray on this machine, run a task, and stop it; in a process of its own."""
    command = [
        *(sys.executable, "-c"),
        "from workflows.cluster.connect import connected\n"
        "with connected():\n import ray\n print(ray.get(ray.remote(lambda: 40 + 2).remote()))",
    ]
    clock = time.perf_counter()
    fix = "see /tmp/ray/session_latest/logs; often too little memory or a full /tmp"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_RAY_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding("ray", "failure", f"did not start in {_RAY_SECONDS:.0f} s", fix)
    if done.returncode or not done.stdout.rstrip().endswith("42"):
        last = last_line(done.stderr) or "no reason given"
        return Finding("ray", "failure", f"does not start: {redact(last)}", fix)
    return Finding(
        "ray", "ok", f"starts and runs a task in {time.perf_counter() - clock:.0f} s in all"
    )


def check_model() -> Finding:
    """Load the packaged model and have it answer one prompt."""
    import numpy as np

    from dcs.prompting import get_task, render_prefix, render_query, select_demonstrations
    from dcs.scoring import load_scorer

    clock = time.perf_counter()
    task = get_task("helpdesk")
    prefix = render_prefix(task, select_demonstrations(task, "N", seed=0))
    texts = task.examples("test")[:24]
    try:
        scorer = load_scorer("tiny_lm")
        try:
            queries = [render_query(task, example.text) for example in texts]
            probs = scorer.score(prefix, queries, task.label_words)
        finally:
            scorer.close()
    except DCSError as error:
        return Finding("model", "failure", f"tiny_lm: {error}", "install the package again")
    right = np.mean(
        [row.argmax() == example.label for row, example in zip(probs, texts, strict=True)]
    )
    if not np.isfinite(probs).all() or right < 2.0 / task.n_classes:
        return Finding(
            "model",
            "failure",
            f"tiny_lm answers at random ({right:.0%} right)",
            "install the tested versions: pip install --constraint constraints.txt .",
        )
    return Finding("model", "ok", f"tiny_lm scores in {time.perf_counter() - clock:.1f} s")


def check_search() -> Finding:
    """Compile the search, and see that it finds the optimum of a small table."""
    import numpy as np

    import dcs

    clock = time.perf_counter()
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    logits = rng.normal(size=(200, 2)) + np.eye(2)[labels] + [1.5, 0.0]
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    corrections = dcs.CorrectionSet.dcs(weight_scale=10)
    options: dict[str, Any] = {"corrections": corrections, "objective": dcs.Objective()}
    found = dcs.anneal(probs, labels, **options, seed=0).z
    best = dcs.exact_search(probs, labels, **options).z
    seconds = time.perf_counter() - clock
    if abs(found - best) > 1e-9:
        return Finding(
            "search",
            "failure",
            f"Z {found:.6f} where the optimum is {best:.6f}",
            "install the tested versions: pip install --constraint constraints.txt .",
        )
    return Finding("search", "ok", f"finds the optimum of a small table in {seconds:.1f} s")


def examine(
    output: Path,
    *,
    tracking_uri: str | None = None,
    optuna_storage: str | None = None,
    quick: bool = False,
) -> Iterator[Finding]:
    """Yield what every check finds, the fast ones first.

    Parameters
    ----------
    output : pathlib.Path
        Where results would go.
    tracking_uri, optuna_storage : str, optional
        Stores; by default those that a sweep would use.
    quick : bool
        Leave out what starts processes or loads models.
    """
    yield check_python(sys.version_info[:3])
    yield from check_packages()
    yield from check_environment(os.environ)
    yield from check_machine()
    yield from check_output(output)
    slow: list[Callable[[], Finding]] = [
        lambda: check_tracking(tracking_uri, output),
        lambda: check_studies(optuna_storage or os.environ.get("DCS_OPTUNA_STORAGE")),
    ]
    if not quick:
        slow += [check_gpu, check_search, check_model, check_ray]
    names = ("mlflow", "optuna", "gpu", "search", "model", "ray")
    for name, check in zip(names, slow, strict=False):
        try:
            yield check()
        except Exception as error:
            # A broken installation fails in ways nobody thought of, and the others are to be told.
            yield Finding(
                name,
                "failure",
                f"{type(error).__name__}: {redact(reason(error))}",
                "install the tested versions: pip install --constraint constraints.txt .",
            )
