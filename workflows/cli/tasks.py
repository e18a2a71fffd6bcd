"""``dcs tasks``: the tasks there are, and their prompts."""

from __future__ import annotations

from typing import Annotated

import typer

from workflows.cli._options import Data

__all__ = ["group"]

group = typer.Typer(help="List the tasks, or show a prompt.", invoke_without_command=True)


@group.callback()
def list_tasks(context: typer.Context) -> None:
    """List the tasks."""
    if context.invoked_subcommand is not None:
        return
    from dcs.prompting import SPLITS, described_task_names, get_task, task_names
    from workflows.cli._console import console, new_table

    table = new_table("task ", "classes ", "optimization", "test", "about ")
    at_hand = task_names()
    for name in (*at_hand, *described_task_names()):
        task = get_task(name)
        sizes = dict(task.sizes)
        if name in at_hand:
            sizes = {str(split): len(task.examples(split)) for split in SPLITS}
        table.add_row(
            name,
            ", ".join(task.classes),
            *(str(sizes[split]) if split in sizes else "?" for split in SPLITS),
            task.title,
        )
    console.print(table)
    console.print(
        f"{', '.join(described_task_names())} come without texts: give their folder with "
        "[bold]--data DIR[/bold]; a task of your own is a YAML file, given by its path",
        soft_wrap=True,
    )
    console.print("next: [bold]dcs tasks show NAME --shots N[/bold] prints a prompt")


@group.command()
def show(
    name: Annotated[
        str,
        typer.Argument(metavar="TASK", help="Name of a task (see dcs tasks), or a YAML file."),
    ],
    shots: Annotated[
        str, typer.Option(metavar="K", help="Demonstrations: 0, 1, 5, ... or N, one per class.")
    ] = "1",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the demonstrations.")] = 0,
    data: Data = None,
    row: Annotated[int, typer.Option(min=0, help="Which test text to ask about.")] = 0,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Count the tokens of this model; only its tokenizer loads.",
        ),
    ] = "tiny_lm",
) -> None:
    """Print a prompt exactly as the model reads it, and what it is to answer."""
    from dcs.errors import ConfigError
    from dcs.prompting import (
        get_task,
        parse_shots,
        render_prefix,
        render_query,
        select_demonstrations,
    )
    from workflows.cli._console import console

    task = get_task(name, data)
    demonstrations = select_demonstrations(task, parse_shots(shots), seed=seed)
    texts = task.examples("test")
    if row >= len(texts):
        raise ConfigError(f"--row {row}: task {task.name!r} has {len(texts)} test texts, from 0")
    example = texts[row]
    prompt = render_prefix(task, demonstrations) + render_query(task, example.text)
    typer.echo(prompt)
    console.rule(style="dim")
    lines = [
        f"label words: {', '.join(task.label_words)}",
        f"gold label: {task.classes[example.label]}",
        f"demonstrations: {', '.join(e.id for e in demonstrations.examples) or 'none'}",
        *_tokens(model, prompt, task.label_words),
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _tokens(model: str, prompt: str, label_words: tuple[str, ...]) -> list[str]:
    """Return how long the prompt is for a model, and how it would read the label words."""
    from dcs.errors import ScoringError
    from dcs.scoring.label_words import label_token_ids
    from dcs.scoring.models import light_tokenizer

    tokenizer = light_tokenizer(model)
    ids = tokenizer.encode(prompt)
    first = tokenizer.describe(ids[0]) if ids else ""
    start = "" if not ids or prompt.startswith(first) else f", the start token {first!r} included"
    lines = [f"tokens of {model}: {len(ids)} in the prompt{start}"]
    for rule in ("mean", "joint"):
        try:
            found = label_token_ids(
                prompt,
                label_words,
                encode=tokenizer.encode,
                describe=tokenizer.describe,
                rule="mean" if rule == "mean" else "joint",
            )
        except ScoringError as error:
            lines.append(f"not by the rule {rule}: {error}")
            continue
        words = (" ".join(repr(tokenizer.describe(token)) for token in word) for word in found)
        return [*lines, f"label tokens ({rule}): {', '.join(words)}"]
    return lines
