"""Packaged and user-defined tasks, and the text of their prompts."""

from __future__ import annotations

from dcs.prompting.files import described_task_names, get_task, task_names
from dcs.prompting.prompts import (
    AnswerPrefix,
    PromptPrefix,
    chat_messages,
    last_line,
    prompt_hash,
    render_prefix,
    render_query,
)
from dcs.prompting.tasks import (
    SPLITS,
    Demonstrations,
    Example,
    Shots,
    Split,
    Task,
    parse_shots,
    select_demonstrations,
)

__all__ = [
    "SPLITS",
    "AnswerPrefix",
    "Demonstrations",
    "Example",
    "PromptPrefix",
    "Shots",
    "Split",
    "Task",
    "chat_messages",
    "described_task_names",
    "get_task",
    "last_line",
    "parse_shots",
    "prompt_hash",
    "render_prefix",
    "render_query",
    "select_demonstrations",
    "task_names",
]
