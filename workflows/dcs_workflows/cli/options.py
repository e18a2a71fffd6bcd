"""Options shared by several commands, and access to results."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

import dcs_tracking
from dcs.errors import ConfigError, redact, show
from dcs_workflows.cli.console import console, warn

if TYPE_CHECKING:
    from dcs.data.columns import Reading
    from dcs_workflows.config.sweep import SweepConfig

_Found = TypeVar("_Found")


def option(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """Return an option with the name of its value in the help, and its text there."""
    return typer.Option(*names, metavar=metavar, help=text, **more)


def flag(name: str, text: str, *short: str, **more: Any) -> Any:
    """Return an option without a value, and its text in the help."""
    return typer.Option(name, *short, help=text, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:
    """Return an argument with its name in the help, and its text there."""
    return typer.Argument(metavar=metavar, help=text, **more)


Models = Annotated[
    list[str] | None, option("MODEL", "Folder, hub id or served name; repeatable.", "--model")
]
EngineName = Annotated[
    str | None, option("NAME", "Scoring engine: transformers, vllm, openai or a plug-in.")
]
Limit = Annotated[int | None, option("ROWS", "Maximum number of texts per split.")]


def _output(value: Path) -> Path:
    """Refuse the address of an object store, which a path would make a folder of this one."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(value)):
        from dcs_workflows.cluster.connect import SHARED

        raise ConfigError(f"--output {value}: an address, not a folder; {SHARED}")
    return value


Output = Annotated[Path, option("FOLDER", "Output folder.", "--output", "-o", callback=_output)]
#: The folder option of commands that only read results.
Runs = Annotated[Path, option("FOLDER", "Output folder of the runs.", "--runs", "--output", "-o")]


def _tracking_uri(value: str | None) -> str | None:
    """Read a URI from the file of ``@FILE``."""
    from dcs.io import read_text

    if value is None or not value.startswith("@"):
        return value
    return read_text(Path(value[1:]), error=ConfigError).strip()


Settings = Annotated[
    list[str] | None,
    option(
        "KEY=VALUE",
        "Set a configuration key: tuner.trials=10, or of the engine: scoring.dtype=float32",
        "--set",
    ),
]


def _store(default: str, variable: str | None = "MLFLOW_TRACKING_URI") -> Any:
    text = f"MLflow store, or @FILE that contains its URI; by default {default}."
    return option("URI", text, "--tracking-uri", envvar=variable, callback=_tracking_uri)


TrackingUri = Annotated[str | None, _store("FOLDER/mlflow.db")]
#: Of a command that records only where it is told to.
FiguresUri = Annotated[str | None, _store("none")]
#: Of a command that moves sweeps to a store: not from the environment.
NewTrackingUri = Annotated[str | None, _store("FOLDER/mlflow.db", None)]
Data = Annotated[Path | None, option("FOLDER", "Folder with task texts: FOLDER/TASK/...")]


def _direct(parameter: typer.CallbackParam, value: bool) -> bool:
    setattr(console, "quiet" if parameter.name == "quiet" else "stderr", value)
    return value


_JSON = "Print a summary in JSON; all else goes to stderr."
#: These two direct the output of the console themselves.
AsJson = Annotated[bool, flag("--json", _JSON, callback=_direct)]
Quiet = Annotated[bool, flag("--quiet", "Print only warnings and errors.", "-q", callback=_direct)]
Read = Annotated[
    list[str] | None,
    option(
        "KEY=VALUE",
        "How columns are read, where it cannot be inferred; repeatable. Keys: label and id "
        "(a column), labels (names, from-0 or from-1), columns (A,B,... or prob_*), classes "
        "(A,B,...), values (probabilities, percent, votes, scores, log-probabilities, log2, "
        "log10, logits), separator, decimal, quoting, and filter (of lm-evaluation-harness).",
        "--read",
    ),
]


def names(text: str) -> list[str]:
    """Split names at commas and line breaks; names with a comma must be in double quotes."""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [name.strip() for row in rows for name in row]


def named_values(option: str, texts: Sequence[str] | None, *, example: str) -> dict[str, Any]:
    """Return the values of an option that is repeated as KEY=VALUE, each key once."""
    found: dict[str, Any] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or key in found:
            must = f"must be KEY=VALUE, each key once, such as {example}"
            raise ConfigError(f"{option} {show(text)}: {must}")
        found[key] = value
    return found


def reading(choices: Sequence[str] | None) -> Reading:
    """Return the reading of the values of `Read`."""
    from dcs.data.reader import as_reading

    found = named_values("--read", choices, example="label=gold")
    for key in {"columns", "classes"} & found.keys():
        found[key] = names(found[key])
    return as_reading(found, source="--read")


def recording(
    tracking_uri: str | None, config: SweepConfig, *, params: Mapping[str, Any], **options: Any
) -> dcs_tracking.Recorder:
    """Return a recorder of a sweep, with warnings printed on the terminal."""
    # A sweep of tables has no prompts.
    unused = {"models", "tasks", "shots"} if config.tables else None
    # Server addresses may contain a password.
    own = json.loads(redact(config.model_dump_json(exclude=unused)))
    return dcs_tracking.Recorder(
        tracking_uri,
        experiment=config.name,
        sweep_params={**params, **own},
        **config.tracking.model_dump(),
        warn=warn,
        process=True,
        **options,
    )


def show_report(report: dcs_tracking.RecorderReport, what: str) -> None:
    """Print what was recorded, and the address of what."""
    console.print(report.message)
    if report.address is not None:
        console.print(f"{what} {report.address}")


def place_of(output: Path, tracking_uri: str | None) -> str:
    """Return the options that point a command to the recorded results."""
    from dcs_tracking.store.client import redact_uri

    store = "" if tracking_uri is None else f" --tracking-uri {quote(redact_uri(tracking_uri))}"
    return f"--output {quote(str(output))}{store}"


def ui_command(output: Path, tracking_uri: str | None) -> str:
    """Return the command that opens MLflow, or ``MLflow's server`` if the store is a server."""
    from dcs_tracking.store.client import has_server

    if has_server(dcs_tracking.queries.store_of(output, tracking_uri)):
        return "MLflow's server"
    return f"dcs ui {place_of(output, tracking_uri)}"


def recorded(
    find: Callable[..., _Found], name: str | None, folder: Path, tracking_uri: str | None
) -> _Found:
    """Return what a function of `dcs_tracking.queries` finds in an output folder."""
    with console.status("reading the runs"):
        return find(folder, name, tracking_uri=tracking_uri)
