"""Tasks described by a YAML file: the paper's seven, and a user's own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dcs._messages import escaped
from dcs._reading import read_yaml
from dcs.errors import ConfigError
from dcs.prompting._task_reader import TaskReader
from dcs.prompting.descriptions import TaskFile
from dcs.prompting.tasks import Split, Task

__all__ = ["described_task_names", "load_task", "read_task_file"]

_FOLDER = Path(__file__).parents[1] / "assets" / "tasks"
_ORDER = ("agnews", "dbpedia", "sst5", "trec", "rte", "ddi", "pubmedqa")


@dataclass(frozen=True, slots=True)
class _Source:
    """Gives the texts; kept as values alone, so that a task can be sent to other processes."""

    file: TaskFile
    data: str | None = None

    def __call__(self, split: Split) -> tuple[Any, ...]:
        from dcs.prompting.texts import read_examples

        return read_examples(self.file, split, data=self.data)


def described_task_names() -> tuple[str, ...]:
    """Return the names of the tasks that come as a description without texts."""
    return _ORDER


def load_task(name: str, data: str | os.PathLike[str] | None = None) -> Task:
    """Return a task that a YAML file describes.

    Parameters
    ----------
    name : str
        One of :func:`described_task_names`, or the path of a YAML file.
    data : path-like, optional
        Folder that holds the files of the task, in itself or in a folder of the task's name.
        Without it, texts come from beside a user's own YAML file, or from the hub.

    Raises
    ------
    ConfigError
        If the file is not there, or a key or value in it is not allowed.
    """
    path = _FOLDER / f"{name}.yaml" if name in _ORDER else Path(name)
    file = read_task_file(path)
    if data is None and name not in _ORDER and file.files is not None and file.hub is None:
        data = path.parent
    try:
        return Task(
            name=file.name,
            title=file.title,
            classes=file.classes,
            label_words=file.label_words,
            instruction=file.instruction,
            input_prefix=file.input_prefix,
            answer_prefix=file.template.rpartition("\n")[2],
            template=file.template,
            sizes=file.sizes,
            source=_Source(file, None if data is None else os.fspath(Path(data).absolute())),
        )
    except ConfigError as error:
        raise ConfigError(f"{escaped(path)}: {error}") from None


def read_task_file(path: Path) -> TaskFile:
    """Read and check a description.

    Raises
    ------
    ConfigError
        One line: file, key, value and what is allowed.
    """
    try:
        stamp = path.stat().st_mtime_ns
    except (OSError, ValueError):
        raise ConfigError(f"{escaped(path)}: no such task file") from None
    return _parse(path, stamp)


@lru_cache(maxsize=32)
def _parse(path: Path, stamp: int) -> TaskFile:
    return TaskReader(path).task(read_yaml(path, error=ConfigError))
