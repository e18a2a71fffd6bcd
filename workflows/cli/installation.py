"""``dcs doctor``, ``dcs new-plugin``, and plug-ins in the help of other commands.

Each check of the doctor returns a summary, or raises DCSError with advice if the check fails.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import distributions, requires
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from dcs.errors import ConfigError, DCSError, last_line, named, reason, redact
from dcs.plugins import Group, plugin_names
from workflows.cli import options
from workflows.cli.console import console

_TEMPLATES = Path(__file__).parents[1] / "templates"

#: Entry-point group, object name and example command of each kind of plug-in.
_KINDS: dict[str, tuple[Group, str, str]] = {
    "method": ("dcs.methods", "METHOD", "dcs tune TABLE --method {}"),
    "importer": ("dcs.importers", "IMPORTER", "dcs import {} FILE -o table.parquet"),
    "engine": ("dcs.engines", "Scorer", "dcs generate --engine {} --task helpdesk"),
}

_MIN_FREE_BYTES = 1e9
_RAY_SECONDS = 90.0
_RAY_TASK = """
from workflows.cluster.connect import connected
with connected():
    import ray
    ray.get(ray.remote(lambda: None).remote())
"""


def doctor(
    output: options.Output = Path("dcs-runs"),
    tracking_uri: options.TrackingUri = None,
    quick: Annotated[bool, typer.Option("--quick", help="Skip GPUs and Ray.")] = False,
) -> None:
    """Check versions, disk, MLflow, plug-ins, GPUs and Ray by using them; print advice.

    The exit code is 1 if a check fails. Nothing is changed.

    Example: `dcs doctor --quick --tracking-uri http://127.0.0.1:5000`
    """
    checks: dict[str, Callable[[], str]] = {
        "versions": check_versions,
        "disk": lambda: check_disk(output),
        "mlflow": lambda: check_store(tracking_uri, output),
        "plug-ins": lambda: ", ".join(installed()) or "none installed",
    }
    if not quick:
        checks |= {"gpu": check_gpu, "ray": check_ray}
    results = {name: result_of(check) for name, check in checks.items()}
    for name, (passed, text) in results.items():
        sign, style = ("ok", "green") if passed else ("failure", "red")
        console.print(f"{sign} {name}: {text}", style=style)
    if not all(passed for passed, _ in results.values()):
        raise SystemExit(1)


def result_of(check: Callable[[], str]) -> tuple[bool, str]:
    """Return whether a check passes, and its one-line summary or error."""
    try:
        return True, check()
    except Exception as error:  # A broken installation must not hide the other checks.
        return False, redact(str(error) if isinstance(error, DCSError) else named(error))


def check_versions(requirements: list[str] | None = None) -> str:
    """Compare the installed packages with `requirements`, by default those of this package."""
    from packaging.requirements import Requirement

    wrong = []
    for wanted in map(Requirement, requirements or requires("dcs-debias") or []):
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            found = next((each.version for each in distributions(name=wanted.name)), "none")
            if found == "none" or not wanted.specifier.contains(found, prereleases=True):
                wrong.append(f"{wanted.name}{wanted.specifier} (found {found})")
    if wrong:
        raise DCSError(f"unmet: {', '.join(wrong)}; pip install --constraint constraints.txt .")
    return f"Python {platform.python_version()}, all packages within their ranges"


def check_disk(output: Path) -> str:
    """Check that the output folder can be written, without leaving any file."""
    from dcs.io import atomic_write_bytes

    folder = output.absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryDirectory(prefix=".dcs-doctor-", dir=folder) as name:
            atomic_write_bytes(Path(name) / "probe", b"x")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise DCSError(f"{output}: {reason(error)}; choose another --output") from None
    if free < _MIN_FREE_BYTES:
        raise DCSError(f"{output}: only {free / 1e6:.0f} MB free; free some disk space")
    return f"{output}: writable, {free / 1e9:.1f} GB free"


def check_store(tracking_uri: str | None, output: Path) -> str:
    """Open the MLflow store in which runs would be recorded, without creating it."""
    from tracking import resolve_tracking_uri
    from tracking.store.client import open_client

    uri = resolve_tracking_uri(tracking_uri, output)
    if uri.startswith("sqlite") and not Path(uri.partition(":///")[2]).exists():
        return f"{uri}: will be created by the first run"
    return f"{redact(uri)}: {len(open_client(uri, create=False).search_experiments())} experiments"


def check_gpu() -> str:
    """Run a small sum on each GPU that torch finds."""
    try:
        import torch
    except ImportError:
        return "torch is not installed; models need pip install 'dcs-debias[models]'"

    names = []
    for index in range(torch.cuda.device_count()):
        names.append(torch.cuda.get_device_properties(index).name)
        try:
            torch.ones(8, device=f"cuda:{index}").sum().item()
        except RuntimeError as error:
            raise DCSError(
                f"cuda:{index} ({names[-1]}): {reason(error)}; check which processes use it "
                "(nvidia-smi), or hide it with CUDA_VISIBLE_DEVICES"
            ) from None
    if not names and Path("/proc/driver/nvidia/version").exists():
        return f"none usable by torch {torch.__version__}; install the build for your CUDA version"
    return ", ".join(names) or "none found; models run on the CPU"


def check_ray() -> str:
    """Start Ray in a separate process, run a task and stop it."""
    command = [sys.executable, "-c", _RAY_TASK]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=_RAY_SECONDS, check=True)
    except subprocess.TimeoutExpired:
        cause = f"no answer in {_RAY_SECONDS:.0f} s"
    except subprocess.CalledProcessError as error:
        cause = last_line(error.stderr)
    else:
        return "started and ran a task"
    raise DCSError(f"{cause}; see /tmp/ray/session_latest/logs")


def new_plugin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the plug-in.")],
    kind: Annotated[
        Literal["method", "importer", "engine"], typer.Option(help="What the package adds.")
    ] = "method",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="New folder.", show_default="dcs-NAME"
        ),
    ] = None,
) -> None:
    """Create a package that adds a method, an importer or an engine, with a passing test.

    Example: `dcs new-plugin quotas`, then `pip install -e dcs-quotas`
    """
    from dcs.io import atomic_write_text

    group, point, usage = _KINDS[kind]
    package = f"dcs-{name}"
    module, folder = package.replace("-", "_"), output or Path(package)
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise ConfigError(f"NAME {name!r}: use lowercase letters, digits and single hyphens")
    # Installing another dcs-debias would replace this package.
    if name in ("debias", *_known(group)[0], *plugin_names(group)):
        raise ConfigError(f"NAME {name!r}: already taken; choose another")
    if folder.exists():
        raise ConfigError(f"{folder}: already exists; choose another --output")
    words = {"name": name, "package": package, "module": module, "title": name.title()}
    words |= {"kind": kind, "group": group, "point": point}
    files = {"pyproject.toml": "pyproject.toml", f"{module}.py": f"{kind}.py"}
    files |= {f"tests/test_{module}.py": f"test_{kind}.py"}
    for target, template in files.items():
        text = (_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
        atomic_write_text(folder / target, Template(text).substitute(words))
    console.print(f"{folder}: {', '.join(files)}")
    console.print(f"next: pip install -e {folder}, pytest {folder}", style="bold")
    console.print(f"then: {usage.format(name)}", style="bold")


def _known(group: Group) -> tuple[Mapping[str, str], Callable[[str], object]]:
    """Return the summaries of a group's built-in names, and the function that finds any name."""
    if group == "dcs.importers":
        from dcs.data.importers import IMPORTERS, find_importer

        return {each.name: each.summary for each in IMPORTERS}, find_importer
    if group == "dcs.methods":
        from dcs.selection.methods import BASELINES, METHODS, get_method

        return {each.name: each.summary for each in (*METHODS, *BASELINES)}, get_method
    from dcs.scoring import SUMMARIES, engine_class

    return SUMMARIES, engine_class


def installed() -> Iterator[str]:
    """Import every installed plug-in, and yield its kind and name."""
    for kind, (group, *_) in _KINDS.items():
        for name in plugin_names(group):
            _known(group)[1](name)
            yield f"{kind} {name}"


def quoted(head: str, group: Group, *, omit: tuple[str, ...] = ()) -> type[TyperCommand]:
    """Return a command class whose help lists the names of a group, imported only for help."""

    class ListingCommand(TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            """Format the help with the list appended."""
            known = {k: text for k, text in _known(group)[0].items() if k not in omit}
            for name in plugin_names(group):
                taken = "built in; a plug-in of this name is refused"
                known[name] = taken if name in known else "from an installed package"
            lines = [f"* **{_plain(name)}**: {_plain(text)}" for name, text in known.items()]
            self.help = "\n\n".join((self.help or "", head, "\n".join(lines)))
            super().format_help(ctx, formatter)

    return ListingCommand


def _plain(text: str) -> str:
    """Escape text so that Markdown renders it verbatim."""
    return re.sub(r"([<_*\[])", r"\\\1", text.replace("`", ""))
