"""Tasks, demonstrations and the text of prompts."""

from __future__ import annotations

from dcs.prompting.registry import described_task_names, get_task, register_task, task_names
from dcs.prompting.tasks import SPLITS, Example, Split, Task
from dcs.prompting.templates import (
    Demonstrations,
    Shots,
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
