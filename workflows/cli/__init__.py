"""The ``dcs`` command: one module per group of commands, errors on one line."""

from __future__ import annotations

import functools
import sys

import typer

from workflows.cli import console, installation, results, scoring, sweeps, tables

__all__ = ["app", "main"]

app = typer.Typer(
    name="dcs",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Fairer class accuracies from class probabilities, searched for on all your CPUs and "
    "GPUs and recorded in MLflow.\n\nNew here? Type `dcs quickstart`. With class probabilities "
    "of your own: `dcs import npz FILE -o table.parquet`, then `dcs tune table.parquet`.",
)

_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
_FORMATS = installation.listing("FORMAT is one of:", "dcs.importers")
_METHODS = installation.listing("--method is one of:", "dcs.methods", but=("icl", "contextual"))
_ENGINES = installation.listing("--engine is one of:", "dcs.engines")

app.command()(sweeps.quickstart)
app.command()(installation.doctor)
app.command()(installation.new_plugin)
_own = functools.partial(app.command, rich_help_panel="Your own class probabilities")
_own("import", cls=_FORMATS)(tables.import_)
_own(cls=_METHODS)(tables.tune)
_own()(tables.pick)
_own()(tables.evaluate)
_own()(tables.apply)
_own()(tables.check)
_models = functools.partial(app.command, rich_help_panel="Models and sweeps")
_models(cls=_ENGINES)(scoring.generate)
_models()(sweeps.sweep)
_models(context_settings=_PASSED_ON)(sweeps.submit)
app.add_typer(scoring.tasks, name="tasks", rich_help_panel="Models and sweeps")
_after = functools.partial(app.command, rich_help_panel="What came of it")
_after()(results.runs)
_after()(results.ui)
_after()(results.report)
_after()(results.table)
_after()(results.compare)
_after()(results.reproduce)
_after()(results.register)
_after()(sweeps.sync)


def _show_version(asked: bool) -> None:
    if not asked:
        return
    from tracking.environment import git_commit, installed_version

    commit = git_commit()
    typer.echo(f"dcs {installed_version()}" + (f" (commit {commit[:12]})" if commit else ""))
    raise typer.Exit


@app.callback()
def _root(
    debug: bool = typer.Option(
        False, "--debug", help="Show the traceback of an expected error; works anywhere."
    ),
    version: bool = typer.Option(
        False,
        "--version",
        help="Show the version, and the commit in a checkout.",
        callback=_show_version,
        is_eager=True,
    ),
) -> None:
    pass


def main() -> None:
    """Run the command line: exit code 2 and one line for a user-correctable error."""
    debug = "--debug" in sys.argv[1:]
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    console.STOP.listen()
    console.prepare_output()
    try:
        # Its own way to end would print a box of several lines for a mistyped option.
        sys.exit(app(arguments, prog_name="dcs", standalone_mode=False))
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
    except SystemExit:
        if console.STOP.number is None:
            raise
        typer.echo(
            "dcs: stopped; what is finished is kept, run the same command again to go on", err=True
        )
        sys.exit(128 + console.STOP.number)
