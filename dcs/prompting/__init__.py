"""Tasks by name (the generated ones, the paper's, a user's own), and the text of their prompts."""

from __future__ import annotations

import os
from pathlib import Path

from dcs.errors import ConfigError
from dcs.messages import suggest
from dcs.prompting.files import DESCRIBED, described_task, read_task_file
from dcs.prompting.generated import GENERATED, generated_task
from dcs.prompting.tasks import (
    SPLITS,
    Demonstrations,
    Example,
    Shots,
    Split,
    Task,
    parse_shots,
    prompt_hash,
    render_prefix,
    render_query,
    select_demonstrations,
)

__all__ = [
    "SPLITS",
    "Demonstrations",
    "Example",
    "Shots",
    "Split",
    "Task",
    "described_task_names",
    "get_task",
    "parse_shots",
    "prompt_hash",
    "register_task",
    "render_prefix",
    "render_query",
    "select_demonstrations",
    "task_names",
]

_YAML = (".yaml", ".yml")

_registered: dict[str, Task] = {}


def register_task(task: Task) -> None:
    """Make a task known by its name, so that :func:`get_task` finds it.

    Raises
    ------
    ConfigError
        If another task has that name.
    """
    if task.name in (*task_names(), *DESCRIBED) and _registered.get(task.name) != task:
        raise ConfigError(f"task {task.name!r} exists already; give the new task another name")
    _registered[task.name] = task


def task_names() -> tuple[str, ...]:
    """Return the names of the tasks whose texts are at hand, the built-in ones first."""
    return (*GENERATED, *_registered)


def described_task_names() -> tuple[str, ...]:
    """Return the names of the tasks that come as a description without texts."""
    return tuple(DESCRIBED)


def get_task(name: str, data: str | os.PathLike[str] | None = None) -> Task:
    """Return a task.

    Parameters
    ----------
    name : str
        A built-in or registered task, one of the paper's seven, or the path of a YAML file that
        describes a task; a variant of a described prompt follows an ``@``: ``trec@published``.
    data : path-like, optional
        Folder that holds the texts of a described task, in itself or in a folder of the task's
        name. Without it, texts come from beside a user's own YAML file, or from the hub.
        Built-in tasks need none and take no notice of it.

    Raises
    ------
    ConfigError
        If there is no such task or variant, names the allowed ones; if its file is malformed.
        Whether its texts can be read shows when they are asked for.
    """
    if name in GENERATED:
        return generated_task(name)
    if name in _registered:
        return _registered[name]
    base, variant = name, ""
    if "@" in name and not name.endswith(_YAML):
        base, _, variant = name.rpartition("@")
    folder = None if data is None else os.fspath(Path(data).absolute())
    if base in DESCRIBED:
        return described_task(DESCRIBED[base], data=folder, variant=variant)
    if base.endswith(_YAML):
        path = Path(base)
        file = read_task_file(path)
        if folder is None and file.files is not None and file.hub is None:
            folder = os.fspath(path.parent.absolute())
        return described_task(path, data=folder, variant=variant)
    names = (*task_names(), *DESCRIBED)
    raise ConfigError(
        f"unknown task {name!r}{suggest(name, names)}: allowed are {', '.join(names)}, or the "
        "path of a task YAML"
    )
