"""``dcs tasks``: the tasks there are, and their prompts."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="List the tasks, or show a prompt.", invoke_without_command=True)
    group.callback()(list_tasks)
    group.command("show")(show)
    app.add_typer(group, name="tasks")


def list_tasks(context: typer.Context) -> None:
    """List the tasks."""
    if context.invoked_subcommand is not None:
        return
    from dcs.prompting import get_task, task_names
    from workflows.cli._console import console, new_table

    table = new_table("task ", "classes ", "optimization", "test", "about ")
    for name in task_names():
        task = get_task(name)
        table.add_row(
            name,
            ", ".join(task.classes),
            str(len(task.examples("optimization"))),
            str(len(task.examples("test"))),
            task.title,
        )
    console.print(table)
    console.print("next: [bold]dcs tasks show NAME --shots N[/bold] prints a prompt")


def show(
    name: Annotated[str, typer.Argument(help="Name of a task; see dcs tasks.")],
    shots: Annotated[
        str, typer.Option(help="Demonstrations: 0, 1, 5, ... or N for one per class.")
    ] = "1",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the demonstrations.")] = 0,
) -> None:
    """Print a prompt exactly as the model reads it, and what it is to answer."""
    from dcs.prompting import (
        get_task,
        parse_shots,
        render_prefix,
        render_query,
        select_demonstrations,
    )
    from workflows.cli._console import console

    task = get_task(name)
    demonstrations = select_demonstrations(task, parse_shots(shots), seed=seed)
    example = task.examples("test")[0]
    typer.echo(render_prefix(task, demonstrations) + render_query(task, example.text))
    console.rule(style="dim")
    console.print(f"label words: {', '.join(task.label_words)}", highlight=False)
    console.print(f"gold label: {task.classes[example.label]}", highlight=False)
