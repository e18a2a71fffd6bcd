"""Tasks by name (those that come along, a user's own), and the text of their prompts."""

from __future__ import annotations

import os
from pathlib import Path

from dcs.messages import unknown
from dcs.prompting.files import DESCRIBED, PACKAGED, described_task
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
    "render_prefix",
    "render_query",
    "select_demonstrations",
    "task_names",
]

_YAML = (".yaml", ".yml")


def task_names() -> tuple[str, ...]:
    """Return the names of the tasks whose texts come with the package."""
    return tuple(PACKAGED)


def described_task_names() -> tuple[str, ...]:
    """Return the names of the tasks that come as a description without texts."""
    return tuple(DESCRIBED)


def get_task(name: str, data: str | os.PathLike[str] | None = None) -> Task:
    """Return a task.

    Parameters
    ----------
    name : str
        A built-in task, one of the paper's seven, or the path of a YAML file that describes a
        task; a variant of a described prompt follows an ``@``: ``trec@published``.
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
    known = PACKAGED | DESCRIBED
    base, variant = name, ""
    if "@" in name and not name.endswith(_YAML):
        base, _, variant = name.rpartition("@")
    if base in known or base.endswith(_YAML):
        return described_task(known.get(base, Path(base)), data=data, variant=variant)
    raise unknown("task", name, known, ", or the path of a task YAML")
