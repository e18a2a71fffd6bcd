"""The ``dcs`` command: one module per group of commands, errors on one line."""

from __future__ import annotations

import sys

import typer

from workflows.cli import (
    check,
    doctor,
    failures,
    plugins,
    reproduce,
    results,
    runs,
    scoring,
    sweeps,
    tables,
)

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

_OWN, _MODELS, _AFTER = "Your own class probabilities", "Models and sweeps", "What came of it"
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command("quickstart")(sweeps.quickstart)
app.command("doctor")(doctor.doctor)
app.command("new-plugin")(plugins.new_plugin)
_FORMATS = plugins.listing("FORMAT is one of:", "dcs.importers")
_METHODS = plugins.listing("--method is one of:", "dcs.methods", but=("icl", "contextual"))
_ENGINES = plugins.listing("--engine is one of:", "dcs.engines")
app.command("import", cls=_FORMATS, rich_help_panel=_OWN)(tables.import_)
app.command("tune", cls=_METHODS, rich_help_panel=_OWN)(tables.tune)
app.command("pick", rich_help_panel=_OWN)(tables.pick)
app.command("evaluate", rich_help_panel=_OWN)(tables.evaluate)
app.command("apply", rich_help_panel=_OWN)(tables.apply)
app.command("check", rich_help_panel=_OWN)(check.check)
app.command("generate", cls=_ENGINES, rich_help_panel=_MODELS)(scoring.generate)
app.command("sweep", rich_help_panel=_MODELS)(sweeps.sweep)
app.command("submit", context_settings=_PASSED_ON, rich_help_panel=_MODELS)(sweeps.submit)
app.add_typer(scoring.tasks, name="tasks", rich_help_panel=_MODELS)
app.command("runs", rich_help_panel=_AFTER)(runs.runs)
app.command("ui", rich_help_panel=_AFTER)(results.ui)
app.command("report", rich_help_panel=_AFTER)(results.report)
app.command("table", rich_help_panel=_AFTER)(results.table)
app.command("compare", rich_help_panel=_AFTER)(results.compare)
app.command("reproduce", rich_help_panel=_AFTER)(reproduce.reproduce)
app.command("register", rich_help_panel=_AFTER)(results.register_model)
app.command("sync", rich_help_panel=_AFTER)(sweeps.sync)


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
    failures.STOP.listen()
    failures.prepare_output()
    try:
        # Its own way to end would print a box of several lines for a mistyped option.
        sys.exit(app(arguments, prog_name="dcs", standalone_mode=False))
    except failures.USER_ERRORS as error:
        if debug:
            raise
        typer.echo(f"dcs: error: {failures.explained(error)}", err=True)
        sys.exit(2)
    except failures.USAGE_ERROR as error:
        if line := failures.usage_line(error):
            typer.echo(f"dcs: error: {line}", err=True)
        sys.exit(2)
    except typer.Abort:
        typer.echo("Aborted.", err=True)
        sys.exit(1)
    except SystemExit:
        if failures.STOP.number is None:
            raise
        typer.echo(
            "dcs: stopped; what is finished is kept, run the same command again to go on", err=True
        )
        sys.exit(128 + failures.STOP.number)
