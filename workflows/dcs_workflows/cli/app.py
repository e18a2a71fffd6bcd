"""The commands as one application, and the exit codes of its errors."""

from __future__ import annotations

import functools
import re
import signal
import sys
from typing import Any

import typer
import typer.main

from dcs.plugins import start_safely
from dcs_workflows.cli import console, production, results, sweeps, tables

app = typer.Typer(
    name="dcs",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Correct class probabilities for fairer class accuracies: search on all CPUs and GPUs, "
    "record in MLflow.\n\nTo get started, run `dcs quickstart`. For your own class "
    "probabilities in a file such as rows.csv, run `dcs tune rows.csv`.",
)

#: Commands by the panel of the help that shows them.
_PANELS = {
    None: (sweeps.quickstart,),
    "Your own class probabilities": (
        *(tables.tune, tables.pick, tables.evaluate, tables.apply),
        *(production.check, production.shares, production.export),
    ),
    "Models and sweeps": (sweeps.generate, production.predict, sweeps.sweep),
    "Results": (
        *(results.runs, results.ui, results.report, results.compare),
        *(results.rm, results.register, sweeps.sync),
    ),
}
#: A password in the address of a server or database, and what is said of it.
_PASSWORD = re.compile(r"\w://[^/@:\s]*:[^/@\s]+@")
_VISIBLE = (
    "others on this machine can see the password in the command; set MLFLOW_TRACKING_URI or "
    "DCS_OPTUNA_STORAGE, or give it in a file"
)

for panel, commands in _PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(sweeps.tasks, name="tasks", rich_help_panel="Models and sweeps")


def _show_version(requested: bool) -> None:
    if not requested:
        return
    from dcs_tracking.environment import installed_version

    typer.echo(f"dcs {installed_version()}")
    raise typer.Exit


@app.callback()
def _root(
    debug: bool = typer.Option(
        False, "--debug", help="Show the traceback of a user error; accepted anywhere."
    ),
    version: bool = typer.Option(
        False, "--version", help="Show the version.", callback=_show_version, is_eager=True
    ),
) -> None:
    pass


@functools.cache
def _command() -> Any:
    """Return all commands as one; tests run it many times in a process."""
    return typer.main.get_command(app)


def run() -> None:
    """Run the command of this process, and end it with the exit code."""
    debug = "--debug" in sys.argv[1:]
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    start_safely()
    console.STOP.listen()
    try:
        console.prepare_output()
        if any(map(_PASSWORD.search, arguments)):
            typer.echo(f"dcs: warning: {_VISIBLE}", err=True)
        # Typer's standalone mode would print usage errors in a box of several lines.
        sys.exit(_command()(arguments, prog_name="dcs", standalone_mode=False))
    except console.USER_ERRORS as error:
        if debug:
            raise
        typer.echo(f"dcs: error: {console.explained(error)}", err=True)
        sys.exit(2)
    except console.USAGE_ERROR as error:
        if line := console.usage_line(error):
            typer.echo(f"dcs: error: {line}", err=True)
        sys.exit(2)
    except typer.Abort:
        typer.echo("Aborted.", err=True)
        sys.exit(1)
    except (SystemExit, KeyboardInterrupt) as ended:
        # While Ray starts, its own handler is in place, which exits with the signal's number.
        if getattr(ended, "code", None) == signal.SIGTERM:
            console.STOP.number = signal.SIGTERM
        if console.STOP.number is None:
            raise
        typer.echo(
            "dcs: stopped; finished work is saved, run the same command to continue", err=True
        )
        sys.exit(128 + console.STOP.number)
