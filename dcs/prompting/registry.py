"""Tasks by name: the generated ones, the paper's, a user's own."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from dcs.errors import ConfigError
from dcs.messages import escaped, suggest
from dcs.prompting.generated import GENERATED, generated_task
from dcs.prompting.task_files import DESCRIBED, described_task_path, read_task_file
from dcs.prompting.tasks import Task
from dcs.prompting.texts import read_examples

__all__ = ["described_task_names", "get_task", "register_task", "task_names"]

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
    return DESCRIBED


def get_task(name: str, data: str | os.PathLike[str] | None = None) -> Task:
    """Return a task.

    Parameters
    ----------
    name : str
        A built-in or registered task, one of the paper's seven, or the path of a YAML file that
        describes a task.
    data : path-like, optional
        Folder that holds the texts of a described task, in itself or in a folder of the task's
        name. Without it, texts come from beside a user's own YAML file, or from the hub.
        Built-in tasks need none and take no notice of it.

    Raises
    ------
    ConfigError
        If there is no such task, names the allowed ones; if its file is malformed. Whether its
        texts can be read shows when they are asked for.
    """
    if name in GENERATED:
        return generated_task(name)
    if name in _registered:
        return _registered[name]
    if name in DESCRIBED:
        return _described(described_task_path(name), data)
    if name.endswith((".yaml", ".yml")):
        return _described(Path(name), data, beside=True)
    names = (*task_names(), *DESCRIBED)
    raise ConfigError(
        f"unknown task {name!r}{suggest(name, names)}: allowed are {', '.join(names)}, or the "
        "path of a task YAML"
    )


def _described(path: Path, data: str | os.PathLike[str] | None, *, beside: bool = False) -> Task:
    file = read_task_file(path)
    if data is None and beside and file.files is not None and file.hub is None:
        data = path.parent
    folder = None if data is None else os.fspath(Path(data).absolute())
    try:
        return Task(
            name=file.name,
            title=file.title or file.name,
            classes=file.classes,
            label_words=file.label_words or file.classes,
            instruction=file.instruction,
            input_prefix=file.input_prefix,
            answer_prefix=file.answer_prefix,
            template=file.template,
            sizes=tuple(file.sizes.items()),
            source=partial(read_examples, file, data=folder),
        )
    except ConfigError as error:
        raise ConfigError(f"{escaped(path)}: {error}") from None
